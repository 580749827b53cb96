"""What a search keeps: its options, the live rows, the state of each sentence, and a trace to read outputs from."""

import bisect
import math
from dataclasses import dataclass, field
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from .certificate import Ledger, Objective


@dataclass
class SearchOptions:
    """Options of a search; the names are those of fairseq's generation options where it has them.

    `beam_size`: most live prefixes a sentence; `nbest`: outputs wanted; `bounding`: drop prefixes that cannot enter the
    `nbest` best; `forbidden`: symbols that no output may contain; `match_source_len`: outputs have as many tokens as
    their sources, ends of sentence not counted.
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
    match_source_len: bool = False
    unk_penalty: float = 0.0
    temperature: float = 1.0
    no_repeat_ngram_size: int = 0
    lm_model: Optional[torch.nn.Module] = None
    lm_weight: float = 1.0
    diversity_rate: float = 0.0
    prefix_allowed_tokens_fn: Optional[Callable[[int, Tensor], List[int]]] = None
    want_attention: bool = False
    want_candidates: bool = False

    def longest(self, src_len: int) -> int:
        """Most tokens before end of sentence for a source of `src_len` tokens.

        Its end of sentence is counted, but not with `match_source_len`."""
        if self.match_source_len:
            fewest = self.objective.min_len if self.objective.min_len > 1 else 0  # 1 is the default, and nobody's wish
            if not fewest <= src_len <= self.max_len - 1:
                raise ValueError(
                    f"--match-source-len: a source of {src_len} tokens asks for an output of {src_len} tokens, but "
                    f"--min-len {self.objective.min_len} and the models allow {fewest} to {self.max_len - 1}"
                )
            return src_len
        max_len = min(int(self.max_len_a * src_len + self.max_len_b), self.max_len - 1)
        if max_len < self.objective.min_len:
            raise ValueError(
                f"--min-len {self.objective.min_len} is above the longest output allowed for a source of {src_len} "
                f"tokens ({max_len}); lower it or raise --max-len-a {self.max_len_a} or --max-len-b {self.max_len_b}"
            )
        return max_len

    def shortest(self, src_len: int) -> int:
        """Fewest tokens before end of sentence, counted likewise."""
        return src_len if self.match_source_len else self.objective.min_len


class Finished(NamedTuple):
    """A finished output: its last row is row `row` of step `step` of `trace`."""

    score: float
    low: float  # the score with rounding errors taken off
    logprob: float  # true log probability
    trace: List["Trace"]
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
    prefix_logprob: float = 0.0  # of the forced prefix, when the search is over
    unreachable: Optional[Finished] = None  # the prefix to return when no output could be reached

    def add(self, item: Finished, keep: int) -> None:
        """Keep the `keep` best outputs; equal scores stay in the order in which they finished."""
        self.strings += 1
        place = bisect.bisect_right(self.losses, -item.score)
        if place < keep:
            self.losses.insert(place, -item.score)
            self.finished.insert(place, item)
            del self.losses[keep:], self.finished[keep:]

    def merge(self, earlier: "Sentence", keep: int) -> None:
        """Take over the outputs of an earlier search that this one did not find, and its unreachable prefix.

        Here their mass is in what was dropped or out-bounded; it moves to what is finished.
        """
        known = {output_tokens(item) for item in self.finished}
        # Worse ones than the last of a full list may have been found here, and forgotten.
        lowest = self.finished[-1].score if self.strings > len(self.finished) else -math.inf
        for item in earlier.finished:
            if item.score > lowest and output_tokens(item) not in known:
                self.add(item, keep)
                self.ledger.move_to_finished(math.exp(item.logprob - self.prefix_logprob))
        self.strings = max(self.strings, earlier.strings)
        if not self.finished:
            self.unreachable = self.unreachable or earlier.unreachable


def output_tokens(item: Finished) -> Tuple[int, ...]:
    """Tokens of a finished output, end of sentence left out, last first."""
    tokens, row = [], item.row
    for step in range(item.step, 0, -1):
        tokens.append(item.trace[step].token[row])
        row = item.trace[step].parent[row]
    return tuple(tokens)


class Rows(NamedTuple):
    """Live hypotheses, ordered by sentence.

    `sentence` `(rows,)`; `tokens` `(rows, step + 1)` with the start symbol; `score` log score with all modifications,
    `logprob` true log probability, `rise` and `fall` how much rounding may have moved both down and up: `(rows,)`,
    float64.
    """

    sentence: Tensor
    tokens: Tensor
    score: Tensor
    logprob: Tensor
    rise: Tensor
    fall: Tensor

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


class TokenError:
    """How far rounding of the logits can move a token's log probability.

    For p = entmax(z) with alpha > 1, ``p ** (alpha - 1)`` moves by at most ``(alpha - 1) * dz`` when each logit moves
    by at most dz / 2: it is linear in the logit and in the threshold, and the threshold moves no further than the
    logits. So small probabilities are uncertain in relative terms. For softmax, log p moves by dz.

    An average of members moves no further than this says of the average, as ``(p ** e + shift) ** (1 / e)`` is concave
    in p for e <= 1 (and its opposite convex); for e > 1 it is at most ``p + shift ** (1 / e)``. A smaller alpha moves
    small probabilities less, and those near 1 by at most ``exp(dz)``, which is added where alphas differ.

    A token is possible or not as computed: that an impossible one might have a tiny probability is not counted.

    Args:
        alphas: output alphas of the ensemble; the largest decides.
        logit_error: dz.
    """

    def __init__(self, alphas: List[float], logit_error: float):
        self.exponent = max(alphas) - 1.0
        self.shift = self.exponent * logit_error
        self.logit_error = logit_error
        self.additional = logit_error if len(set(alphas)) > 1 else 0.0
        if len(alphas) > 1 and self.exponent > 1:
            self.shift, self.exponent = self.shift ** (1 / self.exponent), 1.0

    def add(self, error: float) -> None:
        """Count an error of the log score that does not depend on the token, as that of a language model."""
        self.additional += error

    def rise(self, probs: Tensor) -> Tensor:
        """By how much the log of `probs` may be too low; ``log(p) + rise(p)`` grows with p. 0 where p is 0."""
        if self.exponent == 0:
            return probs.gt(0) * (self.logit_error + self.additional)
        rise = torch.log1p(self.shift / probs**self.exponent) / self.exponent + self.additional
        return torch.where(probs > 0, rise, torch.zeros_like(rise))

    def fall(self, probs: Tensor) -> Tensor:
        """By how much the log of `probs` may be too high; inf where p might be 0, and 0 where p is 0."""
        if self.exponent == 0:
            return probs.gt(0) * (self.logit_error + self.additional)
        fall = self.additional - torch.log1p(-(self.shift / probs**self.exponent).clamp(max=1.0)) / self.exponent
        return torch.where(probs > 0, fall, torch.zeros_like(fall))
