"""Slow solvers that share nothing with the package: bisection in float64 and with many digits."""

from decimal import Decimal, localcontext

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


def entmax_digits(row, alpha, digits=50):
    """The same for one list of numbers, with `digits` digits: right for any alpha > 1. Returns decimals."""
    with localcontext() as context:
        context.prec = digits
        exponent = Decimal(alpha) - 1
        scaled = [Decimal(x) * exponent for x in row]
        top = max(scaled)
        scaled = [x - top for x in scaled]
        low, high = Decimal(-1), Decimal(0)
        for _ in range(int(digits * 3.4)):
            middle = (low + high) / 2
            above = sum((x - middle) ** (1 / exponent) for x in scaled if x > middle) >= 1
            low, high = (middle, high) if above else (low, middle)
        return [(x - low) ** (1 / exponent) if x > low else Decimal(0) for x in scaled]


def fenchel_young_digits(row, target, alpha, digits=50):
    """`<p - q, z> + H(p) - H(q)` for the target distribution `target`, with `digits` digits, as a float."""
    probs = entmax_digits(row, alpha, digits)
    with localcontext() as context:
        context.prec = digits
        a = Decimal(alpha)

        def entropy(p):
            return sum(x - x**a for x in map(Decimal, p) if x) / (a * (a - 1))

        linear = sum((p - Decimal(q)) * Decimal(z) for p, q, z in zip(probs, target, row))
        return float(linear + entropy(probs) - entropy(target))
