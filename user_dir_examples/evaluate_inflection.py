"""Scores a decoded inflection set: accuracy and edit distance per language, and what the certificates say.

Reads `data/test.src`, `data/test.tgt`, `generate-test.txt` and `certificates.jsonl` in the folder of the run, writes
`predictions.tsv` (source, reference, output, certificate; in the order of the test set). Stops if an output is missing.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

from prepare_inflection import spell

from fairseq_entmax.scoring import edit_distance


class Output(NamedTuple):
    """One test pair and what the model made of it."""

    source: str
    reference: str
    output: str
    record: dict

    @property
    def language(self) -> str:
        return self.source.split()[0].strip("<>")


def read_lines(path: Path) -> List[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def read_hypotheses(path: Path, wanted: int) -> List[str]:
    """The best output of each sentence (fairseq's D- lines), in the order of the test set instead of by length."""
    found: Dict[int, str] = {}
    for line in read_lines(path):
        if line.startswith("D-"):
            name, _, text = line.split("\t", 2)
            found.setdefault(int(name[2:]), text)
    missing = sorted(set(range(wanted)) - set(found))
    if missing or len(found) != wanted:
        raise ValueError(
            f"{path}: wanted {wanted} outputs, one for each reference, got {len(found)}; missing {missing}"
        )
    return [found[number] for number in range(wanted)]


def read_records(path: Path, wanted: int) -> List[dict]:
    """The certificate records, by id."""
    records = {record["id"]: record for record in map(json.loads, read_lines(path))}
    if sorted(records) != list(range(wanted)):
        raise ValueError(f"{path}: wanted {wanted} records with ids from 0, got {len(records)}")
    return [records[number] for number in range(wanted)]


def load(folder: Path) -> List[Output]:
    sources, references = read_lines(folder / "data" / "test.src"), read_lines(folder / "data" / "test.tgt")
    if len(sources) != len(references):
        raise ValueError(f"{folder / 'data'}: {len(sources)} sources but {len(references)} references")
    hypotheses = read_hypotheses(folder / "generate-test.txt", len(references))
    records = read_records(folder / "certificates.jsonl", len(references))
    return [Output(*parts) for parts in zip(sources, references, hypotheses, records)]


def mean(values) -> float:
    values = list(values)
    return sum(values) / len(values) if values else float("nan")


def accuracy_row(name: str, outputs: List[Output]) -> str:
    pairs = [(spell(item.reference), spell(item.output)) for item in outputs]
    correct = 100 * mean(reference == output for reference, output in pairs)
    distance = mean(edit_distance(reference, output) for reference, output in pairs)
    shares = Counter(item.record["certificate"] for item in outputs)
    proved = [100 * shares[kind] / len(outputs) for kind in ("complete", "optimal", "none")]
    return f"{name:<8} {len(outputs):>5} {correct:>9.2f} {distance:>9.3f} " + " ".join(f"{p:>9.2f}" for p in proved)


def print_report(outputs: List[Output]) -> None:
    print(
        f"{'language':<8} {'pairs':>5} {'accuracy%':>9} {'distance':>9} {'complete%':>9} {'optimal%':>9} {'none%':>9}"
    )
    for language in sorted({item.language for item in outputs}):
        print(accuracy_row(language, [item for item in outputs if item.language == language]))
    print(accuracy_row("all", outputs))
    supports = [size for item in outputs for size in item.record["hypotheses"][0]["support"]]
    print(
        f"per pair: covered mass {mean(item.record['mass'] for item in outputs):.4f}, "
        f"strings {mean(item.record['strings'] for item in outputs):.1f}, "
        f"decoder rows {mean(item.record['decoder_rows'] for item in outputs):.1f}; "
        f"support per step {mean(supports):.2f}"
    )
    reasons = Counter(item.record["reason"] for item in outputs if item.record["certificate"] == "none")
    for reason, count in reasons.most_common():
        print(f"not proved: {count} ({reason})")


def write_predictions(path: Path, outputs: List[Output]) -> None:
    rows = ((item.source, spell(item.reference), spell(item.output), item.record["certificate"]) for item in outputs)
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    folder = parser.parse_args(arguments).out
    try:
        outputs = load(folder)
    except (ValueError, OSError) as error:
        print(f"evaluate_inflection: {error}", file=sys.stderr)
        return 1
    print_report(outputs)
    write_predictions(folder / "predictions.tsv", outputs)
    print(f"outputs: {folder / 'predictions.tsv'}; certificates: {folder / 'certificates.jsonl'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
