"""Result files of the recipes: one JSON object a file, with all that is needed to read and to repeat the run.

A recipe writes them; `collect.py` makes the tables of `docs/reproduction.md` from them. From a shell:

    python results.py OUT/results/NAME.json --recipe inflection --name NAME --scores scores.json --seed 1 \
        --setting alpha_output=1.5 --setting languages='["spanish", "turkish"]' --seconds 840 \
        --command "bash user_dir_examples/inflection.sh --data /where/it/lies" --data /where/it/lies
"""

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

FOLDER = Path(__file__).resolve().parent / "results"
FIELDS = ("recipe", "name", "settings", "scores", "seed", "versions", "command", "seconds", "machine", "date")
# fairseq under either of its names; only what is installed is written down.
PACKAGES = ("fairseq-entmax", "fairseq", "ve-fairseq", "torch", "sacrebleu", "sentencepiece", "numpy")
WALL = re.compile(r"(?<!train_)wall[ =](\d+)")
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/-])(?:/|~/|[A-Za-z]:\\)[\w.-]+[\\/]")


def versions() -> Dict[str, str]:
    """Versions of Python and of the packages that matter here."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> str:
    """Processor model, cores and GPU: what tells how long a run takes, and nothing that tells whose machine it is.

    `MACHINE_NOTE` in the environment is added, for what else bears on the time ("shared with other runs").
    """
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    parts = [model, f"{os.cpu_count()} cores", f"{os.environ.get('OMP_NUM_THREADS', 'all')} thread(s)", gpu()]
    return ", ".join([*parts, *filter(None, [os.environ.get("MACHINE_NOTE")])])


def gpu() -> str:
    if shutil.which("nvidia-smi"):
        import torch

        return torch.cuda.get_device_name() if torch.cuda.is_available() else "GPU unused"
    return "no GPU"


def training_seconds(log: str) -> int:
    """Wall clock of a training from fairseq's log file, which counts anew after each interruption."""
    seconds, last = 0, 0
    for wall in map(int, WALL.findall(log)):
        seconds += last if wall < last else 0
        last = wall
    return seconds + last


def hide_paths(command: str, places: Dict[str, Any]) -> str:
    """`command` with each folder of `places` (name -> path) replaced by its name, the longest path first."""
    for name, path in sorted(places.items(), key=lambda place: -len(str(place[1] or ""))):
        if path:
            command = command.replace(str(path), name)
    return command


def write(
    path: Path,
    recipe: str,
    name: str,
    settings: Dict[str, Any],
    scores: Dict[str, Any],
    seed: Any,
    command: str,
    seconds: float,
    force: bool = False,
) -> Dict[str, Any]:
    """Writes one result and returns it. Where the same result is there, it stays: a recipe may have been killed between
    this and its note that this is done.

    Args:
        path: the file; the name without suffix must be `name`.
        settings: what was asked for (alphas, languages, sizes).
        scores: what came out; numbers, not rounded.
        seed: a number, or the list of seeds of an ensemble.
        command: the command that repeats the run, with `DATA` and `OUT` in place of folders (`hide_paths`).
        seconds: wall clock of the run.
        force: replace a result that is there.

    Raises:
        ValueError: another result is there, or the text holds a path of this machine.
    """
    path = Path(path)
    if path.stem != name:
        raise ValueError(f"name: wanted that of the file, {path.stem!r}, got {name!r}")
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    values = (recipe, name, settings, scores, seed, versions(), command, round(seconds, 1), machine(), date)
    result = dict(zip(FIELDS, values))
    text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    if path.exists() and not force:
        there, here = read_one(path), json.loads(text)
        if any(there[field] != here[field] for field in ("recipe", "settings", "scores", "seed", "command")):
            raise ValueError(f"{path}: there is a result already; wanted --force to replace it")
        return there
    place = ABSOLUTE_PATH.search(command) or ABSOLUTE_PATH.search(json.dumps(settings))
    if place:
        raise ValueError(f"{path}: wanted DATA and OUT in place of folders, got {place.group()!r} in a path")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return result


def read(folder: Path = FOLDER) -> List[Dict[str, Any]]:
    """All results below a folder, ordered by recipe and name.

    Raises:
        ValueError: a file that is no result, by name.
    """
    found = [read_one(path) for path in sorted(Path(folder).rglob("*.json"))]
    return sorted(found, key=lambda result: (result["recipe"], result["name"]))


def read_one(path: Path) -> Dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: wanted a result file, got no JSON ({error})") from None
    missing = [field for field in FIELDS if field not in result]
    if missing:
        raise ValueError(f"{path}: wanted a result file, got one without {', '.join(missing)}")
    return result


def of_recipe(results: Sequence[Dict[str, Any]], recipe: str) -> List[Dict[str, Any]]:
    return [result for result in results if result["recipe"] == recipe]


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; the first column is text, the others are figures."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def in_force(options: str) -> Dict[str, str]:
    """Options of a command with their values: of repeated ones the last counts."""
    parts = (part.partition(" ") for part in re.split(r"\s+(?=--)", options.strip()) if part)
    return {name: value.strip() for name, _, value in parts}


def same_options(options: str) -> str:
    """One text for all ways to write the same options."""
    return " ".join(f"{name} {value}".strip() for name, value in sorted(in_force(options).items()))


def apart(training: str, trainings: Sequence[str]) -> List[str]:
    """What tells the options of one training from those of the others, if there are others."""
    own, *options = (in_force(text) for text in (training, *trainings))
    names = [name for name in sorted(own) if any(name not in one or one[name] != own[name] for one in options)]
    return [f"Trained with `{' '.join(f'{name} {own[name]}'.strip() for name in names)}`:"] if names else []


def conditions(results: Sequence[Dict[str, Any]]) -> str:
    """One line that says with what, on what and when these results were made."""
    made_with = {", ".join(f"{key} {value}" for key, value in result["versions"].items()) for result in results}
    machines = {result["machine"] for result in results}
    dates = sorted({result["date"] for result in results})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"Made with {'; '.join(sorted(made_with))}, on {'; '.join(sorted(machines))}; {when}."


def setting(text: str):
    """`key=value`, where the value is JSON or else plain text."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"wanted KEY=VALUE, got {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, help="result file to write: its name is NAME.json")
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--setting", type=setting, action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--scores", type=Path, required=True, help="JSON file with the figures")
    parser.add_argument("--seed", type=json.loads, required=True, help="number, or JSON list for an ensemble")
    parser.add_argument("--command", required=True)
    parser.add_argument("--data", help="folder that the command line calls DATA")
    parser.add_argument("--out", help="folder that the command line calls OUT")
    parser.add_argument("--seconds", type=float, required=True, help="wall clock of the run")
    parser.add_argument("--force", action="store_true", help="replace a result that is there")
    args = parser.parse_args(arguments)
    command = hide_paths(args.command, {"DATA": args.data, "OUT": args.out})
    try:
        scores = json.loads(args.scores.read_text(encoding="utf-8"))
        settings = dict(args.setting)
        write(args.file, args.recipe, args.name, settings, scores, args.seed, command, args.seconds, args.force)
    except (ValueError, OSError) as error:
        print(f"results: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
