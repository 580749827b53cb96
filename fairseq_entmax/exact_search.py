"""Branch and bound: go on until the best output is proved best, or list outputs until they cover a given mass.

All prefixes of one length are expanded together, so the decoder runs in large batches with its states in step. A prefix
is kept while its upper bound reaches the threshold. When the threshold is the score of the best output (a beam search
has nearly always found it), these are exactly the prefixes that a best-first search would have to expand as well; a
better output found on the way raises the threshold. For raw probability their number is small: prefixes of one length
have probabilities that add up to at most 1, so at most ``1 / threshold`` of them are kept at each length.

When more prefixes are alive than fit in memory, the least promising ones are deferred: only their tokens are kept, and
their decoder states are computed again when their turn comes. So memory is bounded by `MAX_ROWS` decoder states. Each
deferred prefix is visited once at most, so keeping some of their states would help only as far as it raises that bound;
and states made at different steps cannot run in one batch, as fairseq's decoders take the position from its length.
"""

import math
from dataclasses import replace
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import torch
from torch import Tensor

from .certificate import BUDGET, LENGTH_LIMIT
from .search import Search
from .search_state import Extension, Rows, Sentence, TokenError

MAX_ROWS = 512  # live prefixes of a batch; more are deferred


class Deferred(NamedTuple):
    """A prefix put aside, with the numbers it had: `bound` is its upper bound, `mass` its probability."""

    sentence: int
    tokens: List[int]  # with the start symbol
    increments: List[float]  # log scores of the others
    score: float
    logprob: float
    rise: float
    fall: float
    bound: float
    mass: float


class ThresholdSearch(Search):
    """Keeps every prefix whose upper bound reaches the threshold of its sentence.

    Args:
        budget: decoder rows a sentence may use in all; what is alive beyond it counts as dropped.
        threshold: `(batch,)`, scores to reach.
        given_prefix: thresholds are about what follows the forced prefix, not about the whole output.
        max_rows: most live prefixes of the batch.
        args: as for `Search`.
    """

    def __init__(self, *args, budget: int, threshold: Tensor, given_prefix: bool = False, max_rows: int = MAX_ROWS):
        super().__init__(*args)
        self.budget, self.max_rows, self.given_prefix = budget, max_rows, given_prefix
        self.threshold = threshold.clone()
        self.deferred: List[Deferred] = []
        self.script: Optional[Tensor] = None

    def resume(self, earlier: "ThresholdSearch", prefixes: Sequence[Deferred]) -> "ThresholdSearch":
        """Go on with prefixes of equal length that an earlier search deferred."""
        self.sentences, self.threshold = earlier.sentences, earlier.threshold
        self.prefix_logprob = earlier.prefix_logprob
        self.prefixes = sorted(prefixes)
        zeros = torch.zeros(len(prefixes), dtype=torch.float64, device=self.device)
        sentence = torch.tensor([p.sentence for p in self.prefixes], device=self.device)
        self.script = torch.tensor([p.tokens for p in self.prefixes], device=self.device)
        self.state.reorder(sentence)
        self.rows = Rows(sentence, self.script[:, :1], zeros, zeros, zeros, zeros)
        if self.constraints is not None:
            self.said = [self.constraints[s].start for s in sentence.tolist()]
        return self

    def limit(self) -> Tensor:
        """Bounds below this are of no use: `(batch,)`."""
        return self.threshold + self.prefix_logprob if self.given_prefix else self.threshold

    def _modify(self, probs: Tensor, token_error: TokenError):
        if self._replaying:  # what is blocked on the way was entered in the first pass
            return probs, probs
        if self.script is not None and self.step == self.script.size(1) - 1:
            columns = ([getattr(p, name) for p in self.prefixes] for name in ("score", "logprob", "rise", "fall"))
            numbers = (torch.tensor(c, dtype=torch.float64, device=self.device) for c in columns)
            self.rows = Rows(self.rows.sentence, self.rows.tokens, *numbers)
        return super()._modify(probs, token_error)

    @property
    def _replaying(self) -> bool:
        return self.script is not None and self.step < self.script.size(1) - 1

    def columns_for(self) -> Tensor:
        named = super().columns_for()
        # It was possible before, but in another batch rounding may differ.
        return torch.cat([named, self.script[:, self.step + 1]]) if self._replaying else named

    def choose(self, probs: Tensor, scores: Tensor, token_error: TokenError) -> Extension:
        if self._replaying:
            return self._replay()
        self._finish(probs, scores, token_error)
        rows, options = self.rows, self.options
        row, token = scores.nonzero(as_tuple=True)
        p = probs[row, token]
        increment = scores[row, token].log()
        sentence = rows.sentence[row]
        high = (rows.score[row] + increment + rows.rise[row] + token_error.rise(p)).clamp(max=0.0)
        bound = options.objective.bound(high, self.step + 1, self.max_len[sentence], self.min_len[sentence])
        mass = self._mass()[row] * p
        promising = bound >= self.limit()[sentence]
        self._account_bounded(sentence[~promising], mass[~promising])
        row, token, p, increment, sentence, bound, mass, high = (
            x[promising] for x in (row, token, p, increment, sentence, bound, mass, high)
        )
        keep = self._within_budget(sentence, bound, mass, high)
        fits = self._within_memory(keep, bound)
        for i in (keep & ~fits).nonzero().squeeze(1).tolist():
            self._defer(i, row, token, p, increment, bound, mass, token_error)
        chosen = fits.nonzero().squeeze(1)
        return Extension(row[chosen], token[chosen], increment[chosen], p[chosen].log())

    def _replay(self) -> Extension:
        token = self.columns(self.script[:, self.step + 1])
        increments = [prefix.increments[self.step] for prefix in self.prefixes]
        increment = torch.tensor(increments, dtype=torch.float64, device=self.device)
        return Extension(torch.arange(len(token), device=self.device), token, increment, increment)

    def _account_bounded(self, sentence: Tensor, mass: Tensor) -> None:
        totals = torch.zeros(len(self.sentences), dtype=torch.float64, device=self.device)
        totals.index_add_(0, sentence, mass)
        for s in set(sentence.tolist()):
            self.sentences[s].ledger.bounded += totals[s].item()
            self.sentences[s].ledger.any_bounded = True

    def _within_budget(self, sentence: Tensor, bound: Tensor, mass: Tensor, high: Tensor) -> Tensor:
        """The most promising candidates that each sentence can still pay for; the rest is dropped."""
        keep = torch.ones_like(sentence, dtype=torch.bool)
        waiting = [0] * len(self.sentences)
        for prefix in self.deferred:
            waiting[prefix.sentence] += 1
        for s in set(sentence.tolist()):
            left = self.budget - self.sentences[s].decoder_rows - waiting[s]
            mine = sentence.eq(s).nonzero().squeeze(1)
            if mine.numel() <= left:
                continue
            order = bound[mine].argsort(descending=True, stable=True)
            out = mine[order[max(left, 0) :]]
            keep[out] = False
            drop(self.sentences[s], mass[out].sum().item(), bound[out].max().item(), high[out].max().item())
        return keep

    def _within_memory(self, keep: Tensor, bound: Tensor) -> Tensor:
        if int(keep.sum()) <= self.max_rows:
            return keep
        order = torch.where(keep, bound, bound.new_tensor(-math.inf)).argsort(descending=True, stable=True)
        fits = torch.zeros_like(keep)
        fits[order[: self.max_rows]] = True
        return fits & keep

    def _defer(self, i: int, row, token, p, increment, bound, mass, token_error: TokenError) -> None:
        rows, r = self.rows, row[i]
        self.deferred.append(
            Deferred(
                int(rows.sentence[r]),
                rows.tokens[r].tolist() + [int(self.tokens_of(token[i]))],
                self._increments(int(r)) + [float(increment[i])],
                float(rows.score[r] + increment[i]),
                float(rows.logprob[r] + p[i].log()),
                float(rows.rise[r] + token_error.rise(p[i])),
                float(rows.fall[r] + token_error.fall(p[i])),
                float(bound[i]),
                float(mass[i]),
            )
        )

    def _increments(self, row: int) -> List[float]:
        """Log scores of the tokens of a live row."""
        found: List[float] = []
        for step in reversed(self.trace[1:]):
            found.append(step.increment[row])
            row = step.parent[row]
        return found[::-1]


def drop(sentence: Sentence, mass: float, bound: float, logprob: float) -> None:
    """Enter prefixes that are given up into the ledger."""
    sentence.ledger.dropped += mass
    sentence.ledger.any_dropped = True
    sentence.ledger.drop_bound = max(sentence.ledger.drop_bound, bound)
    sentence.ledger.drop_logprob = max(sentence.ledger.drop_logprob, logprob)


def search_above(
    inputs: tuple,
    threshold: Tensor,
    budget: int,
    decoder_rows: Sequence[int],
    given_prefix: bool = False,
    max_rows: int = MAX_ROWS,
) -> List[Sentence]:
    """Every output that scores at least its sentence's threshold (at most the `nbest` best), within a budget.

    Args:
        inputs: arguments of `Search`.
        threshold: `(batch,)`, float64.
        budget: decoder rows a sentence.
        decoder_rows: rows that each sentence has used before; they count.
        given_prefix, max_rows: as for `ThresholdSearch`.
    """
    settings = {"budget": budget, "threshold": threshold, "given_prefix": given_prefix, "max_rows": max_rows}
    search = ThresholdSearch(*inputs, **settings)
    for sentence, used in zip(search.sentences, decoder_rows):
        sentence.decoder_rows = used
    waiting: List[Deferred] = []
    while True:
        sentences = search.run()
        waiting, limit, still = waiting + search.deferred, search.limit().tolist(), []
        for prefix in waiting:
            sentence = sentences[prefix.sentence]
            if prefix.bound < limit[prefix.sentence]:
                sentence.ledger.bounded += prefix.mass
                sentence.ledger.any_bounded = True
            elif sentence.decoder_rows + len(prefix.tokens) > budget:
                drop(sentence, prefix.mass, prefix.bound, min(prefix.score + prefix.rise, 0.0))
            else:
                still.append(prefix)
        if not still:
            return sentences
        now, waiting = next_pass(still, sentences, budget, max(max_rows // 2, 1))
        search = ThresholdSearch(*inputs, **settings).resume(search, now)


def next_pass(waiting: List[Deferred], sentences: List[Sentence], budget: int, most: int):
    """Prefixes for the next pass, of equal length, that their sentences can pay for; and the others.

    Starting again from a prefix costs a decoder row for each of its tokens.
    """
    ranked = sorted(waiting, key=lambda prefix: -prefix.bound)
    cost = len(ranked[0].tokens)
    left = [budget - sentence.decoder_rows for sentence in sentences]
    now, rest = [], []
    for prefix in ranked:
        if len(prefix.tokens) == cost and len(now) < most and left[prefix.sentence] >= cost:
            left[prefix.sentence] -= cost
            now.append(prefix)
        else:
            rest.append(prefix)
    return now, rest


def select_sentences(sample: Dict[str, Any], indices: List[int]) -> Dict[str, Any]:
    """The part of a batch that holds the sentences `indices`."""
    n = sample["net_input"]["src_tokens"].size(0)
    index = torch.tensor(indices, device=sample["net_input"]["src_tokens"].device)

    def part(value):
        per_sentence = torch.is_tensor(value) and value.dim() > 0 and len(value) == n
        return value.index_select(0, index.to(value.device)) if per_sentence else value

    net_input = {key: part(value) for key, value in sample["net_input"].items()}
    selected = {"id": part(sample["id"]) if "id" in sample else index, "net_input": net_input}
    if "phrases" in sample:
        selected["phrases"] = [sample["phrases"][i] for i in indices]
    return selected


def prove(inputs: tuple, beam: Search, pending: List[int], budget: int) -> List[Sentence]:
    """Go on after a beam search, for its sentences `pending`, until their best outputs are proved.

    Args:
        inputs: arguments of `Search` for the part of the batch that is `pending`.
        beam: the finished beam search of the whole batch; its best outputs set the thresholds.
        pending: positions in the batch.
        budget: decoder rows a sentence, those of the beam search among them.
    """
    ensemble, options, *rest = inputs
    used = [beam.sentences[i].decoder_rows for i in pending]
    best = [max((item.low for item in beam.sentences[i].finished), default=-math.inf) for i in pending]
    threshold = torch.tensor(best, dtype=torch.float64, device=beam.device)
    # One output is to be proved; of those found on the way, as many are kept as were asked for.
    options = replace(options, nbest=1, beam_size=max(options.beam_size, options.nbest))
    return search_above((ensemble, options, *rest), threshold, budget, used)


def enumerate_mass(inputs: tuple, mass: float, budget: int) -> List[Sentence]:
    """The most probable outputs of each sentence until they cover `mass`, best first.

    Lists every output more probable than a threshold, and lowers the threshold until the mass is reached, all is
    listed, or the budget is spent; so nothing more probable is missing from what comes back, unless it was spent.
    Starting again with a lower threshold costs little, since the last pass is the largest by far.

    Args:
        inputs: arguments of `Search`; the objective must be raw log probability, `nbest` without limit.
        mass: in (0, 1], of the distribution given the forced prefix.
        budget: decoder rows a sentence.
    """
    ensemble, options, sample, prefix_tokens, bos_token = inputs
    n = sample["net_input"]["src_tokens"].size(0)
    results: List[Sentence] = [Sentence() for _ in range(n)]
    floors = [0.0] * n  # of each result: everything that scores as much is in it
    threshold, pending = math.log(0.125), list(range(n))
    while pending:
        part = select_sentences(sample, pending)
        prefix = None if prefix_tokens is None else prefix_tokens[pending]
        thresholds = torch.full((len(pending),), threshold, dtype=torch.float64, device=part["id"].device)
        used = [results[i].decoder_rows for i in pending]
        found = search_above((ensemble, options, part, prefix, bos_token), thresholds, budget, used, given_prefix=True)
        unfinished = []
        for i, sentence in zip(pending, found):
            ledger, floor, known = sentence.ledger, threshold + sentence.prefix_logprob, results[i]
            head = sum(item.score >= floor for item in sentence.finished)
            if ledger.any_bounded and not ledger.any_dropped and sentence.void is None:
                # Ends of promising prefixes are found whatever they score; below the threshold others are missing. The
                # best is kept in any case: it may turn out to be all that the budget allows.
                _keep(sentence, max(head, 1))
            if not ledger.any_dropped or ledger.finished >= known.ledger.finished:
                results[i], floors[i] = sentence, floor
            else:  # the budget ended before this pass came as far as the one before
                known.decoder_rows = sentence.decoder_rows
                known.ledger.any_dropped = True
                known.ledger.drop_bound = max(known.ledger.drop_bound, floors[i])
            enough = sentence.void or ledger.any_dropped or not ledger.any_bounded or (head and ledger.finished >= mass)
            if not enough:
                unfinished.append(i)
        pending = unfinished
        threshold -= math.log(8)
    for sentence in results:
        _cut(sentence, mass)
    return results


def listing_ended(sentence: Sentence) -> List[str]:
    """Why outputs more probable than the last one listed may be missing, if they may."""
    ledger, last = sentence.ledger, sentence.finished[-1].low
    notes = []
    if ledger.any_dropped and ledger.drop_bound >= last:
        notes.append(BUDGET)
    if ledger.limit_bound >= last:
        notes.append(LENGTH_LIMIT)
    return notes


def _cut(sentence: Sentence, mass: float) -> None:
    """Leave the best outputs that cover `mass`, one at least."""
    covered, kept = 0.0, 0
    while kept < len(sentence.finished) and (kept == 0 or covered < mass - 1e-12):
        covered += math.exp(sentence.finished[kept].logprob - sentence.prefix_logprob)
        kept += 1
    _keep(sentence, kept)


def _keep(sentence: Sentence, n: int) -> None:
    """Leave the `n` best outputs; the others count as out-bounded."""
    rest = sentence.finished[n:]
    if rest:
        lost = sum(math.exp(item.logprob - sentence.prefix_logprob) for item in rest)
        sentence.ledger.finished -= lost
        sentence.ledger.bounded += lost
        sentence.ledger.any_bounded = True
        sentence.strings = n
        del sentence.finished[n:], sentence.losses[n:]
