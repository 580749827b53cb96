"""The Triton kernels as differentiable functions of `(rows, size)` matrices; only `backend` imports them."""

import torch

from . import kernels_step as steps
from .kernels_launch import (
    LONGEST,
    LONGEST_STRUCTURED,
    entmax_backward,
    entmax_forward,
    loss_backward,
    loss_backward_into,
    loss_forward,
    structured_backward,
    structured_forward,
)
from .kernels_products import Density, has_lists, loss_and_gradients
from .once import differentiable_once

__all__ = [
    "Density",
    "LONGEST",
    "LONGEST_STRUCTURED",
    "entmax_rows",
    "entmax_rows_each",
    "has_lists",
    "loss_and_gradients",
    "loss_rows",
    "steps",
    "structured_rows",
]


def with_unit_stride(matrix):
    """`matrix` itself if its rows are contiguous, however far apart."""
    return matrix if matrix.stride(-1) == 1 or matrix.shape[-1] == 1 else matrix.contiguous()


class _Entmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, alpha, alphas):
        probs, *lists = entmax_forward(scores, alpha, alphas)
        ctx.alpha = alpha
        ctx.save_for_backward(probs, *lists, alphas)
        return probs

    @staticmethod
    @differentiable_once
    def backward(ctx, grad):
        *saved, alphas = ctx.saved_tensors
        to_alpha = ctx.needs_input_grad[2]
        result, alpha_grad = entmax_backward(*saved, with_unit_stride(grad), ctx.alpha, alphas, to_alpha)
        return result, None, alpha_grad.to(alphas.dtype) if to_alpha else None


def entmax_rows(scores, alpha):
    """alpha-entmax of each row for a number `alpha` > 1."""
    return _Entmax.apply(with_unit_stride(scores), alpha, None)


def entmax_rows_each(scores, alphas):
    """alpha-entmax of each row for `alphas` `(rows,)`, each >= 1, with a gradient to them."""
    return _Entmax.apply(with_unit_stride(scores), 0.0, alphas.contiguous())


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, mask, alpha, gold, share, mask_size, ignore_index, inplace):
        loss, support, target_prob, correct, state, columns, values = loss_forward(
            logits, target, mask, alpha, gold, share, mask_size, ignore_index
        )
        ctx.numbers, ctx.inplace = (alpha, gold, share, ignore_index), inplace
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(loss, logits, target, mask, state, columns, values, target_prob)
        ctx.mark_non_differentiable(support, target_prob, correct)
        return loss, support, target_prob, correct

    @staticmethod
    @differentiable_once
    def backward(ctx, grad, *_):
        _, *saved = ctx.saved_tensors
        if not ctx.inplace or torch.compiler.is_compiling():
            result = loss_backward(*saved, grad.float(), *ctx.numbers)
        else:
            # Whoever saved the logits for a backward of their own learns that they are gone.
            torch.autograd.graph.increment_version(saved[0])
            result = loss_backward_into(saved[0].detach(), *saved, grad.float(), *ctx.numbers)
        return (result, *[None] * 8)


def loss_rows(logits, target, alpha, smoothing, ignore_index, inplace=False):
    """Loss, support size, probability of the target and correctness of each row, for a number `alpha` > 1.

    Args:
        logits: `(rows, size)`, rows contiguous.
        target: int64 `(rows,)`, checked, with `ignore_index` where there is none.
        smoothing: `loss_rows.Smoothing`.
        inplace: whether the backward writes the gradient over the logits.
    """
    mask = smoothing.mask.contiguous() if smoothing.share else None
    return _Loss.apply(
        with_unit_stride(logits), target.contiguous(), mask, alpha, smoothing.gold, smoothing.share,
        float(smoothing.count), ignore_index, inplace,
    )  # fmt: skip


class _Structured(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, used, strength, gamma, by_rank):
        probs, starts, order = structured_forward(scores, used, strength, gamma, by_rank)
        ctx.gamma = gamma
        ctx.save_for_backward(probs, starts, order)
        return probs

    @staticmethod
    @differentiable_once
    def backward(ctx, grad):
        probs, starts, order = ctx.saved_tensors
        result = structured_backward(probs, grad.contiguous(), starts, order, ctx.gamma)
        return result, None, None, None, None


def structured_rows(scores, used, strength, gamma, by_rank):
    """oscarmax if `by_rank`, else fusedmax, of rows of at most 1,024 scores, where `used` (bool) is True."""
    return _Structured.apply(scores.contiguous(), used.contiguous(), strength, gamma, by_rank)
