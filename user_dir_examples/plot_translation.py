"""Pictures of the translation recipes from their result files.

`alpha-sweep-RECIPE-PAIR.png`: test BLEU against the alpha of attention (with 1.5 for the output) and of the output
(with 1.5 for attention), as in figure 4 of Peters, Niculae and Martins (2019). `training-RECIPE-PAIR.png`: validation
accuracy against the time spent in training steps, as in its figure 5.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import results

Result = Dict[str, Any]
NAMES = {1: "softmax", 1.5: "1.5-entmax", 2: "sparsemax"}
FIXED = 1.5


def of_pair(found: List[Result], recipe: str, pair: str, sweep: bool) -> List[Result]:
    chosen = [result for result in results.of_recipe(found, recipe) if result["settings"]["pair"] == pair]
    return [result for result in chosen if result["settings"].get("sweep") == int(sweep)]


def line_of(found: List[Result], varied: str, fixed: str) -> List[tuple]:
    """Points `(alpha, BLEU)` of the results in which the other alpha is 1.5."""
    rows = [result for result in found if result["settings"][fixed] == FIXED]
    return sorted((result["settings"][varied], result["scores"]["bleu"]) for result in rows)


def draw_sweep(found: List[Result], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (varied, fixed) in zip(panels, (("attention", "output"), ("output", "attention"))):
        points = line_of(found, f"{varied}_alpha", f"{fixed}_alpha")
        axes.plot(*zip(*points), marker="o", color="#1f5f8b")
        axes.set_xlabel(f"alpha of {varied} ({fixed}: {FIXED})")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("BLEU")
    save(figure, path)


def draw_training(found: List[Result], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    for result in sorted(found, key=lambda result: result["settings"]["output_alpha"]):
        curve = [step for step in result["scores"]["training"]["curve"] if step["train_seconds"]]
        alphas = [result["settings"][f"{place}_alpha"] for place in ("attention", "output")]
        name = " / ".join(dict.fromkeys(NAMES.get(alpha, f"alpha {alpha:g}") for alpha in alphas))
        minutes = [step["train_seconds"] / 60 for step in curve]
        axes.plot(minutes, [step["token_accuracy"] for step in curve], marker=".", label=name)
    axes.set_xlabel("minutes in training steps")
    axes.set_ylabel("validation token accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend()
    save(figure, path)


def save(figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, metadata={"Software": None})
    print(path)


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=Path, default=results.FOLDER, help="folder with result files")
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--pair", required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for the pictures")
    args = parser.parse_args(arguments)
    try:
        found = results.read(args.results)
    except ValueError as error:
        print(f"plot_translation: {error}", file=sys.stderr)
        return 1
    swept = of_pair(found, args.recipe, args.pair, sweep=True)
    trained = of_pair(found, args.recipe, args.pair, sweep=False)
    if len(swept) > 1:
        draw_sweep(swept, args.out / f"alpha-sweep-{args.recipe}-{args.pair}.png")
    if trained:
        draw_training(trained, args.out / f"training-{args.recipe}-{args.pair}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
