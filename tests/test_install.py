"""Installing and registering: metadata without torch, `--user-dir` in every form, the README's own commands."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import fairseq_entmax
from fairseq_entmax import compat_fairseq

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "fairseq_entmax"

# Imports fairseq once, then parses a command line in one fork for each case `[name, cwd, path, first, arguments]`:
# as many fresh processes as cases, for the price of one. `first` is imported before the arguments are read.
FORKS = """
import json, os, sys
from fairseq import options
for name, cwd, path, first, arguments in json.loads(sys.argv[1]):
    sys.stdout.flush()
    if os.fork():
        os.wait()
        continue
    os.chdir(cwd)
    sys.path[:0] = path
    sys.argv = ["fairseq-train", *arguments]
    if first:
        __import__(first)
    args = options.parse_args_and_arch(options.get_training_parser())
    print(name, "parsed", args.task, args.arch, args.criterion, sys.modules["fairseq_entmax"].__path__[0])
    sys.stdout.flush()
    os._exit(0)
"""
SETTINGS = ["data", "--task", "translation_entmax", "--arch", "lstm_entmax", "--criterion", "entmax15"]


def python(code, *arguments, cwd, path=(PACKAGE.parent,)):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run([sys.executable, "-c", code, *arguments], cwd=cwd, env=env, capture_output=True, text=True)


def readme_block(marker):
    """The fenced block after a marker line of the README."""
    found = re.search(rf"<!-- {re.escape(marker)} -->\n```\w+\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found, f"README.md: no block after <!-- {marker} -->"
    return found.group(1)


def test_case_60_metadata_needs_nothing_but_setuptools(tmp_path):
    """torch, numpy and fairseq cannot be imported while setup.py runs."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'numpy', 'fairseq', 'fairseq_entmax']))\n"
        f"sys.argv = ['setup.py', '--version']; exec(compile(open({str(ROOT / 'setup.py')!r}).read(), "
        f"{str(ROOT / 'setup.py')!r}, 'exec'), {{'__file__': {str(ROOT / 'setup.py')!r}, '__name__': '__main__'}})"
    )
    done = python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == fairseq_entmax.__version__


def test_case_60_the_wheel_holds_licence_and_package_and_no_tests(tmp_path):
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    files = [source for source in PACKAGE.rglob("*") if source.is_file() and source.suffix != ".pyc"]
    for source in files:
        target = copy / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    done = subprocess.run([*pip, "--wheel-dir", str(tmp_path), str(copy)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"fairseq_entmax-{fairseq_entmax.__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("LICENSE") for name in names)
    assert {str(source.relative_to(ROOT)) for source in files} <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"fairseq_entmax"}


def test_case_8_each_python_gets_the_fairseq_that_works_on_it():
    requirements = re.findall(r'"([^"]*fairseq==[^"]*)"', (ROOT / "setup.py").read_text())
    assert requirements == ["ve-fairseq==0.12.3; python_version>='3.11'", "fairseq==0.12.2; python_version<'3.11'"]
    assert 'python_requires=">=3.9,<3.13"' in (ROOT / "setup.py").read_text()


def installed_copy(folder):
    """The package as `pip install` lays it: importable, and somewhere else than the checkout."""
    for source in PACKAGE.rglob("*.py"):
        target = folder / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    return folder


@pytest.fixture(scope="module")
def parsed(tmp_path_factory):
    """What a command line with `--user-dir` in some form came to, by the name of the form."""
    folder = tmp_path_factory.mktemp("forms")
    site, here, parent = str(installed_copy(folder / "site")), str(folder), [str(PACKAGE.parent)]
    printed = [sys.executable, "-m", "fairseq_entmax", "user-dir"]
    printed = subprocess.run(printed, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    cases = [
        ("installed elsewhere too", here, [site], "", str(PACKAGE)),
        ("installed there", here, [site], "", f"{site}/fairseq_entmax"),
        ("imported before", here, parent, "fairseq_entmax", str(PACKAGE)),
        ("trailing slash", here, [], "", f"{PACKAGE}/"),
        ("relative", str(ROOT / "tests"), [], "", "../fairseq_entmax"),
        ("printed by user-dir", here, parent, "fairseq_entmax", printed),
    ]
    cases = [(name.replace(" ", "_"), *rest, ["--user-dir", form, *SETTINGS]) for name, *rest, form in cases]
    done = python(FORKS, json.dumps(cases), cwd=folder, path=())
    return {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if " parsed " in line}, done.stderr


@pytest.mark.parametrize(
    "form",
    [
        "installed elsewhere too",
        "installed there",
        "imported before",
        "trailing slash",
        "relative",
        "printed by user-dir",
    ],
)
def test_case_21_every_form_of_user_dir_registers_once(form, parsed):
    lines, errors = parsed
    assert form.replace(" ", "_") in lines, errors
    *words, folder = lines[form.replace(" ", "_")]
    assert words == ["parsed", "translation_entmax", "lstm_entmax", "entmax15"]
    assert (Path(folder) == PACKAGE) == (form != "installed there")


def test_cases_22_and_74_one_import_registers_everything_and_starts_nothing(tmp_path):
    """No kernel compiler, no CUDA, no reading of the command line."""
    code = (
        "import sys, torch; sys.argv = ['anything', '--no-such-option']\n"
        "import fairseq_entmax\n"
        "from fairseq.models import ARCH_MODEL_REGISTRY\n"
        "from fairseq.tasks import TASK_REGISTRY\n"
        "from fairseq.criterions import CRITERION_REGISTRY\n"
        "from fairseq.scoring import SCORER_REGISTRY\n"
        "assert {'lstm_entmax', 'lstm_entmax_inflection', 'lstm_entmax_translation'} <= set(ARCH_MODEL_REGISTRY)\n"
        "assert 'translation_entmax' in TASK_REGISTRY and 'word_accuracy' in SCORER_REGISTRY\n"
        "assert {'entmax15', 'sparsemax', 'entmax'} <= set(CRITERION_REGISTRY)\n"
        "assert not torch.cuda.is_initialized() and 'triton.compiler' not in sys.modules\n"
    )
    done = python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_mappings_work_without_fairseq(tmp_path):
    code = "import sys; sys.modules['fairseq'] = None\n" + readme_block("test: python")
    done = python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"0\.0000e?\+?0*, 0\.0000e?\+?0*\]\]", done.stdout), done.stdout


def test_readme_start_trains_and_decodes(tmp_path):
    """The README's ten lines, on a toy corpus and for one epoch."""
    (tmp_path / "data").mkdir()
    for part, size in (("train", 40), ("valid", 5), ("test", 5)):
        lines = [" ".join("abcd"[(i * k) % 4] for k in range(1, 2 + i % 4)) + "\n" for i in range(size)]
        for side in ("src", "tgt"):
            (tmp_path / "data" / f"{part}.{side}").write_text("".join(lines))
    commands = readme_block("test: start").replace("--max-epoch 20", "--max-epoch 1")
    assert "--max-epoch 1" in commands
    env = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    env["PYTHONPATH"] = str(PACKAGE.parent)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len((tmp_path / "certificates.jsonl").read_text().splitlines()) == 5


def test_ci_runs_the_readme_set_up_and_tests():
    script = (ROOT / ".ci" / "run").read_text()
    assert "run_block set-up" in script and "run_block tests" in script and os.access(ROOT / ".ci" / "run", os.X_OK)
    assert "pip install -e '.[test]' -c constraints.txt" in readme_block("ci: set-up")
    assert ".venv/bin/python -m pytest" in readme_block("ci: tests")


@pytest.mark.parametrize("buckets", [0, 4])
def test_case_61_batch_buckets_are_refused_where_numpy_2_breaks_them(buckets):
    if buckets == 0 or int(np.__version__.split(".")[0]) < 2:
        compat_fairseq.check_batch_buckets(buckets)
    else:
        with pytest.raises(ValueError, match="--num-batch-buckets: wanted 0.*got 4"):
            compat_fairseq.check_batch_buckets(buckets)


def test_transformer_layers_are_kept_off_the_crashing_fast_path():
    """fairseq 0.12.2 takes torch's fused path in inference, which stops on padded batches; later fairseq has none."""
    import torch
    from fairseq.models.transformer import TransformerConfig
    from fairseq.modules.transformer_layer import TransformerEncoderLayerBase

    cfg = TransformerConfig()
    cfg.encoder.embed_dim, cfg.encoder.ffn_embed_dim, cfg.encoder.attention_heads = 8, 8, 2
    layer = TransformerEncoderLayerBase(cfg).eval()
    assert compat_fairseq.avoid_transformer_fast_path() == hasattr(layer, "can_use_fastpath")
    assert not getattr(layer, "can_use_fastpath", False)
    padding = torch.tensor([[False, False, False], [False, True, True]])
    with torch.no_grad():
        output = layer(torch.rand(3, 2, 8), padding)
    assert output.shape == (3, 2, 8) and torch.isfinite(output).all()


def test_no_module_of_ops_imports_fairseq():
    for source in (PACKAGE / "ops").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) fairseq\b", source.read_text(), re.MULTILINE), source
