"""How attention is spread: words attended to, the segments they form, and how many weights fusion made equal.

Adds `spread` to the `scores.json` of a decoded translation model, from a certificate file with attention.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

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


def spread(steps: Sequence[Weights]) -> Dict[str, float]:
    """Means over rows of attention."""
    measures = {"attended": len, "segments": segments, "equal_neighbours": equal_neighbours}
    return {name: sum(map(measure, steps)) / max(len(steps), 1) for name, measure in measures.items()}


def best_steps(path: Path) -> List[Weights]:
    """Attention at each step of the best output of each sentence."""
    steps: List[Weights] = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            best = json.loads(line)["hypotheses"][0]
            if "attention" not in best:
                raise ValueError(f"{path}, line {number}: no attention; decode with --certificate-attention")
            steps += best["attention"]
    return steps


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--certificates", type=Path, required=True, help="file of --certificate-file")
    parser.add_argument("--scores", type=Path, required=True, help="scores.json to add to")
    args = parser.parse_args(arguments)
    try:
        scores = json.loads(args.scores.read_text(encoding="utf-8"))
        scores["spread"] = spread(best_steps(args.certificates))
    except (ValueError, OSError) as error:
        print(f"score_attention: {error}", file=sys.stderr)
        return 1
    args.scores.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    print("attention: " + ", ".join(f"{name} {value:.2f}" for name, value in scores["spread"].items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
