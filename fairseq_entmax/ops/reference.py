"""Thresholds and probabilities of alpha-entmax for rows of scores, by bisection."""

import torch


def entmax_rows(scores, alpha):
    """Probabilities `(rows, size)` of the floating point `scores` `(rows, size)` for one number `alpha` >= 1."""
    maximum = scores.amax(-1, keepdim=True)
    masked = maximum == -float("inf")
    shifted = scores - torch.where(masked, torch.zeros_like(maximum), maximum)
    if alpha == 1:
        return torch.softmax(shifted, -1).masked_fill(masked, 0)
    scaled = (shifted * (alpha - 1)).double()
    low, high = torch.full_like(maximum, -1, dtype=torch.float64), torch.zeros_like(maximum, dtype=torch.float64)
    for _ in range(60):
        middle = (low + high) / 2
        above = (scaled - middle).clamp(min=0).pow(1 / (alpha - 1)).sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    probs = (scaled - low).clamp(min=0).pow(1 / (alpha - 1))
    return probs.to(scores.dtype).masked_fill(masked, 0)
