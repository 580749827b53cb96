"""normmax: the mapping whose regulariser is the alpha-norm itself (Blondel, Martins and Niculae 2020)."""

import torch

from . import reference
from .alpha import check_alpha_tensor
from .once import differentiable_once
from .rows import as_rows, check_scores, from_rows, rows_at_once

CHUNK = 1 << 17


def solve_normmax(shifted, alpha, tolerance=reference.TOLERANCE):
    """Probabilities and thresholds of normmax, one alpha > 1 for each row.

    With `q = alpha / (alpha - 1)` and `u = max(shifted - tau, 0)`: `|u|_q = 1`, `p = u ** (q - 1) / sum`. The norm is
    convex in tau for every alpha, so Newton comes from below.

    Args:
        shifted: `(rows, size)` with 0 as maximum; alpha `(rows, 1)`.
    """
    dual = alpha / (alpha - 1)
    size = torch.full_like(alpha, shifted.shape[-1])
    tau = (shifted.mean(-1, keepdim=True) - size.pow(-1 / dual)).clamp(min=-1)
    for step in range(reference.MAX_STEPS):
        base = (shifted - tau).clamp_(min=0)
        weight = reference.power(base, 1 / (dual - 1))
        norm = (weight * base).sum(-1, keepdim=True).pow(1 / dual)
        total = weight.sum(-1, keepdim=True)
        if reference.converged(norm, step, 3, tolerance):
            break
        tau = tau + (norm - 1) * norm.pow(dual - 1) / total
    return weight / total, tau


class _Normmax(torch.autograd.Function):
    """Rows of scores and their alpha `(rows, 1)`; both have a gradient."""

    @staticmethod
    def forward(ctx, scores, alpha):
        probs = torch.empty_like(scores)
        step = rows_at_once(scores, CHUNK)
        for part, own, out in zip(scores.split(step), alpha.split(step), probs.split(step)):
            dtype = reference.working_dtype(part)
            shifted, maximum = reference.shift_rows(part.to(dtype))
            solved = solve_normmax(shifted, own.to(dtype))[0]
            out.copy_(solved.masked_fill(maximum == torch.finfo(dtype).min, 0))
        ctx.save_for_backward(probs, alpha)
        return probs

    @staticmethod
    @differentiable_once
    def backward(ctx, grad):
        probs, alpha = ctx.saved_tensors
        dtype = reference.working_dtype(probs)
        by_scores, by_alpha = _normmax_backward(probs.to(dtype), grad.to(dtype), alpha.to(dtype))
        return by_scores.to(probs.dtype), by_alpha.to(alpha.dtype)


def _normmax_backward(probs, grad, alpha):
    """`(I - p 1') diag(b) (I - 1 p') grad` with `b = (q - 1) u ** (q - 2) / A`, and the derivative by alpha."""
    dual = alpha / (alpha - 1)
    positive = probs > 0
    safe = torch.where(positive, probs, 1.0)
    # u ** q sums to one, which gives the scale of u = (A p) ** (alpha - 1) back.
    scale = (probs * safe.pow(alpha - 1)).sum(-1, keepdim=True).clamp(min=torch.finfo(probs.dtype).tiny)
    scale = scale.pow(-1 / alpha)
    log_base = torch.where(positive, (alpha - 1) * (safe * scale).log(), 0.0)
    base_power = torch.where(positive, (safe * scale).pow(2 - alpha), 0.0)
    slope = (dual - 1) * base_power / scale
    centred = grad - (probs * grad).sum(-1, keepdim=True)
    centred = torch.where(positive, centred, 0.0)
    pushed = slope * centred
    by_scores = pushed - probs * pushed.sum(-1, keepdim=True)
    by_dual = -1 / (alpha - 1).square()
    # u ** q = u * u ** (q - 1) = u * A * p.
    entropy = (log_base.exp() * scale * probs * log_base).sum(-1, keepdim=True)
    by_tau = by_dual * entropy / (dual * scale)
    change = probs * log_base * by_dual - slope * by_tau
    return by_scores, (centred * change).sum(-1, keepdim=True)


def spread(value, scores, dim, name, **bounds):
    """A number or tensor as one value for each row of `scores`: `(rows, 1)`, with its gradient."""
    if not isinstance(value, torch.Tensor):
        try:
            value = torch.tensor(float(value), dtype=torch.float64, device=scores.device)
        except (TypeError, ValueError):
            raise ValueError(f"{name} must be a number or a tensor, got {value!r}") from None
    if value.numel() == 1:
        value = value.to(scores.device)
    return check_alpha_tensor(value, scores, dim, name, **bounds).movedim(dim, -1).reshape(-1, 1)


def normmax(scores, alpha=2.0, dim=-1):
    """Turn scores into sparse probabilities that fall off more evenly than those of `entmax`.

    Solves `argmax_p <p, scores> - |p|_alpha` over the probability simplex. The margin of its loss is 1 for every
    alpha; with alpha to infinity the support becomes uniform.

    Args:
        scores: floating point, any shape; -inf excludes an entry.
        alpha: number > 1, or a tensor that broadcasts to `scores` with size 1 along `dim`; it gets a gradient.
        dim: the dimension that sums to one.

    Returns:
        As `entmax`: like `scores`, zeros for a row of -inf, NaN stays in its row, differentiable once.
    """
    check_scores(scores, dim)
    rows, shape = as_rows(scores, dim)
    return from_rows(_Normmax.apply(rows, spread(alpha, scores, dim, "alpha", strict=True)), shape, dim)
