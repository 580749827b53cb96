"""Writes a summarisation set for fairseq from the files of the Gigaword and DUC sets for sentence summarisation.

The layout of the folder is that of the widely used package of these sets ("sumdata"); files may be gzipped:

    train/train.article.txt, train/train.title.txt                      training pairs, one a line
    train/valid.article.filter.txt, train/valid.title.filter.txt       development pairs
    Giga/input.txt, Giga/task1_ref0.txt                                 test set with one reference
    DUC2003/input.txt, DUC2003/task1_ref0.txt ... task1_ref3.txt        test sets with several references
    DUC2004/input.txt, DUC2004/task1_ref0.txt ... task1_ref3.txt

At least one test set must be there. Text is tokenised and taken as it is, in lower case; digits become `#`, as the
training pairs have them (`score_rouge.py` puts the numbers of the input back). Pairs with an empty side are left out of
training and development; a test set with an empty input is an error.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Dict, List, Optional

from raw_text import read_lines

TRAINING = {
    "train": ("train.article.txt", "train.title.txt"),
    "valid": ("valid.article.filter.txt", "valid.title.filter.txt"),
}
TESTS = ("Giga", "DUC2003", "DUC2004")


def find(folder: Path, name: str) -> Optional[Path]:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def read(path: Path) -> List[str]:
    """Lines in lower case, with single spaces between words."""
    return [" ".join(line.lower().split()) for line in read_lines(path)]


def without_digits(line: str) -> str:
    return re.sub(r"[0-9]", "#", line)


def read_side_by_side(paths: List[Path]) -> List[List[str]]:
    columns = [read(path) for path in paths]
    if len({len(column) for column in columns}) != 1:
        sizes = ", ".join(f"{path.name} {len(column)}" for path, column in zip(paths, columns))
        raise ValueError(f"{paths[0].parent}: wanted files with as many lines, got {sizes}")
    return columns


def training_pairs(folder: Path, part: str, limit: Optional[int]) -> Dict[str, List[str]]:
    columns = read_side_by_side([find(folder / "train", name) for name in TRAINING[part]])
    columns = [list(map(without_digits, column)) for column in columns]
    kept = [pair for pair in zip(*columns) if all(pair)][:limit]
    print(f"{part}: {len(kept)} pairs, {len(columns[0])} in the files")
    if not kept:
        raise ValueError(f"{folder / 'train' / TRAINING[part][0]}: wanted pairs of sentences, got none")
    return {"article": [article for article, _ in kept], "title": [title for _, title in kept]}


def test_set(folder: Path, name: str) -> Optional[List[List[str]]]:
    """Inputs, and the references of each in one list a file; None where the set is not there."""
    inputs = find(folder / name, "input.txt")
    if inputs is None:
        return None
    references = []
    while find(folder / name, f"task1_ref{len(references)}.txt") is not None:
        references.append(find(folder / name, f"task1_ref{len(references)}.txt"))
    if not references:
        raise ValueError(f"{folder / name}: wanted task1_ref0.txt beside input.txt, got no such file")
    columns = read_side_by_side([inputs, *references])
    empty = [number for number, line in enumerate(columns[0], start=1) if not line]
    if empty:
        raise ValueError(f"{inputs}, line {empty[0]}: wanted a sentence, got an empty line")
    print(f"{name}: {len(columns[0])} sentences, {len(references)} reference(s) each")
    return columns


def write(path: Path, lines: List[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def parse(arguments: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with train/, and Giga/, DUC2003/ or DUC2004/")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--limit", type=int, help="use so many training pairs, the first ones")
    return parser.parse_args(arguments)


def main(arguments: Optional[List[str]] = None) -> int:
    args = parse(arguments)
    try:
        missing = [name for names in TRAINING.values() for name in names if find(args.data / "train", name) is None]
        if missing:
            raise ValueError(f"--data {args.data}: missing in train/: {', '.join(missing)} (plain or .gz)")
        args.out.mkdir(parents=True, exist_ok=True)
        for part in TRAINING:
            for side, lines in training_pairs(args.data, part, args.limit if part == "train" else None).items():
                write(args.out / f"{part}.{side}", lines)
        tests = {name: test_set(args.data, name) for name in TESTS}
        tests = {name: columns for name, columns in tests.items() if columns is not None}
        if not tests:
            raise ValueError(f"--data {args.data}: wanted input.txt in {', '.join(TESTS)} or one of them, got none")
        for name, (inputs, *references) in tests.items():
            write(args.out / f"{name}.input", inputs)
            write(args.out / f"{name}.article", list(map(without_digits, inputs)))
            write(args.out / f"{name}.title", [without_digits(line) or "." for line in references[0]])  # never empty
            (args.out / f"{name}.references.json").write_text(json.dumps(list(zip(*references))), encoding="utf-8")
        write(args.out / "tests", list(tests))
    except (ValueError, OSError) as error:
        print(f"prepare_summaries: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
