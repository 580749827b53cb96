"""Writes the pairs of the SNLI corpus, version 1, for task entailment_entmax.

Reads `snli_1.0_train.jsonl`, `snli_1.0_dev.jsonl` and `snli_1.0_test.jsonl` and writes `train`, `valid` and `test` as
`.premise`, `.hypothesis` and `.label`, and `dict.txt`. Pairs whose annotators did not agree on a label ("-") are left
out. Words are those of the corpus: the leaves of its parses, with their case.

The dictionary has the words of the training pairs. With fixed word vectors any word that has one can be used, so then
it also has the words of the other parts that the file of vectors knows.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional

from fairseq_entmax.entailment_data import read_vectors

PAGE = "https://nlp.stanford.edu/projects/snli/ (CC BY-SA 4.0)"
PARTS = {"train": "snli_1.0_train.jsonl", "valid": "snli_1.0_dev.jsonl", "test": "snli_1.0_test.jsonl"}
LABELS = ("entailment", "neutral", "contradiction")
NO_LABEL = "-"


class Pair(NamedTuple):
    premise: List[str]
    hypothesis: List[str]
    label: str


def leaves(record: dict, side: str) -> List[str]:
    """Words of a sentence as the corpus has them: the leaves of its binary parse, else of its Penn-style parse."""
    binary = record.get(f"{side}_binary_parse")
    if binary:
        return [part for part in binary.split() if part not in ("(", ")")]
    # "(NP (DT A) (NN man))": only a leaf ends with a bracket and does not begin with one.
    return [part.rstrip(")") for part in record[f"{side}_parse"].split() if not part.startswith("(")]


def read_pairs(path: Path, counts: Counter) -> Iterator[Pair]:
    """Pairs with a label, in the order of the file; `counts` gets the number of each label."""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                record = json.loads(line)
                label = record["gold_label"]
                pair = Pair(leaves(record, "sentence1"), leaves(record, "sentence2"), label)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{path}, line {number}: wanted a pair of SNLI 1.0 ({error!r})") from None
            counts[label] += 1
            if label == NO_LABEL:
                continue
            if label not in LABELS:
                raise ValueError(f"{path}, line {number}: wanted {', '.join(LABELS)} or {NO_LABEL}, got {label!r}")
            if not pair.premise or not pair.hypothesis:
                raise ValueError(f"{path}, line {number}: a sentence has no words")
            yield pair


def write_part(out: Path, part: str, path: Path, limit: Optional[int]) -> Counter:
    """Writes a part and returns how often each word is in it."""
    words, counts, kept = Counter(), Counter(), 0
    files = [open(out / f"{part}.{kind}", "w", encoding="utf-8") for kind in Pair._fields]
    for pair in read_pairs(path, counts):
        if kept == limit:
            break
        kept += 1
        words.update(pair.premise)
        words.update(pair.hypothesis)
        for file, text in zip(files, (" ".join(pair.premise), " ".join(pair.hypothesis), pair.label)):
            file.write(text + "\n")
    for file in files:
        file.close()
    if kept == 0:
        raise ValueError(f"{path}: wanted pairs with a label, got none")
    print(f"{part}: {kept} pairs, {counts[NO_LABEL]} without a label left out", flush=True)
    return words


def write_dictionary(path: Path, words: Dict[str, Counter], vectors: Optional[Path], dim: int) -> None:
    counts = Counter(words["train"])
    if vectors is not None:
        others = words["valid"] + words["test"]
        known = read_vectors(str(vectors), [*counts, *others], dim)
        print(f"vectors: {sum(word in known for word in counts)} of {len(counts)} training words")
        counts.update({word: count for word, count in others.items() if word in known})
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    path.write_text("".join(f"{word} {count}\n" for word, count in ordered), encoding="utf-8")
    unknown = sum(count for word, count in words["test"].items() if word not in counts)
    print(f"dictionary: {len(counts)} words; unknown in test: {unknown} of {sum(words['test'].values())}")


def parse(arguments: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help=f"folder of the corpus, from {PAGE}")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--vectors", type=Path, help="text file of word vectors")
    parser.add_argument("--dim", type=int, default=300, help="numbers in a word vector (default %(default)s)")
    parser.add_argument("--limit", type=int, help="use so many training pairs, the first ones")
    return parser.parse_args(arguments)


def main(arguments: Optional[List[str]] = None) -> int:
    args = parse(arguments)
    try:
        missing = [name for name in PARTS.values() if not (args.data / name).is_file()]
        if missing:
            raise ValueError(f"--data {args.data}: missing {', '.join(missing)}; they are in SNLI 1.0, {PAGE}")
        args.out.mkdir(parents=True, exist_ok=True)
        words = {}
        for part, name in PARTS.items():
            words[part] = write_part(args.out, part, args.data / name, args.limit if part == "train" else None)
        write_dictionary(args.out / "dict.txt", words, args.vectors, args.dim)
    except (ValueError, OSError) as error:
        print(f"prepare_snli: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
