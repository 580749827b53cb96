"""Scores labelled pairs: accuracy for each label, and how much of the premise the attention is on.

Reads the file that fairseq-validate wrote with --predictions-file, prints the figures and some pairs with the words
that have attention, and writes `scores.json`.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Dict, List, Optional

from score_attention import spread


def read(path: Path, wanted: int) -> List[dict]:
    """The records, by id."""
    records = {record["id"]: record for record in map(json.loads, path.read_text(encoding="utf-8").splitlines())}
    if sorted(records) != list(range(wanted)):
        raise ValueError(f"{path}: wanted {wanted} pairs with ids from 0, got {len(records)}")
    return [records[number] for number in range(wanted)]


def figures(records: List[dict]) -> Dict[str, float]:
    """Percentages and means over pairs."""
    right = [record["label"] == record["predicted"] for record in records]
    totals = Counter(record["label"] for record in records)
    found = Counter(record["label"] for record, is_right in zip(records, right) if is_right)
    scores = {"pairs": len(records), "accuracy": 100 * sum(right) / len(records)}
    scores.update({f"accuracy_{label}": 100 * found[label] / totals[label] for label in sorted(totals)})
    scores["words"] = sum(len(record["premise"]) for record in records) / len(records)
    return {**scores, **spread([record["attention"] for record in records])}


def show(record: dict) -> str:
    weights = dict(map(tuple, record["attention"]))
    premise = " ".join(
        f"{word}[{weights[i]:.2f}]" if i in weights else word for i, word in enumerate(record["premise"])
    )
    return f"{premise} => {' '.join(record['hypothesis'])}: {record['predicted']} (gold: {record['label']})"


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--predictions", type=Path, required=True, help="file of fairseq-validate")
    parser.add_argument("--labels", type=Path, required=True, help="label file of the subset, one a line")
    parser.add_argument("--scores", type=Path, required=True, help="file to write")
    parser.add_argument("--show", type=int, default=3, help="pairs to print with their attention (default %(default)s)")
    args = parser.parse_args(arguments)
    try:
        labels = args.labels.read_text(encoding="utf-8").splitlines()
        records = read(args.predictions, len(labels))
        wrong = next((i for i, (label, record) in enumerate(zip(labels, records)) if label != record["label"]), None)
        if wrong is not None:
            raise ValueError(
                f"{args.predictions}: pair {wrong} has label {records[wrong]['label']}, not {labels[wrong]}"
            )
    except (ValueError, OSError) as error:
        print(f"evaluate_snli: {error}", file=sys.stderr)
        return 1
    scores = figures(records)
    print(", ".join(f"{name} {value:.2f}" for name, value in scores.items()))
    for record in records[: args.show]:
        print("  " + show(record))
    args.scores.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
