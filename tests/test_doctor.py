"""`python -m fairseq_entmax`: the folder for `--user-dir`, and a doctor that speaks where fairseq is broken or gone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fairseq_entmax
from fairseq_entmax import checkpoints, doctor
from fairseq_entmax.__main__ import main

PACKAGE = Path(fairseq_entmax.__file__).resolve().parent

# Runs `python -m fairseq_entmax ARGUMENTS` where importing the modules named in the first argument finds nothing.
WITHOUT = """
import runpy, sys
absent, sys.argv = sys.argv[1].split(","), ["-m", *sys.argv[2:]]
sys.modules.update(dict.fromkeys(absent))
runpy.run_module("fairseq_entmax", run_name="__main__", alter_sys=False)
"""


def run(*arguments, cwd, path=(), code=None, **env):
    command = [sys.executable, *(["-c", code] if code else ["-m", "fairseq_entmax"]), *arguments]
    path = os.pathsep.join([*map(str, path), str(PACKAGE.parent)])
    env = {**os.environ, "PYTHONPATH": path, **env}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)


def fake_package(folder, name, code):
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code)
    return folder


def test_user_dir_prints_the_folder_and_nothing_else(tmp_path):
    done = run("user-dir", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{PACKAGE}\n", "")


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["doktor"], "invalid choice: 'doktor'"),
        ([], "required: COMMAND"),
        (["doctor", "--x"], "unrecognized arguments"),
    ],
    ids=["unknown", "none", "option"],
)
def test_a_mistyped_command_gives_one_line(arguments, says, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert says in err and err.count("\n") == 1


def test_doctor_is_content_here(tmp_path):
    done = run("doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for word in (
        "python",
        "torch",
        "fairseq",
        "numpy",
        "hydra-core",
        "omegaconf",
        "sacrebleu",
        "sentencepiece",
        "triton",
        "matplotlib",
        "Jinja2",
        "backend",
        "checkpoints      load",
        "registration     works",
        "batches",
    ):
        assert word in done.stdout
    assert done.stdout.rstrip().endswith("All is well.")


def test_case_7_doctor_speaks_when_fairseq_cannot_be_imported(tmp_path):
    broken = fake_package(tmp_path, "fairseq", "raise ValueError('mutable default ... use default_factory')")
    done = run("doctor", cwd=tmp_path, path=[broken])
    assert done.returncode == 1 and "Traceback" not in done.stderr
    last = done.stdout.rstrip().splitlines()[-1]
    assert last.startswith("Unusable: fairseq cannot be imported (ValueError: mutable default")
    assert "pip install" in last


@pytest.mark.parametrize("absent", ["fairseq", "fairseq,torch,numpy"])
def test_doctor_speaks_when_packages_are_absent(absent, tmp_path):
    done = run(absent, "doctor", cwd=tmp_path, code=WITHOUT)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    first = absent.split(",")[-2:][0]  # without torch and numpy, fairseq is not tried
    assert f"Unusable: {first} " in done.stdout.splitlines()[-1]


def test_case_7_doctor_says_when_fairseq_is_only_half_there(tmp_path, monkeypatch, capsys):
    """A fairseq that imports but lacks what is needed of it."""
    monkeypatch.setattr(doctor, "dropped_sentences", lambda: 1 / 0)
    report = doctor.Report()
    doctor.check_fairseq(report)
    assert len(report.problems) == 1 and "fairseq cannot form batches (ZeroDivisionError" in report.problems[0]


def test_doctor_says_when_registration_fails(monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(doctor.sys, "executable", "false")
    monkeypatch.setattr(doctor, "dropped_sentences", lambda: 0)
    report = doctor.Report()
    doctor.check_fairseq(report)
    assert report.problems == ["Registering with fairseq fails (exit status 1): please report this."]


def test_doctor_warns_of_two_fairseq_distributions(monkeypatch, capsys):
    versions = {"fairseq": "0.12.2", "ve-fairseq": "0.12.3"}
    monkeypatch.setattr(doctor, "installed", lambda name: versions.get(name, None if "fairseq" in name else "1.0"))
    doctor.check_versions(doctor.Report())
    assert "fairseq 0.12.2 and ve-fairseq 0.12.3 install the same" in capsys.readouterr().out


def backend_line(monkeypatch, choice):
    import torch

    monkeypatch.setenv("FAIRSEQ_ENTMAX_BACKEND", choice)
    report = doctor.Report()
    doctor.guarded(report, "backend", lambda: doctor.check_backend(report, torch))
    return report


def test_doctor_refuses_a_backend_that_is_none(monkeypatch, capsys):
    """Every op would stop at once."""
    report = backend_line(monkeypatch, "cuda")
    assert len(report.problems) == 1 and "must be one of auto, torch, triton, got 'cuda'" in report.problems[0]


def test_doctor_says_why_kernels_that_were_asked_for_are_not_used(monkeypatch, capsys):
    from fairseq_entmax.ops import backend

    for reason, used in (("they are on strike", "torch"), (None, "triton")):
        monkeypatch.setattr(backend, "reason_against", lambda *args, reason=reason: reason)
        assert backend_line(monkeypatch, "triton").problems == []
        printed = capsys.readouterr().out
        assert f"backend          {used} on " in printed
        assert ("in place of the kernels, because they are on strike." in printed) == (reason is not None)
    for wanted, used in ((False, "torch"), (True, "triton")):  # `auto` asks the rule of the ops
        monkeypatch.setattr(backend, "wants_kernels", lambda choice, device, wanted=wanted: wanted)
        backend_line(monkeypatch, "auto")
        assert f"backend          {used} on " in capsys.readouterr().out


def test_doctor_names_a_missing_requirement(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "installed", lambda name: None if name == "sacrebleu" else "1.0")
    report = doctor.Report()
    doctor.check_versions(report)
    assert len(report.problems) == 1 and report.problems[0].startswith("sacrebleu is missing")


def test_doctor_notices_when_loading_is_not_restricted(monkeypatch, capsys):
    """Either torch is too old to refuse anything, or somebody has switched the restriction off."""
    import torch

    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    report = doctor.Report()
    doctor.check_checkpoints(report, torch)
    if checkpoints.torch_loads_safely():
        assert len(report.problems) == 1 and "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD is set" in report.problems[0]
    else:
        assert not report.problems and "runs whatever a checkpoint file tells it to" in capsys.readouterr().out


@pytest.mark.parametrize("multiple_of_eight_only", [True, False])
def test_doctor_tells_whether_this_fairseq_drops_sentences(multiple_of_eight_only, monkeypatch, capsys):
    from fairseq.data import data_utils

    batches = [] if multiple_of_eight_only else [[0, 1, 2, 3, 4]]
    monkeypatch.setattr(data_utils, "batch_by_size", lambda *args, **kwargs: batches)
    assert doctor.dropped_sentences() == (5 if multiple_of_eight_only else 0)
