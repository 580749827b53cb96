"""Writes a morpheme segmentation set for fairseq from the word-level files of the SIGMORPHON 2022 shared task.

Reads `LANGUAGE.word.train.tsv`, `.dev.tsv` and `.test.gold.tsv` (word, tab, morphemes as in `seg @@ment @@ed`, tab,
category) below the folder, and writes `train`, `valid` and `test` as `.src` and `.tgt`, and `test.jsonl`.

A side is written in characters, or in the pieces of a sentencepiece unigram model learnt from its training text. The
text of a target has `|` for ` @@` (`seg|ment|ed`), a symbol and a piece of its own, and a space between words; text is
not changed otherwise. Morphemes are what either separates, as the shared task's scores have it.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional

from prepare_inflection import SPACE, spell, symbols
from raw_text import read_lines

PAGE = "https://github.com/sigmorphon/2022SegmentationST (data, with its licence)"
PARTS = {"train": "train", "valid": "dev", "test": "test.gold"}
MARK, BOUNDARY = "@@", "|"  # before a morpheme in the files; between morphemes here
CHARACTERS = "characters"
Encoder = Callable[[str], str]


class Word(NamedTuple):
    word: str
    segmented: str
    category: str  # three digits: inflection, derivation, compounding; "" where the file has none


def read_segmented(text: str) -> str:
    """`seg|ment|ed` of `seg @@ment @@ed`."""
    return " ".join(text.split()).replace(f" {MARK}", BOUNDARY).removeprefix(MARK)


def write_segmented(text: str) -> str:
    """`seg @@ment @@ed` of `seg|ment|ed`."""
    return text.replace(BOUNDARY, f" {MARK}")


def morphemes(segmented: str) -> List[str]:
    return re.split(f"[{BOUNDARY} ]", segmented)


def read_words(path: Path) -> List[Word]:
    words = []
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.rstrip("\r").split("\t")
        segmented = read_segmented(fields[1]) if len(fields) > 1 else ""
        if not fields[0].strip() or "" in morphemes(segmented) or BOUNDARY in fields[1]:
            wanted = f"wanted a word, a tab and its morphemes, without {BOUNDARY}"
            raise ValueError(f"{path}, line {number}: {wanted}, got {line!r}")
        words.append(Word(fields[0], segmented, fields[2] if len(fields) > 2 else ""))
    if not words:
        raise ValueError(f"{path}: wanted words, got none")
    return words


def find(folder: Path, language: str) -> Dict[str, Path]:
    """The file of each part, in the folder or below it."""
    names = {part: f"{language}.word.{suffix}.tsv" for part, suffix in PARTS.items()}
    found = {
        part: min(folder.rglob(name), key=lambda path: len(path.parts), default=None) for part, name in names.items()
    }
    missing = [names[part] for part, path in found.items() if path is None]
    if missing:
        raise ValueError(f"--data {folder}: missing {', '.join(missing)}; they are in {PAGE}")
    return found


# --- units ----------------------------------------------------------------------------------------------------------


def in_characters(text: str) -> str:
    return " ".join(symbols(text))


def from_units(line: str, units: str) -> str:
    """The text of a target or output line."""
    return spell(line) if units == CHARACTERS else "".join(line.split()).replace(SPACE, " ").strip()


def learn_pieces(lines: List[str], prefix: Path, size: int) -> Encoder:
    """A sentencepiece unigram model of at most `size` pieces; returns the function that cuts a text into them."""
    import sentencepiece

    text = prefix.with_suffix(".txt")
    text.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(prefix), vocab_size=size, model_type="unigram", character_coverage=1.0,
        normalization_rule_name="identity", hard_vocab_limit=False, minloglevel=2, num_threads=1,
        user_defined_symbols=BOUNDARY,
    )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    print(f"{prefix.name}: {model.get_piece_size()} pieces", flush=True)
    return lambda text: " ".join(model.encode(text, out_type=str))


def encoder(units: str, lines: List[str], prefix: Path) -> Encoder:
    return in_characters if units == CHARACTERS else learn_pieces(lines, prefix, int(units))


def units(text: str) -> str:
    if text == CHARACTERS or (text.isdigit() and int(text) > 0):
        return text
    raise argparse.ArgumentTypeError(f"wanted {CHARACTERS} or a number of pieces, got {text!r}")


# --- the step -------------------------------------------------------------------------------------------------------


def write(path: Path, lines: List[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def prepare(args) -> None:
    files = find(args.data, args.language)
    words = {part: read_words(path) for part, path in files.items()}
    words["train"] = words["train"][: args.limit]
    args.out.mkdir(parents=True, exist_ok=True)
    source = encoder(args.source_units, [word.word for word in words["train"]], args.out / "source")
    target = encoder(args.target_units, [word.segmented for word in words["train"]], args.out / "target")
    for part, entries in words.items():
        write(args.out / f"{part}.src", [source(word.word) for word in entries])
        write(args.out / f"{part}.tgt", [target(word.segmented) for word in entries])
        count = sum(len(morphemes(word.segmented)) for word in entries)
        print(f"{part}: {len(entries)} words, {count} morphemes", flush=True)
    write(args.out / "test.jsonl", [json.dumps(word._asdict(), ensure_ascii=False) for word in words["test"]])


def parse(arguments: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the shared task")
    parser.add_argument(
        "--language", required=True, help="as in the files: eng, ces, fra, hun, spa, ita, lat, rus, mon"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    help_units = f"{CHARACTERS}, or a number of sentencepiece pieces (default %(default)s)"
    parser.add_argument("--source-units", type=units, default=CHARACTERS, help=help_units)
    parser.add_argument("--target-units", type=units, default=CHARACTERS, help=help_units)
    parser.add_argument("--limit", type=int, help="use so many training words, the first ones")
    return parser.parse_args(arguments)


def main(arguments: Optional[List[str]] = None) -> int:
    args = parse(arguments)
    try:
        prepare(args)
    except (ValueError, OSError) as error:
        print(f"prepare_segmentation: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
