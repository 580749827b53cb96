"""Writes one multilingual inflection set from a clone of sigmorphon/conll2018 (shared task 1).

Source lines: a language token, the tags of the wanted form, the characters of the lemma. Target lines: the characters
of the form. Language and tags stand in angle brackets, so that the tag `V` is not the letter V. Unicode is not touched;
a space inside a lemma or form is written as U+2581, other white space by its number (`<U+00A0>`).
"""

import argparse
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from prepare_inflection import SPACE, symbols, write
from raw_text import read_lines

ORIGIN = "https://github.com/sigmorphon/conll2018 (terms of the data: that page and https://unimorph.github.io)"
PARTS = ("train", "valid", "test")


def find_folder(data: Path) -> Path:
    """The folder with the files of task 1: `task1/all` of a clone, or `data` itself."""
    if not data.is_dir():
        raise ValueError(f"--data {data}: no such folder; wanted a clone of {ORIGIN}")
    inside = data / "task1" / "all"
    return inside if inside.is_dir() else data


def file_names(language: str, setting: str) -> Dict[str, str]:
    """Part -> name of its file."""
    return {"train": f"{language}-train-{setting}", "valid": f"{language}-dev", "test": f"{language}-test"}


def choose_languages(folder: Path, setting: str, wanted: Sequence[str]) -> List[str]:
    """`wanted`, or all that have training data of this size; every file of theirs must be there."""
    suffix = f"-train-{setting}"
    languages = list(wanted) or sorted(path.name[: -len(suffix)] for path in folder.glob(f"*{suffix}"))
    names = [name for language in languages for name in file_names(language, setting).values()]
    missing = [name for name in names if not (folder / name).is_file()] if languages else [f"*{suffix}"]
    if missing:
        raise ValueError(f"--data {folder}: missing {', '.join(missing)}; task1/all of {ORIGIN} has them")
    return languages


def tag_symbols(tags: str) -> List[str]:
    return [f"<{tag}>".replace(" ", SPACE) for tag in tags.split(";")]


def read_pairs(path: Path, language: str) -> List[Tuple[str, str]]:
    """Source and target lines of one file, in its order."""
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) != 3 or not all(columns):
            raise ValueError(f"{path}, line {number}: wanted lemma, form and tags with tabs between them, got {line!r}")
        lemma, form, tags = columns
        try:
            source = [f"<{language}>", *tag_symbols(tags), *symbols(lemma)]
            pairs.append((" ".join(source), " ".join(symbols(form))))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    return pairs


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="clone of sigmorphon/conll2018, or its task1/all")
    parser.add_argument("--setting", choices=("medium", "high"), default="medium")
    parser.add_argument("--languages", nargs="*", default=[], help="names as in the files (default all found)")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    args = parser.parse_args(arguments)
    lines: Dict[str, List[Tuple[str, str]]] = {part: [] for part in PARTS}
    try:
        folder = find_folder(args.data)
        languages = choose_languages(folder, args.setting, args.languages)
        for language in languages:
            for part, name in file_names(language, args.setting).items():
                lines[part] += read_pairs(folder / name, language)
    except (ValueError, OSError) as error:
        print(f"prepare_sigmorphon: {error}", file=sys.stderr)
        return 1
    write(args.out, lines)
    sizes = ", ".join(f"{part} {len(lines[part])}" for part in PARTS)
    print(f"{len(languages)} languages: {sizes} pairs in {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
