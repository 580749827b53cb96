"""Fenchel-Young losses that read like `torch.nn.functional.cross_entropy`."""

import math
import weakref
from typing import NamedTuple

import torch

from .backend import kernels, use_kernels
from .loss_rows import LongLoss, ShortLoss, Smoothing
from .rows import check_alpha, check_scores
from .soft_loss import NormmaxRows, soft_loss
from .support import worth_searching


class TokenLoss(NamedTuple):
    """What `token_entmax_loss` returns; every field has the shape of the target, ignored tokens hold zero."""

    loss: torch.Tensor  # float32 (float64 for float64 logits), differentiable
    support: torch.Tensor  # int64, number of classes with probability above zero
    target_prob: torch.Tensor  # float32
    correct: torch.Tensor  # bool, the target is the first class with the largest logit


def _cross_entropy(logits, target, kept, smoothing):
    """alpha 1: cross entropy, with torch's own gradient."""
    if logits.dtype != torch.float64:
        logits = logits.float()
    log_probs = torch.log_softmax(logits, -1)
    nll = -log_probs.gather(1, target)[:, 0]
    loss = nll
    if smoothing.share:
        loss = smoothing.gold * nll - smoothing.share * torch.where(smoothing.mask, log_probs, 0).sum(-1)
    with torch.no_grad():
        support = _possible(log_probs)
        target_prob = nll.neg().exp().float()
        correct = logits.argmax(-1) == target[:, 0]
    fields = loss, support, target_prob, correct
    return fields if kept is None else [torch.where(kept, field, 0).to(field.dtype) for field in fields]


def _possible(log_probs):
    """Number of classes in each row whose probability is above zero, int64 `(rows,)`.

    On a CPU, torch counts booleans slowly (it makes integers of all of them first): where no class is impossible, which
    the smallest value tells, it need not.
    """
    if log_probs.device.type == "cpu" and log_probs.numel() and log_probs.amin() > -math.inf:
        return torch.full((len(log_probs),), log_probs.shape[-1])
    return (log_probs > -math.inf).sum(-1)


def find_kept(logits, target, ignore_index):
    """Refuse targets that are no class by name. Returns which are not ignored, or None where all are seen not to be."""
    check_scores(logits, -1, "logits")
    if target.dtype != torch.int64:
        raise ValueError(f"target must be int64 class numbers, got {target.dtype}")
    if target.shape != logits.shape[:-1]:
        raise ValueError(f"target must have shape {tuple(logits.shape[:-1])}, got {tuple(target.shape)}")
    classes = logits.shape[-1]
    wanted = f"target must lie in [0, {classes - 1}] or be ignore_index"
    if target.device.type != "cpu":
        kept = target != ignore_index
        torch._assert_async(~(kept & ((target < 0) | (target >= classes))).any(), wanted)
        return kept
    if target.numel() == 0:
        return None
    low, high = map(int, target.aminmax())
    if 0 <= low and high < classes and not low <= ignore_index <= high:
        return None
    kept = target != ignore_index
    low, high = map(int, target.masked_fill(~kept, 0).aminmax())
    if low < 0 or high >= classes:
        raise ValueError(f"{wanted}, got {low if low < 0 else high}")
    return kept


_counts = {}  # of masks on accelerators: id to (weak reference, version, count)


def _count(mask):
    """How many classes are in the mask. An accelerator is asked, and waited for, once a mask and not at every step."""
    if mask.device.type == "cpu" or mask.is_inference():
        return int(mask.sum())
    reference, version, count = _counts.get(id(mask), (lambda: None, None, None))
    if reference() is not mask or version != mask._version:
        for old in [key for key, (other, *_) in _counts.items() if other() is None]:
            del _counts[old]
        count = int(mask.sum())
        _counts[id(mask)] = weakref.ref(mask), mask._version, count
    return count


def _smoothing(label_smoothing, mask, classes, device):
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must lie in [0, 1), got {label_smoothing}")
    if mask is None:
        mask = torch.ones(classes, dtype=torch.bool, device=device) if label_smoothing else None
        return Smoothing(1 - label_smoothing, label_smoothing / classes, mask, classes)
    if mask.dtype != torch.bool or mask.shape != (classes,):
        raise ValueError(f"smoothing_mask must be bool of shape ({classes},), got {mask.dtype} {tuple(mask.shape)}")
    count = _count(mask) if label_smoothing else classes
    if count == 0:
        raise ValueError("smoothing_mask must leave at least one class, got none")
    return Smoothing(1 - label_smoothing, label_smoothing / count, mask, count)


def token_entmax_loss(
    logits, target, alpha=1.5, ignore_index=-100, label_smoothing=0.0, smoothing_mask=None, inplace_backward=False
):
    """Loss of every token together with the figures that a training log wants, from one solution.

    Arguments as for `entmax_loss`.

    Returns:
        `TokenLoss`, all of the shape of `target`; only `loss` has a gradient.
    """
    kept = find_kept(logits, target, ignore_index)
    options = alpha, ignore_index, label_smoothing, smoothing_mask, inplace_backward
    return TokenLoss(*_token_fields(logits, target, *options, kept, True))


def _token_fields(
    logits, target, alpha, ignore_index, label_smoothing, smoothing_mask, inplace_backward, kept, figures
):
    """The fields of `TokenLoss`; without `figures` all but the first may be None."""
    alpha = check_alpha(alpha)
    if inplace_backward and logits.is_leaf and logits.requires_grad:
        raise ValueError(
            "inplace_backward: wanted logits that a model computed, got a leaf, whose values would be lost"
        )
    smoothing = _smoothing(label_smoothing, smoothing_mask, logits.shape[-1], logits.device)
    rows = logits.reshape(-1, logits.shape[-1])
    if alpha != 1 and use_kernels(rows):
        values = kernels().loss_rows(rows, target.reshape(-1), alpha, smoothing, ignore_index, inplace_backward)
        return [value.view(target.shape) for value in values]
    rows, safe = rows.contiguous(), target.reshape(-1, 1)
    if kept is not None:
        kept = kept.reshape(-1)
        safe = safe.masked_fill(~kept[:, None], 0)
    if alpha == 1 or len(rows) == 0:
        values = _cross_entropy(rows, safe, kept, smoothing)
    else:
        function = LongLoss if worth_searching(rows, alpha) else ShortLoss
        values = function.apply(rows, safe, kept, alpha, smoothing, figures)
    return [None if value is None else value.view(target.shape) for value in values]


def check_reduction(reduction):
    if reduction not in ("none", "sum", "mean"):
        raise ValueError(f"reduction must be none, sum or mean, got {reduction!r}")


def _reduce(loss, row_weight, reduction):
    """`loss` with weights, reduced; the mean of no target at all is 0."""
    # Selected, so that an infinite loss of no weight counts nothing.
    loss = torch.where(row_weight != 0, loss * row_weight, 0).to(loss.dtype)
    if reduction == "none":
        return loss
    total = row_weight.sum()
    return loss.sum() if reduction == "sum" else loss.sum() / torch.where(total != 0, total, 1).to(loss.dtype)


def _row_weight(target, weight, ignore_index, classes):
    """How much each target counts: 0 if ignored, else the weight of its class, or of its mixture of classes."""
    if weight is not None and (not weight.is_floating_point() or weight.shape != (classes,)):
        raise ValueError(
            f"weight must be floating point of shape ({classes},), got {weight.dtype} {tuple(weight.shape)}"
        )
    # Half precision cannot count rows.
    wide = torch.float64 if torch.float64 in (target.dtype, getattr(weight, "dtype", None)) else torch.float32
    if target.is_floating_point():
        if weight is None:
            return target.new_ones(target.shape[:-1], dtype=wide)
        return (target.to(wide) * weight.to(wide)).sum(-1)
    kept = target != ignore_index
    return kept if weight is None else torch.where(kept, weight.to(wide)[torch.where(kept, target, 0)], 0)


def entmax_loss(
    logits,
    target,
    alpha=1.5,
    ignore_index=-100,
    reduction="mean",
    label_smoothing=0.0,
    smoothing_mask=None,
    weight=None,
    inplace_backward=False,
):
    """Train a classifier whose probabilities are `entmax(logits, alpha)`; reads like `cross_entropy`.

    The Fenchel-Young loss `<p - q, z> + H(p) - H(q)` with gradient `p - q`, where q is the target distribution
    `(1 - label_smoothing) * one_hot + label_smoothing / classes`. Never negative; exactly 0, with a zero gradient, once
    the target leads by `1 / (alpha - 1)`. Blondel, Martins and Niculae 2020; Peters et al. 2019.

    Args:
        logits: floating point `(..., classes)`; -inf excludes a class. Not written to, but see `inplace_backward`.
        target: int64 `(...)`, or floating point `(..., classes)`: a distribution for each row (no gradient to it).
        alpha: number >= 1; 1 is cross entropy (for distributions too, so without the entropy of q).
        ignore_index: targets with this value give loss 0 and a gradient row of zeros.
        reduction: none, sum or mean; mean divides by the number (or weight) of the targets kept, 0 if there is none.
        label_smoothing: share of the target mass that is spread evenly, in [0, 1).
        smoothing_mask: bool `(classes,)`, True where a class takes part in the spreading; all by default.
        weight: floating point `(classes,)`; the loss of a row is multiplied by the weight of its target (for a
            distribution, by the mean weight under it).
        inplace_backward: whether the backward pass may write the gradient over the logits, which saves a matrix of
            their size. The kernels do so; PyTorch, which keeps no such matrix for sparse rows, does not. If another
            operation saved the logits for its own gradient, autograd raises an error instead of using the new values.

    Returns:
        float32 (float64 for float64 logits), whatever the precision of `logits`. +inf when the target, or with label
        smoothing any class of the mask, has logit -inf. NaN in rows that hold NaN or +inf. Differentiable once.
    """
    check_reduction(reduction)
    if target.is_floating_point():
        loss = soft_loss(logits, target, check_alpha(alpha), label_smoothing, smoothing_mask)
    else:
        kept = find_kept(logits, target, ignore_index)
        options = alpha, ignore_index, label_smoothing, smoothing_mask, inplace_backward
        loss = _token_fields(logits, target, *options, kept, False)[0]
        if weight is None and reduction == "none":
            return loss
        if weight is None and kept is None and loss.numel():
            return loss.mean() if reduction == "mean" else loss.sum()
    return _reduce(loss, _row_weight(target, weight, ignore_index, logits.shape[-1]), reduction)


def normmax_loss(logits, target, alpha=2.0, ignore_index=-100, reduction="mean", label_smoothing=0.0, weight=None):
    """Train a classifier whose probabilities are `normmax(logits, alpha)`.

    The Fenchel-Young loss of the alpha-norm, `max_p (<p, z> - |p|_alpha) + |q|_alpha - <q, z>` with gradient `p - q`.
    Never negative, and exactly 0 once the target leads by 1, whatever alpha.

    Args:
        alpha: number > 1. The other arguments and the result are those of `entmax_loss`.
    """
    check_reduction(reduction)
    if not 1 < float(alpha) < math.inf:
        raise ValueError(f"alpha must be a finite number > 1, got {alpha}")
    check_scores(logits, -1, "logits")
    row_weight = _row_weight(target, weight, ignore_index, logits.shape[-1])
    if not target.is_floating_point():
        kept = find_kept(logits, target, ignore_index)
        target = target if kept is None else torch.where(kept, target, 0)
    loss = soft_loss(logits, target, float(alpha), label_smoothing, None, NormmaxRows)
    return _reduce(loss, row_weight, reduction)
