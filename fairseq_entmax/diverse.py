"""Diverse beam search (Vijayakumar et al. 2016): groups of a beam that choose in turn and avoid each other's words.

Each group is a beam search of its own, with its own list of outputs and its own ledger: inside this module a
"sentence" of `Search` is one group of one sentence. At each step the groups of a sentence choose in turn, and a token
costs `strength` nats for each time that earlier groups have chosen it at this step (the Hamming diversity of the
paper); as in fairseq, the penalty stays in the score. So the first group is an ordinary beam search. The penalties of
an output only grow from group to group: one that several groups find is listed once, as the first of them found it.

The certificate is that of the first group, about scores without penalty. Let B be the best output found by any group,
by its score with penalties; without them its score can only be higher. B is no worse than any output that the first
group finished, since these carry no penalty. Every other output lies below a prefix that the first group gave up, so
the bound of those prefixes holds for it. When that bound is below the score of B, no output has a better score than B,
with or without penalties.
"""

import math
import sys
from dataclasses import replace
from typing import Any, Dict, List

import torch
from torch import Tensor

from .beam import BeamSearch
from .search import lower
from .search_state import Extension, Rows, SearchOptions, Sentence, TokenError, output_tokens


class DiverseBeamSearch(BeamSearch):
    """A beam in `groups` equal parts.

    Args:
        ensemble, sample, prefix_tokens, bos_token: as for `Search`.
        options: of the whole beam; `beam_size` is divisible by `groups`.
        groups: number of groups.
        strength: nats that a token costs for each time an earlier group has chosen it.
    """

    def __init__(self, ensemble, options: SearchOptions, sample: Dict[str, Any], *args, groups: int, strength: float):
        width = options.beam_size // groups
        self.share = max(width, math.ceil(options.nbest / groups))  # outputs that a group lists
        super().__init__(
            ensemble, replace(options, beam_size=width, nbest=min(options.nbest, self.share)), sample, *args
        )
        self.groups, self.strength = groups, strength
        self.keep = sys.maxsize  # outputs of several groups must be told apart
        order = self.rows.sentence.repeat_interleave(groups)
        self.state.reorder(order)
        _, *columns = self.rows.index_select(order)
        self.rows = Rows(torch.arange(len(order), device=self.device), *columns)
        self.sentences = [Sentence() for _ in order]
        self.ids = [self.ids[s] for s in order.tolist()]
        self.max_len, self.min_len, self.threshold, self.prefix_logprob = (
            x.index_select(0, order) for x in (self.max_len, self.min_len, self.threshold, self.prefix_logprob)
        )
        if self.prefix is not None:
            self.prefix = self.prefix.index_select(0, order)
        if self.constraints is not None:
            self.constraints = [self.constraints[s] for s in order.tolist()]
            self.said = [c.start for c in self.constraints]

    def run(self) -> List[Sentence]:
        """Search, and join the groups of each sentence."""
        found, prefix_logprob = super().run(), self.prefix_logprob.tolist()
        starts = range(0, len(found), self.groups)
        return [join(found[i : i + self.groups], self.share, prefix_logprob[i]) for i in starts]

    def choose(self, probs: Tensor, scores: Tensor, token_error: TokenError) -> Extension:
        """Each group in turn; the rows of the others are hidden from it."""
        eos, log_score, group = self.eos, self.rows.score, self.rows.sentence % self.groups
        sentence = torch.div(self.rows.sentence, self.groups, rounding_mode="floor")
        taken = probs.new_zeros(len(self.sentences) // self.groups, probs.size(1))  # how often each token was chosen
        parts = []
        for g in range(self.groups):
            mine = group.eq(g).unsqueeze(1)
            penalty = (taken * self.strength).index_select(0, sentence)
            own = lower(scores * mine, penalty)
            ends = log_score + own[:, eos].log()
            part = super().choose(probs * mine, own, token_error)
            goes_on = log_score[part.parent] + part.increment
            taken.index_put_((sentence[part.parent], part.token), taken.new_ones(()), accumulate=True)
            taken[:, eos] += self._chosen_ends(sentence, ends, part.parent, goes_on)
            parts.append(part)
        parent, token, increment, true_increment = (torch.cat(x) for x in zip(*parts))
        order = self.rows.sentence[parent].argsort(stable=True)
        return Extension(parent[order], token[order], increment[order], true_increment[order])

    def _chosen_ends(self, sentence: Tensor, ends: Tensor, parent: Tensor, goes_on: Tensor) -> Tensor:
        """How often a group has chosen to end, for each sentence.

        Every output that ends is kept; an end is a choice when it is among the best `beam_size` continuations.

        Args:
            sentence: of each row, `(rows,)`.
            ends: log score of each row if it ends here, `(rows,)`, -inf where it cannot.
            parent, goes_on: rows of the prefixes that go on, and their log scores.
        """
        row = ends.gt(-math.inf).nonzero().squeeze(1)
        rivals, score = torch.cat([sentence[row], sentence[parent]]), torch.cat([ends[row], goes_on])
        better = rivals.eq(sentence[row].unsqueeze(1)) & score.gt(ends[row].unsqueeze(1))
        chosen = better.sum(dim=1).lt(self.options.beam_size).to(ends.dtype)
        return ends.new_zeros(len(self.sentences) // self.groups).index_add_(0, sentence[row], chosen)


def join(groups: List[Sentence], share: int, prefix_logprob: float) -> Sentence:
    """One sentence from its groups: the `share` best outputs of each, every output once; the ledger of the first group.

    What other groups found beyond the first one counts as enumerated, not as given up.
    """
    first, found, listed = groups[0], {}, {}
    for group in groups:
        for place, item in enumerate(group.finished):
            tokens = output_tokens(item)
            found.setdefault(tokens, item)
            if place < share:
                listed[tokens] = found[tokens]
    joined = Sentence(
        ledger=first.ledger,
        decoder_rows=sum(group.decoder_rows for group in groups),
        void=next((group.void for group in groups if group.void), None),
        unreachable=first.unreachable,
    )
    for item in listed.values():
        joined.add(item, len(listed))
    joined.strings = len(found)
    beyond = list(found.values())[len(first.finished) :]
    mass = sum(math.exp(item.logprob - prefix_logprob) for item in beyond)
    joined.ledger.move_to_finished(mass)
    return joined
