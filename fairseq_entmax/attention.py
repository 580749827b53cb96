"""Attention: scores to weights by a mapping that may give exact zeros, and weights to a context."""

from typing import Callable, Optional

import torch
from torch import Tensor, nn

from .ops import entmax, entmax15, sparsemax
from .recurrence import StepMatrix

MAPPINGS = ("softmax", "sparsemax", "entmax15", "entmax")
NOT_YET = ("fusedmax", "oscarmax", "pnormmax")


def build_mapping(name: str, alpha: Optional[float] = None) -> Callable[..., Tensor]:
    """Builds `mapping(scores, mask=None)`, which turns scores into weights over the last dimension.

    A position outside `mask` (bool, True where one may attend, broadcast to the scores) has weight exactly 0 whatever
    its score; a row with nothing to attend is all zeros and gives no gradient. Weights have the scores' dtype and are
    computed in float32 or wider.

    Args:
        name: value of `--attention-mapping`
        alpha: value of `--attention-alpha`, for `entmax` only (default 1.5)
    """
    if name in NOT_YET:
        raise ValueError(f"--attention-mapping {name} is not available yet; choose one of {', '.join(MAPPINGS)}")
    if name not in MAPPINGS:
        raise ValueError(f"--attention-mapping: wanted one of {', '.join(MAPPINGS)}, got {name}")
    if alpha is not None and name != "entmax":
        raise ValueError(f"--attention-alpha goes with --attention-mapping entmax, got alpha {alpha} with {name}")
    if name == "entmax":
        alpha = 1.5 if alpha is None else float(alpha)
        if not 1 <= alpha < float("inf"):
            raise ValueError(f"--attention-alpha: wanted a finite number >= 1, got {alpha}")

    def mapping(scores: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        if not scores.is_floating_point():
            raise ValueError(f"attention scores: wanted floating point, got {scores.dtype}")
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        if name == "entmax15":
            return entmax15(scores)
        if name == "sparsemax":
            return sparsemax(scores)
        if name == "entmax":
            return entmax(scores, alpha=alpha)
        return _softmax(scores, mask)

    return mapping


def _softmax(scores: Tensor, mask: Optional[Tensor]) -> Tensor:
    wide = scores.dtype if scores.dtype == torch.float64 else torch.float32
    weights = torch.softmax(scores, dim=-1, dtype=wide).to(scores.dtype)
    # Only rows without any position to attend need the second fill: there 0 / 0 gives NaN.
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


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
