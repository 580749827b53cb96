"""Figures of a whole run, gathered record by record: histograms, certificates, accuracy against covered mass."""

import heapq
import math
from collections import Counter
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from .reading import Record
from .words import KINDS, short

# Lower ends of the classes of a size: small sizes one by one, then wider.
_CLASSES = [0, 1, 2, 3, 4, 5, 6, 11, 21, 51, 101, 501, 1001, 10001]
MASS_BINS = 10
LISTED = 10  # sentences in a list of the longest, and so on


class Row(NamedTuple):
    """One sentence in the list; field by field what the page shows and sorts by."""

    id: int
    source: str
    text: str
    certificate: str
    mass: float
    probability: float
    strings: int
    support: float
    length: int
    rows: int
    correct: Optional[bool]


def class_name(index: int) -> str:
    low = _CLASSES[index]
    if index + 1 == len(_CLASSES):
        return f"{low}+"
    high = _CLASSES[index + 1] - 1
    return str(low) if low == high else f"{low}\u2013{high}"


def class_of(size: int) -> int:
    return next(i for i in range(len(_CLASSES) - 1, -1, -1) if size >= _CLASSES[i])


def normalized(text: str) -> str:
    """Text for the comparison with a reference: only the amount of space does not count."""
    return " ".join(text.split())


def make_row(record: Record, references: Optional[List[str]] = None) -> Row:
    """The row of a record; `references[id]` is what its text should be.

    Raises:
        ValueError: there is no reference for the id.
    """
    best, index = record["hypotheses"][0], record["id"]
    correct = None
    if references is not None:
        if not 0 <= index < len(references):
            raise ValueError(f"--reference: wanted a line for id {index}, counted from 0, got {len(references)} lines")
        correct = normalized(best["text"]) == normalized(references[index])
    support = best["support"]
    return Row(
        id=index,
        source=record["source"],
        text=best["text"],
        certificate=record["certificate"],
        mass=round(record["mass"], 6),
        probability=0.0 if best["logprob"] is None else short(math.exp(best["logprob"])),
        strings=record.get("strings", len(record["hypotheses"])),
        support=round(sum(support) / max(len(support), 1), 3),
        length=len(best["tokens"]),
        rows=record.get("decoder_rows", 0),
        correct=correct,
    )


class Figures:
    """What is summed up over the records of one run. `add` takes them one by one and keeps none."""

    def __init__(self, name: str):
        self.name = name
        self.sentences = self.steps = self.attention_steps = 0
        self.kinds: Counter = Counter()
        self.reasons: Counter = Counter()
        self.sums: Counter = Counter()
        self.support: Counter = Counter()
        self.attention: Counter = Counter()
        self.right: Counter = Counter()  # correct answers by certificate
        self.bins = [[0, 0] for _ in range(MASS_BINS)]  # sentences and correct ones by covered mass
        self.has_references = self.has_candidates = False
        self._lists: Dict[str, List[Tuple[float, int]]] = {"longest": [], "ambiguous": [], "widest": []}

    def add(self, record: Record, row: Row) -> None:
        best = record["hypotheses"][0]
        self.sentences += 1
        self.kinds[row.certificate] += 1
        if row.certificate == "none":
            self.reasons[record.get("reason", "") or "no reason recorded"] += 1
        for key in ("mass", "strings", "rows", "probability"):
            self.sums[key] += getattr(row, key)
        self.steps += len(best["support"])
        self.sums["support"] += sum(best["support"])
        self.support.update(map(class_of, best["support"]))
        for step in best.get("attention", ()):
            self.attention_steps += 1  # whatever is recorded is above zero, also when it was rounded to zero
            self.sums["attention"] += len(step)
            self.attention[class_of(len(step))] += 1
        self.has_candidates |= "candidates" in best
        if row.correct is not None:
            self.has_references = True
            self.right[row.certificate] += row.correct
            counts = self.bins[min(int(row.mass * MASS_BINS), MASS_BINS - 1)]
            counts[0] += 1
            counts[1] += row.correct
        self._list("longest", row.length, row.id)
        self._list("ambiguous", -row.probability, row.id)
        self._list("widest", row.support, row.id)

    def _list(self, name: str, value: float, index: int) -> None:
        heap = self._lists[name]
        entry = (value, -index)
        if len(heap) < LISTED:
            heapq.heappush(heap, entry)
        elif entry > heap[0]:
            heapq.heapreplace(heap, entry)

    def listed(self, name: str) -> List[int]:
        """Ids of the sentences of a list: `longest`, `ambiguous` (least probable answer) or `widest` (support)."""
        return [-index for _, index in sorted(self._lists[name], reverse=True)]

    def mean(self, key: str) -> float:
        return self.sums[key] / max(self.sentences, 1)

    @property
    def mean_support(self) -> float:
        return self.sums["support"] / max(self.steps, 1)

    @property
    def mean_attention(self) -> Optional[float]:
        return self.sums["attention"] / self.attention_steps if self.attention_steps else None

    @property
    def accuracy(self) -> Optional[float]:
        return sum(self.right.values()) / max(self.sentences, 1) if self.has_references else None

    def shares(self) -> List[Tuple[str, float]]:
        """Share of each certificate, in [0, 1]."""
        return [(kind, self.kinds[kind] / max(self.sentences, 1)) for kind in KINDS]


class Agreement:
    """How two runs compare, sentence by sentence."""

    def __init__(self):
        self.both = self.same = 0
        self.right: Counter = Counter()  # (first right, second right) -> sentences

    def add(self, first: Row, second: Row) -> None:
        self.both += 1
        self.same += normalized(first.text) == normalized(second.text)
        if first.correct is not None:
            self.right[first.correct, second.correct] += 1


def histogram(counters: List[Counter]) -> Dict[str, Any]:
    """Classes that occur, from the smallest to the largest, and the share of each in each counter, in [0, 1]."""
    used = sorted(set().union(*counters))
    classes = list(range(used[0], used[-1] + 1)) if used else []
    totals = [max(sum(counter.values()), 1) for counter in counters]
    return {
        "labels": [class_name(i) for i in classes],
        "series": [[counter[i] / total for i in classes] for counter, total in zip(counters, totals)],
    }
