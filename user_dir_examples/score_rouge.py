"""ROUGE-1, -2 and -L of summaries with one or several references, by the package rouge-score.

Recall, precision and F1 in percent, for whole texts and for the first 75 bytes of summaries and references, as the DUC
evaluations cut them (ROUGE-1.5.5 with `-b 75`; a cut word counts as what is left of it). With several references their
matches and sizes are added up before dividing (`-f A`, also the definition in Lin 2004); the figures of the reference
with the highest recall are given too (`-f B`). Words are stemmed, as in those evaluations (`-m`). Where the references
have digits, words of summaries that stand for numbers (`19##`) become the numbers of the input again.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from prepare_summaries import without_digits

TYPES = {"rouge1": 1, "rouge2": 2, "rougeL": 1}  # words of a unit
MEASURES = ("recall", "precision", "f1")
CUT = 75


def cut_bytes(text: str, size: int) -> str:
    """The first `size` bytes of a text in UTF-8; a character is never split."""
    return text.encode("utf-8")[:size].decode("utf-8", errors="ignore")


def pooled(scores: Sequence, sizes: Sequence[int]) -> Tuple[float, float, float]:
    """Recall, precision and F1 of one summary against references of so many units, all references together."""
    recall = sum(one.recall * size for one, size in zip(scores, sizes)) / max(sum(sizes), 1)
    precision = sum(one.precision for one in scores) / len(scores)
    return recall, precision, 2 * precision * recall / (precision + recall) if recall else 0.0


def score(summaries: Sequence[str], references: Sequence[Sequence[str]]) -> Dict[str, Dict[str, float]]:
    """Mean scores in percent: `{"average": {"rouge1_recall": ...}, "best": {...}}`, of all references and the best one.

    Args:
        summaries: one for each input
        references: of each input, one or several; empty ones are left out
    """
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenizers import DefaultTokenizer

    if len(summaries) != len(references):
        raise ValueError(f"wanted a summary for each of {len(references)} inputs, got {len(summaries)}")
    tokenizer = DefaultTokenizer(use_stemmer=True)
    scorer = RougeScorer([*TYPES], tokenizer=tokenizer)
    totals: Dict[str, Dict[str, float]] = {"average": {}, "best": {}}
    for number, (summary, targets) in enumerate(zip(summaries, references)):
        targets = [target for target in targets if target.strip()]
        if not targets:
            raise ValueError(f"input {number} has no reference")
        found = [scorer.score(target, summary) for target in targets]
        lengths = [len(tokenizer.tokenize(target)) for target in targets]
        for kind, words in TYPES.items():
            scores = [one[kind] for one in found]
            best = max(scores, key=lambda one: one.recall)
            average = pooled(scores, [max(length - words + 1, 0) for length in lengths])
            for way, values in (("average", average), ("best", (best.recall, best.precision, best.fmeasure))):
                for measure, value in zip(MEASURES, values):
                    name = f"{kind}_{measure}"
                    totals[way][name] = totals[way].get(name, 0.0) + 100 * value / len(summaries)
    return totals


def with_numbers(summary: str, text: str) -> str:
    """`summary` with the numbers of the input: each in turn for a word of its form (`12.5`: `##.#`), the last again."""
    numbers: Dict[str, List[str]] = {}
    for word in text.split():
        if without_digits(word) != word:
            numbers.setdefault(without_digits(word), []).append(word)
    words = []
    for word in summary.split():
        forms = numbers.get(word, [word])
        words.append(forms.pop(0) if len(forms) > 1 else forms[0])
    return " ".join(words)


def read_outputs(path: Path, wanted: int) -> List[str]:
    """The best output of each sentence (fairseq's D- lines), in the order of the input."""
    found: Dict[int, str] = {}
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.startswith("D-"):
            name, _, text = line.split("\t", 2)
            found.setdefault(int(name[2:]), text)
    if sorted(found) != list(range(wanted)):
        raise ValueError(f"{path}: wanted {wanted} outputs, one for each input, got {len(found)}")
    return [found[number] for number in range(wanted)]


def figures(summaries: List[str], references: List[List[str]]) -> dict:
    return {
        "sentences": len(summaries),
        "references": max(len(targets) for targets in references),
        "words": sum(len(summary.split()) for summary in summaries) / len(summaries),
        "whole": score(summaries, references),
        f"{CUT} bytes": score(
            [cut_bytes(summary, CUT) for summary in summaries],
            [[cut_bytes(target, CUT) for target in targets] for targets in references],
        ),
    }


def print_table(name: str, scores: dict) -> None:
    print(f"{name}: {scores['sentences']} sentences, {scores['references']} reference(s), {scores['words']:.1f} words")
    print(f"{'':<22}" + "".join(f"{kind:>24}" for kind in ("ROUGE-1", "ROUGE-2", "ROUGE-L")))
    print(f"{'':<22}" + f"{'R':>10}{'P':>7}{'F1':>7}" * 3)
    for length in ("whole", f"{CUT} bytes"):
        for way in ("average", "best"):
            row = scores[length][way]
            cells = (row[f"{kind}_{m}"] for kind in TYPES for m in MEASURES)
            texts = [f"{value:>{10 if i % 3 == 0 else 7}.2f}" for i, value in enumerate(cells)]
            print(f"{f'{length}, {way}':<22}" + "".join(texts))


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that prepare_summaries.py wrote")
    parser.add_argument("--run", type=Path, required=True, help="folder with generate-SUBSET.txt of each test set")
    args = parser.parse_args(arguments)
    result = {}
    try:
        for number, name in enumerate((args.data / "tests").read_text().split()):
            references = json.loads((args.data / f"{name}.references.json").read_text(encoding="utf-8"))
            subset = f"test{number or ''}"
            outputs = read_outputs(args.run / f"generate-{subset}.txt", len(references))
            if any(without_digits(text) != text for texts in references for text in texts):
                inputs = (args.data / f"{name}.input").read_text(encoding="utf-8").split("\n")
                outputs = [with_numbers(*pair) for pair in zip(outputs, inputs)]
            result[name] = figures(outputs, references)
            print_table(name, result[name])
            text = "".join(output + "\n" for output in outputs)
            (args.run / f"{name}.outputs.txt").write_text(text, encoding="utf-8")
    except (ValueError, OSError) as error:
        print(f"score_rouge: {error}", file=sys.stderr)
        return 1
    (args.run / "scores.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
