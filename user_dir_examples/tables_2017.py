"""The part of `docs/reproduction.md` about Niculae and Blondel (2017): translation, summarisation, entailment.

python tables_2017.py --results OUT/results        # prints the tables of one folder
"""

import argparse
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from results import conditions, of_recipe, read, table
from tables_translation import pairings

Result = Dict[str, Any]
TRANSLATION = """### Translation

Multi30k (29,000 captions) in sentencepiece pieces, by `structured_attention.sh`. *sacreBLEU* with its 95 % interval by
bootstrap over sentences, and its difference to softmax with the probability that chance on these sentences makes one as
large (paired bootstrap; other seeds differ, too). *Time*: that of training steps, against softmax on the same batches
in turn. *Attended*: pieces of the source with attention above zero, a step, *of* so many; *segments*: runs of
neighbouring ones; *fused*: attention on runs of two and more pieces with one weight; *tied*: share of the attended
whose weight is that of another; *level*: steps at which all pieces have one weight, so that attention chooses nothing;
*end*: attention on the end of the source, which is left out of all others. The paper: scores within about one BLEU of
each other, up to 1.75 times the training time of softmax (on a GPU)."""
SUMMARISATION = """### Summarisation

Gigaword sentences and headlines, by `summarisation.sh`. ROUGE by the package rouge-score, over all references as
ROUGE-1.5.5 computes it: F1 of whole summaries, and recall where summaries and references are cut at 75 bytes."""
ENTAILMENT = """### Textual entailment

SNLI 1.0, by `snli.sh`: accuracy on the test pairs, words of the premise with attention above zero, their segments, and
the share of them with the weight of a neighbour.
The paper: softmax 81.66, sparsemax 82.39, fusedmax 82.41, oscarmax 81.76 %."""

SAMPLE = """#### Made-up pairs

By `snli.sh --sample`, to see the recipe at work without the corpus. The words of a pair decide its label; chance is a
third. These figures say nothing about SNLI."""


def section(found: List[Result]) -> str:
    """Markdown of the tables; "" without results."""
    parts = [part for part in (translation(found), summarisation(found), entailment(found)) if part]
    return "\n\n".join(["## Structured attention (Niculae and Blondel, 2017)", *parts]) if parts else ""


def grouped(results: List[Result], key: Callable[[Result], Tuple]) -> List[List[Result]]:
    """Results that belong in one table, softmax first in each."""
    groups: Dict[Tuple, List[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return [sorted(groups[name], key=order) for name in sorted(groups, key=str)]


def order(result: Result) -> Tuple:
    mapping = result["settings"]["mapping"]
    return mapping != "softmax", mapping, result["name"]


def label(result: Result) -> str:
    """Mapping, with the strength of its fusion where that is known."""
    strength = result["settings"].get("strength")
    return result["settings"]["mapping"] + (f" {strength:g}" if strength is not None else "")


def block(title: str, results: List[Result], header: Sequence[str], row: Callable[[Result], List[str]]) -> str:
    rows = [[label(result), *row(result), f"{result['seconds'] / 60:.0f}"] for result in results]
    parts = [title, table(["attention", *header, "minutes"], rows), conditions(results)]
    return "\n\n".join([*parts, f"The first row: `{results[0]['command']}`."])


def translation(found: List[Result]) -> str:
    results = of_recipe(found, "structured-attention")
    compared = [result for result in results if {"speed", "paired"} & set(result["settings"])]
    header = ["sacreBLEU", "to softmax (p)", "time", "token accuracy %", "attended", "of", "segments"]
    header += ["fused %", "tied %", "level %", "end %"]
    blocks = []
    trained = [result for result in results if result not in compared]
    for group in grouped(trained, lambda r: (r["settings"]["pair"], r["settings"]["model"], r["settings"]["training"])):
        about = group[0]["settings"]
        key = about["pair"], about["model"]
        alike = [r for r in compared if (r["settings"]["pair"], r["settings"]["model"]) == key]
        times = {
            (str(r["seed"]), name): f"{figures['time']:.2f}"
            for r in alike
            if r["settings"].get("speed")
            for name, figures in r["scores"]["speed"].items()
        }
        paired = pairings(alike)

        def row(result: Result, times=times, paired=paired) -> List[str]:
            scores, spread = result["scores"], result["scores"]["spread"]
            accuracy = max(step["token_accuracy"] for step in scores["training"]["curve"])
            model = str(result["seed"]), label(result)
            figures = [f"{scores['bleu']:.2f} ± {scores['bleu_interval']:.2f}"]
            figures += [paired.get(model, ""), times.get(model, ""), f"{accuracy:.2f}"]
            figures += [f"{spread[name]:.2f}" for name in ("attended", "words", "segments")]
            return figures + [f"{100 * spread[name]:.1f}" for name in ("fused", "tied", "level", "end")]

        size = f", {about['size']} model" if about.get("size") else ""
        blocks.append(block(f"#### {about['pair']}{size}", group, header, row))
    return "\n\n".join([TRANSLATION, *blocks]) if blocks else ""


def summarisation(found: List[Result]) -> str:
    results = of_recipe(found, "summarisation")
    kinds = [("rouge1", "ROUGE-1"), ("rouge2", "ROUGE-2"), ("rougeL", "ROUGE-L")]
    header = [f"{name} {what}" for what in ("F1", "recall at 75 bytes") for _, name in kinds] + ["words"]
    blocks = []
    for group in grouped(results, summarisation_key):
        settings = group[0]["settings"]
        pairs = "" if settings["limit"] is None else f", the first {settings['limit']} training pairs"
        for test in group[0]["scores"]:
            tested = [result for result in group if test in result["scores"]]

            def row(result: Result, test=test) -> List[str]:
                scores = result["scores"][test]
                whole, cut = scores["whole"]["average"], scores["75 bytes"]["average"]
                figures = [whole[f"{kind}_f1"] for kind, _ in kinds] + [cut[f"{kind}_recall"] for kind, _ in kinds]
                return [*(f"{value:.2f}" for value in figures), f"{scores['words']:.1f}"]

            title = f"#### {test}, output alpha {settings['output_alpha']}, {settings['words']} words a side{pairs}"
            blocks.append(block(title, tested, header, row))
    return "\n\n".join([SUMMARISATION, *blocks]) if blocks else ""


def summarisation_key(result: Result) -> Tuple:
    return tuple(str(result["settings"][name]) for name in ("output_alpha", "limit", "words", "model", "training"))


def entailment(found: List[Result]) -> str:
    results = of_recipe(found, "snli")
    header = ["accuracy %", "attended", "segments", "equal %", "words of the premise"]
    blocks = []
    for group in grouped(results, entailment_key):

        def row(result: Result) -> List[str]:
            scores = result["scores"]
            figures = [f"{scores[name]:.2f}" for name in ("accuracy", "attended", "segments")]
            return [*figures, f"{100 * scores['equal_neighbours']:.1f}", f"{scores['words']:.2f}"]

        limit = group[0]["settings"]["limit"]
        title = f"#### {'All' if limit is None else f'The first {limit}'} training pairs"
        if group[0]["settings"].get("sample"):
            title = SAMPLE
        blocks.append(block(title, group, header, row))
    return "\n\n".join([ENTAILMENT, *blocks]) if blocks else ""


def entailment_key(result: Result) -> Tuple:
    settings = result["settings"]
    return str(settings.get("sample")), settings["model"], settings["training"], settings["limit"]


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=Path, required=True, help="folder of result files")
    args = parser.parse_args(arguments)
    try:
        print(section(read(args.results)))
    except ValueError as error:
        print(f"tables_2017: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
