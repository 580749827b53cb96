"""Figures of one inflection model: accuracy, edit distance, exactness, time; written as JSON and printed.

Accuracy (share of forms that are exactly right) and edit distance (Levenshtein, in characters) are those of the shared
task's own evaluation, counted for each language and averaged over languages. An output that is missing is an error,
where the task's script counts it as wrong.
"""

import argparse
import json
import math
import re
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

from evaluate_inflection import Output, mean, read_hypotheses, read_lines, read_records, write_predictions
from prepare_inflection import spell
from results import training_seconds

from fairseq_entmax.scoring import edit_distance


def read_set(data: Path, part: str, folder: Path) -> List[Output]:
    """What a model made of one part of the data, in the order of the data."""
    sources, references = read_lines(data / f"{part}.src"), read_lines(data / f"{part}.tgt")
    if len(sources) != len(references):
        raise ValueError(f"{data}: {len(sources)} sources but {len(references)} references in {part}")
    hypotheses = read_hypotheses(folder / f"generate-{part}.txt", len(references))
    records = read_records(folder / "certificates.jsonl", len(references))
    return [Output(*parts) for parts in zip(sources, references, hypotheses, records)]


def language_scores(outputs: List[Output]) -> Dict[str, float]:
    pairs = [(spell(item.reference), spell(item.output)) for item in outputs]
    return {
        "pairs": len(pairs),
        "accuracy": 100 * mean(reference == output for reference, output in pairs),
        "distance": mean(edit_distance(reference, output) for reference, output in pairs),
    }


def set_scores(outputs: List[Output]) -> Dict[str, Any]:
    """Averages over languages, the languages themselves, and what decoding took."""
    by_language: Dict[str, List[Output]] = {}
    for item in outputs:
        by_language.setdefault(item.language, []).append(item)
    languages = {language: language_scores(items) for language, items in sorted(by_language.items())}
    exact = [exactness(items) for items in by_language.values()]
    supports = [size for item in outputs for size in item.record["hypotheses"][0]["support"]]
    return {
        "accuracy": mean(scores["accuracy"] for scores in languages.values()),
        "distance": mean(scores["distance"] for scores in languages.values()),
        "decoder_rows": mean(item.record["decoder_rows"] for item in outputs),
        "support": mean(supports),
        "languages": languages,
        **{name: mean(shares[name] for shares in exact) for name in exact[0]},
    }


def exactness(outputs: List[Output]) -> Dict[str, float]:
    """Shares in percent: a single string has all the probability; all strings were listed; the best is proved best."""
    kinds = [(item.record["certificate"], item.record["strings"]) for item in outputs]
    return {
        "single": 100 * mean(kind == ("complete", 1) for kind in kinds),
        "complete": 100 * mean(certificate == "complete" for certificate, _ in kinds),
        "proved": 100 * mean(certificate != "none" for certificate, _ in kinds),
    }


def example(outputs: List[Output]) -> Optional[Dict[str, Any]]:
    """All that is possible for one source, as in figure 1 of the paper.

    Of the sources with exactly three forms, the one whose least probable form is most probable.
    """
    listed = [item for item in outputs if (item.record["certificate"], item.record["strings"]) == ("complete", 3)]
    if not listed:
        return None
    record = max(listed, key=lambda item: min(h["logprob"] for h in item.record["hypotheses"])).record
    forms = [[spell(h["text"]), math.exp(h["logprob"])] for h in record["hypotheses"]]
    return {"id": record["id"], "source": record["source"], "forms": forms}


def training_scores(log: Path) -> Dict[str, float]:
    """From the log that fairseq appends to: epochs, the epoch with the least loss on the development set, seconds."""
    text = log.read_text(encoding="utf-8")
    losses = {
        int(epoch): float(loss) for epoch, loss in re.findall(r"epoch (\d+) \| valid on .*?\| loss ([\d.]+)", text)
    }
    ends = re.findall(r"epoch (\d+) \| loss .*?\| num_updates (\d+) .*\| wall \d+", text)
    if not losses or not ends:
        raise ValueError(f"{log}: wanted the log of a training, got none of its epochs")
    best = min(losses, key=lambda epoch: losses[epoch])
    epochs, updates = map(int, ends[-1])
    seconds = training_seconds(text)
    return {"epochs": epochs, "best_epoch": best, "loss": losses[best], "updates": updates, "seconds": seconds}


def score(data: Path, run: Path) -> Dict[str, Any]:
    """All figures of the run in folder `run`: its log, if it was trained there, and the parts that were decoded."""
    scores: Dict[str, Any] = {}
    if (run / "log.txt").exists():
        scores["training"] = training_scores(run / "log.txt")
    for part in ("valid", "test"):
        if not (run / part).exists():
            continue
        outputs = read_set(data, part, run / part)
        scores[part] = set_scores(outputs)
        seconds = read_lines(run / part / "seconds")
        scores[part]["seconds"] = sum(map(float, seconds))
        if part == "valid":
            scores[part]["example"] = example(outputs)
        write_predictions(run / part / "predictions.tsv", outputs)
    return scores


def print_scores(scores: Dict[str, Any]) -> None:
    test = scores["test"]
    width = max(len(language) for language in [*test["languages"], "average"])
    for language, row in [*test["languages"].items(), ("average", test)]:
        print(f"{language:<{width}} accuracy {row['accuracy']:6.2f} %  edit distance {row['distance']:6.3f}")
    if "valid" in scores:
        valid = scores["valid"]
        print(
            f"development set: single string {valid['single']:.2f} %, all strings listed {valid['complete']:.2f} %, "
            f"best proved {valid['proved']:.2f} %"
        )
        if valid["example"]:
            forms = ", ".join(f"{form} {probability:.3f}" for form, probability in valid["example"]["forms"])
            print(f"for example number {valid['example']['id']}, {valid['example']['source']}: {forms}")
    print(f"test set: best proved {test['proved']:.2f} %, decoder rows a form {test['decoder_rows']:.1f}")


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with valid.src, valid.tgt, test.src, test.tgt")
    parser.add_argument("--run", type=Path, required=True, help="folder with test/, valid/ and log.txt")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args(arguments)
    try:
        scores = score(args.data, args.run)
    except (ValueError, OSError) as error:
        print(f"score_inflection: {error}", file=sys.stderr)
        return 1
    args.out.write_text(json.dumps(scores, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print_scores(scores)
    return 0


if __name__ == "__main__":
    sys.exit(main())
