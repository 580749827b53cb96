"""Fenchel-Young losses of the alpha-entmax family: logits and targets to a loss per token."""

from typing import NamedTuple

import torch
from torch.autograd.function import once_differentiable

from . import reference
from .mapping import check_alpha


class TokenLoss(NamedTuple):
    """What `token_entmax_loss` returns; every field has the shape of the target."""

    loss: torch.Tensor
    support: torch.Tensor
    target_prob: torch.Tensor
    correct: torch.Tensor


class _TokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, alpha, kept, smoothing, mask):
        z = logits if logits.dtype == torch.float64 else logits.float()
        z = z - z.amax(-1, keepdim=True).clamp(min=torch.finfo(z.dtype).min)
        probs = reference.entmax_rows(z, alpha)
        gold = torch.zeros_like(probs).scatter_(1, target[:, None], 1 - smoothing)
        if smoothing:
            gold += smoothing * mask / mask.sum()

        def omega(p):
            if alpha == 1:
                return torch.special.xlogy(p, p).sum(-1)
            return (p.pow(alpha).sum(-1) - 1) / (alpha * (alpha - 1))

        difference = probs - gold
        dot = torch.where(difference == 0, torch.zeros_like(z), difference * z).sum(-1)
        loss = (dot + omega(gold) - omega(probs)).clamp(min=0).masked_fill(~kept, 0)
        ctx.save_for_backward(difference, kept)
        ctx.dtype = logits.dtype
        support = (probs > 0).sum(-1).masked_fill(~kept, 0)
        target_prob = probs.gather(1, target[:, None])[:, 0].masked_fill(~kept, 0).float()
        correct = (probs.argmax(-1) == target) & kept
        ctx.mark_non_differentiable(support, target_prob, correct)
        return loss, support, target_prob, correct

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, *unused):
        difference, kept = ctx.saved_tensors
        grad_logits = (difference * grad[:, None]).masked_fill(~kept[:, None], 0)
        return grad_logits.to(ctx.dtype), None, None, None, None, None


def token_entmax_loss(logits, target, alpha=1.5, ignore_index=-100, label_smoothing=0.0, smoothing_mask=None):
    """Loss, support size, target probability and correctness of each token."""
    alpha = check_alpha(alpha)
    kept = target.reshape(-1) != ignore_index
    safe = target.reshape(-1).masked_fill(~kept, 0)
    if smoothing_mask is None:
        smoothing_mask = torch.ones(logits.shape[-1], dtype=torch.bool, device=logits.device)
    flat = _TokenLoss.apply(logits.reshape(-1, logits.shape[-1]), safe, alpha, kept, label_smoothing, smoothing_mask)
    return TokenLoss(*(value.view(target.shape) for value in flat))


def entmax_loss(
    logits, target, alpha=1.5, ignore_index=-100, reduction="mean", label_smoothing=0.0, smoothing_mask=None
):
    """Fenchel-Young loss of alpha-entmax; reads like `torch.nn.functional.cross_entropy`."""
    if reduction not in ("none", "sum", "mean"):
        raise ValueError(f"reduction must be none, sum or mean, got {reduction!r}")
    loss = token_entmax_loss(logits, target, alpha, ignore_index, label_smoothing, smoothing_mask).loss
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / (target != ignore_index).sum().clamp(min=1)
