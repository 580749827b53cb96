"""What a search may claim about its answer: objectives, upper bounds, the mass ledger and the certificate.

Let a prefix have t tokens (end of sentence not among them) and log score S <= 0. Every further token adds a log
probability, which is never positive, so every complete output that continues the prefix has log score S' <= S. Let L be
the length of such an output, end of sentence counted: L is at least ``max(t + 1, min_len + 1)`` and at most
``max_len + 1``.

* Raw log probability: the output scores S' <= S. So S is an upper bound of everything below the prefix.
* Length-normalised: the output scores S' / L^lenpen. As S' <= S and L^lenpen > 0 this is at most S / L^lenpen, and for
  fixed S <= 0 the map L -> S / L^lenpen is monotone (increasing when lenpen > 0, decreasing when lenpen < 0), so its
  maximum over an interval lies at an end: ``U = max(S / Lmin^lenpen, S / Lmax^lenpen)`` bounds everything below.

U does not rise along a prefix: S only falls and the interval of lengths only shrinks. So when every prefix that the
search dropped has a bound below the best finished score, no output that was dropped can beat it, and the best finished
output is the best of all (certificate ``optimal``). The argument needs increments that are never positive: temperature,
an unknown-word penalty >= 0, blocking and a language-model weight >= 0 keep that (the claim is then about the modified
score); a negative penalty or weight voids it.
"""

import math
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Sequence

import torch
from torch import Tensor

COMPLETE, OPTIMAL, NONE = "complete", "optimal", "none"
MIN_LENGTH, SOURCE_LENGTH = "min length", "source length"
BEAM, BUDGET, LENGTH_LIMIT = "beam", "budget", "length limit"  # reasons

# How far the masses of a sentence may be from adding up to one (rows are normalised in float64, so 1e-12 is usual).
LEDGER_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Objective:
    """What "best" means: raw log probability, or ``logprob / length ** lenpen`` with end of sentence counted.

    Args:
        normalize: False for raw log probability (``--unnormalized``).
        lenpen: exponent of the length (``--lenpen``), any sign.
        min_len: fewest tokens before end of sentence (``--min-len``).
    """

    normalize: bool = True
    lenpen: float = 1.0
    min_len: int = 1

    @property
    def name(self) -> str:
        return "normalized" if self.is_normalized else "logprob"

    @property
    def is_normalized(self) -> bool:
        return self.normalize and self.lenpen != 0

    def score(self, logprob, length):
        """Score of a finished output of `length` tokens, end of sentence counted (numbers or tensors)."""
        return logprob / length**self.lenpen if self.is_normalized else logprob

    def bound(self, logprob: Tensor, n_tokens: int, max_len: Tensor, min_len: Optional[Tensor] = None) -> Tensor:
        """Upper bound of every output that continues a prefix of `n_tokens` tokens (see the module's proof).

        Args:
            logprob: log scores of the prefixes, float64, any shape; -inf gives -inf.
            n_tokens: tokens of the prefixes, end of sentence not among them.
            max_len, min_len: most and fewest tokens before end of sentence, broadcastable to `logprob`; without
                `min_len`, the objective's.
        """
        if not self.is_normalized:
            return logprob
        longest = (max_len + 1).clamp(min=1).to(logprob.dtype)
        fewest = torch.full_like(longest, self.min_len) if min_len is None else min_len.to(longest.dtype)
        shortest = (fewest.clamp(min=n_tokens) + 1).minimum(longest)
        return torch.maximum(logprob / shortest**self.lenpen, logprob / longest**self.lenpen)

    def limits_of_bounds(self, match_source_len: bool = False) -> List[str]:
        """What claims about dropped prefixes are subject to: `bound` looks at the lengths that are allowed only.

        For raw scores it holds of every length. Below a prefix of log score S, an output of length L scores at most
        ``S / L ** lenpen``: with lenpen > 0 longer ones could score more than at the length limit, and with lenpen < 0
        shorter ones more than at the least length (the prefix itself has one token, so a least length of 1 excludes
        nothing).
        """
        if not self.is_normalized:
            return []
        if match_source_len:
            return [SOURCE_LENGTH]
        if self.lenpen > 0:
            return [LENGTH_LIMIT]
        return [MIN_LENGTH] if self.min_len > 1 else []

    def safe_length(self, dropped: float, best: float) -> Optional[int]:
        """Longest output that cannot beat `best` although prefixes of log score up to `dropped` were dropped.

        Below such a prefix an output of length L scores at most ``dropped / L ** lenpen``, which exceeds `best` only if
        ``L ** lenpen > dropped / best`` (both are negative).
        """
        if not self.is_normalized or self.lenpen < 0 or not -math.inf < dropped <= 0 or not -math.inf < best < 0:
            return None
        if dropped == 0:
            return 0
        longest = math.log(dropped / best) / self.lenpen  # its logarithm: the number itself may be out of range
        return math.floor(math.exp(longest)) if longest < math.log(1e9) else 10**9


@dataclass
class Certificate:
    """What was proved about one sentence.

    Attributes:
        certificate: ``complete`` (every output with non-zero probability was enumerated), ``optimal`` (no output that
            was not enumerated can beat the best one), or ``none``.
        reason: why there is no proof, or what the proof is subject to; empty for an unconditional proof.
        objective: ``logprob`` or ``normalized``.
        mass: probability covered by the enumerated outputs, under the model's own distribution (after temperature, and
            given the forced prefix if there is one).
        strings: number of outputs enumerated.
        decoder_rows: decoder rows computed for this sentence.
        margin: lower bound of the distance from the best score to everything that the width of the beam, the budget or
            a limit made the search give up, rounding errors taken off; None when nothing was, or no proof is possible.
        safe_length: with length normalisation and a positive length penalty, no output of at most this many tokens (end
            of sentence counted) that was dropped can beat the best one; None when nothing was dropped.
    """

    certificate: str
    reason: str
    objective: str
    mass: float
    strings: int
    decoder_rows: int
    margin: Optional[float] = None
    safe_length: Optional[int] = None


@dataclass
class Ledger:
    """Where the probability of one sentence went. Masses are float64 and add up to `total`.

    `finished`: enumerated outputs; `dropped`: prefixes the beam had no room for (or given up by the stopping rule);
    `bounded`: prefixes that cannot enter the n-best list; `blocked`: what an option or a limit forbids, by its name.
    `drop_bound` is the highest upper bound (rounding error added) of all `dropped` prefixes and `drop_logprob` their
    highest log score; `limit_bound` is the bound of the prefixes cut by the length limit.
    """

    total: float = 1.0
    finished: float = 0.0
    dropped: float = 0.0
    bounded: float = 0.0
    blocked: Dict[str, float] = field(default_factory=dict)
    drop_bound: float = -math.inf
    drop_logprob: float = -math.inf
    limit_bound: float = -math.inf
    any_dropped: bool = False
    any_bounded: bool = False

    def move_to_finished(self, mass: float) -> None:
        """An output has become known whose mass was entered with that of its prefix."""
        self.finished += mass
        from_dropped = min(mass, self.dropped)
        self.dropped -= from_dropped
        self.bounded -= min(mass - from_dropped, self.bounded)

    def gap(self) -> float:
        """What is missing from `total`, relative to it."""
        accounted = self.finished + self.dropped + self.bounded + sum(self.blocked.values())
        return (self.total - accounted) / self.total if self.total > 0 else 0.0


def certify(
    ledger: Ledger,
    objective: Objective,
    best_score: float,
    best_score_low: float,
    strings: int,
    decoder_rows: int,
    void: Optional[str] = None,
    notes: Optional[List[str]] = None,
    limit: str = BEAM,
    limits: Sequence[str] = (),
) -> Certificate:
    """Turn a closed ledger into a certificate.

    Args:
        ledger: masses and bounds of the sentence.
        objective: what "best" means.
        best_score: score of the best finished output, -inf when there is none.
        best_score_low: the same with rounding errors taken off.
        strings: number of enumerated outputs.
        decoder_rows: decoder rows computed.
        void: a reason that rules out any proof (sampling, NaN, ...).
        notes: what a proof is subject to (modified scores).
        limit: the reason why prefixes were dropped.
        limits: options whose limits the bound of a dropped prefix relies on (`limits_of_bounds`).
    """
    mass = ledger.finished / ledger.total if ledger.total > 0 else 0.0
    blocked = [name for name, amount in sorted(ledger.blocked.items()) if amount > 0]
    bound = ledger.drop_bound
    if not objective.is_normalized:
        bound = max(bound, ledger.limit_bound)
    margin = best_score_low - bound if bound > -math.inf and best_score > -math.inf and void is None else None
    safe_length = objective.safe_length(ledger.drop_logprob, best_score_low) if void is None else None

    def result(kind: str, reason: str) -> Certificate:
        return Certificate(kind, reason, objective.name, min(mass, 1.0), strings, decoder_rows, margin, safe_length)

    if void is not None:
        return result(NONE, void)
    if best_score == -math.inf:
        return result(NONE, max(blocked, key=ledger.blocked.get) if blocked and not ledger.any_dropped else limit)
    if abs(ledger.gap()) > LEDGER_TOLERANCE:
        return result(NONE, f"the probabilities do not add up (gap {ledger.gap():.1e})")
    notes = list(notes or [])
    if not (ledger.any_dropped or ledger.any_bounded or blocked):
        return result(COMPLETE, "; ".join(notes))
    if margin is not None and margin <= 0:
        if best_score + 2 * (best_score - best_score_low) + 1e-9 >= bound:
            return result(NONE, "tie within rounding")
        return result(NONE, limit if ledger.drop_bound >= bound else LENGTH_LIMIT)
    if LENGTH_LIMIT in blocked and not objective.is_normalized:
        blocked.remove(LENGTH_LIMIT)  # compared like everything else that was dropped
    if ledger.any_dropped or ledger.any_bounded:
        blocked = sorted({*blocked, *limits})
    return result(OPTIMAL, "; ".join(dict.fromkeys(notes + [f"subject to {name}" for name in blocked])))
