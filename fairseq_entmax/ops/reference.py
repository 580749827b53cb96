"""Plain PyTorch solvers of alpha-entmax for a matrix of rows: the ground truth, on any device.

Every function takes `shifted` `(rows, size)`: scores minus the maximum of their row, so that the largest entry is 0.
Thresholds are in units of `scaled = (alpha - 1) * shifted`: `probs = max(scaled - tau, 0) ** (1 / (alpha - 1))`.
"""

import math

import torch

# Below this distance from softmax the power is taken with log1p, which is slow on CPU but keeps all digits.
LOG1P_BELOW = 1e-2
MAX_STEPS = 60
# Matrices of at most this many entries are sorted: fewer operations, though each entry costs more.
SORT_BELOW = 4096
TOLERANCE = 1e-14


def shift_rows(scores):
    """Scores minus their row maximum, and the maxima `(rows, 1)`, the lowest finite number in a row of -inf."""
    maximum = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(scores.dtype).min)
    return scores - maximum, maximum


def working_dtype(scores):
    """Float64 wherever it is cheap; float32 stays on accelerators, where float64 is slow or missing."""
    return torch.float64 if scores.device.type == "cpu" or scores.dtype == torch.float64 else torch.float32


def solve(shifted, alpha, start=None, tolerance=TOLERANCE):
    """Probabilities and thresholds of alpha-entmax, one number `alpha` >= 1 for all rows.

    Args:
        shifted: `(rows, size)` in the dtype of `working_dtype`; -inf allowed.
        start: `(rows, 1)`, a lower bound of the threshold where one is known.
        tolerance: how far from one the sum of a row may be. Newton steps stop there, so the default is to the last
            digit, and the root of it is far enough for single precision. None: a few steps, unchecked.

    Returns:
        probs `(rows, size)` and tau `(rows, 1)`; NaN in rows that hold NaN or nothing but -inf.
        Tau is that of the limit, -1, at alpha 1.
    """
    probs, base, tau = solve_with_base(shifted, alpha, start, tolerance)
    return (base.square_() if probs is None else probs), tau


def solve_with_base(shifted, alpha, start=None, tolerance=TOLERANCE):
    """Like `solve`, together with `base = max(scaled - tau, 0)` where the solver has it.

    Returns:
        probs (None for alpha 1.5, where they are `base ** 2`), base (None where it is not at hand; the probs themselves
        at alpha 2), tau.
    """
    if alpha == 1:
        return torch.softmax(shifted, -1), None, torch.full_like(shifted[:, :1], -1)
    if alpha > 2:
        probs, tau = solve_from_smallest(shifted * (alpha - 1), alpha - 1, tolerance)
        return probs, None, tau
    if alpha not in (1.5, 2):
        return _solve_newton(shifted, alpha - 1, start, tolerance)
    scaled = shifted if alpha == 2 else shifted * 0.5
    if shifted.numel() <= SORT_BELOW:
        base, tau = _solve_by_sorting(scaled, alpha)
    else:
        base, tau = _solve_closed(scaled, alpha, start, tolerance)
    return (base if alpha == 2 else None), base, tau


def lower_bound(shifted, exponent, scale=None):
    """A lower bound of tau from the mean of the row, for 1 < alpha <= 2 (Jensen); nearly exact for flat rows."""
    mean = shifted.mean(-1, keepdim=True) * (exponent if scale is None else scale)
    return (mean - shifted.shape[-1] ** -exponent).clamp(min=-1)


def power(base, exponent):
    """`base ** (1 / exponent)` for `base` >= 0, exactly 0 at 0; `exponent` a number or `(rows, 1)`.

    On a CPU log and exp are far faster than pow, but log of 0 and an exp that underflows are slow (ten times), so zeros
    are kept from them.
    """
    if isinstance(exponent, float):
        if exponent == 1:
            return base
        if exponent == 0.5:
            return base * base
    positive = base.sign()
    return base.clamp(min=torch.finfo(base.dtype).tiny).log_().mul_(positive).div_(exponent).exp_().mul_(positive)


def root(probs, exponent):
    """`probs ** exponent` for `probs` >= 0, 0 at 0: the way back from probabilities to the base of `power`."""
    if exponent == 1:
        return probs
    if exponent == 0.5:
        return probs.clamp(min=torch.finfo(probs.dtype).tiny).rsqrt_().mul_(probs)
    return power(probs, 1 / exponent)


def near_softmax(difference, exponent):
    """`(1 + exponent * difference) ** (1 / exponent)`, 0 where the base is not positive, for a small exponent > 0."""
    return torch.log1p((difference * exponent).clamp_(min=-1)).div_(exponent).exp_()


def converged(mass, step, least, tolerance):
    """True when every row sums to one within `tolerance` (rows of NaN count as done).

    On an accelerator it would cost a sync, so a fixed number of steps, enough in all adversarial trials, decides.
    With tolerance None the result is a start for other steps.
    """
    if tolerance is None:
        return step >= 4
    if mass.device.type != "cpu":
        return step >= least + 4
    return step >= least and not bool(((mass - 1).abs() > tolerance).any())


def _solve_by_sorting(scaled, alpha):
    """Sparsemax and 1.5-entmax of small matrices: thresholds of all prefixes of the sorted row, then the right one."""
    # Entries below -1 have no probability; a row of -inf is the caller's to mark.
    scaled = scaled.clamp(min=-1)
    ordered = scaled.sort(-1, descending=True).values
    count = torch.arange(1, scaled.shape[-1] + 1, dtype=scaled.dtype, device=scaled.device)
    total = ordered.cumsum(-1)
    if alpha == 2:
        # The threshold of every prefix is a lower bound of that of the row, and one of them is that.
        tau = total.sub_(1).div_(count).amax(-1, keepdim=True)
    else:
        # The root of a quadratic; written so that a negative discriminant (no such prefix) counts as 0. It is the
        # threshold of the prefix if it lies below its last entry, and those rise; else it means nothing.
        inner = torch.addcmul(total * total, count, 1 - (ordered * ordered).cumsum(-1)).clamp_(min=0)
        prefix = total.sub_(inner.sqrt_()).div_(count)
        tau = torch.where(prefix >= ordered, -1, prefix).amax(-1, keepdim=True)
    return (scaled - tau).clamp_(min=0), tau


def mass_of(base, alpha, dtype=None):
    """Sum (alpha 2) or norm (1.5) of each row `(rows, 1)`, which is 1 at the threshold."""
    if alpha == 2:
        return base.sum(-1, keepdim=True, dtype=dtype)
    return torch.linalg.vector_norm(base, dim=-1, keepdim=True, dtype=dtype)


def newton_step(base, mass, alpha):
    """How far Newton's method moves tau: both functions of `mass_of` are convex in it, so it comes from below."""
    if alpha == 2:
        return (mass - 1) / base.sign().sum(-1, keepdim=True)
    return mass * (mass - 1) / base.sum(-1, keepdim=True)


def _solve_closed(scaled, alpha, start, tolerance):
    """Sparsemax, where Newton solves the current support exactly, and 1.5-entmax, by Newton on the norm."""
    tau, least = (lower_bound(scaled, alpha - 1, 1), 3) if start is None else (start, 1)
    base = torch.empty_like(scaled)
    for step in range(MAX_STEPS):
        torch.sub(scaled, tau, out=base).clamp_(min=0)
        mass = mass_of(base, alpha)
        if converged(mass, step, least, tolerance and tolerance * (alpha - 1)):
            break
        tau = tau + newton_step(base, mass, alpha)
    return base, tau


def _solve_newton(shifted, exponent, start, tolerance):
    """1 < alpha <= 2: Newton on `G = (sum probs) ** exponent`, which is convex in tau.

    With `offset = (tau + 1) / exponent` everything stays finite down to softmax, where offset is the log of the sum
    of exponentials and one step solves it.
    """
    tau, least = (lower_bound(shifted, exponent), 3) if start is None else (start, 1)
    offset = (tau + 1) / exponent
    for step in range(MAX_STEPS):
        difference = shifted - offset
        base = (difference * exponent).add_(1).clamp_(min=0)
        probs = near_softmax(difference, exponent) if exponent < LOG1P_BELOW else power(base, exponent)
        mass = probs.sum(-1, keepdim=True)
        if converged(mass, step, least, tolerance):
            break
        slope = slope_of(probs, base, exponent).sum(-1, keepdim=True)
        log_norm = mass.log() * exponent
        offset = offset + torch.expm1(log_norm) / exponent * mass / (log_norm.exp() * slope)
    return probs, base, offset * exponent - 1


def slope_of(probs, base, exponent):
    """`probs / base`, 0 where both are 0: minus the derivative of the mass by tau, up to 1 / exponent."""
    if exponent == 0.5:
        return base
    return base.sign() if exponent == 1 else probs / base.clamp(min=torch.finfo(base.dtype).tiny)


def solve_from_smallest(scaled, exponent, tolerance=TOLERANCE):
    """alpha > 2, where the threshold itself cannot carry the small probabilities.

    The support is found by counting; then the smallest probability `w` is the unknown:
    `sum (scaled - smallest + w ** exponent) ** (1 / exponent) = 1` over the support. Each term is the
    `exponent`-norm of a pair, so the sum is convex and increasing in w and Newton comes from above without
    a bracket; nothing is subtracted but scores.
    """
    top = scaled.amax(-1, keepdim=True)
    # Scores below -1 are outside the support; -2 in place of -inf keeps the differences finite.
    scaled = scaled.clamp(min=-2)
    ordered = scaled.sort(-1, descending=True).values
    low = torch.zeros_like(ordered[:, :1], dtype=torch.long)
    high = low + (scaled.shape[-1] - 1)
    for _ in range(max(scaled.shape[-1] - 1, 0).bit_length()):
        middle = (low + high + 1) // 2
        inside = power((ordered - ordered.gather(-1, middle)).clamp_(min=0), exponent).sum(-1, keepdim=True) < 1
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle - 1)
    smallest = ordered.gather(-1, low)
    active = scaled >= smallest
    above = (scaled - smallest).clamp_(min=0)
    rest = 1 - power(above, exponent).sum(-1, keepdim=True)
    smallest_prob = torch.minimum(rest, 1 / active.sum(-1, keepdim=True).to(rest.dtype))
    for step in range(MAX_STEPS):
        probs = torch.maximum(power(above + smallest_prob**exponent, exponent), smallest_prob) * active
        mass = probs.sum(-1, keepdim=True)
        if converged(mass, step, 3, tolerance):
            break
        slope = (smallest_prob / probs.clamp(min=smallest_prob)).pow_(exponent - 1).mul_(active).sum(-1, keepdim=True)
        smallest_prob = smallest_prob - (mass - 1) / slope
    # Sorting and clamping would hide a row of NaN or -inf.
    poison = torch.where(top == 0, 0.0, math.nan).to(probs.dtype)
    return probs + poison, smallest - smallest_prob**exponent + poison
