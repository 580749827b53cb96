"""Scores a decoded pronunciation set, where a word may have several right outputs.

Reads `data/test.jsonl`, `certificates.jsonl` (the listed outputs of each word) and `generate-test1.txt` (the model's
scores of the dictionary's pronunciations) in the folder of the run. Writes `predictions.tsv`, `scores.json` and, where
matplotlib is installed, `calibration.png`. Stops if a word is missing.

An output is right if it is any of the word's pronunciations; its phonemes are compared with the closest one.
"""

import argparse
import json
import logging
import math
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

from fairseq_entmax.scoring import edit_distance

BINS = 10
MASSES = (0.5, 0.8)  # shorter lists, beside the one that was made


class Listed(NamedTuple):
    """One pronunciation and its probability."""

    phonemes: str
    probability: float


class Word(NamedTuple):
    word: str
    part: str  # "test": drawn from all words; "several": from those with several pronunciations
    variants: List[Listed]  # the dictionary's
    outputs: List[Listed]  # the model's, most probable first
    record: dict

    @property
    def best(self) -> Listed:
        return self.outputs[0] if self.outputs else Listed("", 0.0)

    def is_right(self, output: Listed) -> bool:
        return any(output.phonemes == variant.phonemes for variant in self.variants)

    def errors(self) -> Tuple[int, int]:
        """Phonemes to change, and phonemes, of the variant closest to the best output."""
        output = self.best.phonemes.split()
        options = [variant.phonemes.split() for variant in self.variants]
        return min((edit_distance(option, output), len(option)) for option in options)

    def short_list(self, mass: float) -> List[Listed]:
        """The most probable outputs that cover `mass` together, or all there are."""
        covered, kept = 0.0, []
        for output in self.outputs:
            if covered >= mass - 1e-12:
                break
            covered += output.probability
            kept.append(output)
        return kept


class Bin(NamedTuple):
    """Outputs whose probabilities lie in one tenth of [0, 1]."""

    count: int
    probability: float  # mean
    right: float  # share


# --- reading --------------------------------------------------------------------------------------------------------


def read_lines(path: Path) -> List[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def read_records(path: Path, wanted: int) -> List[dict]:
    """The certificate records, by id."""
    records = {record["id"]: record for record in map(json.loads, read_lines(path))}
    if sorted(records) != list(range(wanted)):
        raise ValueError(f"{path}: wanted {wanted} records with ids from 0, got {len(records)}")
    return [records[number] for number in range(wanted)]


def read_probabilities(path: Path, wanted: int) -> List[float]:
    """Probability of each scored reference, from fairseq's P- lines (log2 of each symbol's)."""
    found: Dict[int, float] = {}
    for line in read_lines(path):
        if line.startswith("P-"):
            name, _, scores = line.partition("\t")
            found[int(name[2:])] = 2.0 ** math.fsum(map(float, scores.split()))
    if sorted(found) != list(range(wanted)):
        raise ValueError(f"{path}: wanted {wanted} scored references with ids from 0, got {len(found)}")
    return [found[number] for number in range(wanted)]


def load(folder: Path) -> List[Word]:
    entries = [json.loads(line) for line in read_lines(folder / "data" / "test.jsonl")]
    records = read_records(folder / "certificates.jsonl", len(entries))
    scored = read_probabilities(folder / "generate-test1.txt", sum(len(e["pronunciations"]) for e in entries))
    words = []
    for entry, record in zip(entries, records):
        spoken = entry["pronunciations"]
        variants, scored = [Listed(*pair) for pair in zip(spoken, scored)], scored[len(spoken) :]
        outputs = [
            Listed(hypothesis["text"], math.exp(hypothesis["logprob"]))
            for hypothesis in record["hypotheses"]
            if hypothesis["logprob"] is not None  # null: no output could be reached
        ]
        words.append(Word(entry["word"], entry["set"], variants, outputs, record))
    return words


# --- figures --------------------------------------------------------------------------------------------------------


def mean(values) -> float:
    values = list(values)
    return math.fsum(values) / len(values)


def error_rates(words: List[Word]) -> Dict[str, float]:
    """Rates in percent, and what the distributions say; means are over words."""
    counts = [word.errors() for word in words]
    variants = [variant for word in words for variant in word.variants]
    return {
        "words": len(words),
        "word_error_rate": 100 * mean(not word.is_right(word.best) for word in words),
        "phoneme_error_rate": 100 * sum(edits for edits, _ in counts) / max(sum(length for _, length in counts), 1),
        "dictionary_mass": mean(math.fsum(variant.probability for variant in word.variants) for word in words),
        "impossible_variants": 100 * mean(variant.probability == 0 for variant in variants),
        "listed_mass": mean(word.record["mass"] for word in words),
        "strings": mean(len(word.outputs) for word in words),
        "complete": 100 * mean(word.record["certificate"] == "complete" for word in words),
        "proved": 100 * mean(word.record["certificate"] != "none" for word in words),
        "decoder_rows": mean(word.record["decoder_rows"] for word in words),
    }


def list_quality(words: List[Word], mass: float) -> Dict[str, float]:
    """Precision and recall in percent of the lists that cover `mass`, over all words together."""
    lists = [(word, word.short_list(mass)) for word in words]
    listed = sum(len(outputs) for _, outputs in lists)
    right = sum(word.is_right(output) for word, outputs in lists for output in outputs)
    variants = sum(len(word.variants) for word in words)
    precision, recall = right / max(listed, 1), right / max(variants, 1)
    return {
        "strings": listed / max(len(words), 1),
        "precision": 100 * precision,
        "recall": 100 * recall,
        "f1": 200 * precision * recall / (precision + recall) if right else 0.0,
    }


def calibration(outputs: List[Tuple[float, bool]]) -> Tuple[List[Optional[Bin]], float]:
    """Bins of equal width over the probability, None for an empty one, and the expected calibration error.

    Args:
        outputs: probability, and whether the output was right; at least one

    Returns:
        the bins, and the mean difference between the two over all outputs, bin by bin (in [0, 1])
    """
    grouped: List[List[Tuple[float, bool]]] = [[] for _ in range(BINS)]
    for probability, right in outputs:
        grouped[min(int(probability * BINS), BINS - 1)].append((probability, right))
    bins = [Bin(len(group), *(mean(side) for side in zip(*group))) if group else None for group in grouped]
    gaps = (part.count * abs(part.probability - part.right) for part in bins if part is not None)
    return bins, math.fsum(gaps) / len(outputs)


def best_outputs(words: List[Word]) -> List[Tuple[float, bool]]:
    return [(word.best.probability, word.is_right(word.best)) for word in words]


def all_outputs(words: List[Word]) -> List[Tuple[float, bool]]:
    return [(output.probability, word.is_right(output)) for word in words for output in word.outputs]


def groups(words: List[Word]) -> Dict[str, List[Word]]:
    """The random draw, its words with one pronunciation, and all test words with several; none without words."""
    drawn = [word for word in words if word.part == "test"]
    found = {
        "all": drawn,
        "one": [word for word in drawn if len(word.variants) == 1],
        "several": [word for word in words if len(word.variants) > 1],
    }
    return {name: part for name, part in found.items() if part}


def figures(words: List[Word], mass: float) -> dict:
    """All that is written to `scores.json`; what has no words is left out."""
    parts = groups(words)
    drawn, several = parts.get("all", []), parts.get("several", [])
    masses = {"best": 1e-9, **{f"{wanted:g}": wanted for wanted in (*MASSES, mass)}} if several else {}
    lists = {name: list_quality(several, wanted) for name, wanted in masses.items()}
    curves = {"best": best_outputs(drawn), "best, several": best_outputs(several), "listed": all_outputs(drawn)}
    calibrations = {}
    for name, outputs in curves.items():
        if not outputs:
            continue
        bins, error = calibration(outputs)
        calibrations[name] = {"outputs": len(outputs), "error": error, "bins": bins}
    rates = {name: error_rates(part) for name, part in parts.items()}
    return {"groups": rates, "lists": lists, "calibration": calibrations}


# --- writing --------------------------------------------------------------------------------------------------------


def print_report(scores: dict) -> None:
    print(
        f"{'words':<8} {'number':>6} {'WER%':>6} {'PER%':>6} {'P(dict.)':>8} {'impossible%':>11} {'P(listed)':>9} "
        f"{'strings':>7} {'complete%':>9} {'rows':>6}"
    )
    for name, row in scores["groups"].items():
        print(
            f"{name:<8} {row['words']:>6} {row['word_error_rate']:>6.2f} {row['phoneme_error_rate']:>6.2f} "
            f"{row['dictionary_mass']:>8.4f} {row['impossible_variants']:>11.2f} {row['listed_mass']:>9.4f} "
            f"{row['strings']:>7.1f} {row['complete']:>9.2f} {row['decoder_rows']:>6.0f}"
        )
    if scores["lists"]:
        print("\nlists for words with several pronunciations, against the dictionary's")
        print(f"{'list':<8} {'strings':>7} {'precision%':>10} {'recall%':>8} {'F1':>6}")
    for name, row in scores["lists"].items():
        title = name if name == "best" else f"P >= {name}"
        print(f"{title:<9}{row['strings']:>7.2f} {row['precision']:>10.2f} {row['recall']:>8.2f} {row['f1']:>6.2f}")
    for name, part in scores["calibration"].items():
        print(f"\ncalibration, {name} ({part['outputs']} outputs): expected calibration error {part['error']:.4f}")
        for number, row in enumerate(part["bins"]):
            if row is not None:
                count, probability, right = row
                low = number / BINS
                print(f"  {low:.1f} to {low + 1 / BINS:.1f}: {count:>6}, mean P {probability:.3f}, right {right:.3f}")


def write_predictions(path: Path, words: List[Word]) -> None:
    """Word, the dictionary's pronunciations, the best output, whether it is right, its probability."""
    rows = (
        (
            word.word,
            " | ".join(variant.phonemes for variant in word.variants),
            word.best.phonemes,
            str(int(word.is_right(word.best))),
            f"{word.best.probability:.6f}",
        )
        for word in words
    )
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def draw_calibration(path: Path, scores: dict) -> None:
    """Reliability of the probabilities: share of right outputs over mean probability, bin by bin."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 4.2), layout="constrained")
    ax = figure.subplots()
    ax.plot([0, 1], [0, 1], color="#7b8591", linewidth=0.8, linestyle="--")
    for name, part in scores["calibration"].items():
        points = [row[1:] for row in part["bins"] if row is not None]
        label = f"{name}: ECE {part['error']:.3f}"
        ax.plot([p for p, _ in points], [right for _, right in points], marker="o", markersize=4, label=label)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="mean probability of the pronunciation", ylabel="share that is right")
    ax.legend(frameon=False, fontsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--mass", type=float, required=True, help="probability that the lists were made to cover")
    args = parser.parse_args(arguments)
    folder = args.out
    try:
        words = load(folder)
    except (ValueError, OSError) as error:
        print(f"evaluate_g2p: {error}", file=sys.stderr)
        return 1
    scores = figures(words, args.mass)
    print_report(scores)
    write_predictions(folder / "predictions.tsv", words)
    (folder / "scores.json").write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    drawn = ""
    if find_spec("matplotlib") is not None:
        draw_calibration(folder / "calibration.png", scores)
        drawn = f"; reliability: {folder / 'calibration.png'}"
    print(f"\noutputs: {folder / 'predictions.tsv'}; lists: {folder / 'certificates.jsonl'}{drawn}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
