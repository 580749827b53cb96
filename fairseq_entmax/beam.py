"""Beam search and sampling: which hypotheses of a step go on."""

import math

import torch
from torch import Tensor

from .search import Search
from .search_state import Extension, TokenError

SAMPLING = "sampling"


class BeamSearch(Search):
    """The best `beam_size` prefixes of each sentence go on; the rest is entered into its ledger with its bound."""

    def choose(self, probs: Tensor, scores: Tensor, token_error: TokenError) -> Extension:
        self._finish(probs, scores, token_error)
        sentence, beam = self.rows.sentence, self.options.beam_size
        top, token = scores.topk(min(beam + 1, scores.size(1)), dim=-1)
        true = probs.gather(1, token)
        # Pack the candidates of a sentence into one line: (active sentences, most rows of one, candidates of a row).
        active, owner, n_rows = torch.unique_consecutive(sentence, return_inverse=True, return_counts=True)
        first = n_rows.cumsum(0) - n_rows
        slot = torch.arange(len(self.rows), device=self.device) - first.index_select(0, owner)
        packed = scores.new_full((active.numel(), int(n_rows.max()), top.size(1)), -math.inf)
        packed[owner, slot] = self.rows.score.unsqueeze(1) + top.log()
        high = packed.new_full(packed.shape, -math.inf)  # with rounding errors added
        high[owner, slot] = packed[owner, slot] + (self.rows.rise.unsqueeze(1) + token_error.rise(true))
        packed, high = packed.flatten(1), high.flatten(1)
        best, index = packed.topk(min(beam, packed.size(1)), dim=-1)
        chosen = best > -math.inf
        alive = self._prune(active, chosen, best, high.gather(1, index))
        parent = first.unsqueeze(1) + torch.div(index, top.size(1), rounding_mode="floor")
        parent = parent.clamp(max=len(self.rows) - 1)  # empty places of a line point anywhere
        column = index % top.size(1)
        self._account_dropped(active, owner, probs, scores, high, index, chosen, alive, parent, column, true)
        parent, column = parent[alive], column[alive]
        return Extension(parent, token[parent, column], top[parent, column].log(), true[parent, column].log())

    def _prune(self, active: Tensor, chosen: Tensor, score: Tensor, high: Tensor) -> Tensor:
        """Which of the chosen prefixes can still enter the n-best list: `(active, beam)`."""
        options = self.options
        threshold = self.threshold.index_select(0, active).unsqueeze(1)
        alive = chosen
        if not options.bounding:
            return alive
        max_len = self.max_len.index_select(0, active).unsqueeze(1)
        alive = alive & ~(options.objective.bound(high.clamp(max=0.0), self.step + 1, max_len) < threshold)
        if options.objective.is_normalized:
            # The bound of a normalised score falls slowly: stop when enough outputs are finished and no live prefix is
            # ahead of them at its present length. What is given up here counts as dropped.
            ahead = (alive & (options.objective.score(score, self.step + 1) > threshold)).any(dim=1)
            enough = torch.tensor([self.sentences[s].strings >= self.keep for s in active.tolist()], device=self.device)
            alive = alive & (ahead | ~enough).unsqueeze(1)
        return alive

    def _account_dropped(self, active, owner, probs, scores, high, index, chosen, alive, parent, column, true) -> None:
        """Enter what does not go on: no room in the beam or given up (`dropped`), or out-bounded (`bounded`)."""
        options = self.options
        row_mass = self._mass()
        line = torch.zeros(active.numel(), dtype=torch.float64, device=self.device)
        total = line.index_add(0, owner, row_mass * probs.sum(dim=-1))
        count = torch.zeros_like(active).index_add_(0, owner, scores.gt(0).sum(dim=-1))
        mass = torch.where(chosen, row_mass[parent] * true[parent, column], torch.zeros_like(high.gather(1, index)))
        max_len = self.max_len.index_select(0, active).unsqueeze(1)
        bound = options.objective.bound(high.clamp(max=0.0), self.step + 1, max_len)
        below = bound < self.threshold.index_select(0, active).unsqueeze(1)
        bounded = chosen & ~alive & below.gather(1, index) if options.bounding else torch.zeros_like(chosen)
        nothing, goes = bound.new_tensor(-math.inf), alive | bounded
        bound.scatter_(1, index, torch.where(goes, nothing, bound.gather(1, index)))
        high = high.scatter(1, index, torch.where(goes, nothing, high.gather(1, index)))
        full = count > chosen.sum(dim=1)
        columns = (
            active,
            total - (mass * (alive | bounded)).sum(dim=1),
            (mass * bounded).sum(dim=1),
            full | (chosen & ~alive & ~bounded).any(dim=1),
            bounded.any(dim=1),
            bound.max(dim=1).values,
            high.max(dim=1).values,
        )
        for s, dropped, outbounded, any_dropped, any_bounded, drop_bound, top in zip(*(c.tolist() for c in columns)):
            ledger = self.sentences[s].ledger
            ledger.bounded += outbounded
            ledger.any_bounded |= any_bounded
            if any_dropped:
                ledger.dropped += max(dropped, 0.0)
                ledger.any_dropped = True
                ledger.drop_bound = max(ledger.drop_bound, drop_bound)
                ledger.drop_logprob = max(ledger.drop_logprob, min(top, 0.0))


class SamplingSearch(Search):
    """Draws `beam_size` outputs a sentence: one token a row at each step.

    Rows that draw end of sentence finish, rows without a possible token die.

    Args:
        topk: draw among the `topk` most probable tokens (off when not positive).
        topp: draw among the fewest tokens whose probability exceeds `topp` (off when not positive).
        args, kwargs: as for `Search`.
    """

    def __init__(self, *args, topk: int = -1, topp: float = -1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.topk, self.topp = topk, topp
        order = self.rows.sentence.repeat_interleave(self.options.beam_size)
        self.rows = self.rows.index_select(order)
        self.state.reorder(order)
        for sentence in self.sentences:
            sentence.void = SAMPLING

    def choose(self, probs: Tensor, scores: Tensor, token_error: TokenError) -> Extension:
        pool = scores
        if self.topp > 0:
            value, index = (scores / scores.sum(dim=-1, keepdim=True)).nan_to_num(0.0).sort(dim=-1, descending=True)
            value[value.cumsum(dim=-1) - value >= self.topp] = 0.0
            pool = torch.zeros_like(scores).scatter_(1, index, value)
        elif self.topk > 0:
            value, index = scores.topk(min(self.topk, scores.size(1)), dim=-1)
            pool = torch.zeros_like(scores).scatter_(1, index, value)
        parent = pool.sum(dim=-1).gt(0).nonzero().squeeze(1)
        if parent.numel() == 0:
            return Extension(parent, parent, scores.new_empty(0), scores.new_empty(0))
        token = torch.multinomial(pool[parent], 1).squeeze(1)
        increment, true = scores[parent, token].log(), probs[parent, token].log()
        ended = token.eq(self.options.eos)
        if ended.any():
            self._record(parent[ended], increment[ended], true[ended], token_error.fall(true[ended].exp()))
        return Extension(parent[~ended], token[~ended], increment[~ended], true[~ended])
