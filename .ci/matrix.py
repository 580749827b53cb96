#!/usr/bin/env python3
"""Installs the package into a new environment for each Python, fairseq and torch that is said to work, runs a few test
files there and prints a markdown table. Not part of every run of CI: each row takes minutes and gigabytes.

    python3 .ci/matrix.py                            # every row whose Python is found (on PATH, or pyenv)
    python3 .ci/matrix.py --only 3.10-old 3.11
    python3 .ci/matrix.py --use 3.9=/envs/py39/bin/python --use 3.11=.venv/bin/python     # environments that exist
    python3 .ci/matrix.py --tests tests/test_lstm.py

Needs nothing but the standard library. Leaves the environments of new rows in --envs, or removes them.
"""

import argparse
import datetime
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLD_PIP = "pip<24.1"  # newer ones refuse the metadata of omegaconf 2.0, which fairseq 0.12.2 wants
TESTING = ["pytest", "hypothesis", "entmax==1.3", "pyyaml"]
# Row: its Python, steps of `pip install`. The last step installs the package itself.
ROWS = {
    "3.9": ("3.9", [[OLD_PIP], ["torch==1.13.1", "torchaudio==0.13.1", "numpy<1.24", "-e", ".", *TESTING]]),
    "3.10": ("3.10", [[OLD_PIP], ["torch==1.13.1", "torchaudio==0.13.1", "numpy<1.24", "-e", ".", *TESTING]]),
    "3.10-old": (
        "3.10",
        [
            ["torch==1.12.1", "torchaudio==0.12.1", "numpy<1.24", "hydra-core==1.3.2", "omegaconf==2.3.0"],
            ["regex", "sacrebleu", "sentencepiece", "tqdm", "bitarray", "cython", "cffi", *TESTING],
            ["--no-deps", "fairseq==0.12.2"],
            ["--no-deps", "-e", "."],
        ],
    ),
    "3.11": ("3.11", [["-c", "constraints.txt", "torch", "-e", ".", *TESTING]]),
    "3.11-newest": ("3.11", [["-e", ".", *TESTING]]),
    "3.12": ("3.12", [["-e", ".", *TESTING]]),
}
TESTS = ["tests/test_layers.py", "tests/test_transformer.py", "tests/test_criterion.py", "tests/test_end_to_end.py"]
VERSIONS = """
import importlib.metadata as m
def version(*names):
    for name in names:
        try:
            return f"{name} {m.version(name)}"
        except m.PackageNotFoundError:
            pass
    return "none"
import platform
rows = [("ve-fairseq", "fairseq-fixed", "fairseq"), ("torch",), ("numpy",), ("hydra-core",)]
print(platform.python_version(), *(version(*names) for names in rows), sep="|")
"""


def find_python(version):
    found = shutil.which(f"python{version}")
    roots = [os.environ.get("PYENV_ROOT", ""), os.path.expanduser("~/.pyenv")]
    candidates = [found] + [p for r in roots if r for p in sorted(glob.glob(f"{r}/versions/{version}.*/bin/python"))]
    for python in filter(None, candidates):
        probe = subprocess.run([python, "-c", "import sys; print(*sys.version_info[:2], sep='.')"], capture_output=True)
        if probe.stdout.decode().strip() == version:
            return python
    return None


def install(python, steps, folder):
    """A new environment; returns its Python and an error or None."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    inside = str(Path(folder) / "bin" / "python")
    for step in steps:
        done = subprocess.run([inside, "-m", "pip", "install", "-q", *step], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            return inside, (done.stderr.strip().splitlines() or ["pip failed"])[-1][:100]
    return inside, None


def run_tests(python, tests):
    argv = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", *tests]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    lines = done.stdout.strip().splitlines()
    for line in lines:
        if line.startswith(("FAILED", "ERROR")):
            print(f"  {line}", file=sys.stderr)
    return (lines or [done.stderr.strip()[-100:]])[-1].strip("= ")


def row(label, given, envs, tests):
    version, steps = ROWS[label]
    start, note = time.time(), None
    python = given.get(label)
    if python is None:
        base = find_python(version)
        if base is None:
            return [label, f"python{version} not found", "", "", "", "", ""]
        python, note = install(base, steps, str(Path(envs) / label))
    took = f"{time.time() - start:.0f} s" if label not in given else "was there"
    if note:
        return [label, version, "", "", "", took, f"install failed: {note}"]
    versions = subprocess.run([python, "-c", VERSIONS], capture_output=True, text=True).stdout.strip().split("|")
    return [label, versions[0], versions[1], versions[2], ", ".join(versions[3:]), took, run_tests(python, tests)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--use", action="append", default=[], metavar="ROW=PYTHON", help="environment that exists")
    parser.add_argument("--envs", help="where new environments are made and kept (default: removed afterwards)")
    parser.add_argument("--tests", nargs="+", default=TESTS)
    args = parser.parse_args()
    given = dict(item.split("=", 1) for item in args.use)
    for label in given:
        if label not in ROWS:
            parser.error(f"--use {label}: wanted one of {', '.join(ROWS)}")
    print(f"{datetime.date.today()}, {' '.join(args.tests)}\n", flush=True)
    print("| row | Python | fairseq | torch | others | install | tests |\n" + "| --- " * 7 + "|", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for label in args.only:
            print("| " + " | ".join(row(label, given, args.envs or scratch, args.tests)) + " |", flush=True)


if __name__ == "__main__":
    main()
