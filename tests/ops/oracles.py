"""Slow solvers that share nothing with the package: bisection in float64 and with many digits."""

import mpmath
import torch


def entmax_oracle(scores, alpha):
    """Probabilities `(rows, size)` in float64 of the exact values of `scores`, by 200 bisections of the threshold."""
    exponent = alpha - 1
    scaled = scores.double()
    scaled = (scaled - scaled.amax(-1, keepdim=True)) * exponent
    low, high = torch.full_like(scaled[:, :1], -1), torch.zeros_like(scaled[:, :1])
    for _ in range(200):
        middle = (low + high) / 2
        above = (scaled - middle).clamp(min=0).pow(1 / exponent).sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (scaled - low).clamp(min=0).pow(1 / exponent)


def entmax_mpmath(row, alpha, digits=60):
    """The same for one list of numbers, with `digits` digits: right for any alpha > 1."""
    with mpmath.workdps(digits):
        exponent = mpmath.mpf(alpha) - 1
        scaled = [mpmath.mpf(x) * exponent for x in row]
        top = max(scaled)
        scaled = [x - top for x in scaled]
        low, high = mpmath.mpf(-1), mpmath.mpf(0)
        for _ in range(int(digits * 3.4)):
            middle = (low + high) / 2
            above = sum((x - middle) ** (1 / exponent) for x in scaled if x > middle) >= 1
            low, high = (middle, high) if above else (low, middle)
        return [float((x - low) ** (1 / exponent)) if x > low else 0.0 for x in scaled]


def fenchel_young_mpmath(row, target, alpha, digits=60):
    """`<p - q, z> + H(p) - H(q)` for the target distribution `target`, with `digits` digits."""
    probs = entmax_mpmath(row, alpha, digits)
    with mpmath.workdps(digits):
        a = mpmath.mpf(alpha)

        def entropy(p):
            return sum(mpmath.mpf(x) - mpmath.mpf(x) ** a for x in p) / (a * (a - 1))

        linear = sum((mpmath.mpf(p) - mpmath.mpf(q)) * mpmath.mpf(z) for p, q, z in zip(probs, target, row))
        return float(linear + entropy(probs) - entropy(target))
