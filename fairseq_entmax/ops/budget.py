"""budget: choose about k of the entries, each with a weight between 0 and 1 (Blondel, Martins and Niculae 2020)."""

import torch

from . import reference
from .normmax import spread
from .once import differentiable_once
from .rows import as_rows, check_scores, from_rows


def solve_budget(scores, k):
    """`min(max(scores - tau, 0), 1)` that sums to `k` `(rows, 1)`, exactly.

    The sum is piecewise linear in tau with bends at the scores and the scores minus one. The bend left of tau is found
    by bisection among them; from there one division gives tau, and only differences of active entries are added.

    Args:
        scores: `(rows, size)`, float64, not all of a row -inf.

    Returns:
        p and which entries lie strictly between 0 and 1 (where two sets fit, the one to the right of the bend).
    """
    usable = scores > -torch.inf
    top = scores.amax(-1, keepdim=True)
    finite = torch.where(usable, scores, top)
    bends = torch.cat([finite, finite - 1], -1).sort(-1).values
    low = torch.zeros_like(top, dtype=torch.long)
    high = low + (bends.shape[-1] - 1)
    for _ in range(bends.shape[-1].bit_length()):
        middle = (low + high + 1) // 2
        enough = (scores - bends.gather(-1, middle)).clamp(0, 1).sum(-1, keepdim=True) >= k
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle - 1)
    bend = bends.gather(-1, low)
    above = scores - bend
    # Compared as the bends were made: `above` of an entry at its own bend may round to more than 1.
    active = (scores > bend) & (scores - 1 <= bend)
    excess = above.clamp(0, 1).sum(-1, keepdim=True) - k
    step = excess / active.sum(-1, keepdim=True).clamp(min=1)
    return (above - step).clamp(0, 1), active


class _Budget(torch.autograd.Function):
    """Rows of scores and their k `(rows, 1)`; both have a gradient."""

    @staticmethod
    def forward(ctx, scores, k):
        dtype = reference.working_dtype(scores)
        shifted, maximum = reference.shift_rows(scores.to(dtype))
        probs, active = solve_budget(shifted, k.to(dtype))
        masked = maximum == torch.finfo(dtype).min
        undefined = (shifted.isnan().any(-1, keepdim=True)) & ~masked
        probs = probs.masked_fill(masked, 0).masked_fill(undefined, torch.nan)
        result = probs.to(scores.dtype)
        ctx.save_for_backward(result, active & (probs > 0) & (probs < 1))
        ctx.k_dtype = k.dtype
        return result

    @staticmethod
    @differentiable_once
    def backward(ctx, grad):
        probs, active = ctx.saved_tensors
        grad = grad.to(reference.working_dtype(probs)).masked_fill(~active, 0)
        mean = grad.sum(-1, keepdim=True) / active.sum(-1, keepdim=True).clamp(min=1)
        return (grad - mean).masked_fill(~active, 0).to(probs.dtype), mean.to(ctx.k_dtype)


def budget(scores, k, dim=-1):
    """Choose k entries softly: weights between 0 and 1 that sum to k, most of them exactly 0 or 1.

    Solves `argmax_p <p, scores> - 1/2 |p|^2` subject to `0 <= p <= 1`, `sum p = k`. With k = 1 it is sparsemax.

    Args:
        scores: floating point, any shape; -inf excludes an entry.
        k: number or tensor that broadcasts to `scores` with size 1 along `dim`; at least 0 and at most the number of
            usable entries. It gets a gradient: the mean of the incoming gradient over the entries strictly inside.
        dim: the dimension that sums to k.

    Returns:
        As `entmax`: like `scores`, zeros for a row of -inf, NaN stays in its row, differentiable once.
    """
    check_scores(scores, dim)
    rows, shape = as_rows(scores, dim)
    amounts = spread(k, scores, dim, "k", least=0)
    usable = (rows != -torch.inf).sum(-1, keepdim=True)
    fits = (amounts.detach() <= usable) | (usable == 0)
    if rows.device.type != "cpu":
        torch._assert_async(fits.all(), "k must be at most the number of usable entries")
    elif not bool(fits.all()):
        raise ValueError(
            f"k must be at most the number of usable entries ({int(usable[~fits][0])}), got {amounts[~fits][0].item()}"
        )
    return from_rows(_Budget.apply(rows, amounts), shape, dim)
