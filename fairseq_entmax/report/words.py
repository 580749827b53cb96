"""Certificates and symbols in words that a reader understands."""

import unicodedata
from typing import Any, Dict

KINDS = ("complete", "optimal", "none")
END = "</s>"

_WHY_NOT = {
    "beam": "the beam had no room for some beginnings, and one of them might lead to something better",
    "budget": "the search ended with --exact-budget before the proof was found",
    "length limit": "an output longer than the limit might be better",
    "tie within rounding": "the runner-up is as good as the best one within rounding error",
    "sampling": "outputs were sampled, not searched for",
    "NaN": "the model gave NaN: the checkpoint is broken",
    "prefix has zero probability": "the forced prefix has probability zero",
}

# The same where there is no output at all.
_WHY_NOTHING = {
    **_WHY_NOT,
    "beam": "nothing that the beam kept ends within the length limit (--max-len-a, --max-len-b)",
    "budget": "the search ended with --exact-budget before it found one",
    "length limit": "nothing ends within the length limit (--max-len-a, --max-len-b)",
    "min length": "everything ends before --min-len",
    "source length": "nothing ends at the length of the source, which --match-source-len asks for",
    "constraints": "none with the phrases of the constraints",
    "n-gram blocking": "--no-repeat-ngram-size forbids every way on",
    "allowed tokens": "the allowed tokens leave no way on",
    "forbidden symbols": "all probability is on symbols that no output may contain",
    "language model": "the language model gives no way on any probability",
}

_CONDITIONS = {
    "subject to min length": "outputs shorter than --min-len were left out",
    "subject to source length": "outputs of other lengths than the source's were left out",
    "subject to length limit": "outputs beyond the length limit were left out",
    "subject to n-gram blocking": "outputs with repeated n-grams were left out",
    "subject to constraints": "outputs without the phrases of the constraints were left out",
    "subject to allowed tokens": "outputs with tokens that are not allowed were left out",
    "subject to forbidden symbols": "outputs with symbols that are no text were left out",
    "subject to language model": "outputs that the language model gives no probability were left out",
}

# Of a list by --enumerate-mass: its first output is the best all the same.
_GAPS = {
    "budget": "Outputs may be missing after the first one, as --exact-budget was spent.",
    "length limit": "Outputs beyond the length limit (--max-len-a, --max-len-b) may be missing after the first one.",
}


def short(value: float) -> float:
    """Four significant digits; nothing between zero and one is rounded to either (but 1 - 1e-6 and more is one)."""
    return 0.9999 if 0.9999 < value < 1 - 1e-6 else float(f"{value:.4g}")


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
    elif record["hypotheses"][0]["logprob"] is None:
        return f"No output was found: {_WHY_NOTHING.get(reason, reason or 'no reason is recorded')}."
    else:
        why = _WHY_NOT.get(reason, reason or "no reason is recorded")
        proof = f"Not proved: {why}."
        if record.get("safe_length"):
            proof += f" No output of at most {record['safe_length']} symbols can beat it."
    if kind != "none" and reason:
        parts = reason.split("; ")
        conditions = "; ".join(_CONDITIONS.get(part, part) for part in parts if part not in _GAPS)
        proof += f" Condition: {conditions}." if conditions else ""
        proof += "".join(f" {_GAPS[part]}" for part in parts if part in _GAPS)
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
