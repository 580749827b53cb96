"""Structured attention: probabilities that are sparse and equal in groups (fusedmax, oscarmax), and sq-pnorm-max.

Niculae and Blondel 2017, "A regularized framework for sparse and structured neural attention" (version 3), each exact
and for a whole batch at once; backward passes are products with the Jacobian in linear time.
"""

import math

import torch

from . import reference
from .backend import kernels, use_kernels
from .fusion import group_means, isotonic, total_variation
from .once import differentiable_once
from .rows import as_rows, check_scores, from_rows

PNORM_STEPS = 60


def _prepare(scores, mask, dim, gamma, **positive):
    """Rows of `scores / gamma` in float64 with 0 as maximum, which entries take part, and the shape to go back to."""
    check_scores(scores, dim)
    for name, value in dict(gamma=gamma, **positive).items():
        if not (0 < value < math.inf or (value == 0 and name != "gamma")):
            raise ValueError(f"{name} must be a positive number, got {value}")
    rows, shape = as_rows(scores, dim)
    if mask is None:
        used = rows != -math.inf
    else:
        if mask.dtype != torch.bool:
            raise ValueError(f"mask must be bool, True where a position may be used, got {mask.dtype}")
        used = as_rows(mask.expand(scores.shape), dim)[0] & (rows != -math.inf)
    return rows, used, shape


def _shift(rows, used, gamma):
    """`rows / gamma` minus the maximum of the used entries; unused entries become -inf, a NaN stays."""
    dtype = torch.float32 if rows.device.type == "mps" else torch.float64
    values = rows.to(dtype).masked_fill(~used, -math.inf)
    shifted, _ = reference.shift_rows(values)
    return shifted / gamma


def _project(values, used):
    """Sparsemax of float64 `values`, zeros where unused and in rows without a used entry."""
    values = values.masked_fill(~used, -math.inf)
    shifted, _ = reference.shift_rows(values)
    return reference.solve(shifted, 2.0)[0].masked_fill(~used, 0)


def _sparsemax_backward(probs, grad):
    """Product with the Jacobian of sparsemax: the mean over the support is taken off, zero elsewhere."""
    support = probs.sign()
    grad = grad * support
    return grad - support * (grad.sum(-1, keepdim=True) / support.sum(-1, keepdim=True).clamp(min=1))


def _clean(values, floor):
    """Finite stand-ins: entries below `floor` never reach the support whatever they are; NaN is put back later."""
    return values.clamp(min=floor).nan_to_num_(nan=0.0)


class _Fusedmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, used, strength, gamma):
        values = _shift(rows, used, gamma)
        # The level sets above the threshold, which is at least -1 - 2 strength, do not depend on how far an entry
        # lies below it by more than 2 strength.
        clean = _clean(values, -2 - 4 * strength)
        bound = strength * (used[:, 1:] & used[:, :-1]).to(values.dtype)
        fused, groups = total_variation(clean, bound)
        exact = _restore_nan(_project(fused, used), values, used)
        ctx.gamma = gamma
        probs = exact.to(rows.dtype)
        ctx.save_for_backward(probs, groups)
        return probs

    @staticmethod
    @differentiable_once
    def backward(ctx, grad):
        probs, groups = ctx.saved_tensors
        product = _sparsemax_backward(probs.double(), grad.double())
        return (group_means(product, groups) / ctx.gamma).to(probs.dtype), None, None, None


def _restore_nan(probs, values, used):
    undefined = (values.isnan() & used).any(-1, keepdim=True)
    return probs.masked_fill(undefined, math.nan)


class _Oscarmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, used, strength, gamma, exact):
        size = rows.shape[-1]
        ctx.gamma, ctx.exact = gamma, exact
        values = _shift(rows, used, gamma)
        if exact:
            # Entries this far below the first cannot reach the support even after what the ranks add.
            clean = _clean(values, -2 - strength * size)
            signs = None
        else:
            # The 2017 recipe is not shift-invariant: it needs the scores themselves.
            clean = (rows.to(values.dtype) / gamma).masked_fill(~used, 0).nan_to_num_(nan=0.0)
            signs = clean.sign()
            clean = clean.abs()
        ordered, order = clean.masked_fill(~used, -math.inf).sort(-1, descending=True)
        last = used.sum(-1, keepdim=True) - 1
        rank = torch.arange(size, device=rows.device)
        within = rank <= last
        weights = strength * (rank - last).to(values.dtype)
        ordered = (ordered + weights).masked_fill(~within, 0)
        fused, groups = isotonic(ordered, ~within[:, 1:])
        if not exact:
            ctx.clipped = fused <= 0
            fused = fused.clamp(min=0)
        result = torch.empty_like(fused).scatter_(-1, order, fused)
        if signs is not None:
            result = result * signs
        probs = _restore_nan(_project(result, used), values, used).to(rows.dtype)
        ctx.save_for_backward(probs, order, groups, *(() if signs is None else (signs,)))
        return probs

    @staticmethod
    @differentiable_once
    def backward(ctx, grad):
        probs, order, groups, *signs = ctx.saved_tensors
        product = _sparsemax_backward(probs.double(), grad.double())
        if signs:
            product = product * signs[0]
        product = group_means(product.gather(-1, order), groups)
        if signs:
            product = product.masked_fill(ctx.clipped, 0)
        result = torch.empty_like(product).scatter_(-1, order, product)
        if signs:
            result = result * signs[0]
        return (result / ctx.gamma).to(probs.dtype), None, None, None, None


class _Pnormmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, used, p, gamma):
        values = _shift(rows, used, gamma)
        probs = _solve_pnorm(values, p / (p - 1)).masked_fill(~used & ~values.isnan(), 0)
        probs = probs.masked_fill(~used.any(-1, keepdim=True), 0)
        ctx.p, ctx.gamma = p, gamma
        result = probs.to(rows.dtype)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    @differentiable_once
    def backward(ctx, grad):
        (result,) = ctx.saved_tensors
        probs, grad, p = result.double(), grad.double(), ctx.p
        # The inverse of the Hessian of 1/2 |p|_r^2 on the support, then the projection that keeps the sum.
        norm = probs.pow(p).sum(-1, keepdim=True).pow(1 / p)
        norm = torch.where(norm > 0, norm, 1.0)  # a row of zeros
        diagonal = norm.pow(p - 2) * reference.root(probs, 2 - p) if p < 2 else probs.sign()

        def inverse(vector):
            inner = (probs * vector).sum(-1, keepdim=True)
            return (diagonal * vector - (2 - p) * norm.pow(-2) * inner * probs) / (p - 1)

        ones, product = inverse(torch.ones_like(probs)), inverse(grad)
        total = ones.sum(-1, keepdim=True)
        share = product.sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)
        return ((product - share * ones) / ctx.gamma).to(result.dtype), None, None, None


def _solve_pnorm(values, dual):
    """Probabilities of sq-pnorm-max for `values` whose largest is 0, `dual` = r / (r - 1) for the norm r.

    With `u = max(values - tau, 0)`, `p` is proportional to `u ** (dual - 1)`, and tau in [-1, 0) is the root of
    `sum u ** (dual - 1) * (sum u ** dual) ** ((2 - dual) / dual) = 1`: monotone in tau, so Newton inside a bracket
    (8 steps at most in trials; it hardly ever needs the bracket).
    """
    low = torch.full_like(values[:, :1], -1)
    high = torch.zeros_like(low)
    tau = low
    for step in range(PNORM_STEPS):
        base = (values - tau).clamp(min=0)
        first = reference.root(base, dual - 2) if dual > 2 else base.sign()
        second = first * base
        a, b, c = second.sum(-1, keepdim=True), (second * base).sum(-1, keepdim=True), first.sum(-1, keepdim=True)
        scale = b.pow((2 - dual) / dual)
        excess = a * scale - 1
        if step and values.device.type == "cpu" and not bool((excess.abs() > 1e-13).any()):
            break
        low, high = torch.where(excess >= 0, tau, low), torch.where(excess >= 0, high, tau)
        guess = tau + excess / (scale * ((dual - 1) * c - (dual - 2) * a * a / b))
        tau = torch.where((guess >= low) & (guess <= high) | guess.isnan(), guess, (low + high) / 2)
    return second / a


def fusedmax(scores, strength=0.1, gamma=1.0, mask=None, dim=-1):
    """Attend to runs of neighbours with equal weight, and to few of them.

    Solves `argmax_p <p, scores> - gamma (1/2 |p|^2 + strength sum_j |p_{j+1} - p_j|)` over the simplex: the proximal
    step of total variation, then sparsemax, which is exact (Niculae and Blondel 2017, proposition 2).

    Args:
        scores: floating point, any shape; -inf excludes an entry.
        strength: how much unequal neighbours cost, >= 0, relative to gamma; 0 is sparsemax. Small values (0.1) are
            the default because from about 1 on, all weights of a row become equal and nothing is learnt.
        gamma: scale of the regulariser, > 0; a larger one makes the result denser.
        mask: bool, broadcastable to `scores`, True where a position may be used. Weights do not fuse across a
            position that is not used, and its content has no influence.
        dim: the dimension that sums to one.

    Returns:
        Like `scores`, exact zeros included; a row without a usable position gives zeros, NaN stays in its row.
        Differentiable once with respect to `scores`.
    """
    rows, used, shape = _prepare(scores, mask, dim, gamma, strength=strength)
    if use_kernels(rows, structured=True):
        return from_rows(kernels().structured_rows(rows, used, float(strength), float(gamma), False), shape, dim)
    return from_rows(_Fusedmax.apply(rows, used, float(strength), float(gamma)), shape, dim)


def oscarmax(scores, strength=0.1, gamma=1.0, mask=None, dim=-1, exact=True):
    """Attend to groups of positions with equal weight, wherever they stand, and to few of them.

    Solves `argmax_p <p, scores> - gamma (1/2 |p|^2 + strength sum_{i<j} max(p_i, p_j))` over the simplex.

    Why sorting, isotonic regression and sparsemax solve it exactly. The objective is symmetric, so by the rearrangement
    inequality some solution p (the solution: it is strictly concave) is ordered like the scores. Number positions so
    that scores fall; then p_1 >= ... >= p_d >= 0, and there `sum_{i<j} max(p_i, p_j) = sum_i (d - i) p_i` is linear.
    So p is the Euclidean projection of `y_i = scores_i / gamma - strength (d - i)` onto the simplex cut by the
    monotone cone. Write the projection's conditions: `p_i - y_i + tau - mu_i + u_i - u_{i-1} = 0`, with `mu_i >= 0` for
    p_i >= 0, `u_i >= 0` for p_i >= p_{i+1}. Let x be the isotonic regression of y, with its multipliers u, and
    p = max(x - tau, 0) with tau such that p sums to one. Subtracting a constant and clipping at zero keep the order
    and equal neighbours equal, so p satisfies the conditions with the same u, and `mu_i = max(tau - x_i, 0)`, which is
    complementary to p_i. Hence p is the solution. A shift of y changes nothing, so `strength * rank` may be added
    instead, and unused positions, sorted to the end, need no weights of their own.

    The recipe of 2017, the proximal step of OSCAR on the whole space and then sparsemax, is only an approximation (the
    proximal step clips at zero and looks at absolute values before the threshold is known); `exact=False` gives it.

    Args:
        exact: False for the 2017 composition; the other arguments and the result are those of `fusedmax`.
    """
    rows, used, shape = _prepare(scores, mask, dim, gamma, strength=strength)
    if exact and use_kernels(rows, structured=True):
        return from_rows(kernels().structured_rows(rows, used, float(strength), float(gamma), True), shape, dim)
    return from_rows(_Oscarmax.apply(rows, used, float(strength), float(gamma), exact), shape, dim)


def pnormmax(scores, p=1.5, gamma=1.0, mask=None, dim=-1):
    """Attend sparsely with a squared p-norm as regulariser ("sq-pnorm-max"), between sparsemax and something flatter.

    Solves `argmax_p <p, scores> - gamma / 2 |p|_r^2` over the simplex, where r is the argument `p`.

    Args:
        p: the norm, 1 < p <= 2; 2 is sparsemax. (Near 1 the solution puts all on one entry in ever smaller ranges.)
        gamma, mask, dim, and the result: as for `fusedmax`.
    """
    if not 1 < p <= 2:
        raise ValueError(f"p must lie in (1, 2], got {p}")
    rows, used, shape = _prepare(scores, mask, dim, gamma)
    return from_rows(_Pnormmax.apply(rows, used, float(p), float(gamma)), shape, dim)
