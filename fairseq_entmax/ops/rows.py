"""Checks of arguments shared by the ops, and tensors of any shape as contiguous rows and back."""

import math


def check_alpha(alpha):
    """The number `alpha` as a float, refused by name unless it is finite and at least 1."""
    try:
        value = float(alpha)
    except (TypeError, ValueError):
        raise ValueError(f"alpha must be a number >= 1, got {alpha!r}") from None
    if not 1 <= value < math.inf:
        raise ValueError(f"alpha must be a finite number >= 1, got {alpha}")
    return value


def check_scores(scores, dim, name="scores"):
    """Refuse integer and empty `scores` by name."""
    if not scores.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {scores.dtype}")
    if scores.dim() == 0 or scores.shape[dim] == 0:
        raise ValueError(f"{name} must have entries along dim {dim}, got shape {tuple(scores.shape)}")


# Numbers that an accelerator works on at once: few launches, and temporary tensors that still fit.
ON_ACCELERATOR = 1 << 25


def rows_at_once(rows, on_cpu):
    """How many of `rows` `(rows, size)` to solve together; `on_cpu` numbers stay in the cache of a CPU."""
    entries = on_cpu if rows.device.type == "cpu" else max(on_cpu, ON_ACCELERATOR)
    return max(1, entries // rows.shape[-1])


def as_rows(scores, dim):
    """`scores` as contiguous `(rows, size)` with `dim` last, and the shape that `from_rows` needs."""
    moved = scores if dim in (-1, scores.dim() - 1) else scores.movedim(dim, -1)
    return moved.reshape(-1, moved.shape[-1]).contiguous(), moved.shape


def from_rows(rows, shape, dim):
    whole = rows.view(shape)
    return whole if dim in (-1, len(shape) - 1) else whole.movedim(-1, dim)
