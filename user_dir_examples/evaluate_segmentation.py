"""Scores segmented words as the SIGMORPHON 2022 shared task does: precision, recall and F1 of morphemes, edit distance.

Morphemes count as right in the order of the word (the longest common subsequence with the right ones); sums are over
all words. Also gives the share of words that are right as a whole, by category, and what the certificates say. Reads
`test.jsonl` (data) and `generate-test.txt` and `certificates.jsonl` (run); writes `scores.json` and `predictions.tsv`
(word, right and found segmentation, both as in the files of the shared task).
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

from evaluate_inflection import mean, read_hypotheses, read_lines, read_records
from prepare_segmentation import BOUNDARY, from_units, morphemes, units, write_segmented

from fairseq_entmax.scoring import edit_distance


class Segmented(NamedTuple):
    """A word with the text of its right segmentation and of the one found, as `prepare_segmentation.py` writes them."""

    word: str
    segmented: str
    category: str
    found: str


def common(first: List[str], second: List[str]) -> int:
    """Length of the longest common subsequence."""
    above = [0] * (len(second) + 1)
    for item in first:
        row = [0]
        for column, other in enumerate(second, start=1):
            row.append(above[column - 1] + 1 if item == other else max(above[column], row[-1]))
        above = row
    return above[-1]


def figures(words: List[Segmented]) -> Dict[str, float]:
    pairs = [(morphemes(word.segmented), morphemes(word.found)) for word in words]
    right = sum(common(*pair) for pair in pairs)
    precision = right / sum(len(found) for _, found in pairs)
    recall = right / sum(len(wanted) for wanted, _ in pairs)
    texts = [tuple(map(BOUNDARY.join, pair)) for pair in pairs]
    return {
        "words": len(words),
        "f1": 200 * precision * recall / (precision + recall) if right else 0.0,
        "precision": 100 * precision,
        "recall": 100 * recall,
        "distance": mean(edit_distance(*pair) for pair in texts),
        "word_accuracy": 100 * mean(wanted == found for wanted, found in texts),
    }


def load(data: Path, run: Path, target_units: str) -> List[Segmented]:
    entries = [json.loads(line) for line in read_lines(data / "test.jsonl")]
    outputs = read_hypotheses(run / "generate-test.txt", len(entries))
    return [Segmented(**entry, found=from_units(output, target_units)) for entry, output in zip(entries, outputs)]


def certificates(records: List[dict]) -> Dict[str, float]:
    kinds = Counter(record["certificate"] for record in records)
    shares = {kind: 100 * kinds[kind] / len(records) for kind in ("complete", "optimal", "none")}
    return {
        **shares,
        **{name: mean(record[name] for record in records) for name in ("mass", "strings", "decoder_rows")},
    }


def print_report(scores: Dict[str, Dict[str, float]]) -> None:
    print(f"{'category':<10} {'words':>6} {'F1':>6} {'precision':>9} {'recall':>6} {'distance':>8} {'accuracy%':>9}")
    for name, row in scores.items():
        if "f1" in row:
            print(
                f"{name:<10} {row['words']:>6} {row['f1']:>6.2f} {row['precision']:>9.2f} {row['recall']:>6.2f} "
                f"{row['distance']:>8.3f} {row['word_accuracy']:>9.2f}"
            )
    claims = scores["certificates"]
    print(
        f"complete {claims['complete']:.1f} %, optimal {claims['optimal']:.1f} %, none {claims['none']:.1f} %; covered "
        f"mass {claims['mass']:.3f}, strings {claims['strings']:.1f}, decoder rows {claims['decoder_rows']:.1f}"
    )


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of prepare_segmentation.py")
    parser.add_argument("--run", type=Path, required=True, help="folder of the decoded run")
    parser.add_argument("--target-units", type=units, required=True, help="as in prepare_segmentation.py")
    args = parser.parse_args(arguments)
    try:
        words = load(args.data, args.run, args.target_units)
        records = read_records(args.run / "certificates.jsonl", len(words))
    except (ValueError, OSError) as error:
        print(f"evaluate_segmentation: {error}", file=sys.stderr)
        return 1
    by_category = {name: [w for w in words if w.category == name] for name in sorted({w.category for w in words})}
    scores = {name: figures(part) for name, part in by_category.items() if name}
    scores.update(all=figures(words), certificates=certificates(records))
    print_report(scores)
    rows = ("\t".join([w.word, write_segmented(w.segmented), write_segmented(w.found)]) + "\n" for w in words)
    (args.run / "predictions.tsv").write_text("".join(rows), encoding="utf-8")
    (args.run / "scores.json").write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
