"""Beam search and sampling: which hypotheses of a step go on."""

import itertools
from collections import Counter
from typing import List, NamedTuple, Tuple

import torch
from torch import Tensor

from .search import SAMPLING, Search
from .search_state import Extension, TokenError


class Candidates(NamedTuple):
    """Possible continuations of the live rows, ordered by sentence and row: the best `beam_size` + 1 of each row.

    Tensors `(candidates,)`: `row`, `token` (as a column), `increment` (log score of the token), `true` (its
    probability). Lists, from which it is quicker to choose: `score` so far, `bound` of what continues it, `high` (log
    score with rounding errors added), `mass` (probability of the prefix), `soon` (what it would score at most if it
    ended at the next step), and with constraints `progress` (number of their tokens that have been said).
    """

    row: Tensor
    token: Tensor
    increment: Tensor
    true: Tensor
    score: List[float]
    bound: List[float]
    high: List[float]
    mass: List[float]
    soon: List[float]
    progress: List[int]


class BeamSearch(Search):
    """The best `beam_size` prefixes of each sentence go on; the rest is entered into its ledger with its bound."""

    def choose(self, probs: Tensor, scores: Tensor, token_error: TokenError) -> Extension:
        self._finish(probs, scores, token_error)
        candidates = self._candidates(probs, scores, token_error)
        left = torch.zeros(len(self.sentences), dtype=torch.float64, device=self.device)
        left = left.index_add_(0, self.rows.sentence, self._mass() * probs.sum(dim=-1)).tolist()
        threshold, kept, first = self.threshold.tolist(), [], 0
        sentence = self.rows.sentence[candidates.row].tolist()
        for s, group in itertools.groupby(sentence):
            last = first + len(list(group))
            kept += self._choose(s, candidates, range(first, last), threshold[s], left[s])
            first = last
        chosen = torch.tensor(kept, dtype=torch.long, device=self.device)
        row, token, increment, true = (x[chosen] for x in candidates[:4])
        return Extension(row, token, increment, true.log())

    def _candidates(self, probs: Tensor, scores: Tensor, token_error: TokenError) -> Candidates:
        rows, objective, length = self.rows, self.options.objective, self.step + 1
        top, token = scores.topk(min(self.options.beam_size + 1, scores.size(1)), dim=-1)
        row, column = top.nonzero(as_tuple=True)
        token, progress = token[row, column], []
        if self.constraints is not None:
            row, token, progress = self._with_constraints(scores, row, token)
        p = scores[row, token]
        true = p if scores is probs else probs[row, token]
        increment = p.log()
        score = rows.score[row] + increment
        high = (score + (rows.rise[row] + token_error.rise(true))).clamp(max=0.0)
        owner = rows.sentence[row]
        bound = objective.bound(high, length, self.max_len[owner], self.min_len[owner])
        soon = objective.score(score, length + 1)
        lists = (x.tolist() for x in (score, bound, high, self._mass()[row] * true, soon))
        return Candidates(row, token, increment, true, *lists, progress)

    def _with_constraints(self, scores: Tensor, row: Tensor, token: Tensor) -> Tuple[Tensor, Tensor, List[int]]:
        """Adds the continuations that lead on in the constraints, and the progress of all."""
        pairs = list(zip(row.tolist(), token.tolist()))
        known, sentence = set(pairs), self.rows.sentence.tolist()
        column = dict(zip(self.named.tolist(), self.columns(self.named).tolist()))
        useful = [(r, column[t]) for r, s in enumerate(sentence) for t in self.constraints[s].next_tokens(self.said[r])]
        useful = sorted(pair for pair in set(useful) - known if scores[pair] > 0)
        pairs = sorted(pairs + useful, key=lambda pair: pair[0])
        row, token = torch.tensor(pairs, dtype=torch.long, device=self.device).view(-1, 2).unbind(1)
        progress = []
        for r, t in zip(row.tolist(), self.tokens_of(token).tolist()):
            constraints = self.constraints[sentence[r]]
            progress.append(constraints.progress(constraints.advance(self.said[r], t)))
        return row, token, progress

    def _choose(self, s: int, candidates: Candidates, places: range, threshold: float, left: float) -> List[int]:
        """Which candidates of sentence `s` go on, best first.

        Args:
            places: the candidates of the sentence.
            threshold: what an output must reach to enter the n-best list.
            left: probability of all that can go on, also beyond the candidates.
        """
        ledger, options = self.sentences[s].ledger, self.options
        ranked = sorted(places, key=candidates.score.__getitem__, reverse=True)
        if self.constraints is not None:
            ranked = in_turns(ranked, candidates.progress)
        alive, dropped = ranked[: options.beam_size], ranked[options.beam_size :]
        if options.bounding:
            bounded = [i for i in alive if candidates.bound[i] < threshold]
            if bounded:
                alive = [i for i in alive if candidates.bound[i] >= threshold]
                lost = sum(candidates.mass[i] for i in bounded)
                ledger.bounded += lost
                ledger.any_bounded = True
                left -= lost
            # The bound of a normalised score falls slowly: stop when enough outputs are finished and no live prefix can
            # enter the n-best list by ending at the next step. What is given up here counts as dropped.
            enough = max(options.beam_size, options.nbest)
            if options.objective.is_normalized and self.sentences[s].strings >= enough:
                if not any(candidates.soon[i] > threshold for i in alive):
                    alive, dropped = [], alive + dropped
        if dropped:
            ledger.any_dropped = True
            ledger.dropped += max(left - sum(candidates.mass[i] for i in alive), 0.0)
            ledger.drop_bound = max(ledger.drop_bound, *(candidates.bound[i] for i in dropped))
            ledger.drop_logprob = max(ledger.drop_logprob, *(candidates.high[i] for i in dropped))
        return alive


def in_turns(ranked: List[int], progress: List[int]) -> List[int]:
    """The best of each stage of progress, furthest first; then the second best of each, and so on.

    So prefixes that have said many of the constraints keep their share of the beam, however improbable they are
    ("dynamic beam allocation", Post and Vilar 2018).
    """
    taken: Counter = Counter()
    keyed = []
    for i in ranked:
        keyed.append((taken[progress[i]], -progress[i], i))
        taken[progress[i]] += 1
    return [i for _, _, i in sorted(keyed)]


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
        ended = token.eq(self.eos)
        if ended.any():
            self._record(parent[ended], increment[ended], true[ended], token_error.fall(true[ended].exp()))
        return Extension(parent[~ended], token[~ended], increment[~ended], true[~ended])
