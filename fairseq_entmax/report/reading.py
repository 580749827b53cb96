"""Certificate files, read one record at a time, with errors that name the line."""

import json
import os
from typing import Any, BinaryIO, Dict, Iterator, List, NamedTuple, Optional

from .words import KINDS

Record = Dict[str, Any]


class Line(NamedTuple):
    """One record and where it stands: byte `offset` of its line, `number` of the line from 1."""

    offset: int
    number: int
    record: Record


def read_lines(path: str) -> Iterator[Line]:
    """Yield the records of a certificate file; empty lines are passed over.

    Raises:
        ValueError: no such file, or a line that is no certificate record; the message names file and line.
    """
    _want_file(path, path)
    offset = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield Line(offset, number, parse(line, f"{path}, line {number}"))
            offset += len(line)


def read_at(file: BinaryIO, offset: int) -> Record:
    """The record at a byte offset that `read_lines` gave."""
    file.seek(offset)
    return json.loads(file.readline())


def parse(line: bytes, where: str) -> Record:
    """One record, checked.

    Raises:
        ValueError: it is none; the message begins with `where`.
    """
    try:
        record = json.loads(line.decode("utf-8-sig"))  # editors may put a mark at the beginning
    except UnicodeDecodeError:
        raise ValueError(f"{where}: wanted UTF-8 text, as --certificate-file writes it") from None
    except json.JSONDecodeError as error:
        cut = "" if line.endswith(b"\n") else "; the last line is cut off: was decoding interrupted?"
        problem = f"wanted a JSON object ({error.msg} at column {error.colno}), as --certificate-file writes them"
        raise ValueError(f"{where}: {problem}{cut}") from None
    problem = _record_problem(record)
    if problem:
        raise ValueError(f"{where}: no certificate record: {problem}")
    return record


def _want_file(path: str, name: str) -> None:
    if os.path.isdir(path):
        raise ValueError(f"{name}: wanted a file, got a folder")
    if not os.path.isfile(path):
        raise ValueError(f"{name}: no such file")


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _steps_of_pairs(value: Any, key_type: type) -> bool:
    """A list of steps, each a list of [key, number] pairs."""
    return isinstance(value, list) and all(
        isinstance(step, list)
        and all(isinstance(p, list) and len(p) == 2 and isinstance(p[0], key_type) and _number(p[1]) for p in step)
        for step in value
    )


_RECORD = [
    ("id", _whole, "an integer"),
    ("source", lambda v: isinstance(v, str), "text"),
    ("certificate", lambda v: v in KINDS, "one of " + ", ".join(KINDS)),
    ("mass", _number, "a number"),
    ("hypotheses", lambda v: isinstance(v, list) and len(v) > 0, "a list with at least one hypothesis"),
]
_HYPOTHESIS = [
    ("tokens", _texts, "a list of symbols"),
    ("text", lambda v: isinstance(v, str), "text"),
    ("logprob", lambda v: v is None or _number(v), "a number or null"),
    ("support", lambda v: isinstance(v, list) and all(map(_whole, v)), "a list of integers"),
]
_OPTIONAL_RECORD = [
    ("reason", lambda v: isinstance(v, str), "text"),
    ("objective", lambda v: isinstance(v, str), "text"),
    ("strings", _whole, "an integer"),
    ("decoder_rows", _whole, "an integer"),
    ("safe_length", lambda v: v is None or _whole(v), "an integer or null"),
    ("source_tokens", _texts, "a list of symbols"),
]
_OPTIONAL_HYPOTHESIS = [
    (
        "attention",
        lambda v: _steps_of_pairs(v, int) and all(pair[0] >= 0 for step in v for pair in step),
        "for each step a list of [source position, weight]",
    ),
    ("candidates", lambda v: _steps_of_pairs(v, str), "for each step a list of [symbol, probability]"),
]


def _problem(entry: Any, required: List[tuple], optional: List[tuple]) -> Optional[str]:
    if not isinstance(entry, dict):
        return f"wanted an object, got {_short(entry)}"
    for name, good, wanted in required:
        if name not in entry:
            return f"{name} is missing"
        if not good(entry[name]):
            return f"{name}: wanted {wanted}, got {_short(entry[name])}"
    for name, good, wanted in optional:
        if name in entry and not good(entry[name]):
            return f"{name}: wanted {wanted}, got {_short(entry[name])}"
    return None


def _record_problem(record: Any) -> Optional[str]:
    problem = _problem(record, _RECORD, _OPTIONAL_RECORD)
    if problem is None:
        for i, hypothesis in enumerate(record["hypotheses"]):
            problem = _problem(hypothesis, _HYPOTHESIS, _OPTIONAL_HYPOTHESIS)
            if problem is not None:
                return f"hypothesis {i}: {problem}"
    return problem


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def source_symbols(record: Record) -> Optional[List[str]]:
    """Symbols at the source positions that attention counts, with end of sentence; None where they are not known.

    The source line of a record is text after `--post-process`; it tells the symbols only where that joined nothing.
    """
    if "source_tokens" in record:
        return list(record["source_tokens"])
    best = record["hypotheses"][0]
    if " ".join(best["tokens"][:-1]) != best["text"]:
        return None
    symbols = [*record["source"].split(), "</s>"]
    used = [position for step in best.get("attention", ()) for position, _ in step]
    return symbols if max(used, default=0) < len(symbols) else None


def read_references(path: str) -> List[str]:
    """Reference lines, in the order of the ids.

    Raises:
        ValueError: no such file, or no UTF-8 text.
    """
    _want_file(path, f"--reference {path}")
    try:
        with open(path, encoding="utf-8") as file:
            # Only "\n" ends a line: sentences may contain other separators that Python would split at.
            text = file.read()
            return text[: -1 if text.endswith("\n") else None].split("\n") if text else []
    except UnicodeDecodeError:
        raise ValueError(f"--reference {path}: wanted UTF-8 text") from None
