"""Lexical constraints: phrases that an output must contain, as an automaton that reads the output token by token.

The phrases must stand in the output without overlap: each of them (one given twice, twice), in any order, or in the
order given. Where several readings are possible (a phrase begins inside another one), all of them are followed, so
that an output is accepted exactly when some reading finds every phrase.
"""

from collections import Counter
from typing import FrozenSet, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from fairseq.token_generation_constraints import unpack_constraints
from torch import Tensor

KINDS = ("ordered", "unordered")

Phrase = Tuple[int, ...]


class Reading(NamedTuple):
    """One way to read an output: phrases still to come, and what is left of the one being read (empty: none)."""

    missing: Tuple[Phrase, ...]
    rest: Phrase


State = FrozenSet[Reading]


class Constraints:
    """The phrases one output must contain.

    Args:
        phrases: token sequences, none empty.
        ordered: they must come in this order.
    """

    def __init__(self, phrases: Iterable[Sequence[int]], ordered: bool):
        self.phrases = tuple(tuple(phrase) for phrase in phrases)
        self.ordered = ordered
        self.n_tokens = sum(len(phrase) for phrase in self.phrases)

    @property
    def start(self) -> State:
        """The state of the empty output."""
        return frozenset([Reading(self.phrases if self.ordered else tuple(sorted(self.phrases)), ())])

    def advance(self, state: State, token: int) -> State:
        """The state after one more token."""
        found: Set[Reading] = set()
        for reading in state:
            if reading.rest:
                if reading.rest[0] == token:
                    found.add(Reading(reading.missing, reading.rest[1:]))
                continue
            found.add(reading)
            for phrase in self._startable(reading):
                if phrase[0] == token:
                    missing = list(reading.missing)
                    missing.remove(phrase)
                    found.add(Reading(tuple(missing), phrase[1:]))
        return self._without_hopeless(found)

    def is_met(self, state: State) -> bool:
        """Whether the output may end here."""
        return any(not reading.missing and not reading.rest for reading in state)

    def progress(self, state: State) -> int:
        """Tokens of the phrases that have been said, in the reading that has come furthest."""
        return max(self.n_tokens - len(r.rest) - sum(map(len, r.missing)) for r in state)

    def next_tokens(self, state: State) -> Set[int]:
        """Tokens that lead further in some reading."""
        tokens = {reading.rest[0] for reading in state if reading.rest}
        return tokens.union(p[0] for reading in state if not reading.rest for p in self._startable(reading))

    def _startable(self, reading: Reading) -> Iterable[Phrase]:
        return reading.missing[:1] if self.ordered else set(reading.missing)

    def _without_hopeless(self, readings: Set[Reading]) -> State:
        """Leave out readings that can achieve nothing that a reading between phrases cannot achieve too."""
        free = [(r, Counter(r.missing)) for r in readings if not r.rest]

        def beaten(reading: Reading) -> bool:
            missing = Counter(reading.missing)
            return any(r is not reading and not needs - missing and r != reading for r, needs in free)

        return frozenset(r for r in readings if not beaten(r))


def read_constraints(packed: Optional[Tensor], kind: Optional[str], n_sentences: int) -> Optional[List[Constraints]]:
    """The constraints of a batch.

    Args:
        packed: `(batch, length)`, as ``fairseq.token_generation_constraints.pack_constraints`` makes it, or None.
        kind: "ordered", "unordered" or None, as ``--constraints`` says.
        n_sentences: size of the batch.
    """
    if (packed is None) != (kind is None):
        if kind is None:
            raise ValueError("constraints were given, but the generator was built without --constraints")
        raise ValueError(
            f"--constraints {kind}: no constraints came with the sentences; fairseq reads them only in "
            "fairseq-interactive, from lines of the form: source TAB phrase TAB phrase"
        )
    if packed is None:
        return None
    if packed.size(0) != n_sentences:
        raise ValueError(f"constraints: wanted one row for each of {n_sentences} sentences, got {packed.size(0)}")
    return [
        Constraints([phrase.tolist() for phrase in unpack_constraints(row) if len(phrase)], kind == "ordered")
        for row in packed.cpu()
    ]
