"""The search loop of one batch over ragged rows: score update, candidates, finish; subclasses choose who goes on."""

import logging
import math
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from .certificate import LENGTH_LIMIT, MIN_LENGTH, SOURCE_LENGTH
from .constraints import Constraints, State
from .ensemble import Ensemble, rounding_error
from .search_state import Extension, Finished, Rows, SearchOptions, Sentence, TokenError, Trace

logger = logging.getLogger(__name__)

FORBIDDEN, NGRAMS = "forbidden symbols", "n-gram blocking"
PREFIX_FUNCTION, LANGUAGE_MODEL, CONSTRAINTS = "allowed tokens", "language model", "constraints"
MOST_PENALTY = 600.0  # nats; exp of more would be 0, and a penalty must not make a token impossible
LEAST = 1e-300  # what penalties leave of a score, together
NOT_A_NUMBER, ZERO_PREFIX, SAMPLING = "NaN", "prefix has zero probability", "sampling"


class Search:
    """Search of one batch, step by step; subclasses choose which hypotheses go on.

    Args:
        ensemble: the models.
        options: how to search.
        sample: fairseq batch; where there are constraints, with the list "phrases" of `Constraints`.
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
        counted = src_tokens.ne(options.pad)
        if options.match_source_len:
            counted &= src_tokens.ne(options.eos)
        src_lens = counted.sum(dim=1).tolist()
        self.max_len = torch.tensor([options.longest(n) for n in src_lens], device=self.device)
        self.min_len = torch.tensor([options.shortest(n) for n in src_lens], device=self.device)
        self.prefix = None if prefix_tokens is None or prefix_tokens.size(1) == 0 else prefix_tokens.to(self.device)
        zeros = torch.zeros(n_sentences, dtype=torch.float64, device=self.device)
        self.prefix_logprob = zeros.clone()
        self.threshold = zeros - math.inf  # the nbest-th best finished score, rounding errors taken off
        first = torch.full((n_sentences, 1), bos_token, dtype=torch.long, device=self.device)
        self.rows = Rows(torch.arange(n_sentences, device=self.device), first, zeros, zeros, zeros, zeros)
        self.state = ensemble.start(sample["net_input"])
        self.constraints: Optional[List[Constraints]] = sample.get("phrases")
        self.said: List[State] = [c.start for c in self.constraints or ()]  # of each live row
        self.trace: List[Trace] = []
        self.keep = max(options.beam_size, options.nbest)
        self.vocab: Optional[Tensor] = None  # tokens of this step's columns; None: a column for each token
        self.eos = options.eos  # its column
        named = {options.eos, options.unk, options.pad, *options.forbidden}
        named.update(t for c in self.constraints or () for phrase in c.phrases for t in phrase)
        self.named = torch.tensor(sorted(named), device=self.device)

    # ------------------------------------------------------------------ the loop

    def run(self) -> List[Sentence]:
        """Search until no sentence has a live hypothesis."""
        transition: Tuple[list, list, list] = ([-1] * len(self.rows), [-1] * len(self.rows), [0.0] * len(self.rows))
        while len(self.rows) > 0:
            for s in self.rows.sentence.tolist():
                self.sentences[s].decoder_rows += 1
            out = self.state.step(
                self.rows.tokens, self.options.temperature, self.options.want_attention, self.columns_for()
            )
            self.vocab = out.tokens
            self.eos = self._column(self.options.eos)
            support = out.support.tolist()
            candidates = list_candidates(out.probs, out.tokens) if self.options.want_candidates else None
            self.trace.append(Trace(*transition, support, out.attention, candidates))
            self._drop_nan(out.probs)
            token_error = TokenError(self.ensemble.alphas, out.logit_error)
            probs, scores = self._modify(out.probs, token_error)
            chosen = self.choose(probs, scores, token_error)
            chosen = chosen._replace(token=self.tokens_of(chosen.token))
            self._note_unreachable(chosen)
            transition = (chosen.parent.tolist(), chosen.token.tolist(), chosen.increment.tolist())
            self._advance(chosen, token_error)
        for sentence, logprob in zip(self.sentences, self.prefix_logprob.tolist()):
            sentence.prefix_logprob = logprob
        return self.sentences

    def choose(self, probs: Tensor, scores: Tensor, token_error: TokenError) -> Extension:
        """Finish what ends at this step, choose what goes on, and enter the rest into the ledgers.

        Args:
            probs: true probabilities, `(rows, columns)`, 0 where something is not allowed.
            scores: the same with all modifications.
            token_error: rounding error of a token's log probability.

        Returns:
            What goes on; its tokens are columns.
        """
        raise NotImplementedError

    def columns_for(self) -> Tensor:
        """Tokens that this step speaks of, whether they are possible or not."""
        if self.prefix is None or self.step >= self.prefix.size(1):
            return self.named
        return torch.cat([self.named, self.prefix[:, self.step]])

    def columns(self, tokens: Tensor) -> Tensor:
        """Columns of tokens that have one (those of `columns_for`, and the possible ones)."""
        return tokens if self.vocab is None else torch.searchsorted(self.vocab, tokens.contiguous())

    def _column(self, token: int) -> int:
        return token if self.vocab is None else int(torch.searchsorted(self.vocab, token))

    def tokens_of(self, columns: Tensor) -> Tensor:
        """The reverse of `columns`."""
        return columns if self.vocab is None else self.vocab[columns]

    @property
    def step(self) -> int:
        """Number of tokens of the live prefixes."""
        return self.rows.tokens.size(1) - 1

    def _advance(self, chosen: Extension, token_error: TokenError) -> None:
        rows, p = self.rows.index_select(chosen.parent), chosen.true_increment.exp()
        self.rows = Rows(
            rows.sentence,
            torch.cat([rows.tokens, chosen.token.unsqueeze(1)], dim=1),
            rows.score + chosen.increment,
            rows.logprob + chosen.true_increment,
            rows.rise + token_error.rise(p),
            rows.fall + token_error.fall(p),
        )
        if self.constraints is not None:
            steps = zip(rows.sentence.tolist(), chosen.parent.tolist(), chosen.token.tolist())
            self.said = [self.constraints[s].advance(self.said[parent], token) for s, parent, token in steps]
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
            nowhere = (-math.inf, -math.inf, -math.inf, self.trace, len(self.trace) - 1, row, -math.inf)
            self.sentences[s].unreachable = Finished(*nowhere)

    # ------------------------------------------------------------------ score update

    def _drop_nan(self, probs: Tensor) -> None:
        """Rows of NaN end their sentence without proof; a first step of nothing but NaN is a broken model."""
        bad = probs[:, 0].isnan()  # rows are divided by their sums, so NaN fills its row
        if not bad.any():
            return
        if self.step == 0 and bad.all() and len(set(self.ids)) > 1:  # of one sentence it may be the sentence
            raise ValueError(
                f"the model gives NaN for every sentence of a batch (first id {self.ids[0]}): broken checkpoint?"
            )
        for s in set(self.rows.sentence[bad].tolist()):
            if self.sentences[s].void != NOT_A_NUMBER:
                logger.warning("sentence %s: the model gives NaN; its output is not certified", self.ids[s])
                self.sentences[s].void = NOT_A_NUMBER
        probs[bad] = 0.0

    def _modify(self, probs: Tensor, token_error: TokenError) -> Tuple[Tensor, Tensor]:
        """Apply limits and penalties; rounding errors of a language model are added to those of the models.

        Returns:
            `probs`: true probabilities, 0 where something is not allowed (changed in place);
            `scores`: the same after multiplicative modifications (unknown-word penalty, diversity, language model).
        """
        options, step = self.options, self.step
        free = self._force_prefix(probs)
        self._block(probs, [self._column(token) for token in options.forbidden], FORBIDDEN, free)
        too_short = self.min_len.index_select(0, self.rows.sentence).gt(step)
        if too_short.any():
            name = SOURCE_LENGTH if options.match_source_len else MIN_LENGTH
            self._block(probs, [self.eos], name, too_short if free is None else too_short & free)
        if self.constraints is not None:
            met = [self.constraints[s].is_met(said) for s, said in zip(self.rows.sentence.tolist(), self.said)]
            self._block(probs, [self.eos], CONSTRAINTS, ~torch.tensor(met, device=self.device))
        self._limit(probs, self.max_len.index_select(0, self.rows.sentence).le(step), token_error)
        if options.no_repeat_ngram_size > 0:
            self._block_per_row(probs, self._repeated(), NGRAMS, free)
        if options.prefix_allowed_tokens_fn is not None:
            self._block_per_row(probs, self._not_allowed(probs.size(1)), PREFIX_FUNCTION, free)
        scores = probs
        if options.unk_penalty != 0:
            penalty = torch.zeros_like(scores[:1])
            penalty[:, self._column(options.unk)] = options.unk_penalty
            scores = lower(scores, penalty)
        if options.diversity_rate > 0 and step > 0:
            scores = lower(scores, options.diversity_rate * sibling_ranks(scores))
        if options.lm_model is not None and options.lm_weight != 0:
            lm_probs = options.lm_model.get_normalized_probs(
                options.lm_model(self.rows.tokens), log_probs=True, sample=None
            )
            lm_probs = lm_probs[:, -1, :] if self.vocab is None else lm_probs[:, -1, self.vocab]
            token_error.add(abs(options.lm_weight) * rounding_error(lm_probs))
            scores = scores * (lm_probs.double() * options.lm_weight).exp()
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
        fits = self.max_len.index_select(0, sentence).gt(self.step)
        forced = token.ne(self.options.pad) & fits
        for s in set(sentence[token.ne(self.options.pad) & token.ne(self.options.eos) & ~fits].tolist()):
            self.sentences[s].void = self.sentences[s].void or LENGTH_LIMIT  # the prefix is cut
        column = self.columns(token).unsqueeze(1)
        p = probs.gather(1, column).squeeze(1)
        only = torch.zeros_like(probs).scatter_(1, column, p.unsqueeze(1))
        probs.copy_(torch.where(forced.unsqueeze(1), only, probs))
        known = forced & p.gt(0)
        self.prefix_logprob[sentence[known]] += p[known].log()
        for s in set(sentence[forced & p.eq(0)].tolist()):
            if self.sentences[s].void in (None, SAMPLING):
                self.sentences[s].void = ZERO_PREFIX
        return ~forced

    def _mass(self) -> Tensor:
        """Probability of each live prefix, given the forced prefix of its sentence: `(rows,)`."""
        return (self.rows.logprob - self.prefix_logprob.index_select(0, self.rows.sentence)).exp()

    def _account(self, name: str, blocked: Tensor) -> bool:
        """Enter probability that `name` blocks, `(rows,)`, relative to the row; whether there is any."""
        if not (blocked > 0).any():
            return False
        mass = self._mass() * blocked
        for s, m, b in zip(self.rows.sentence.tolist(), mass.tolist(), blocked.tolist()):
            if b > 0:  # the mass itself may underflow
                entries = self.sentences[s].ledger.blocked
                entries[name] = entries.get(name, 0.0) + max(m, 5e-324)
        return True

    def _block(self, probs: Tensor, columns: List[int], name: str, where: Optional[Tensor]) -> None:
        """Forbid some columns in the rows `where`."""
        lost = probs[:, columns]
        if where is not None:
            lost = lost * where.unsqueeze(1)
        if self._account(name, lost.sum(dim=-1)):
            probs[:, columns] -= lost  # exactly 0, or exactly what it was

    def _block_per_row(self, probs: Tensor, columns: List[List[int]], name: str, where: Optional[Tensor]) -> None:
        allowed = torch.ones_like(probs)
        for row, banned in enumerate(columns):
            allowed[row, banned] = 0.0
        if where is not None:
            allowed = torch.where(where.unsqueeze(1), allowed, torch.ones_like(allowed))
        self._account(name, (probs * (1 - allowed)).sum(dim=-1))
        probs.mul_(allowed)

    def _limit(self, probs: Tensor, at_limit: Tensor, token_error: TokenError) -> None:
        """At the length limit only end of sentence is left."""
        if not at_limit.any():
            return
        eos = self.eos
        other = probs * at_limit.unsqueeze(1)
        other[:, eos] = 0.0
        if self.options.match_source_len:  # asked for: claims are about outputs of this length alone
            self._account(SOURCE_LENGTH, other.sum(dim=-1))
        else:
            most = other.max(dim=-1).values
            best = (self.rows.score + most.log() + self.rows.rise + token_error.rise(most)).tolist()
            for s, bound in zip(self.rows.sentence.tolist(), best):
                ledger = self.sentences[s].ledger
                ledger.limit_bound = max(ledger.limit_bound, bound)
            self._account(LENGTH_LIMIT, other.sum(dim=-1))
        probs.sub_(other)

    def _repeated(self) -> List[List[int]]:
        size = self.options.no_repeat_ngram_size
        banned = [repeating_tokens(tokens[1:], size) for tokens in self.rows.tokens.tolist()]
        if self.vocab is None:
            return banned
        column = {token: i for i, token in enumerate(self.vocab.tolist())}
        return [[column[token] for token in row if token in column] for row in banned]

    def _not_allowed(self, n_columns: int) -> List[List[int]]:
        names, banned = range(n_columns) if self.vocab is None else self.vocab.tolist(), []
        for s, tokens in zip(self.rows.sentence.tolist(), self.rows.tokens):
            allowed = set(self.options.prefix_allowed_tokens_fn(self.ids[s], tokens))
            banned.append([i for i, token in enumerate(names) if token not in allowed])
        return banned

    # ------------------------------------------------------------------ finish

    def _finish(self, probs: Tensor, scores: Tensor, token_error: TokenError) -> None:
        """Move outputs that end here into their sentences' lists, and end of sentence out of `probs` and `scores`."""
        eos = self.eos
        p = probs[:, eos].clone()
        rows = p.nonzero().squeeze(1)
        if rows.numel() > 0:
            p = p[rows]
            self._record(rows, scores[rows, eos].log(), p.log(), token_error.fall(p))
            probs[:, eos] = 0.0
            scores[:, eos] = 0.0

    def _record(self, rows: Tensor, increment: Tensor, true_increment: Tensor, fall: Tensor) -> None:
        """Finish `rows`: their outputs end at this step."""
        objective, length, live = self.options.objective, self.step + 1, self.rows
        owner = live.sentence[rows]
        score = live.score[rows] + increment
        logprob = live.logprob[rows] + true_increment
        mass = (logprob - self.prefix_logprob[owner]).exp()
        low = objective.score(score - (live.fall[rows] + fall), length)
        columns = (owner, objective.score(score, length), low, logprob, mass, increment, rows)
        step, nbest, lows = len(self.trace) - 1, self.options.nbest, {}
        for s, final, final_low, logp, m, inc, row in zip(*(c.tolist() for c in columns)):
            sentence = self.sentences[s]
            sentence.ledger.finished += m
            sentence.add(Finished(final, final_low, logp, self.trace, step, row, inc), self.keep)
            if len(sentence.finished) >= nbest:
                lows[s] = max(lows.get(s, -math.inf), sentence.finished[nbest - 1].low)
        if lows:
            index = torch.tensor(list(lows), device=self.device)
            reached = torch.tensor(list(lows.values()), dtype=torch.float64, device=self.device)
            self.threshold[index] = self.threshold[index].maximum(reached)


def lower(scores: Tensor, penalty: Tensor) -> Tensor:
    """`scores` times ``exp(-penalty)``: smaller, but never zero where they were not."""
    lowered = scores * (-penalty.clamp(max=MOST_PENALTY)).exp()
    return torch.where(scores > 0, lowered.clamp(min=LEAST), lowered)


def sibling_ranks(scores: Tensor) -> Tensor:
    """Rank of each token among the continuations of its row, 1 for the best: `(rows, vocab)`."""
    order = scores.argsort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(1, scores.size(1) + 1, dtype=scores.dtype, device=scores.device).expand_as(scores)
    return torch.empty_like(scores).scatter_(1, order, ranks)


def list_candidates(probs: Tensor, tokens: Optional[Tensor] = None) -> List[Dict[int, float]]:
    """The support of each row with its probabilities; `tokens` of the columns, None where they are the tokens."""
    found: List[Dict[int, float]] = [{} for _ in range(probs.size(0))]
    rows, columns = (probs > 0).nonzero(as_tuple=True)
    names = columns if tokens is None else tokens[columns]
    for row, token, p in zip(rows.tolist(), names.tolist(), probs[rows, columns].tolist()):
        found[row][token] = p
    return found


def repeating_tokens(tokens: List[int], size: int) -> List[int]:
    """Tokens that would complete an n-gram of `size` that `tokens` already has."""
    context = tokens[len(tokens) - size + 1 :] if size > 1 else []
    if len(tokens) < size - 1:
        return []
    return [tokens[i + size - 1] for i in range(len(tokens) - size + 1) if tokens[i : i + size - 1] == context]
