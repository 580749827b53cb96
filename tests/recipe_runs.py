"""Runs the scripts of user_dir_examples: for real, or with fairseq's commands noted instead of run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Callable, Dict, List, Tuple

environment = sys.prefix  # the virtual environment of the scripts
EXAMPLES = Path(__file__).resolve().parent.parent / "user_dir_examples"

# Stands in for fairseq's commands. They make the folders they would write to; with CALLS.broken there, they fail.
NOTE = """#!/usr/bin/env bash
echo "$(basename "$0") $*" >>"$CALLS"
while (($#)); do
  case $1 in
    --destdir | --save-dir | --results-path) mkdir -p "$2" ;;
  esac
  shift
done
[[ ! -e $CALLS.broken ]]
"""
PYTHON = """#!/usr/bin/env bash
case "$*" in
  "-m fairseq_entmax user-dir") echo plugin ;;
  {cases}
  *) exec "$REAL" "$@" ;;
esac
"""


def run(name: str, *options, **env) -> subprocess.CompletedProcess:
    """Runs `name`.sh with the packages of the tests; `env` is added to the environment."""
    command = ["bash", str(EXAMPLES / f"{name}.sh"), *map(str, options)]
    env = {**os.environ, "VIRTUAL_ENV": environment, **env}
    return subprocess.run(command, env=env, capture_output=True, text=True)


def refuses(says: str, done: subprocess.CompletedProcess) -> bool:
    """Whether a run ended with one line that begins so."""
    return done.returncode == 1 and done.stderr.startswith(f"error: {says}") and done.stderr.count("\n") == 1


def noted(folder: Path, scores: Dict, cases: str) -> Callable[..., Tuple[subprocess.CompletedProcess, List[str]]]:
    """A `run` that returns the command lines of fairseq, too; it has `calls` (where they are noted) and `out`.

    Args:
        folder: DATA (unless a run is given another, or None), and where everything is written.
        scores: what the scoring scripts would find, in `$CALLS.json`.
        cases: branches of a shell `case` on the arguments of python, for the scripts that are not to run.
    """
    tools, calls, out = folder / "venv" / "bin", folder / "calls", folder / "out"
    tools.mkdir(parents=True)
    for name in ("python", "fairseq-preprocess", "fairseq-train", "fairseq-generate"):
        (tools / name).write_text(PYTHON.format(cases=cases) if name == "python" else NOTE)
        (tools / name).chmod(0o755)
    Path(f"{calls}.json").write_text(json.dumps(scores))

    def run_noted(name: str, *options, data=folder):
        calls.write_text("")
        env = {"VIRTUAL_ENV": str(folder / "venv"), "CALLS": str(calls), "REAL": sys.executable}
        done = run(name, *options, DATA=str(data or ""), OUT=str(out), **env)
        return done, calls.read_text().splitlines()

    run_noted.calls, run_noted.out = calls, out
    return run_noted


def value(line: str, name: str) -> str:
    """The value of an option of a command line; of an option given twice, the last."""
    parts = line.split()
    return parts[max(i for i, part in enumerate(parts) if part == name) + 1]
