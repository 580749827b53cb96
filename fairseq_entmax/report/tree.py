"""All outputs of a sentence as a tree: common beginnings once, unbranched stretches in one node."""

import math
from dataclasses import dataclass, field
from typing import Any, Dict, List, Tuple

from .words import END, short, visible

MOST_OUTPUTS = 40  # a taller tree helps nobody

Output = Tuple[Tuple[str, ...], float]  # symbols, probability


@dataclass
class Node:
    """A stretch of symbols without a branch.

    Attributes:
        label: the symbols of the stretch, letters together and words apart. End of sentence is left out after other
            symbols: that nothing follows says as much, and in right-to-left text its brackets would turn around.
        probability: of all listed outputs that go through here; of the output itself at a leaf.
        children: most probable first; none at the end of an output.
    """

    label: str
    probability: float
    children: List["Node"] = field(default_factory=list)

    def leaves(self) -> int:
        return sum(child.leaves() for child in self.children) or 1

    def as_lists(self) -> list:
        """[label, probability, children], for JSON."""
        return [self.label, short(self.probability), [child.as_lists() for child in self.children]]


def outputs_of(record: Dict[str, Any]) -> List[Output]:
    """The listed outputs with their probabilities, most probable first; those of probability zero are left out."""
    possible = [h for h in record["hypotheses"] if h["logprob"] is not None]
    found = {tuple(h["tokens"]): math.exp(h["logprob"]) for h in possible}  # samples may hold an output several times
    return sorted(found.items(), key=lambda output: -output[1])


def build_tree(outputs: List[Output]) -> List[Node]:
    """Roots of the tree over the most probable `MOST_OUTPUTS` outputs."""
    outputs = outputs[:MOST_OUTPUTS]
    letters = all(len(s) <= 2 or s == END for symbols, _ in outputs for s in symbols)
    return _branch(outputs, "" if letters else " ")


def _branch(outputs: List[Output], space: str) -> List[Node]:
    groups: Dict[str, List[Output]] = {}
    for symbols, probability in outputs:
        if symbols:
            groups.setdefault(symbols[0], []).append((symbols, probability))
    nodes = []
    for group in groups.values():
        length = _common([symbols for symbols, _ in group])
        stretch = group[0][0][:length]
        label = visible(space.join(stretch[:-1] if length > 1 and stretch[-1] == END else stretch))
        children = _branch([(symbols[length:], p) for symbols, p in group], space)
        nodes.append(Node(label, sum(p for _, p in group), children))
    return sorted(nodes, key=lambda node: -node.probability)


def _common(texts: List[tuple]) -> int:
    """Length of the longest common beginning."""
    shortest, longest = min(texts), max(texts)  # in lexical order these two differ first
    for i, (a, b) in enumerate(zip(shortest, longest)):
        if a != b:
            return i
    return min(len(shortest), len(longest))
