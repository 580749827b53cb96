"""How attention is spread: words attended to, the segments they form, and what fusion made equal.

Adds `spread` to the `scores.json` of a decoded translation model, from a certificate file with attention. The end of
the source is no word, and the step that writes the end of the output is none of the steps.
"""

import argparse
import json
import sys
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

Weights = Sequence[Tuple[int, float]]  # [position, weight above zero]


def segments(weights: Weights) -> int:
    """Number of runs of neighbouring positions."""
    positions = {position for position, _ in weights}
    return sum(position - 1 not in positions for position in positions)


def equal_neighbours(weights: Weights) -> float:
    """Share of the positions whose weight equals that of a neighbour."""
    found = dict(map(tuple, weights))
    equal = sum(weight in (found.get(i - 1), found.get(i + 1)) for i, weight in found.items())
    return equal / max(len(found), 1)


def fused(weights: Weights) -> float:
    """Attention on runs of two or more neighbouring positions with one weight."""
    rows = enumerate(sorted(map(tuple, weights)))
    runs = [list(run) for _, run in groupby(rows, key=lambda row: (row[1][0] - row[0], row[1][1]))]
    return sum(weight for run in runs if len(run) > 1 for _, (_, weight) in run)


def tied(weights: Weights) -> float:
    """Share of the positions whose weight is that of another, wherever it is."""
    counts = Counter(weight for _, weight in weights)
    return sum(counts[weight] > 1 for _, weight in weights) / max(len(weights), 1)


def spread(steps: Sequence[Weights]) -> Dict[str, float]:
    """Means over rows of attention."""
    measures = {
        "attended": len,
        "segments": segments,
        "equal_neighbours": equal_neighbours,
        "fused": fused,
        "tied": tied,
    }
    return {name: sum(map(measure, steps)) / max(len(steps), 1) for name, measure in measures.items()}


class Step(NamedTuple):
    weights: List[Tuple[int, float]]  # of the words
    end: float  # weight of the end of the source
    words: int

    @property
    def is_level(self) -> bool:
        """All words have one weight: attention chooses nothing among them."""
        return len(self.weights) == self.words and len({weight for _, weight in self.weights}) == 1


def translation_spread(steps: Sequence[Step]) -> Dict[str, float]:
    """What `spread` gives, and means of the words there are, of the attention on the end, of steps that are level."""
    count = max(len(steps), 1)
    return {
        **spread([step.weights for step in steps]),
        "words": sum(step.words for step in steps) / count,
        "end": sum(step.end for step in steps) / count,
        "level": sum(step.is_level for step in steps) / count,
    }


def best_steps(path: Path) -> List[Step]:
    """Attention at each step of the best output of each sentence."""
    steps: List[Step] = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            record = json.loads(line)
            best = record["hypotheses"][0]
            if "attention" not in best:
                raise ValueError(f"{path}, line {number}: no attention; decode with --certificate-attention")
            end = len(record["source_tokens"]) - 1
            for row in best["attention"][:-1]:
                weights = [(position, weight) for position, weight in row if position != end]
                steps.append(Step(weights, dict(map(tuple, row)).get(end, 0.0), end))
    return steps


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--certificates", type=Path, required=True, help="file of --certificate-file")
    parser.add_argument("--scores", type=Path, required=True, help="scores.json to add to")
    args = parser.parse_args(arguments)
    try:
        scores = json.loads(args.scores.read_text(encoding="utf-8"))
        scores["spread"] = translation_spread(best_steps(args.certificates))
    except (ValueError, OSError) as error:
        print(f"score_attention: {error}", file=sys.stderr)
        return 1
    args.scores.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    print("attention: " + ", ".join(f"{name} {value:.2f}" for name, value in scores["spread"].items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
