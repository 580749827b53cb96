"""The translation part of `docs/reproduction.md`."""

from pathlib import Path
from typing import Any, Dict, List, Tuple

from results import apart, conditions, of_recipe, same_options, table

Result = Dict[str, Any]
IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
TITLES = {
    "iwslt_de_en": "IWSLT 2017, German and English",
    "kftt_ja_en": "KFTT, Japanese and English",
    "wmt16_ro_en": "WMT 2016, Romanian and English",
    "multi30k": "Multi30k, a small stand-in",
}
MAPPINGS = {1: "softmax", 1.5: "1.5-entmax", 2: "sparsemax"}
INTRODUCTION = """## Translation (Peters, Niculae and Martins, 2019)

By `iwslt_de_en.sh`, `kftt_ja_en.sh`, `wmt16_ro_en.sh` with the settings of the paper, and by `multi30k.sh` with smaller
ones on a small corpus. Differences to the paper:

- pieces are learnt by sentencepiece on the text as it comes (KFTT: on its tokens), where the paper applied BPE to
  tokens
- the learning rate is looked at after each epoch, not after each validation
- the best model is that of the best validation loss, where the paper's code (deep-spin/OpenNMT-entmax) took the best
  accuracy
- the end of the source is a position that attention can choose
- nothing is left out; whether the paper left out training pairs of more than 50 tokens, as its toolkit does by default,
  is not known

The columns:

- *sacreBLEU*: on detokenised text, where known with its 95 % interval by bootstrap. Not comparable with *tokenised
  BLEU*, the metric of the paper
- *to softmax*: the difference in sacreBLEU, with the probability that chance on these sentences makes one as large
  (paired bootstrap; other seeds differ, too)
- *epochs*: that of the best validation loss, of all; where both are the same number, the limit of epochs ended a
  training that still learnt
- *tokens/s*: target pieces a second in training; where other work shared the machine it says little
- *non-zeros*: pieces with probability above zero at each step of the best output, and source positions with attention
  above zero, on the test set; *given the text*: pieces at each step of the validation text, as the paper counts (its
  table 3: 16.13 of 17,993 for 1.5-entmax)
- *proved*: sentences whose answer is proved best, by listing every possible output (*all listed*) or by bounds
- *rows*: decoder rows a sentence"""
SPEED = """Whole training steps of the trained models on the same {batches} batches in turn, so that whatever else the
machine did slows all alike; *time* is the median over batches, relative to the first row:"""
SWEEP = """sacreBLEU by alpha, trained for {epochs} epochs (figure 4 of the paper, where models are trained to
their ends; so few epochs show how fast a model learns rather than how good it gets):"""


def section(found: List[Result]) -> str:
    """Markdown of the tables; "" without results."""
    parts = []
    for recipe, title in TITLES.items():
        results = of_recipe(found, recipe)
        for pair, size in sorted({key(result) for result in results}):
            name = title + (f", {size} model" if size else "")
            parts += pair_parts(recipe, name, pair, [r for r in results if key(r) == (pair, size)])
    return "\n\n".join([INTRODUCTION, *parts]) if parts else ""


def key(result: Result) -> Tuple[str, str]:
    return result["settings"]["pair"], result["settings"].get("size") or ""


def pair_parts(recipe: str, title: str, pair: str, results: List[Result]) -> List[str]:
    models = sorted((r for r in results if r["settings"].get("sweep") == 0), key=order)
    swept = sorted((r for r in results if r["settings"].get("sweep") == 1), key=order)
    speeds = [r for r in results if r["settings"].get("speed")]
    parts = [f"### {title}: {pair.replace('-', ' to ')}"]
    trainings = sorted({same_options(result["settings"]["training"]) for result in models})
    for training in trainings:
        alike = [result for result in models if same_options(result["settings"]["training"]) == training]
        parts += apart(training, trainings) + [score_table(alike, pairings(results)), sparsity_table(alike)]
    if models:
        signatures = sorted({result["scores"]["signature"] for result in models})
        parts.append(f"sacreBLEU: {', '.join(f'`{signature}`' for signature in signatures)}.")
        parts += picture(f"training-{recipe}-{pair}.png", "Validation accuracy against time in training steps")
    if swept:
        epochs = sorted({result["scores"]["training"]["epochs"] for result in swept})
        parts += [SWEEP.format(epochs=" or ".join(map(str, epochs))), sweep_table(swept)]
        parts += picture(f"alpha-sweep-{recipe}-{pair}.png", "BLEU against alpha of attention and of output")
    for result in speeds:
        parts += [SPEED.format(batches=result["scores"]["batches"]), speed_table(result)]
    parts += [conditions(results), f"The first row: `{(models or swept or speeds)[0]['command']}`."]
    return parts


def order(result: Result):
    return result["settings"]["attention_alpha"], result["settings"]["output_alpha"], str(result["seed"])


def names(result: Result) -> List[str]:
    """Names of the attention mapping and of the output mapping."""
    alphas = (result["settings"]["attention_alpha"], result["settings"]["output_alpha"])
    return [MAPPINGS.get(alpha, f"{alpha:g}-entmax") for alpha in alphas]


def pairings(results: List[Result]) -> Dict[Tuple[str, str], str]:
    """By seed and name of a system: the difference of its BLEU to the baseline's, with the p-value."""
    return {
        (str(result["seed"]), name): f"{figures['difference']:+.2f} ({figures['p']:.3f})"
        for result in results
        if result["settings"].get("paired")
        for name, figures in result["scores"]["paired"].items()
    }


def score_table(results: List[Result], paired: Dict[Tuple[str, str], str]) -> str:
    plain = any("bleu_without_diacritics" in result["scores"] for result in results)
    tokenised = any("tokenised_bleu" in result["scores"] for result in results)
    header = ["attention", "output", "seed", "sacreBLEU"] + ["to softmax (p)"] * bool(paired)
    header += ["without diacritics"] * plain + ["tokenised BLEU"] * tokenised
    header += ["epochs", "tokens/s", "minutes"]
    rows = []
    for result in results:
        scores, trained = result["scores"], result["scores"]["training"]
        interval = f" ± {scores['bleu_interval']:.2f}" if "bleu_interval" in scores else ""
        alphas = "{attention_alpha:g}/{output_alpha:g}".format(**result["settings"])
        row = [*names(result), result["seed"], f"{scores['bleu']:.2f}{interval}"]
        row += [paired.get((str(result["seed"]), alphas), "")] * bool(paired)
        row += [optional(scores, "bleu_without_diacritics")] * plain + [optional(scores, "tokenised_bleu")] * tokenised
        row += [f"{trained['best']['epoch']:.0f} of {trained['epochs']}", f"{trained['target_tokens_per_second']:.0f}"]
        rows.append([*row, f"{result['seconds'] / 60:.0f}"])
    return table(header, rows)


def sparsity_table(results: List[Result]) -> str:
    header = ["attention", "output", "non-zeros of output", "given the text", "of", "non-zeros of attention", "of"]
    header += ["proved %", "all listed %", "covered mass", "rows"]
    rows = []
    for result in results:
        scores, counts, claims = result["scores"], result["scores"]["nonzeros"], result["scores"]["certificates"]
        row = [*names(result), f"{counts['output']:.2f}", f"{scores['training']['best']['support']:.2f}"]
        row += [scores["vocabulary"]]
        row += [f"{counts['attention']:.2f}", f"{counts['source']:.2f}"]
        row += [f"{claims['complete'] + claims['optimal']:.1f}", f"{claims['complete']:.1f}"]
        rows.append([*row, f"{claims['mass']:.3f}", f"{claims['decoder_rows']:.1f}"])
    return table(header, rows)


def sweep_table(results: List[Result]) -> str:
    """A grid of attention alpha (rows) and output alpha (columns); empty where nothing was trained."""
    scores = {order(result)[:2]: result["scores"]["bleu"] for result in results}
    outputs = sorted({output for _, output in scores})
    rows = []
    for attention in sorted({attention for attention, _ in scores}):
        cells = [scores.get((attention, output)) for output in outputs]
        rows.append([f"{attention:g}", *("" if cell is None else f"{cell:.2f}" for cell in cells)])
    return table(["attention \\ output", *(f"{output:g}" for output in outputs)], rows)


def speed_table(result: Result) -> str:
    rows = []
    for name, figures in result["scores"]["speed"].items():
        mappings = [MAPPINGS.get(float(alpha), f"{alpha}-entmax") for alpha in name.split("/")]
        rows.append([*mappings, f"{figures['target_tokens_per_second']:.0f}", f"{figures['time']:.2f}"])
    return table(["attention", "output", "tokens/s", "time"], rows)


def optional(scores: Dict[str, Any], name: str) -> str:
    return f"{scores[name]:.2f}" if name in scores else ""


def picture(name: str, text: str) -> List[str]:
    return [f"![{text}](images/{name})"] if (IMAGES / name).is_file() else []
