"""Device functions that solve alpha-entmax for a tile of rows held in registers.

A tile `scores` is `(rows, columns)` in float32 with -inf where there is nothing; what belongs to a row is a vector
`(rows,)`. `exponent` is alpha - 1. A solution is three numbers a row, `maximum`, `high` and `low`:

- alpha <= 2: `x = scores - maximum - high - low`, the offset kept as a sum of two floats because rounding it would move
  all entries of a wide row the same way. `base = exponent x`, or `1 + exponent x` for alpha below 1.125, where that
  offset stays finite down to softmax, and `p = max(base, 0) ** (1 / exponent)`.
- alpha > 2: no float32 threshold can carry the small probabilities, so `high` is the smallest score of the support and
  `low` its probability: `p = (exponent (scores - high) + low ** exponent) ** (1 / exponent)`.

`high` is NaN in a row without solution (NaN or +inf in it); a row of nothing but -inf has no support.
"""

import triton
import triton.language as tl

HALF = tl.constexpr(0)  # alpha 1.5
ONE = tl.constexpr(1)  # alpha 2
GENERAL = tl.constexpr(2)  # 1 <= alpha <= 2
STEEP = tl.constexpr(3)  # alpha > 2
MIXED = tl.constexpr(4)  # alpha of each row in a vector

TINY = tl.constexpr(1e-37)
# Below this distance from softmax the power is replaced by two terms of its series.
SERIES_BELOW = tl.constexpr(1e-5)
# From this distance on the offset is the threshold itself; below it is larger by 1 / exponent.
FAR_FROM = tl.constexpr(0.125)
# How far from one the mass may be before the last step, which squares it.
TOLERANCE = tl.constexpr(1e-6)
MAX_STEPS = tl.constexpr(40)


@triton.jit
def root(base, exponent):
    """`base ** (1 / exponent)`, 0 for base <= 0."""
    return tl.where(base > 0, tl.exp(tl.log(tl.maximum(base, TINY)) / exponent), 0.0)


@triton.jit
def expm1(x):
    """`exp(x) - 1` to the last digits near 0."""
    power = tl.exp(x)
    change = power - 1
    near = (change == 0) | (x < -1)
    return tl.where(near, tl.where(x < -1, change, x), change * (x / tl.where(near, 1.0, tl.log(power))))


@triton.jit
def gentle_probs(scores, maximum, high, low, exponent, KIND: tl.constexpr):
    """Probabilities, `base` and `x` of any shape for alpha <= 2."""
    x = (scores - maximum - high) - low
    if KIND == HALF:
        base = tl.maximum(0.5 * x, 0.0)
        return base * base, base, x
    elif KIND == ONE:
        base = tl.maximum(x, 0.0)
        return base, base, x
    else:
        far = exponent >= FAR_FROM
        scaled = exponent * x
        base = tl.where(far, scaled, 1 + scaled)
        log_base = tl.log(tl.maximum(base, TINY))
        # log(1 + scaled): what the sum lost is divided out.
        change = base - 1
        lost_all = change == 0
        near = tl.where(lost_all, scaled, log_base * (scaled / tl.where(lost_all, 1.0, change)))
        log_base = tl.where(far, log_base, near)
        log_prob = log_base / tl.maximum(exponent, SERIES_BELOW)
        log_prob = tl.where(exponent < SERIES_BELOW, x - 0.5 * exponent * x * x, log_prob)
        return tl.where(base > 0, tl.exp(log_prob), 0.0), tl.maximum(base, 0.0), x


@triton.jit
def steep_probs(scores, anchor, least, exponent):
    """Probabilities, `base` and `(base - 1) / exponent` before `base` is clipped, of any shape for alpha > 2."""
    inside = scores >= anchor
    base = exponent * (scores - anchor) + tl.exp(exponent * tl.log(tl.maximum(least, TINY)))
    x = (base - 1) / exponent
    base = tl.where(inside, base, 0.0)
    return tl.where(inside, tl.maximum(root(base, exponent), least), 0.0), base, x


@triton.jit
def far_shift(exponent):
    """The offset of softmax minus the one in use (GENERAL)."""
    return tl.where(exponent >= FAR_FROM, 1 / tl.maximum(exponent, FAR_FROM), 0.0)


@triton.jit
def probs_of(scores, maximum, high, low, exponent, KIND: tl.constexpr):
    """Probabilities, `base` and `(base - 1) / exponent` (unclipped for alpha <= 2) from a solution; broadcasts."""
    if KIND == STEEP:
        probs, base, x = steep_probs(scores, high, low, exponent)
    elif KIND == MIXED:
        # The power of a steep row may overflow in the gentle form and the other way round: keep each to its range.
        steep, steep_base, steep_x = steep_probs(scores, high, low, tl.maximum(exponent, 1.0))
        gentle, gentle_base, gentle_x = gentle_probs(scores, maximum, high, low, tl.minimum(exponent, 1.0), GENERAL)
        is_steep = exponent > 1
        probs = tl.where(is_steep, steep, gentle)
        base = tl.where(is_steep, steep_base, gentle_base)
        x = tl.where(is_steep, steep_x, gentle_x - far_shift(exponent))
    else:
        probs, base, x = gentle_probs(scores, maximum, high, low, exponent, KIND)
        if KIND == HALF:
            x = x - 2
        elif KIND == ONE:
            x = x - 1
        else:
            x = x - far_shift(exponent)
    return tl.where(high == high, probs, high), base, x


@triton.jit
def slope_of(probs, base, KIND: tl.constexpr):
    """`p ** (2 - alpha)` on the support: minus the derivative of the mass by the offset, up to a factor."""
    if KIND == HALF:
        return base
    elif KIND == ONE:
        return tl.where(base > 0, 1.0, 0.0)
    else:
        return tl.where(base > 0, probs / tl.maximum(base, TINY), 0.0)


@triton.jit
def newton_step(mass, slope, exponent, KIND: tl.constexpr):
    """Newton on `mass ** exponent`, which is convex in the offset: from below it never overshoots."""
    slope = tl.where(slope > 0, slope, 1.0)
    if KIND == HALF:
        return 2 * (mass - tl.sqrt(mass)) / slope
    elif KIND == ONE:
        return (mass - 1) / slope
    else:
        log_mass = tl.log(tl.maximum(mass, TINY))
        power = exponent * log_mass
        near_softmax = exponent < SERIES_BELOW
        safe = tl.maximum(exponent, SERIES_BELOW)
        change = tl.where(near_softmax, log_mass, expm1(power) / safe)
        return change * mass / (tl.exp(power) * slope)


@triton.jit
def lower_bound(mean, count, exponent, KIND: tl.constexpr):
    """A lower bound of the offset from `count` entries whose mean distance to the maximum is `mean` (Jensen).

    Nearly exact for flat rows. It holds for any subset of the row.
    """
    if KIND == HALF:
        return tl.maximum(mean - 2 / tl.sqrt(count), -2.0)
    elif KIND == ONE:
        return tl.maximum(mean - 1 / count, -1.0)
    else:
        near_softmax = exponent < SERIES_BELOW
        safe = tl.maximum(exponent, SERIES_BELOW)
        spread = tl.where(near_softmax, tl.log(count), -expm1(-exponent * tl.log(count)) / safe)
        return tl.maximum(mean + spread, 0.0) - far_shift(exponent)


@triton.jit
def add_exactly(high, low, change):
    """`high + low + change` as a new sum of two floats."""
    change = change + low
    total = high + change
    part = total - high
    return total, (high - (total - part)) + (change - part)


@triton.jit
def steep_slope(probs, base, least, exponent):
    """Derivative of each probability by the smallest one, `(least / p) ** (exponent - 1)`."""
    log_ratio = tl.log(least) - tl.log(tl.maximum(base, TINY)) / exponent
    return tl.where(base > 0, tl.exp(tl.minimum((exponent - 1) * log_ratio, 0.0)), 0.0)


@triton.jit
def _solve_gentle(scores, maximum, settled, exponent, KIND: tl.constexpr):
    distance = scores - maximum[:, None]
    near = distance >= -1 / tl.maximum(exponent, SERIES_BELOW)[:, None]
    count = tl.maximum(tl.sum(near.to(tl.float32), 1), 1.0)
    high = lower_bound(tl.sum(tl.where(near, distance, 0.0), 1) / count, count, exponent, KIND)
    low = tl.zeros_like(high)
    step, error = 0, 1.0
    while (error > TOLERANCE) & (step < MAX_STEPS):
        probs, base, x = gentle_probs(scores, maximum[:, None], high[:, None], low[:, None], exponent[:, None], KIND)
        mass, slope = tl.sum(probs, 1), tl.sum(slope_of(probs, base, KIND), 1)
        high, low = add_exactly(high, low, newton_step(mass, slope, exponent, KIND))
        error = tl.max(tl.where(settled, 0.0, tl.abs(mass - 1)), 0)
        step += 1
    return high, low


@triton.jit
def _solve_steep(scores, maximum, settled, exponent):
    """The support by bisection to neighbouring floats, then Newton on its smallest probability, convex, from above."""
    high, low = maximum, maximum - 1 / exponent
    middle = low + (high - low) * 0.5
    while tl.max(((middle > low) & (middle < high) & ~settled).to(tl.int32), 0) > 0:
        inside = tl.sum(root(exponent[:, None] * (scores - middle[:, None]), exponent[:, None]), 1) < 1
        high, low = tl.where(inside, middle, high), tl.where(inside, low, middle)
        middle = low + (high - low) * 0.5
    active = scores >= high[:, None]
    anchor = tl.min(tl.where(active, scores, float("inf")), 1)
    least = 1 / tl.maximum(tl.sum(active.to(tl.float32), 1), 1.0)
    step, error = 0, 1.0
    while (error > TOLERANCE) & (step < MAX_STEPS):
        probs, base, x = steep_probs(scores, anchor[:, None], least[:, None], exponent[:, None])
        mass, slope = tl.sum(probs, 1), tl.sum(steep_slope(probs, base, least[:, None], exponent[:, None]), 1)
        least = tl.maximum(least - (mass - 1) / tl.maximum(slope, 1.0), TINY)
        error = tl.max(tl.where(settled, 0.0, tl.abs(mass - 1)), 0)
        step += 1
    return anchor, least


@triton.jit
def solve_rows(scores, exponent, KIND: tl.constexpr):
    """`maximum`, `high` and `low` of every row of a tile."""
    maximum = tl.max(scores, 1)
    undefined = (tl.max((scores != scores).to(tl.int32), 1) > 0) | ~(maximum < float("inf"))
    empty = maximum == -float("inf")
    maximum = tl.where(empty, 0.0, maximum)
    settled = undefined | empty
    if KIND == STEEP:
        high, low = _solve_steep(scores, maximum, settled, exponent)
    elif KIND == MIXED:
        high, low = _solve_gentle(scores, maximum, settled | (exponent > 1), tl.minimum(exponent, 1.0), GENERAL)
        if tl.max(exponent, 0) > 1:
            gentle = ~(exponent > 1)
            anchor, least = _solve_steep(scores, maximum, settled | gentle, tl.maximum(exponent, 1.0))
            high, low = tl.where(gentle, high, anchor), tl.where(gentle, low, least)
    else:
        high, low = _solve_gentle(scores, maximum, settled, exponent, KIND)
    return maximum, tl.where(undefined, float("nan"), high), low
