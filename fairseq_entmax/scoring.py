"""Scorer `word_accuracy` for `--scoring`: how many outputs are exactly right, and how far off they are on average."""

from dataclasses import dataclass, field
from typing import List, Sequence, Tuple

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.scoring import BaseScorer, register_scorer

UNITS = ("auto", "symbols", "characters")
# An unknown symbol, as fairseq writes it in references and outputs of generation and of validation. It counts as one
# character, and that of an output is never right.
_UNKNOWN = {"<<unk>>": "\ue000", "UNKNOWNTOKENINREF": "\ue000", "<unk>": "\ue001", "UNKNOWNTOKENINHYP": "\ue001"}


def edit_distance(first: Sequence, second: Sequence) -> int:
    """Levenshtein distance: the least number of insertions, deletions and substitutions from one to the other."""
    if len(first) < len(second):
        first, second = second, first
    above = list(range(len(second) + 1))
    for row, item in enumerate(first, start=1):
        left = row
        corner = row - 1
        for column, other in enumerate(second, start=1):
            best = min(above[column] + 1, left + 1, corner + (item != other))
            corner, above[column] = above[column], best
            left = best
        above[0] = row
    return above[-1]


def _one_unknown(text: str) -> str:
    for written, character in _UNKNOWN.items():
        text = text.replace(written, character)
    return text


def spelling(references: Sequence[str]) -> Tuple[int, int]:
    """How many references have a symbol of more than one character between spaces, and how many have several symbols.

    Sums over parts of a data set tell the unit of the whole.
    """
    split = [_one_unknown(reference).split() for reference in references]
    return sum(any(len(symbol) > 1 for symbol in symbols) for symbols in split), sum(len(s) > 1 for s in split)


def unit_of(long: int, several: int) -> str:
    """What edits are counted in, from what `spelling` says."""
    return "symbols" if long == 0 and several > 0 else "characters"


def edit_units(text: str, unit: str) -> Sequence[str]:
    """What an edit distance counts in `text`: its space-separated symbols, or its characters."""
    text = _one_unknown(text)
    return text.split() if unit == "symbols" else text


@dataclass
class WordAccuracyConfig(FairseqDataclass):
    word_accuracy_unit: ChoiceEnum(UNITS) = field(
        default="auto",
        metadata={
            "help": "what the edit distance counts: 'symbols' (parts between spaces), 'characters' (of the text as it "
            "stands, spaces included), or 'auto': symbols where all references are single characters with spaces "
            "between them, characters elsewhere. Exact match is not affected"
        },
    )


@register_scorer("word_accuracy", dataclass=WordAccuracyConfig)
class WordAccuracyScorer(BaseScorer):
    """Exact match in percent and mean Levenshtein distance, as in the shared tasks on morphological inflection.

    Compares the strings that fairseq hands over, after `--post-process`. Where targets are written as characters with
    spaces between them, the spaces are no characters of the form, so they do not count as edits: write a literal space
    of the form as a symbol of its own.
    """

    def _units(self) -> str:
        unit = str(self.cfg.word_accuracy_unit)
        if unit == "auto":
            return unit_of(*spelling(self.ref))
        return unit

    def correct(self) -> int:
        """Number of outputs that equal their reference."""
        return sum(ref == pred for ref, pred in zip(self.ref, self.pred))

    def distances(self) -> List[int]:
        """Edit distance of each output, in the order of scoring."""
        unit = self._units()
        return [edit_distance(edit_units(r, unit), edit_units(p, unit)) for r, p in zip(self.ref, self.pred)]

    def score(self) -> float:
        """Exact match in percent; 0 where nothing was scored."""
        return 100.0 * self.correct() / len(self.ref) if self.ref else 0.0

    def result_string(self) -> str:
        if not self.ref:
            return "word accuracy: no outputs"
        distance = sum(self.distances()) / len(self.ref)
        return (
            f"word accuracy {self.score():.2f} % ({self.correct()} of {len(self.ref)}), "
            f"mean edit distance {distance:.3f}"
        )
