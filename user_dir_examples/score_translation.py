"""Scores a decoded translation model: sacreBLEU, tokenised BLEU, numbers of non-zeros, certificates, speed.

Reads the prepared data (`--data`, made by prepare_translation.py) and the run (`--run`: train.log, generate-test.txt
and certificates-test.jsonl); writes `scores.json` and `hypotheses.test.txt` in the run. Stops if an output is missing.

sacreBLEU is computed on detokenised text with fixed arguments, and its signature is recorded. The 2019 paper reports
tokenised BLEU; that of a corpus that comes untokenised is computed on Moses tokens (needs sacremoses). The two are not
comparable.
"""

import argparse
import itertools
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from evaluate_inflection import mean, read_hypotheses, read_lines, read_records
from prepare_translation import remove_diacritics
from results import training_seconds

# Written out, so that a change of sacreBLEU's defaults changes nothing here.
SACREBLEU = {"lowercase": False, "smooth_method": "exp", "smooth_value": None, "effective_order": False}
FAIRSEQ_SYMBOLS = 4  # begin and end of sentence, padding, unknown: part of every output distribution
NUMBER = re.compile(r"-?[\d.]+(e-?\d+)?")
TOKENISERS = {"ja": "ja-mecab", "zh": "zh"}
# What multi-bleu.perl computes: no tokenisation of its own, no smoothing.
TOKENISED_BLEU = {"lowercase": False, "tokenize": "none", "smooth_method": "none", "effective_order": False}
RESAMPLES = 1000  # of the sentences, for the interval


class Score(NamedTuple):
    bleu: float
    signature: str


# --- BLEU ------------------------------------------------------------------------------------------------------------


def check_count(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references) or not references:
        raise ValueError(f"hypotheses: wanted one for each of {len(references)} references, got {len(hypotheses)}")


def metric(**options):
    try:
        from sacrebleu.metrics import BLEU
    except ImportError:
        raise ValueError("sacrebleu: wanted version 2 or later, got an older one or none") from None
    try:
        return BLEU(force=True, **options)  # `force` silences the warning about text that looks tokenised
    except RuntimeError as error:  # a tokeniser that is not installed, as that for Japanese
        raise ValueError(f"sacrebleu: {' '.join(str(error).split())}") from None


def bleu(hypotheses: Sequence[str], references: Sequence[str], **options) -> Score:
    check_count(hypotheses, references)
    computed = metric(**options)
    return Score(computed.corpus_score(hypotheses, [references]).score, str(computed.get_signature()))


def sacrebleu_options(language: str) -> Dict[str, Any]:
    return {"tokenize": TOKENISERS.get(language, "13a"), **SACREBLEU}


def sacrebleu_score(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Score:
    """BLEU of detokenised text, with the signature that says how it was computed."""
    return bleu(hypotheses, references, **sacrebleu_options(language))


def bleu_interval(hypotheses: Sequence[str], references: Sequence[str], language: str) -> float:
    """Half of the 95 % interval of that BLEU over resampled test sets."""
    computed = metric(**sacrebleu_options(language))
    score = computed.corpus_score(hypotheses, [references], n_bootstrap=RESAMPLES)
    told = json.loads(score.format(width=6, signature=str(computed.get_signature()), is_json=True))
    return told.get("confidence_var", 0.0)  # not told where BLEU is 0 in all of them


def tokenised_score(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """BLEU of text whose tokens are separated by spaces, as papers before sacreBLEU report it."""
    return bleu(hypotheses, references, **TOKENISED_BLEU)


def moses(language: str):
    """Functions that tokenise and detokenise lines as the Moses scripts do."""
    try:
        from sacremoses import MosesDetokenizer, MosesTokenizer
    except ImportError:
        raise ValueError("tokenised BLEU needs sacremoses: pip install sacremoses") from None
    tokenizer, detokenizer = MosesTokenizer(lang=language), MosesDetokenizer(lang=language)
    return (
        lambda line: tokenizer.tokenize(line, return_str=True, escape=False),
        lambda line: detokenizer.detokenize(line.split(" ")),
    )


def detokenise(lines: Sequence[str], language: str) -> List[str]:
    """Plain text of tokenised lines; Japanese is written without spaces."""
    if language == "ja":
        return ["".join(line.split(" ")) for line in lines]
    detokenizer = moses(language)[1]
    return [detokenizer(line) for line in lines]


def plain_text(data: Path, facts: Dict[str, Any], hypotheses: List[str]) -> Tuple[List[str], List[str]]:
    """Outputs and references of the test set as sacreBLEU wants them: detokenised."""
    language = facts["pair"].split("-")[1]
    if facts["tokenised"]:
        return detokenise(hypotheses, language), read_lines(data / "text" / f"test.raw.{language}")
    return hypotheses, read_lines(data / "text" / f"test.{language}")


def all_bleu(data: Path, facts: Dict[str, Any], hypotheses: List[str], wants_tokenised: bool) -> Dict[str, Any]:
    """All scores of the test set; `facts` are those of `data.json`."""
    language = facts["pair"].split("-")[1]
    references = read_lines(data / "text" / f"test.{language}")
    check_count(hypotheses, references)
    scores: Dict[str, Any] = {}
    text, tokens = plain_text(data, facts, hypotheses), (hypotheses, references)
    if not facts["tokenised"]:
        tokenizer: Callable[[str], str] = moses(language)[0] if wants_tokenised else str
        tokens = ([tokenizer(line) for line in hypotheses], [tokenizer(line) for line in references])
    scores["bleu"], scores["signature"] = sacrebleu_score(*text, language)
    scores["bleu_interval"] = bleu_interval(*text, language)
    if language == "ro":
        stripped = [[remove_diacritics(line) for line in lines] for lines in (hypotheses, references)]
        scores["bleu_without_diacritics"] = sacrebleu_score(*stripped, language).bleu
        if facts["diacritics"] == "remove":  # the model has never seen one
            tokens = tuple([remove_diacritics(line) for line in lines] for lines in tokens)
    if wants_tokenised or facts["tokenised"]:
        scores["tokenised_bleu"], scores["tokenised_signature"] = tokenised_score(*tokens)
        scores["tokens"] = "of the corpus" if facts["tokenised"] else "Moses (sacremoses)"
    return scores


def check_tools(facts: Dict[str, Any], wants_tokenised: bool) -> None:
    """Raises now, not after days of training, when something that `all_bleu` needs is not installed."""
    language = facts["pair"].split("-")[1]
    sacrebleu_score(["a"], ["a"], language)
    if wants_tokenised and not facts["tokenised"]:
        moses(language)
    elif facts["tokenised"]:
        detokenise(["a"], language)


# --- sparsity and certificates ---------------------------------------------------------------------------------------


def sparsity(records: Sequence[dict], sources: Sequence[str]) -> Dict[str, float]:
    """Averages over the steps of the best outputs: non-zeros of output and attention, and positions to attend to.

    Args:
        records: of the certificate file, in the order of `sources`.
        sources: the source sentences as pieces.
    """
    best = [record["hypotheses"][0] for record in records]
    found = {"output": mean(size for output in best for size in output["support"])}
    if all("attention" in output for output in best):
        found["attention"] = mean(len(step) for output in best for step in output["attention"])
    # The end of sentence is attended to, too.
    steps = [(len(output["support"]), len(source.split()) + 1) for output, source in zip(best, sources)]
    found["source"] = sum(count * length for count, length in steps) / sum(count for count, _ in steps)
    return found


def certificates(records: Sequence[dict]) -> Dict[str, Any]:
    """Shares in %, and what the search looked at on average."""
    kinds = Counter(record["certificate"] for record in records)
    shares = {kind: 100 * kinds[kind] / len(records) for kind in ("complete", "optimal", "none")}
    reasons = Counter(record["reason"] for record in records if record["certificate"] == "none")
    averages = {name: mean(record[name] for record in records) for name in ("mass", "strings", "decoder_rows")}
    return {**shares, **averages, "reasons": dict(reasons)}


# --- training --------------------------------------------------------------------------------------------------------


def log_figures(line: str) -> Dict[str, float]:
    """The `name value` fields of a line of fairseq's log file (`--log-format simple`)."""
    pairs = [field.split() for field in line.split(" | ")]
    return {pair[0]: float(pair[1]) for pair in pairs if len(pair) == 2 and NUMBER.fullmatch(pair[1])}


def by_update(lines: Iterable[str]) -> List[Dict[str, float]]:
    """Figures in the order of updates; what was written twice, or trained again after an interruption, counts once."""
    found = {figures["num_updates"]: figures for figures in map(log_figures, lines) if "num_updates" in figures}
    return [found[updates] for updates in sorted(found)]


def training(log: str) -> Dict[str, Any]:
    """Updates, target tokens a second, and the validation curve, from the log file of fairseq-train."""
    lines = log.split("\n")
    epochs = by_update(line for line in lines if " | train_wall " in line)
    curve = by_update(line for line in lines if " | valid on " in line)
    if not epochs or not curve:
        raise ValueError("train.log: wanted at least one epoch with its validation, got none")
    starts = [0, *(epoch["num_updates"] for epoch in epochs[:-1])]
    tokens = sum(epoch["wpb"] * (epoch["num_updates"] - start) for epoch, start in zip(epochs, starts))
    names = ("epoch", "num_updates", "loss", "token_accuracy", "support", "gold_outside")
    curve = [{name: step[name] for name in names} for step in curve]
    walls = list(itertools.accumulate(epoch["train_wall"] for epoch in epochs))  # fairseq counts in each epoch anew
    for step in curve:
        ends = [wall for epoch, wall in zip(epochs, walls) if epoch["num_updates"] == step["num_updates"]]
        step["train_seconds"] = ends[0] if ends else None
    return {
        "epochs": int(epochs[-1]["epoch"]),
        "updates": int(epochs[-1]["num_updates"]),
        "target_tokens_per_second": tokens / max(walls[-1], 1.0),  # fairseq writes whole seconds
        "seconds": training_seconds(log),
        "curve": curve,
        "best": min(curve, key=lambda step: step["loss"]),
    }


# --- all of it -------------------------------------------------------------------------------------------------------


def score(data: Path, run: Path, wants_tokenised: bool) -> Dict[str, Any]:
    facts = json.loads((data / "data.json").read_text(encoding="utf-8"))
    source, language = facts["pair"].split("-")
    wanted = len(read_lines(data / "text" / f"test.{language}"))
    hypotheses = read_hypotheses(run / "generate-test.txt", wanted)
    scores = all_bleu(data, facts, hypotheses, wants_tokenised)
    (run / "hypotheses.test.txt").write_text("".join(line + "\n" for line in hypotheses), encoding="utf-8")
    records = read_records(run / "certificates-test.jsonl", wanted)
    vocabulary = len(read_lines(data / f"dict.{language}.txt")) + FAIRSEQ_SYMBOLS
    scores.update(sentences=wanted, vocabulary=vocabulary)
    sources = read_lines(data / "pieces" / f"test.{source}")
    scores.update(nonzeros=sparsity(records, sources), certificates=certificates(records))
    scores.update(training=training((run / "train.log").read_text(encoding="utf-8")))
    return scores


def print_scores(scores: Dict[str, Any]) -> None:
    print(f"sacreBLEU {scores['bleu']:.2f} ± {scores['bleu_interval']:.2f} ({scores['signature']})")
    if "bleu_without_diacritics" in scores:
        print(f"sacreBLEU without diacritics on both sides {scores['bleu_without_diacritics']:.2f}")
    if "tokenised_bleu" in scores:
        print(f"tokenised BLEU, the paper's metric, {scores['tokenised_bleu']:.2f} (tokens: {scores['tokens']})")
    counts, claims, trained = scores["nonzeros"], scores["certificates"], scores["training"]
    print(
        f"non-zeros a step: output {counts['output']:.2f} of {scores['vocabulary']}, "
        f"attention {counts.get('attention', float('nan')):.2f} of {counts['source']:.2f}"
    )
    print(", ".join(f"{kind} {claims[kind]:.1f} %" for kind in ("complete", "optimal", "none")), end="; ")
    print(f"covered mass {claims['mass']:.3f}, {claims['decoder_rows']:.1f} decoder rows a sentence")
    print(f"{trained['updates']} updates, {trained['target_tokens_per_second']:.0f} target tokens a second in training")


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of prepare_translation.py")
    parser.add_argument("--run", type=Path, help="folder of the run; without it, only look if all tools are there")
    parser.add_argument("--tokenised", action="store_true", help="compute tokenised BLEU of untokenised text, too")
    args = parser.parse_args(arguments)
    try:
        if args.run is None:
            facts = json.loads((args.data / "data.json").read_text(encoding="utf-8"))
            check_tools(facts, args.tokenised)
            return 0
        scores = score(args.data, args.run, args.tokenised)
    except (ValueError, OSError) as error:
        print(f"score_translation: {error}", file=sys.stderr)
        return 1
    (args.run / "scores.json").write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    print_scores(scores)
    return 0


if __name__ == "__main__":
    sys.exit(main())
