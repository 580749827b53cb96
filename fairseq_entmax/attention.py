"""Attention: scores to weights by a mapping that may give exact zeros, and weights to a context."""

import functools
import math
from typing import Callable, Dict, Optional

import torch
from torch import Tensor, nn

from .ops import LearnedAlpha, entmax, fusedmax, oscarmax, pnormmax
from .recurrence import StepMatrix

ALPHAS = {"softmax": 1.0, "sparsemax": 2.0, "entmax15": 1.5, "entmax": 1.5}
STRUCTURED = {"fusedmax": fusedmax, "oscarmax": oscarmax, "pnormmax": pnormmax}
MAPPINGS = (*ALPHAS, *STRUCTURED)
# Where `--attention-strength` is not given. The price of oscarmax grows with the number of positions: at 0.1, as for
# fusedmax, a fresh model attends to all of a dozen words alike, and no gradient ever reaches the scores.
STRENGTHS = {"fusedmax": 0.1, "oscarmax": 0.01}
# An option and the mappings that it means something for.
GOES_WITH = {
    "--attention-alpha": ("entmax",),
    "--learn-attention-alpha": ("entmax", "entmax15"),
    "--attention-strength": ("fusedmax", "oscarmax"),
    "--attention-gamma": ("fusedmax", "oscarmax", "pnormmax"),
    "--attention-p": ("pnormmax",),
}


def build_mapping(
    name: str,
    alpha: Optional[float] = None,
    strength: Optional[float] = None,
    gamma: Optional[float] = None,
    p: Optional[float] = None,
    learn_alpha: bool = False,
    heads: Optional[int] = None,
) -> "Mapping":
    """Builds the mapping of an attention from the values of its options; None stands for an option not given.

    Args:
        name: `--attention-mapping`
        alpha: `--attention-alpha`, for `entmax` only (default 1.5); where learning starts with `learn_alpha`
        strength: `--attention-strength`, for `fusedmax` and `oscarmax` (default 0.1 and 0.01)
        gamma: `--attention-gamma`, for `fusedmax`, `oscarmax` and `pnormmax` (default 1)
        p: `--attention-p`, for `pnormmax` (default 1.5)
        learn_alpha: `--learn-attention-alpha`, for `entmax` and `entmax15`
        heads: learn one alpha for each of so many heads; scores are then `(batch, heads, queries, keys)`
    """
    if name not in MAPPINGS:
        raise ValueError(f"--attention-mapping: wanted one of {', '.join(MAPPINGS)}, got {name}")
    given = {
        "--attention-alpha": alpha,
        "--learn-attention-alpha": learn_alpha or None,
        "--attention-strength": strength,
        "--attention-gamma": gamma,
        "--attention-p": p,
    }
    for option, value in given.items():
        if value is not None and name not in GOES_WITH[option]:
            raise ValueError(
                f"{option} goes with --attention-mapping {' or '.join(GOES_WITH[option])}, got {value} with {name}"
            )
    _check_number("--attention-alpha", alpha, "a finite number >= 1", lambda x: x >= 1)
    _check_number("--attention-strength", strength, "a finite number >= 0", lambda x: x >= 0)
    _check_number("--attention-gamma", gamma, "a finite number > 0", lambda x: x > 0)
    _check_number("--attention-p", p, "a number in (1, 2]", lambda x: 1 < x <= 2)
    if name in STRUCTURED:
        options = {"strength": STRENGTHS.get(name) if strength is None else strength, "gamma": gamma, "p": p}
        return Mapping(name, options={key: float(value) for key, value in options.items() if value is not None})
    alpha = ALPHAS[name] if alpha is None else float(alpha)
    return Mapping(name, alpha=_learned(alpha, heads) if learn_alpha else alpha)


def _check_number(option, value, wanted, holds):
    if value is not None and not (holds(value) and value < math.inf):
        raise ValueError(f"{option}: wanted {wanted}, got {value}")


def _learned(alpha: float, heads: Optional[int]) -> LearnedAlpha:
    try:
        return LearnedAlpha(alpha, shape=() if heads is None else (heads, 1, 1))
    except ValueError as error:
        raise ValueError(f"--attention-alpha {alpha} with --learn-attention-alpha: {error}") from None


class Mapping(nn.Module):
    """`mapping(scores, mask=None)` turns scores into weights over the last dimension.

    A position outside `mask` (bool, True where one may attend, broadcast to the scores) has weight exactly 0 whatever
    its score, and no weights fuse across it; a row with nothing to attend is all zeros and gives no gradient. Weights
    have the scores' dtype and are computed in float32 or wider.
    """

    def __init__(self, name, alpha=None, options=None):
        super().__init__()
        self.name = name
        self.alpha = alpha  # a number, a `LearnedAlpha`, or None for a structured mapping
        self.structured = functools.partial(STRUCTURED[name], **options) if name in STRUCTURED else None

    def forward(self, scores: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        if not scores.is_floating_point():
            raise ValueError(f"attention scores: wanted floating point, got {scores.dtype}")
        if self.structured is not None:
            return self.structured(scores, mask=_attended(scores, mask))
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        if self.name == "softmax":
            return _softmax(scores, mask)
        return entmax(scores, self.alpha() if isinstance(self.alpha, LearnedAlpha) else self.alpha)

    def extra_repr(self):
        fixed = [] if self.alpha is None or isinstance(self.alpha, LearnedAlpha) else [f"alpha={self.alpha}"]
        chosen = {} if self.structured is None else self.structured.keywords
        return ", ".join([self.name, *fixed, *(f"{key}={value}" for key, value in chosen.items())])


def _attended(scores: Tensor, mask: Optional[Tensor]) -> Tensor:
    """Where one may attend. fairseq's modules also mark padding by -1e8 or the least number of a dtype: such an entry
    loses in a softmax anyway, but would count as a neighbour here. NaN stays, to be seen."""
    attended = ~(scores <= max(-1e8, torch.finfo(scores.dtype).min))
    return attended if mask is None else attended & mask


def _softmax(scores: Tensor, mask: Optional[Tensor]) -> Tensor:
    wide = scores.dtype if scores.dtype == torch.float64 else torch.float32
    weights = torch.softmax(scores, dim=-1, dtype=wide).to(scores.dtype)
    # Only rows without any position to attend need the second fill: there 0 / 0 gives NaN.
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


def attention_alpha(model: nn.Module) -> Optional[Tensor]:
    """The alpha that the attention of a model has learnt so far (the mean, if there are several), or None."""
    learned = list(attention_alphas(model).values())
    return torch.cat(learned).mean() if learned else None


def attention_alphas(model: nn.Module) -> Dict[str, Tensor]:
    """What each attention of a model has learnt so far: its module's name to alpha `(heads,)`, or `(1,)` for one."""
    return {
        name.rpartition(".mapping")[0]: module().detach().float().reshape(-1)
        for name, module in model.named_modules()
        if isinstance(module, LearnedAlpha)
    }


class SourceProjection(nn.Module):
    """The source side of `GeneralAttention`: states `h` to keys `W h` and values `W_c h`, once per batch."""

    def __init__(self, source_dim: int, query_dim: int):
        super().__init__()
        self.key_proj = nn.Linear(source_dim, query_dim, bias=False)
        self.value_proj = nn.Linear(source_dim, query_dim, bias=False)

    def forward(self, states: Tensor):
        """Keys and values, each `(batch, src_len, query_dim)`, of states `(batch, src_len, source_dim)`."""
        return self.key_proj(states), self.value_proj(states)


class GeneralAttention(nn.Module):
    """The "general" attention of Luong et al. (2015): scores `s W h_j`, output `tanh(W_o [s; c] + b)`.

    `W`, and the half `W_c` of `W_o` that meets the context `c`, do not depend on the step. `SourceProjection` applies
    them to the source states, so that here a context is a weighted sum of values and a step needs the other half only.
    """

    def __init__(self, query_dim: int, mapping: Callable[..., Tensor]):
        super().__init__()
        self.query_proj = nn.Linear(query_dim, query_dim)
        self.mapping = mapping

    def steps(self, keys: Tensor, values: Tensor, mask: Optional[Tensor]) -> Callable:
        """Binds a source for the steps of one recurrence.

        Args:
            keys, values: from `SourceProjection`
            mask: `(batch, src_len)`, True at words; None if all are

        Returns:
            function from a query `(batch, query_dim)` to the output `(batch, query_dim)` and the attention weights
            `(batch, src_len)`
        """
        keys, values = StepMatrix(keys.transpose(1, 2)), StepMatrix(values)
        query_weight, bias = StepMatrix(self.query_proj.weight.t()), self.query_proj.bias

        def step(query: Tensor):
            weights = self.mapping(keys(query.unsqueeze(1)).squeeze(1), mask)
            context = values(weights.unsqueeze(1)).squeeze(1)
            return torch.tanh(query_weight(query, context + bias)), weights

        return step
