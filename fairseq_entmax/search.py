"""The search itself: score update, candidates, finish, select, for one batch, over ragged rows."""

import bisect
import logging
import math
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from .certificate import LENGTH_LIMIT, Ledger, Objective
from .ensemble import Ensemble

logger = logging.getLogger(__name__)

MIN_LENGTH, FORBIDDEN, NGRAMS = "min length", "forbidden symbols", "n-gram blocking"
PREFIX_FUNCTION, LANGUAGE_MODEL = "allowed tokens", "language model"
NOT_A_NUMBER, ZERO_PREFIX, SAMPLING = "NaN", "prefix has zero probability", "sampling"


@dataclass
class SearchOptions:
    """Options of a search; the names are those of fairseq's generation options where it has them.

    `beam_size`: most live prefixes a sentence; `nbest`: outputs wanted; `bounding`: drop prefixes that cannot enter the
    `nbest` best; `forbidden`: symbols that no output may contain.
    """

    objective: Objective
    eos: int
    pad: int
    unk: int
    forbidden: List[int]
    beam_size: int = 5
    nbest: int = 1
    bounding: bool = True
    max_len_a: float = 0
    max_len_b: int = 200
    max_len: int = 1024
    unk_penalty: float = 0.0
    temperature: float = 1.0
    no_repeat_ngram_size: int = 0
    lm_model: Optional[torch.nn.Module] = None
    lm_weight: float = 1.0
    sampling: bool = False
    sampling_topk: int = -1
    sampling_topp: float = -1.0
    prefix_allowed_tokens_fn: Optional[Callable[[int, Tensor], List[int]]] = None
    want_attention: bool = False
    want_candidates: bool = False

    def longest(self, src_len: int) -> int:
        """Most tokens before end of sentence for a source of `src_len` tokens, its end of sentence counted."""
        max_len = min(int(self.max_len_a * src_len + self.max_len_b), self.max_len - 1)
        if max_len < self.objective.min_len:
            raise ValueError(
                f"--min-len {self.objective.min_len} is above the longest output allowed for a source of {src_len} "
                f"tokens ({max_len}); lower it or raise --max-len-a {self.max_len_a} or --max-len-b {self.max_len_b}"
            )
        return max_len


class Finished(NamedTuple):
    """A finished output: its last row is row `row` of step `step` of the trace."""

    score: float
    low: float  # the score with rounding errors taken off
    logprob: float  # true log probability
    step: int
    row: int
    increment: float  # log score of the last token, end of sentence


@dataclass
class Sentence:
    """Search state of one sentence of the batch."""

    ledger: Ledger = field(default_factory=Ledger)
    finished: List[Finished] = field(default_factory=list)
    losses: List[float] = field(default_factory=list)  # their scores, negated: ascending
    strings: int = 0
    decoder_rows: int = 0
    void: Optional[str] = None
    unreachable: Optional[Finished] = None  # the prefix to return when no output could be reached

    def add(self, item: Finished, keep: int) -> None:
        """Keep the `keep` best outputs; equal scores stay in the order in which they finished."""
        self.strings += 1
        place = bisect.bisect_right(self.losses, -item.score)
        if place < keep:
            self.losses.insert(place, -item.score)
            self.finished.insert(place, item)
            del self.losses[keep:], self.finished[keep:]


class Rows(NamedTuple):
    """Live hypotheses, ordered by sentence.

    `sentence` `(rows,)`; `tokens` `(rows, step + 1)` with the start symbol; `score` log score with all modifications,
    `logprob` true log probability, `error` bound of the rounding error of both: `(rows,)`, float64.
    """

    sentence: Tensor
    tokens: Tensor
    score: Tensor
    logprob: Tensor
    error: Tensor

    def __len__(self) -> int:
        return self.sentence.numel()

    def index_select(self, order: Tensor) -> "Rows":
        return Rows(*(x.index_select(0, order) for x in self))


class Extension(NamedTuple):
    """Chosen continuations, ordered by sentence: row `parent` of the present step goes on with `token`."""

    parent: Tensor
    token: Tensor
    increment: Tensor  # log score of the token
    true_increment: Tensor  # its true log probability


class Trace(NamedTuple):
    """What is remembered of a step, one entry a row; attention stays on the device."""

    parent: List[int]
    token: List[int]
    increment: List[float]
    support: List[int]
    attention: Optional[Tensor]
    candidates: Optional[List[Dict[int, float]]]


class Search:
    """Beam search (or sampling) of one batch.

    Args:
        ensemble: the models.
        options: how to search.
        sample: fairseq batch.
        prefix_tokens: `(batch, length)`, forced first tokens, padded; or None.
        bos_token: first decoder input.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        options: SearchOptions,
        sample: Dict[str, Any],
        prefix_tokens: Optional[Tensor],
        bos_token: int,
    ):
        self.ensemble, self.options = ensemble, options
        src_tokens = sample["net_input"]["src_tokens"]
        self.device, n_sentences = src_tokens.device, src_tokens.size(0)
        ids = sample.get("id")
        self.ids: List[int] = ids.tolist() if isinstance(ids, Tensor) else list(range(n_sentences))
        self.sentences = [Sentence() for _ in range(n_sentences)]
        max_lens = [options.longest(n) for n in src_tokens.ne(options.pad).sum(dim=1).tolist()]
        self.max_len = torch.tensor(max_lens, device=self.device)
        self.prefix = None if prefix_tokens is None or prefix_tokens.size(1) == 0 else prefix_tokens.to(self.device)
        zeros = torch.zeros(n_sentences, dtype=torch.float64, device=self.device)
        self.prefix_logprob = zeros.clone()
        self.threshold = zeros - math.inf  # the nbest-th best finished score, rounding errors taken off
        first = torch.full((n_sentences, 1), bos_token, dtype=torch.long, device=self.device)
        self.rows = Rows(torch.arange(n_sentences, device=self.device), first, zeros, zeros, zeros)
        self.state = ensemble.start(sample["net_input"])
        self.trace: List[Trace] = []
        self.keep = max(options.beam_size, options.nbest)
        if options.sampling:
            order = self.rows.sentence.repeat_interleave(options.beam_size)
            self.rows = self.rows.index_select(order)
            self.state.reorder(order)
            for sentence in self.sentences:
                sentence.void = SAMPLING

    # ------------------------------------------------------------------ the loop

    def run(self) -> List[Sentence]:
        """Search until no sentence has a live hypothesis."""
        transition: Tuple[list, list, list] = ([-1] * len(self.rows), [-1] * len(self.rows), [0.0] * len(self.rows))
        while len(self.rows) > 0:
            for s in self.rows.sentence.tolist():
                self.sentences[s].decoder_rows += 1
            out = self.state.step(self.rows.tokens, self.options.temperature, self.options.want_attention)
            support = (out.probs > 0).sum(dim=-1).tolist()
            candidates = list_candidates(out.probs) if self.options.want_candidates else None
            self.trace.append(Trace(*transition, support, out.attention, candidates))
            self._drop_nan(out.probs)
            probs, scores = self._modify(out.probs)
            token_error = TokenError(self.ensemble.alphas, out.logit_error)
            if self.options.sampling:
                chosen = self._sample(probs, scores, token_error)
            else:
                self._finish(probs, scores, token_error)
                chosen = self._select(probs, scores, token_error)
            self._note_unreachable(chosen)
            transition = (chosen.parent.tolist(), chosen.token.tolist(), chosen.increment.tolist())
            self._advance(chosen, token_error, scores)
        return self.sentences

    @property
    def step(self) -> int:
        """Number of tokens of the live prefixes."""
        return self.rows.tokens.size(1) - 1

    def _advance(self, chosen: Extension, token_error: "TokenError", scores: Tensor) -> None:
        rows = self.rows.index_select(chosen.parent)
        self.rows = Rows(
            rows.sentence,
            torch.cat([rows.tokens, chosen.token.unsqueeze(1)], dim=1),
            rows.score + chosen.increment,
            rows.logprob + chosen.true_increment,
            rows.error + token_error(chosen.true_increment.exp()),
        )
        if len(self.rows) > 0:
            self.state.reorder(chosen.parent)

    def _note_unreachable(self, chosen: Extension) -> None:
        """Remember the best prefix of sentences that die here without any output."""
        alive = set(self.rows.sentence.index_select(0, chosen.parent).tolist())
        dead = set(self.rows.sentence.tolist()) - alive
        if not any(not self.sentences[s].finished for s in dead):
            return
        best: Dict[int, Tuple[float, int]] = {}
        for row, (s, score) in enumerate(zip(self.rows.sentence.tolist(), self.rows.score.tolist())):
            if s in dead and (s not in best or score > best[s][0]):
                best[s] = (score, row)
        for s, (_, row) in best.items():
            self.sentences[s].unreachable = Finished(
                -math.inf, -math.inf, -math.inf, len(self.trace) - 1, row, -math.inf
            )

    # ------------------------------------------------------------------ score update

    def _drop_nan(self, probs: Tensor) -> None:
        """Rows of NaN end their sentence without proof; a first step of nothing but NaN is a broken model."""
        bad = ~torch.isfinite(probs).all(dim=-1)
        if not bad.any():
            return
        if self.step == 0 and bad.all():
            raise ValueError(
                f"the model gives NaN for every sentence of a batch (first id {self.ids[0]}): broken checkpoint?"
            )
        for s in set(self.rows.sentence[bad].tolist()):
            if self.sentences[s].void != NOT_A_NUMBER:
                logger.warning("sentence %s: the model gives NaN; its output is not certified", self.ids[s])
                self.sentences[s].void = NOT_A_NUMBER
        probs[bad] = 0.0

    def _modify(self, probs: Tensor) -> Tuple[Tensor, Tensor]:
        """Apply limits and penalties.

        Returns:
            `probs`: true probabilities, 0 where something is not allowed (changed in place);
            `scores`: the same after multiplicative modifications (unknown-word penalty, language model).
        """
        options, step = self.options, self.step
        free = self._force_prefix(probs)
        self._block(probs, options.forbidden, FORBIDDEN, free)
        if step < options.objective.min_len:
            self._block(probs, [options.eos], MIN_LENGTH, free)
        self._limit(probs, self.max_len.index_select(0, self.rows.sentence).le(step))
        if options.no_repeat_ngram_size > 0:
            self._block_per_row(probs, self._repeated(), NGRAMS, free)
        if options.prefix_allowed_tokens_fn is not None:
            self._block_per_row(probs, self._not_allowed(probs.size(1)), PREFIX_FUNCTION, free)
        scores = probs
        if options.unk_penalty != 0:
            scores = scores.clone()
            scores[:, options.unk] *= math.exp(-options.unk_penalty)
        if options.lm_model is not None:
            lm_probs = options.lm_model.get_normalized_probs(
                options.lm_model(self.rows.tokens), log_probs=True, sample=None
            )
            scores = scores * (lm_probs[:, -1, :].double() * options.lm_weight).exp()
            self._account(LANGUAGE_MODEL, (probs * scores.eq(0)).sum(dim=-1))
            probs = probs * scores.ne(0)
        return probs, scores

    def _force_prefix(self, probs: Tensor) -> Optional[Tensor]:
        """Leave only the forced token in rows inside their prefix, and make the claim conditional on it.

        Returns:
            Rows that are not inside a prefix, `(rows,)`; None when that is every row.
        """
        if self.prefix is None or self.step >= self.prefix.size(1):
            return None
        sentence = self.rows.sentence
        token = self.prefix[:, self.step].index_select(0, sentence)
        forced = token.ne(self.options.pad) & self.max_len.index_select(0, sentence).gt(self.step)
        p = probs.gather(1, token.unsqueeze(1)).squeeze(1)
        only = torch.zeros_like(probs).scatter_(1, token.unsqueeze(1), p.unsqueeze(1))
        probs.copy_(torch.where(forced.unsqueeze(1), only, probs))
        known = forced & p.gt(0)
        self.prefix_logprob[sentence[known]] += p[known].log()
        for s in set(sentence[forced & p.eq(0)].tolist()):
            self.sentences[s].void = self.sentences[s].void or ZERO_PREFIX
        return ~forced

    def _mass(self) -> Tensor:
        """Probability of each live prefix, given the forced prefix of its sentence: `(rows,)`."""
        return (self.rows.logprob - self.prefix_logprob.index_select(0, self.rows.sentence)).exp()

    def _account(self, name: str, blocked: Tensor) -> None:
        """Enter probability that `name` blocks, `(rows,)`, relative to the row."""
        if not (blocked > 0).any():
            return
        mass = self._mass() * blocked
        for s, m, b in zip(self.rows.sentence.tolist(), mass.tolist(), blocked.tolist()):
            if b > 0:  # the mass itself may underflow
                entries = self.sentences[s].ledger.blocked
                entries[name] = entries.get(name, 0.0) + max(m, 5e-324)

    def _block(self, probs: Tensor, symbols: List[int], name: str, where: Optional[Tensor]) -> None:
        """Forbid `symbols` in the rows `where`."""
        lost = probs[:, symbols]
        if where is not None:
            lost = lost * where.unsqueeze(1)
        self._account(name, lost.sum(dim=-1))
        probs[:, symbols] -= lost  # exactly 0, or exactly what it was

    def _block_per_row(self, probs: Tensor, symbols: List[List[int]], name: str, where: Optional[Tensor]) -> None:
        allowed = torch.ones_like(probs)
        for row, banned in enumerate(symbols):
            allowed[row, banned] = 0.0
        if where is not None:
            allowed = torch.where(where.unsqueeze(1), allowed, torch.ones_like(allowed))
        self._account(name, (probs * (1 - allowed)).sum(dim=-1))
        probs.mul_(allowed)

    def _limit(self, probs: Tensor, at_limit: Tensor) -> None:
        """At the length limit only end of sentence is left."""
        if not at_limit.any():
            return
        eos = self.options.eos
        other = probs * at_limit.unsqueeze(1)
        other[:, eos] = 0.0
        best = (self.rows.score + other.max(dim=-1).values.log() + self.rows.error).tolist()
        for s, bound in zip(self.rows.sentence.tolist(), best):
            ledger = self.sentences[s].ledger
            ledger.limit_bound = max(ledger.limit_bound, bound)
        self._account(LENGTH_LIMIT, other.sum(dim=-1))
        probs.sub_(other)

    def _repeated(self) -> List[List[int]]:
        size = self.options.no_repeat_ngram_size
        return [repeating_tokens(tokens[1:], size) for tokens in self.rows.tokens.tolist()]

    def _not_allowed(self, n_symbols: int) -> List[List[int]]:
        banned = []
        for s, tokens in zip(self.rows.sentence.tolist(), self.rows.tokens):
            allowed = set(self.options.prefix_allowed_tokens_fn(self.ids[s], tokens))
            banned.append([i for i in range(n_symbols) if i not in allowed])
        return banned

    # ------------------------------------------------------------------ finish

    def _finish(self, probs: Tensor, scores: Tensor, token_error: "TokenError") -> None:
        """Move outputs that end here into their sentences' lists, and end of sentence out of `probs` and `scores`."""
        eos = self.options.eos
        p = probs[:, eos].clone()
        increment = scores[:, eos].log()
        rows = p.gt(0).nonzero().squeeze(1)
        if rows.numel() > 0:
            self._record(rows, increment[rows], p[rows].log(), token_error(p[rows]))
        probs[:, eos] = 0.0
        scores[:, eos] = 0.0

    def _record(self, rows: Tensor, increment: Tensor, true_increment: Tensor, error: Tensor) -> None:
        """Finish `rows`: their outputs end at this step."""
        objective, length = self.options.objective, self.step + 1
        live = self.rows.index_select(rows)
        score = live.score + increment
        logprob = live.logprob + true_increment
        mass = (logprob - self.prefix_logprob.index_select(0, live.sentence)).exp()
        low = objective.score(score - live.error - error, length)
        columns = (live.sentence, objective.score(score, length), low, logprob, mass, increment, rows)
        step = len(self.trace) - 1
        for s, final, final_low, logp, m, inc, row in zip(*(c.tolist() for c in columns)):
            sentence = self.sentences[s]
            sentence.ledger.finished += m
            sentence.add(Finished(final, final_low, logp, step, row, inc), self.keep)
            if len(sentence.finished) >= self.options.nbest:
                self.threshold[s] = sentence.finished[self.options.nbest - 1].low

    # ------------------------------------------------------------------ select

    def _select(self, probs: Tensor, scores: Tensor, token_error: "TokenError") -> Extension:
        """The best prefixes of each sentence go on; the rest is entered into its ledger with its bound."""
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
        high[owner, slot] = packed[owner, slot] + (self.rows.error.unsqueeze(1) + token_error(true))
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
        bound.scatter_(1, index, torch.where(alive | bounded, bound.new_tensor(-math.inf), bound.gather(1, index)))
        full = count > chosen.sum(dim=1)
        columns = (
            active,
            total - (mass * (alive | bounded)).sum(dim=1),
            (mass * bounded).sum(dim=1),
            full | (chosen & ~alive & ~bounded).any(dim=1),
            bounded.any(dim=1),
            bound.max(dim=1).values,
        )
        for s, dropped, outbounded, any_dropped, any_bounded, drop_bound in zip(*(c.tolist() for c in columns)):
            ledger = self.sentences[s].ledger
            ledger.bounded += outbounded
            ledger.any_bounded |= any_bounded
            if any_dropped:
                ledger.dropped += max(dropped, 0.0)
                ledger.any_dropped = True
                ledger.drop_bound = max(ledger.drop_bound, drop_bound)

    # ------------------------------------------------------------------ sampling

    def _sample(self, probs: Tensor, scores: Tensor, token_error: "TokenError") -> Extension:
        """Draw one token a row; rows that draw end of sentence finish, rows without a possible token die."""
        options = self.options
        pool = scores
        if options.sampling_topp > 0:
            value, index = (scores / scores.sum(dim=-1, keepdim=True)).nan_to_num(0.0).sort(dim=-1, descending=True)
            value[value.cumsum(dim=-1) - value >= options.sampling_topp] = 0.0
            pool = torch.zeros_like(scores).scatter_(1, index, value)
        elif options.sampling_topk > 0:
            value, index = scores.topk(min(options.sampling_topk, scores.size(1)), dim=-1)
            pool = torch.zeros_like(scores).scatter_(1, index, value)
        parent = pool.sum(dim=-1).gt(0).nonzero().squeeze(1)
        if parent.numel() == 0:
            return Extension(parent, parent, scores.new_empty(0), scores.new_empty(0))
        token = torch.multinomial(pool[parent], 1).squeeze(1)
        increment, true = scores[parent, token].log(), probs[parent, token].log()
        ended = token.eq(options.eos)
        if ended.any():
            self._record(parent[ended], increment[ended], true[ended], token_error(true[ended].exp()))
        return Extension(parent[~ended], token[~ended], increment[~ended], true[~ended])


class TokenError:
    """Bound of the rounding error of a token's log probability, from that of the logits.

    For p = entmax(z) the derivative of log p to its logit is at most ``p ** (1 - alpha)`` (1 for softmax): small
    probabilities of a sparse mapping are uncertain in relative terms.
    """

    def __init__(self, alphas: List[float], logit_error: float):
        self.exponent = 1.0 - max(alphas)
        self.logit_error = logit_error

    def __call__(self, probs: Tensor) -> Tensor:
        """`probs`, any shape; entries of 0 give 0."""
        error = probs.clamp(min=1e-30) ** self.exponent * self.logit_error
        return torch.where(probs > 0, error, torch.zeros_like(error))


def list_candidates(probs: Tensor) -> List[Dict[int, float]]:
    """The support of each row with its probabilities."""
    found: List[Dict[int, float]] = [{} for _ in range(probs.size(0))]
    rows, tokens = (probs > 0).nonzero(as_tuple=True)
    for row, token, p in zip(rows.tolist(), tokens.tolist(), probs[rows, tokens].tolist()):
        found[row][token] = p
    return found


def repeating_tokens(tokens: List[int], size: int) -> List[int]:
    """Tokens that would complete an n-gram of `size` that `tokens` already has."""
    context = tokens[len(tokens) - size + 1 :] if size > 1 else []
    if len(tokens) < size - 1:
        return []
    return [tokens[i + size - 1] for i in range(len(tokens) - size + 1) if tokens[i : i + size - 1] == context]
