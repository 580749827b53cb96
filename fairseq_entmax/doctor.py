"""`python -m fairseq_entmax doctor`: what is installed, what works, and in plain words what does not.

Nothing is imported before it is checked, so that the report is complete where torch or fairseq is broken or absent.
"""

import importlib
import os
import platform
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, List, Optional

from . import __version__

# Every distribution that installs the package `fairseq`.
FAIRSEQ_DISTRIBUTIONS = ("fairseq", "ve-fairseq", "fairseq-fixed")
REQUIRED = ("torch", "numpy", "hydra-core", "omegaconf", "sacrebleu", "sentencepiece")
OPTIONAL = ("triton", "matplotlib", "Jinja2")  # kernels, and the extra `report`


class Report:
    """Prints findings as they come and remembers the problems."""

    def __init__(self) -> None:
        self.problems: List[str] = []

    def line(self, name: str, text: str) -> None:
        print(f"{name:<16} {text}", flush=True)

    def warn(self, text: str) -> None:
        self.line("warning", text)

    def problem(self, text: str) -> None:
        self.line("PROBLEM", text)
        self.problems.append(text)


class _Unknown:
    """Pickles to a call that creates a file: stands for a malicious checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def one_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def installed(distribution: str) -> Optional[str]:
    """Version of a distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def wanted_fairseq() -> str:
    return "ve-fairseq==0.12.3" if sys.version_info >= (3, 11) else "fairseq==0.12.2"


def check_python(report: Report) -> None:
    report.line("fairseq-entmax", f"{__version__} in {Path(__file__).resolve().parent}")
    report.line("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    if not (3, 9) <= sys.version_info[:2] < (3, 13):
        report.problem(f"Python 3.9 to 3.12 is supported, this is {platform.python_version()}.")


def check_versions(report: Report) -> None:
    found = [(name, installed(name)) for name in FAIRSEQ_DISTRIBUTIONS]
    present = [f"{name} {version}" for name, version in found if version is not None]
    report.line("fairseq", ", ".join(present) or "not installed")
    if len(present) > 1:
        report.warn(
            f"{' and '.join(present)} install the same package over each other: "
            f"uninstall all of them, then install {wanted_fairseq()} alone."
        )
    for name in REQUIRED:
        version = installed(name)
        report.line(name, version or "not installed")
        if version is None:
            report.problem(f"{name} is missing: install this package with pip, or pip install {name}.")
    for name in OPTIONAL:
        report.line(name, installed(name) or "not installed (optional)")


def try_import(report: Report, name: str, advice: str) -> Any:
    """The imported module, or None after saying why not. Broken packages raise anything, so anything is caught."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        text = f"{name} is not installed" if error.name == name else f"{name} cannot be imported ({one_line(error)})"
        report.problem(f"{text}: {advice}")
    except Exception as error:
        report.problem(f"{name} cannot be imported ({one_line(error)}): {advice}")
    return None


def check_backend(report: Report, torch: Any) -> None:
    from .ops import backend

    devices = "CPU"
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        devices = f"CUDA ({', '.join(names)})"
    choice = backend.chosen_backend()  # a value that is none stops this check, which is a finding
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    wanted = backend.wants_kernels(choice, device)
    reason = backend.reason_against(device, torch.float32) if wanted else None
    report.line("backend", f"{'triton' if wanted and not reason else 'torch'} on {devices} ({choice} asked for)")
    if reason:
        report.warn(f"{backend.VARIABLE}={choice}: PyTorch is used in place of the kernels, because {reason}.")


def check_checkpoints(report: Report, torch: Any) -> None:
    """Round trip of a file with the types that fairseq saves, and refusal of a file that holds a call."""
    import argparse

    import numpy as np

    from . import checkpoints

    checkpoints.allow_fairseq_checkpoints()
    state = {
        "args": argparse.Namespace(arch="lstm", lr=[0.001]),
        "model": {"weight": torch.arange(3.0)},
        "extra_state": {"counts": np.arange(4), "best": np.float64(0.5), "epoch": 1},
    }
    with tempfile.TemporaryDirectory() as folder:
        good, bad, witness = (Path(folder) / name for name in ("good.pt", "bad.pt", "witness"))
        torch.save(state, good)
        try:
            loaded = torch.load(good, map_location="cpu")
            same = loaded["args"] == state["args"] and loaded["extra_state"]["counts"].tolist() == [0, 1, 2, 3]
        except Exception as error:
            report.problem(f"A fairseq checkpoint cannot be loaded ({one_line(error)}): please report this.")
            return
        if not same:
            report.problem("A fairseq checkpoint does not come back as it was saved: please report this.")
            return
        report.line("checkpoints", "load")
        if not checkpoints.torch_loads_safely():
            report.warn(
                f"torch {torch.__version__} runs whatever a checkpoint file tells it to (2.6 and later do not): "
                "load files from people you trust only."
            )
            return
        torch.save({"model": _Unknown(witness)}, bad)
        try:
            torch.load(bad, map_location="cpu")
        except Exception:
            pass
        if witness.exists():
            report.problem("A checkpoint file ran code: TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD is set, unset it.")
        else:
            report.line("foreign types", "refused in checkpoints")


def dropped_sentences() -> int:
    """How many of five sentences this fairseq's batching leaves out with its default multiple of 8."""
    import numpy as np
    from fairseq.data import data_utils

    batches = data_utils.batch_by_size(
        np.arange(5),
        lambda index: 1,
        num_tokens_vec=np.ones(5, dtype=np.int64),
        max_sentences=5,
        required_batch_size_multiple=8,
    )
    return 5 - sum(len(batch) for batch in batches)


def check_fairseq(report: Report) -> None:
    """Whether fairseq works, and whether the package registers with it (in a new process, as a command would do it)."""
    if try_import(report, "fairseq", f"pip install {wanted_fairseq()}") is None:
        return
    try:
        dropped = dropped_sentences()
    except Exception as error:
        report.problem(f"fairseq cannot form batches ({one_line(error)}): pip install {wanted_fairseq()}")
        return
    if dropped:
        report.line(
            "batches",
            "this fairseq drops the last sentences of a data set by default; --task translation_entmax loses none, "
            "other tasks need --required-batch-size-multiple 1",
        )
    else:
        report.line("batches", "no sentence is dropped")
    folder = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(part for part in (folder, os.environ.get("PYTHONPATH", "")) if part)
    done = subprocess.run(
        [sys.executable, "-c", "import fairseq_entmax"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        report.line("registration", "works")
    else:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        report.problem(f"Registering with fairseq fails ({lines[-1]}): please report this.")


def run() -> int:
    """Prints the report; 0 if everything that is needed works, else 1."""
    report = Report()
    check_python(report)
    check_versions(report)
    torch = try_import(report, "torch", "pip install torch")
    numpy = try_import(report, "numpy", "pip install numpy")
    if torch is not None:
        guarded(report, "backend", lambda: check_backend(report, torch))
    if torch is not None and numpy is not None:
        guarded(report, "checkpoint", lambda: check_checkpoints(report, torch))
        check_fairseq(report)
    if report.problems:
        print(f"\nUnusable: {report.problems[0]}")
        return 1
    print("\nAll is well.")
    return 0


def guarded(report: Report, what: str, check: Callable[[], None]) -> None:
    """Runs a check whose own failure is a finding, too."""
    try:
        check()
    except Exception as error:
        report.problem(f"The {what} check stopped ({one_line(error)}).")
