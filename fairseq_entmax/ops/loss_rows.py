"""Rows of logits with one label each to losses: the autograd functions behind `entmax_loss`.

The loss is a sum of Bregman divergences of the target distribution q from p, entry by entry, plus what the targets
outside the support fall short of the threshold. Every term is non-negative, so nothing cancels, and the loss is exactly
0 when the target leads by 1 / (alpha - 1).
"""

import math
from typing import NamedTuple, Optional

import torch

from . import reference
from .mapping import SHORT_CHUNK, solve_short_with_base
from .once import differentiable_once
from .rows import rows_at_once
from .support import find_support, scale_rows, solve_wide, wide_base, wide_step


class Smoothing(NamedTuple):
    """Target distribution `q`: `gold` on the target plus `share` on every class of `mask`."""

    gold: float
    share: float
    mask: Optional[torch.Tensor]  # bool (classes,); None only where `share` is 0
    count: int

    def shares(self, dtype):
        """What every class gets, `(classes,)`."""
        return self.mask.to(dtype) * self.share

    def total(self, values):
        """Sum of finite `values` `(rows, classes)` over the mask, float64 `(rows, 1)`."""
        # Not a matrix product, whose accumulation in float32 is ten times less exact.
        return (values * self.mask.to(values.dtype)).sum(-1, keepdim=True).double()

    def gold_mass(self, target):
        """q at the target, float64 `(rows, 1)`; None if that is 1."""
        if not self.share:
            return None
        return self.gold + self.share * self.mask[target].double()


def divergence(q, p, alpha):
    """`phi(q) - phi(p) - phi'(p) (q - p)` with `phi(t) = t ** alpha / (alpha (alpha - 1))`, for q > 0 and p >= 0.

    Written with `(t ** e - 1) / e`, which has the logarithm as its limit, so that it holds down to alpha 1.
    """
    if alpha == 2:
        return (q - p).square() / 2
    exponent = alpha - 1
    log_q, log_p = (torch.expm1(t.log() * exponent) / exponent for t in (q, p))
    return ((q * (log_q - log_p) + (1 + exponent * log_p) * (p - q)) / alpha).clamp(min=0)


def target_divergence(q, p, alpha):
    """The same at the target, `q` None where it is 1; the closed form of 1.5 keeps all digits when p nears 1."""
    if q is None and alpha == 1.5:
        root = p.sqrt()
        return (1 - root).square_() * (2 / 3 * root + 4 / 3)
    return divergence(torch.ones_like(p) if q is None else q, p, alpha)


def _row_loss(target_prob, target_gap, rest, tau, shortfall, target, alpha, smoothing):
    """Loss `(rows, 1)` in float64 from what the solvers know of a row.

    Args:
        target_prob: p at the target, `(rows, 1)`.
        target_gap: maximum minus the logit of the target.
        rest: sum over the other classes of the support of `p ** alpha / alpha - share * p ** (alpha - 1) / (alpha - 1)`
            (the second term for classes of the mask).
        shortfall: sum over the mask of `max(tau - scaled, 0)`, or None without smoothing.
    """
    exponent = alpha - 1
    gold = smoothing.gold_mass(target)
    loss = rest + target_divergence(gold, target_prob, alpha)
    loss = loss + smoothing.gold / exponent * (tau + exponent * target_gap).clamp(min=0)
    if smoothing.share:
        others = smoothing.count - smoothing.mask[target].double()
        loss = loss + others * (smoothing.share**alpha / (alpha * exponent)) + smoothing.share / exponent * shortfall
        # With alpha near 1 the two terms of the support nearly cancel.
        loss = loss.clamp(min=0)
    return loss


class ShortLoss(torch.autograd.Function):
    """Rows that are solved whole; keeps p - q for the backward. `kept` is None where all are."""

    @staticmethod
    def forward(ctx, logits, target, kept, alpha, smoothing, figures):
        exact = logits.dtype == torch.float64
        difference = torch.empty_like(logits, dtype=torch.float64 if exact else torch.float32)
        step = rows_at_once(logits, SHORT_CHUNK)
        parts = [
            _short_rows(*part, alpha, smoothing, figures)
            for part in zip(logits.split(step), target.split(step), difference.split(step))
        ]
        fields = parts[0] if len(parts) == 1 else [None if f[0] is None else torch.cat(f) for f in zip(*parts)]
        loss, support, target_prob, correct = (None if field is None else field[:, 0] for field in fields)
        ctx.dtype = logits.dtype
        # Selected, not multiplied by 0 in the backward: an ignored row may hold NaN.
        if kept is not None:
            difference.masked_fill_(~kept[:, None], 0)
        results = _finish(ctx, loss, support, target_prob, correct, kept, exact)
        ctx.save_for_backward(results[0], difference, kept)
        return results

    @staticmethod
    @differentiable_once
    def backward(ctx, grad, *_):
        _, difference, kept = ctx.saved_tensors
        if kept is not None:
            grad = torch.where(kept, grad, 0)
        return (difference * grad[:, None]).to(ctx.dtype), None, None, None, None, None


def _short_rows(logits, target, difference, alpha, smoothing, figures):
    """Loss, support, target probability, correct, each `(rows, 1)`; writes p - q to `difference`."""
    exponent = alpha - 1
    shifted, probs, base, tau = solve_short_with_base(logits, alpha)
    if probs is None:
        probs = base * base
    target_prob, target_gap = probs.gather(1, target), shifted.gather(1, target).neg_()
    difference.copy_(probs)
    support = difference.sign().sum(-1, keepdim=True).long() if figures else None
    if smoothing.share:
        difference.sub_(smoothing.shares(difference.dtype))
        difference.scatter_add_(1, target, torch.full_like(difference[:, :1], -smoothing.gold))
    else:
        difference.scatter_(1, target, (target_prob - 1).to(difference.dtype))
    # From here on the target is left out.
    base = (reference.root(probs, exponent) if base is None else base).scatter_(1, target, 0)
    rest = _dot(probs, base).div_(alpha)
    shortfall = None
    if smoothing.share:
        rest = rest - smoothing.share / exponent * _dot(base, smoothing.mask.to(base.dtype))
        below = (tau - exponent * shifted).clamp_(min=0)
        if below.device.type == "cpu":
            below.index_fill_(1, (~smoothing.mask).nonzero()[:, 0], 0)
        else:  # which does not have to wait for the number of classes left out
            below.masked_fill_(~smoothing.mask, 0)
        shortfall = below.sum(-1, keepdim=True)
    loss = _row_loss(target_prob.double(), target_gap.double(), rest, tau, shortfall, target, alpha, smoothing)
    if not figures:
        return loss, None, None, None
    return loss, support, target_prob, _is_first_best(shifted, target, target_gap)


def _dot(rows, other):
    """Sums over the products of each row with `other`, a row or as many, `(rows, 1)`.

    Products of vectors are among the operations that autocast lowers to half precision, unless they are float64.
    """
    if rows.dtype == torch.float64:
        products = torch.mv(rows, other) if other.dim() == 1 else torch.linalg.vecdot(rows, other)
        return products.unsqueeze(1)
    return (rows * other).sum(-1, keepdim=True)


def _is_first_best(shifted, target, target_gap):
    """Whether the target is the first class that holds the maximum, bool `(rows, 1)`; argmax only where it is tied."""
    best = target_gap == 0
    if shifted.device.type != "cpu":
        return shifted.argmax(-1, keepdim=True) == target
    tied = (best & (shifted.sign().sum(-1, keepdim=True) > 1 - shifted.shape[-1])).nonzero()[:, 0]
    if len(tied):
        best[tied] = shifted[tied].argmax(-1, keepdim=True) == target[tied]
    return best


def _finish(ctx, loss, support, target_prob, correct, kept, exact):
    """Zero the rows that are not kept, cast, and mark what has no gradient. The last three may be None."""
    loss = loss.to(torch.float64 if exact else torch.float32)
    if support is None:
        return (loss if kept is None else loss.masked_fill(~kept, 0)), None, None, None
    target_prob = target_prob.float()
    if kept is not None:
        loss, support, target_prob = (x.masked_fill(~kept, 0) for x in (loss, support, target_prob))
        correct = correct & kept
    ctx.mark_non_differentiable(support, target_prob, correct)
    return loss, support, target_prob, correct


class LongLoss(torch.autograd.Function):
    """Rows of which only the support is read and kept; wide rows keep their threshold and use the logits again.

    `kept` is None where all rows are. The figures cost next to nothing, so they are always there.
    """

    @staticmethod
    def forward(ctx, logits, target, kept, alpha, smoothing, figures):
        found = find_support(logits, alpha)
        tau, columns = found.tau.clone(), target[:, 0]
        exponent, size = alpha - 1, logits.shape[-1]
        on_target = found.columns == columns[found.rows]
        base = reference.root(found.probs, exponent)
        terms = torch.where(on_target, 0, found.probs * base / alpha)
        if smoothing.share:
            in_mask = smoothing.mask[found.columns]
            terms -= torch.where(on_target | ~in_mask, 0, base) * (smoothing.share / exponent)
        rest = terms.new_zeros(len(logits)).index_add_(0, found.rows, terms)[:, None]
        target_prob = torch.zeros_like(tau)
        target_prob[found.rows[on_target], 0] = found.probs[on_target]
        support = torch.bincount(found.rows, minlength=len(logits))
        above = torch.zeros_like(tau)
        if smoothing.share:
            above[:, 0].index_add_(0, found.rows, torch.where(in_mask, base, 0))
        for rows, base, probs, row_tau in solve_wide(logits, found, alpha):
            tau[rows] = row_tau
            support[rows] = probs.to(torch.float32).sign().sum(-1).long()
            target_prob[rows] = probs.gather(1, target[rows]).double()
            if smoothing.share:
                above[rows] = smoothing.total(base)
            # `base` may be `probs` itself: the target is left out of both from here on.
            base.scatter_(1, target[rows], 0)
            rest[rows] = (base * probs).sum(-1, keepdim=True).double() / alpha
            if smoothing.share:
                rest[rows] -= smoothing.total(base) * (smoothing.share / exponent)
        gap = found.maximum - logits.gather(1, target).double()
        shortfall = None
        if smoothing.share:
            shortfall = smoothing.count * tau + exponent * _distance(logits, found.maximum, smoothing.mask) + above
            shortfall.clamp_(min=0)
        loss = _row_loss(target_prob, gap, rest, tau, shortfall, columns.unsqueeze(1), alpha, smoothing)
        # A target of logit -inf; tau is not defined where all of the row is.
        loss = torch.where(gap == math.inf, math.inf, loss)[:, 0]
        ctx.alpha, ctx.smoothing, ctx.shape, ctx.dtype = alpha, smoothing, logits.shape, logits.dtype
        undefined = tau[:, 0].isnan() & (gap[:, 0] != math.inf)
        if kept is not None:
            undefined &= kept
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        results = _finish(ctx, loss, support, target_prob[:, 0], found.best == columns, kept, dtype == torch.float64)
        place = found.rows * size + found.columns
        wide = (logits, found.wide, found.maximum, tau) if len(found.wide) else ()
        ctx.save_for_backward(results[0], target, kept, undefined, found.rows, place, found.probs.to(dtype), *wide)
        return results

    @staticmethod
    @differentiable_once
    def backward(ctx, grad, *_):
        _, target, kept, undefined, rows, place, probs, *wide = ctx.saved_tensors
        smoothing, dtype = ctx.smoothing, probs.dtype
        grad = (grad if kept is None else torch.where(kept, grad, 0)).to(dtype)
        if smoothing.share:
            shares = smoothing.shares(dtype)
            result = torch.outer(grad, -shares).to(ctx.dtype)
            probs = probs - shares[place % ctx.shape[1]]
        elif wide and len(wide[1]) == len(target):  # every row is written below
            result = grad.new_empty(ctx.shape, dtype=ctx.dtype)
        else:
            result = grad.new_zeros(ctx.shape, dtype=ctx.dtype)
        result.view(-1)[place] = (probs * grad[rows]).to(ctx.dtype)
        if wide:
            _wide_gradient(result, grad, ctx.alpha, smoothing, *wide)
        gold = result.gather(1, target).to(dtype) - smoothing.gold * grad[:, None]
        if place.numel():
            # In low precision p must meet q before it is rounded.
            on_target = place % ctx.shape[1] == target[rows, 0]
            gold[rows[on_target], 0] = (probs[on_target] - smoothing.gold) * grad[rows[on_target]]
        result.scatter_(1, target, gold.to(ctx.dtype))
        if bool(undefined.any()):
            result[undefined] = math.nan
        return result, None, None, None, None, None


def _wide_gradient(result, grad, alpha, smoothing, logits, wide, maximum, tau):
    """Write the gradient of the wide rows, but for `smoothing.gold`, to `result`."""
    for rows in wide.split(wide_step(logits)):
        scaled = scale_rows(logits, rows, maximum, alpha)
        probs = reference.power(wide_base(scaled, tau[rows], out=scaled), alpha - 1)
        if smoothing.share:
            probs = probs - smoothing.shares(probs.dtype)
        own = grad[rows][:, None]
        if int(rows[-1]) - int(rows[0]) + 1 == len(rows) and result.dtype == probs.dtype:
            torch.mul(probs, own, out=result[int(rows[0]) : int(rows[-1]) + 1])
        else:
            result[rows] = (probs * own).to(result.dtype)


def _distance(logits, maximum, mask):
    """Sum over the classes of `mask` of the distance to the row maximum, float64 `(rows, 1)`."""
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    # A class outside the mask may have logit -inf. (Filling a few columns is far cheaper than torch.where.)
    excluded = (~mask).nonzero()[:, 0]
    parts = []
    for some, top in zip(*(x.split(wide_step(logits)) for x in (logits, maximum))):
        parts.append((top.to(dtype) - some).index_fill_(1, excluded, 0).sum(-1, keepdim=True).double())
    return torch.cat(parts)
