"""Certificates and symbols in words that a reader understands."""

import unicodedata
from typing import Any, Dict

KINDS = ("complete", "optimal", "none")
END = "</s>"

_WHY_NOT = {
    "beam": "the beam had no room for some beginnings, and one of them might lead to something better",
    "budget": "the search ended with --exact-budget before the proof was found",
    "length limit": "an output longer than the limit might be better",
    "min length": "an output shorter than --min-len might be better",
    "tie within rounding": "the runner-up is as good as the best one within rounding error",
    "sampling": "outputs were sampled, not searched for",
    "NaN": "the model gave NaN: the checkpoint is broken",
    "prefix has zero probability": "the forced prefix has probability zero",
}


def percent(value: float) -> str:
    """A share in words; never "100 %" or "0 %" for what is not quite."""
    if 0 < value < 0.001:
        return "less than 0.1 %"
    if 0.999 < value < 1 - 1e-9:
        return "more than 99.9 %"
    return f"{100 * value:.1f} %"


def explain(record: Dict[str, Any]) -> str:
    """What is proved about the answer of a record, and how much probability was covered."""
    kind, reason = record["certificate"], record.get("reason", "")
    strings = record.get("strings", len(record["hypotheses"]))
    outputs = "1 output" if strings == 1 else f"{strings} outputs"
    if kind == "complete":
        proof = f"Everything the model can say was enumerated: {outputs} with non-zero probability, and no other."
    elif kind == "optimal":
        proof = "Proved: no other output can beat the best one, although not all were looked at."
    else:
        why = _WHY_NOT.get(reason, reason or "no reason is recorded")
        proof = f"Not proved: {why}."
        if record.get("safe_length"):
            proof += f" No output of at most {record['safe_length']} symbols can beat it."
    if kind != "none" and reason:
        proof += f" Condition: {reason}."
    if record.get("objective") == "normalized":
        proof += " Best means: highest log probability divided by length."
    return f"{proof} {covered(record)}"


def covered(record: Dict[str, Any]) -> str:
    strings = record.get("strings", len(record["hypotheses"]))
    outputs = "The output found covers" if strings == 1 else f"The {strings} outputs found cover"
    return f"{outputs} {percent(record['mass'])} of the probability."


def visible(symbol: str) -> str:
    """A symbol as it can be drawn on its own: combining marks stand on a dotted circle, spaces are named."""
    symbol = symbol.encode("utf-8", "replace").decode("utf-8")  # JSON can hold half a surrogate pair
    if symbol and unicodedata.category(symbol[0]).startswith("M"):
        return "\u25cc" + symbol
    return symbol if symbol.strip() else f"U+{ord(symbol[0]):04X}" if symbol else "(empty)"
