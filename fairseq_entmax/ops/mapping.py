"""Scores to sparse probabilities: the autograd function and the public mappings."""

import torch
from torch.autograd.function import once_differentiable

from . import reference


def check_alpha(alpha):
    """The number `alpha` as a float, refused by name unless it is at least 1."""
    value = float(alpha)
    if not 1 <= value < float("inf"):
        raise ValueError(f"alpha must be a finite number >= 1, got {alpha}")
    return value


class _Entmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, alpha, dim):
        solve = scores if scores.dtype == torch.float64 else scores.float()
        rows = solve.movedim(dim, -1)
        probs = reference.entmax_rows(rows.reshape(-1, rows.shape[-1]), alpha).view(rows.shape).movedim(-1, dim)
        ctx.alpha, ctx.dim, ctx.dtype = alpha, dim, scores.dtype
        ctx.save_for_backward(probs)
        return probs.to(scores.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (probs,) = ctx.saved_tensors
        grad = grad.to(probs.dtype)
        slope = torch.where(probs > 0, probs, 1).pow(2 - ctx.alpha) * (probs > 0)
        product = slope * grad
        mean = product.sum(ctx.dim, keepdim=True) / slope.sum(ctx.dim, keepdim=True).clamp(min=1e-30)
        return (product - slope * mean).to(ctx.dtype), None, None


def entmax(scores, alpha=1.5, dim=-1):
    """alpha-entmax along `dim`: softmax at alpha 1, sparsemax at 2, sparse above 1."""
    return _Entmax.apply(scores, check_alpha(alpha), dim)


def entmax15(scores, dim=-1):
    """1.5-entmax along `dim`."""
    return entmax(scores, 1.5, dim)


def sparsemax(scores, dim=-1):
    """Sparsemax along `dim`."""
    return entmax(scores, 2.0, dim)
