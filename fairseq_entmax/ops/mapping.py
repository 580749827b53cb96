"""Scores to sparse probabilities: the autograd function and the public alpha-entmax mappings."""

import math

import torch

from . import reference
from .alpha import entmax_of_tensor
from .backend import kernels, use_kernels
from .once import differentiable_once
from .rows import as_rows, check_alpha, check_scores, from_rows, rows_at_once
from .support import LONG_ROW, find_support, solve_wide, worth_searching

SHORT_CHUNK = 1 << 17
# From this alpha - 1 on, single precision finds a threshold good enough to start from.
ROUGH_FROM = 0.1


def tolerance_for(scores):
    """How exactly rows must sum to one to be right in the dtype of `scores`; Newton more than squares it at the end."""
    return reference.TOLERANCE if scores.dtype == torch.float64 else 1e-9


def solve_short(scores, alpha):
    """Shifted scores, probabilities and thresholds of rows that are solved whole; rows of -inf give zeros."""
    shifted, probs, base, tau = solve_short_with_base(scores, alpha)
    return shifted, base.square_() if probs is None else probs, tau


def solve_short_with_base(scores, alpha):
    """Like `solve_short`, with what `reference.solve_with_base` says of probabilities and base."""
    dtype = reference.working_dtype(scores)
    shifted, maximum = reference.shift_rows(scores.to(dtype))
    start = None
    if (
        dtype == torch.float64 != scores.dtype
        and scores.numel() > reference.SORT_BELOW
        and 1 + ROUGH_FROM <= alpha <= 2
    ):
        # Most of the way in single precision; Newton's method forgives where it starts.
        start = reference.solve_with_base(shifted.float(), alpha, tolerance=None)[2].to(dtype)
    probs, base, tau = reference.solve_with_base(shifted, alpha, start, tolerance_for(scores))
    # (A NaN is not greater.)
    if maximum.device.type != "cpu" or not len(maximum) or not float(maximum.amin()) > torch.finfo(dtype).min:
        masked = maximum == torch.finfo(dtype).min
        probs, base = (None if x is None else x.masked_fill(masked, 0) for x in (probs, base))
        tau = tau.masked_fill(masked, -1)
    return shifted, probs, base, tau


def entmax_rows(scores, alpha):
    """Probabilities of contiguous `scores` `(rows, size)` in their dtype, solved whole."""
    if not len(scores):
        return torch.empty_like(scores)
    single = alpha in (1.5, 2) and scores.shape[-1] <= LONG_ROW and reference.SORT_BELOW < scores.numel()
    single = single and scores.device.type == "cpu" and scores.dtype != torch.float64
    solve = _solve_single if single else _solve_probs
    step = rows_at_once(scores, SHORT_CHUNK)
    if len(scores) <= step:
        return solve(scores, alpha).to(scores.dtype)
    probs = torch.empty_like(scores)
    for part, out in zip(scores.split(step), probs.split(step)):
        out.copy_(solve(part, alpha))
    return probs


def _solve_probs(scores, alpha):
    return solve_short(scores, alpha)[1]


def _solve_single(scores, alpha):
    """Probabilities of 1.5-entmax and sparsemax in single precision, for rows short enough to be summed in it.

    Entries of the support lie within 1 (2 before halving) of the maximum, so the errors of shifting and of taking off
    tau are below 1e-7. The last step of Newton's method, from sums in double precision, is taken off after tau: added
    to tau, it would be rounded away.
    """
    scaled, maximum = reference.shift_rows(scores.float())
    if alpha != 2:
        scaled.mul_(0.5)
    tau = reference.lower_bound(scaled, alpha - 1, 1)
    base = torch.empty_like(scaled)
    for step in range(reference.MAX_STEPS):
        torch.sub(scaled, tau, out=base).clamp_(min=0)
        mass = reference.mass_of(base, alpha)
        if step >= 3 and (step >= 12 or not bool((mass.sub(1).abs_() > 3e-6).any())):  # NaN holds nobody up
            break
        tau = tau.add_(reference.newton_step(base, mass, alpha))
    last = reference.newton_step(base, reference.mass_of(base, alpha, torch.float64), alpha).float()
    torch.sub(scaled, tau, out=base).sub_(last).clamp_(min=0)
    if alpha != 2:
        base.square_()
    if not float(maximum.amin()) > torch.finfo(torch.float32).min:
        base.masked_fill_(maximum == torch.finfo(torch.float32).min, 0)
    return base


class _Entmax(torch.autograd.Function):
    """Scores of any shape; reshaping happens in here, where it makes no autograd nodes."""

    @staticmethod
    def forward(ctx, scores, alpha, dim):
        rows, shape = as_rows(scores, dim)
        ctx.alpha, ctx.dim = alpha, dim
        probs, places = (_searched if worth_searching(rows, alpha) else _whole)(rows, alpha)
        probs = from_rows(probs, shape, dim)
        ctx.save_for_backward(probs, *places)
        return probs

    @staticmethod
    @differentiable_once
    def backward(ctx, grad):
        probs, *places = ctx.saved_tensors
        (probs, shape), (grad, _) = as_rows(probs, ctx.dim), as_rows(grad, ctx.dim)
        if places:
            result = _sparse_backward(probs, grad, ctx.alpha, *places)
        else:
            result = entmax_backward(probs, grad, ctx.alpha)
        return from_rows(result, shape, ctx.dim), None, None


def _whole(scores, alpha):
    return entmax_rows(scores, alpha), ()


def _searched(scores, alpha):
    """Probabilities of long rows, and where they are not zero unless that is in too many places."""
    found = find_support(scores, alpha)
    probs = torch.zeros_like(scores)
    place = found.rows * scores.shape[-1] + found.columns
    probs.view(-1)[place] = found.probs.to(scores.dtype)
    for rows, _, wide, _ in solve_wide(scores, found, alpha):
        probs[rows] = wide.to(scores.dtype)
    undefined = found.tau.isnan() & ~_masked(scores, found)
    if bool(undefined.any()):
        probs.masked_fill_(undefined, math.nan)
    elif not len(found.wide):
        return probs, (place, found.rows)
    return probs, ()


def _sparse_backward(probs, grad, alpha, place, rows):
    """`entmax_backward` where `place` lists the entries of the flattened support and `rows` their rows."""
    some = grad.reshape(-1)[place].to(reference.working_dtype(probs))
    slope = probs.reshape(-1)[place].to(some.dtype).pow(2 - alpha)
    sums = some.new_zeros(2, len(probs)).index_add_(1, rows, torch.stack([slope, slope * some]))
    result = torch.zeros_like(probs)
    result.view(-1)[place] = (slope * (some - (sums[1] / sums[0])[rows])).to(probs.dtype)
    return result


def _masked(scores, found):
    """Rows of nothing but -inf: their largest score is -inf."""
    return scores.gather(1, found.best[:, None]) == -math.inf


def entmax_backward(probs, grad, alpha):
    """Product of `grad` with the Jacobian of alpha-entmax at `probs`, both `(rows, size)`, in the dtype of `probs`."""
    step = rows_at_once(probs, SHORT_CHUNK)
    if len(probs) <= step:
        return _jacobian_product(probs, grad, alpha)
    result = torch.empty_like(probs)
    for part, incoming, out in zip(probs.split(step), grad.split(step), result.split(step)):
        out.copy_(_jacobian_product(part, incoming, alpha))
    return result


def _jacobian_product(probs, grad, alpha):
    """`diag(v) - v v' / sum(v)` times `grad`, with `v = probs ** (2 - alpha)` on the support."""
    dtype = probs.dtype
    if dtype not in (torch.float32, torch.float64):
        return _jacobian_product(probs.float(), grad.float(), alpha).to(dtype)
    if alpha == 2:
        slope = probs.sign()
    elif alpha < 2:
        slope = reference.root(probs, 2 - alpha)
    else:
        return _steep_product(probs, grad, alpha)
    total = slope.sum(-1, keepdim=True).clamp_(min=torch.finfo(slope.dtype).tiny)
    product = slope * grad
    return torch.addcmul(product, slope, product.sum(-1, keepdim=True) / total, value=-1)


def _steep_product(probs, grad, alpha):
    """The same for alpha > 2, where the smallest probability has the largest `v`, which may overflow.

    A constant added to `grad` changes nothing, so it is taken relative to that entry: then nothing cancels there.
    """
    positive = torch.where(probs > 0, probs, math.inf)
    least, index = positive.min(-1, keepdim=True)
    least = torch.where(least == math.inf, 1, least)
    weight = (positive / least).pow_(2 - alpha)
    grad = torch.where(weight > 0, grad - grad.gather(-1, index), 0)
    mean = (weight * grad).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True).clamp(min=1)
    return (weight * (grad - mean) * least.pow(2 - alpha)).clamp_(*_finite_range(probs.dtype))


def _finite_range(dtype):
    info = torch.finfo(dtype)
    return info.min, info.max


def entmax_of_number(scores, alpha, dim):
    """`entmax` for a number `alpha` by the backend that serves `scores`."""
    if alpha != 1 and use_kernels(scores, dim):
        rows, shape = as_rows(scores, dim)
        return from_rows(kernels().entmax_rows(rows, alpha), shape, dim)
    return _Entmax.apply(scores, alpha, dim)


def entmax(scores, alpha=1.5, dim=-1):
    """Turn scores into probabilities of which most are exactly zero, as sparse as `alpha` says.

    Solves `argmax_p <p, scores> + H(p)` over the probability simplex, where `H` is the Tsallis entropy
    `sum_j (p_j - p_j ** alpha) / (alpha (alpha - 1))`: `p_j = max((alpha - 1) scores_j - tau, 0) ** (1 / (alpha - 1))`.
    Peters, Niculae and Martins 2019 (alpha-entmax), Martins and Astudillo 2016 (sparsemax, alpha 2); alpha 1 is
    softmax. The gradient to alpha is that of Correia, Niculae and Martins 2019.

    Args:
        scores: floating point, any shape; -inf excludes an entry.
        alpha: number >= 1, or a tensor of them that broadcasts to `scores` with size 1 along `dim`; it gets a gradient.
            `LearnedAlpha` keeps one in range.
        dim: the dimension that sums to one.

    Returns:
        Tensor like `scores`, same dtype (float16 and bfloat16 are solved in higher precision). A row of nothing but
        -inf gives zeros, with zero gradient; a row that holds NaN or +inf gives NaN in that row only.
        Differentiable once: a second backward raises.
    """
    check_scores(scores, dim)
    if isinstance(alpha, torch.Tensor):
        return entmax_of_tensor(scores, alpha, dim, entmax_of_number)
    return entmax_of_number(scores, check_alpha(alpha), dim)


def entmax15(scores, dim=-1):
    """Turn scores into probabilities of which many are exactly zero: `entmax` with alpha 1.5."""
    return entmax(scores, 1.5, dim)


def sparsemax(scores, dim=-1):
    """Project scores onto the probability simplex (the nearest distribution): `entmax` with alpha 2."""
    return entmax(scores, 2.0, dim)
