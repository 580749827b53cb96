"""What the page shows of one sentence, as plain lists and numbers that take little space."""

import math
from typing import Any, Dict, List, Optional

from .reading import Record, source_symbols
from .tree import MOST_OUTPUTS, build_tree, outputs_of
from .words import explain, short

MOST_CANDIDATES = 12  # of a step; the rest is summed up
MOST_HYPOTHESES = 20  # whose attention and candidates are kept

# Share of the probability that may be missing from the listed outputs without a word about it.
_NEGLIGIBLE = 5e-4


def make_detail(record: Record, reference: Optional[str] = None) -> Dict[str, Any]:
    """The detail of one sentence of one run, for JSON."""
    outputs = outputs_of(record)
    listed = sum(p for _, p in outputs[:MOST_OUTPUTS])
    detail = {
        "words": explain(record),
        "complete": record["certificate"] == "complete",
        "found": record.get("strings", len(record["hypotheses"])),
        "listed": min(len(outputs), MOST_OUTPUTS),
        "symbols": source_symbols(record),
        "hypotheses": [_hypothesis(h, i < MOST_HYPOTHESES) for i, h in enumerate(record["hypotheses"])],
        "tree": [node.as_lists() for node in build_tree(outputs)],
        "unlisted": short(1 - listed) if 1 - listed > _NEGLIGIBLE else 0,
    }
    if reference is not None:
        detail["reference"] = reference
    return detail


def _hypothesis(hypothesis: Dict[str, Any], whole: bool) -> Dict[str, Any]:
    logprob = hypothesis["logprob"]
    kept = {
        "tokens": hypothesis["tokens"],
        "text": hypothesis["text"],
        "p": 0 if logprob is None else short(math.exp(logprob)),
        "logprob": None if logprob is None else round(logprob, 4),
        "support": hypothesis["support"],
    }
    if not whole and ("attention" in hypothesis or "candidates" in hypothesis):
        kept["left_out"] = MOST_HYPOTHESES
    if whole and "attention" in hypothesis:
        # A position that is recorded with 0 has a weight too small for the file: positive all the same.
        kept["attention"] = [[[i, short(w)] for i, w in step] for step in hypothesis["attention"]]
    if whole and "candidates" in hypothesis:
        kept["candidates"] = [_candidates(step) for step in hypothesis["candidates"]]
    return kept


def _candidates(step: List[list]) -> Dict[str, Any]:
    """The most probable symbols, the number of the others and what they have together."""
    ordered = sorted(step, key=lambda candidate: -candidate[1])
    rest = ordered[MOST_CANDIDATES:]
    kept = {"top": [[symbol, short(p)] for symbol, p in ordered[:MOST_CANDIDATES]]}
    if rest:
        kept["rest"] = [len(rest), short(sum(p for _, p in rest))]
    return kept
