"""Fenchel-Young losses against any target distribution, for alpha-entmax and normmax, on rows solved whole."""

import torch

from . import reference
from .loss_rows import divergence
from .mapping import SHORT_CHUNK, solve_short
from .normmax import solve_normmax
from .once import differentiable_once
from .rows import check_scores, rows_at_once


class EntmaxRows:
    """Probabilities and losses of alpha-entmax rows, alpha > 1."""

    @staticmethod
    def solve(logits, alpha):
        return solve_short(logits, alpha)

    @staticmethod
    def loss(shifted, probs, tau, q, alpha):
        exponent = alpha - 1
        meet = divergence(torch.where(q > 0, q, 1.0), probs, alpha)
        bregman = torch.where(q > 0, meet, probs * reference.root(probs, exponent) / alpha)
        below = torch.where(q > 0, (tau - exponent * shifted).clamp(min=0), 0.0)
        return (bregman + q * below / exponent).sum(-1)


class NormmaxRows:
    """The same for normmax, alpha > 1. The conjugate of the norm is the threshold itself."""

    @staticmethod
    def solve(logits, alpha):
        shifted, maximum = reference.shift_rows(logits.to(reference.working_dtype(logits)))
        probs, tau = solve_normmax(shifted, torch.full_like(maximum, alpha))
        masked = maximum == torch.finfo(maximum.dtype).min
        return shifted, probs.masked_fill(masked, 0), tau.masked_fill(masked, -1)

    @staticmethod
    def loss(shifted, probs, tau, q, alpha):
        # tau is a shift of the scores: <q, z> is taken relative to it.
        norm = torch.linalg.vector_norm(q, alpha, dim=-1)
        return norm - torch.where(q > 0, q * (shifted - tau), 0.0).sum(-1)


class _SoftLoss(torch.autograd.Function):
    """Loss of each row against class numbers `(rows,)` or distributions `(rows, classes)`."""

    @staticmethod
    def forward(ctx, logits, target, alpha, smoothing, mask, family):
        exact = logits.dtype == torch.float64
        difference = torch.empty_like(logits, dtype=torch.float64 if exact else torch.float32)
        step = rows_at_once(logits, SHORT_CHUNK)
        losses = []
        for part, gold, out in zip(logits.split(step), target.split(step), difference.split(step)):
            shifted, probs, tau = family.solve(part, alpha)
            q = _distribution(gold, probs, smoothing, mask)
            losses.append(family.loss(shifted, probs, tau, q, alpha).clamp(min=0))
            out.copy_(probs - q)
        loss = torch.cat(losses).to(difference.dtype) if losses else difference.new_zeros(0)
        ctx.dtype = logits.dtype
        ctx.save_for_backward(loss, difference)
        return loss

    @staticmethod
    @differentiable_once
    def backward(ctx, grad):
        _, difference = ctx.saved_tensors
        # An ignored row has no upstream gradient, and may hold NaN.
        product = (difference * grad[:, None]).masked_fill_((grad == 0)[:, None], 0)
        return product.to(ctx.dtype), None, None, None, None, None


def _distribution(target, probs, smoothing, mask):
    """Target rows as float64 distributions, with a share `smoothing` of them spread over `mask`."""
    if target.is_floating_point():
        q = target.to(probs.dtype)
    else:
        q = torch.zeros_like(probs).scatter_(1, target[:, None], 1)
    if smoothing:
        q = q * (1 - smoothing) + smoothing * mask.to(q.dtype) / mask.sum()
    return q


def _soft_cross_entropy(rows, target, smoothing, mask):
    rows = rows if rows.dtype == torch.float64 else rows.float()
    q = _distribution(target, rows, smoothing, mask)
    return -torch.where(q > 0, q * torch.log_softmax(rows, -1), 0).sum(-1)


def soft_loss(logits, target, alpha, smoothing, mask, family=EntmaxRows):
    """Loss of every row of `logits` `(..., classes)`, of the leading shape. Alpha 1 is cross entropy."""
    check_scores(logits, -1, "logits")
    if not 0 <= smoothing < 1:
        raise ValueError(f"label_smoothing must lie in [0, 1), got {smoothing}")
    classes = logits.shape[-1]
    if mask is None:
        mask = torch.ones(classes, dtype=torch.bool, device=logits.device)
    elif mask.dtype != torch.bool or mask.shape != (classes,) or not bool(mask.any()):
        raise ValueError(f"smoothing_mask must be bool of shape ({classes},) and not all False, got {mask.dtype}")
    if target.is_floating_point():
        _check_distribution(logits, target)
        target = target.detach().reshape(-1, classes)
    else:
        target = target.reshape(-1)
    rows = logits.reshape(-1, classes)
    if alpha == 1:
        loss = _soft_cross_entropy(rows, target, smoothing, mask)
    else:
        loss = _SoftLoss.apply(rows, target, alpha, smoothing, mask, family)
    return loss.view(logits.shape[:-1])


def _check_distribution(logits, target):
    if target.shape != logits.shape:
        raise ValueError(
            f"a target distribution must have shape {tuple(logits.shape)}, got {tuple(target.shape)} "
            "(class numbers must be int64)"
        )
    # Half precision cannot sum to one any better.
    legal = (target >= 0) & ((target.sum(-1, keepdim=True, dtype=torch.float32) - 1).abs() < 1e-2)
    message = "a target distribution must be non-negative and sum to one in each row"
    if target.device.type != "cpu":
        torch._assert_async(legal.all(), message)
    elif not bool(legal.all()):
        row = (~legal).any(-1).flatten().nonzero()[0].item()
        raise ValueError(f"{message}, got a sum of {target.reshape(-1, target.shape[-1])[row].sum().item()}")
