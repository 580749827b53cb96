"""Triton kernels of alpha-entmax for rows that fit in registers, forward and backward."""

import triton
import triton.language as tl

from .kernels_solve import HALF, MIXED, ONE, STEEP, TINY, probs_of, solve_rows


@triton.jit
def load_exponents(exponent, alphas_ptr, row, rows, KIND: tl.constexpr):
    """alpha - 1 of each row: one number, or (MIXED) a vector in memory."""
    if KIND == MIXED:
        return tl.load(alphas_ptr + row, mask=row < rows, other=2.0).to(tl.float32) - 1
    else:
        return tl.zeros_like(row).to(tl.float32) + exponent


@triton.jit(do_not_specialize=["rows"])
def entmax_rows_kernel(
    scores_ptr, probs_ptr, alphas_ptr, exponent, rows, size, stride,
    KIND: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < size)[None, :]
    scores = tl.load(scores_ptr + row[:, None] * stride + column[None, :], mask=inside, other=-float("inf"))
    scores = scores.to(tl.float32)
    exponents = load_exponents(exponent, alphas_ptr, row, rows, KIND)
    maximum, high, low = solve_rows(scores, exponents, KIND)
    probs, base, x = probs_of(scores, maximum[:, None], high[:, None], low[:, None], exponents[:, None], KIND)
    tl.store(probs_ptr + row[:, None] * size + column[None, :], probs, mask=inside)


@triton.jit
def jacobian_weight(probs, least, exponent, KIND: tl.constexpr):
    """`p ** (2 - alpha)` on the support; for alpha > 2 relative to its largest value, `least ** (2 - alpha)`."""
    if KIND == HALF:
        return tl.sqrt(probs)
    elif KIND == ONE:
        return tl.where(probs > 0, 1.0, 0.0)
    else:
        return tl.where(probs > 0, tl.exp((1 - exponent) * tl.log(tl.maximum(probs, TINY) / least)), 0.0)


@triton.jit
def jacobian_scale(least, exponent):
    """What `jacobian_weight` leaves out for alpha > 2, kept finite."""
    return tl.minimum(tl.exp(tl.minimum((1 - exponent) * tl.log(least), 88.0)), 3e38)


@triton.jit
def alpha_derivative(probs, exponent):
    """`a` of the derivative by alpha, `dp = a - v / sum(v) * sum(a)`, in a form that holds down to softmax."""
    log_prob = tl.log(tl.maximum(probs, TINY))
    x = -exponent * log_prob
    series = 0.5 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720 + x * (1 / 5040)))))
    ratio = (tl.exp(tl.minimum(log_prob + x, 88.0)) - probs - probs * x) / tl.where(x < 0.5, 1.0, x * x)
    return tl.where(probs > 0, -log_prob * log_prob * tl.where(x < 0.5, probs * series, ratio), 0.0)


@triton.jit(do_not_specialize=["rows"])
def entmax_rows_backward_kernel(
    probs_ptr, grad_ptr, result_ptr, alphas_ptr, alpha_grad_ptr, exponent, rows, size, grad_stride,
    KIND: tl.constexpr, TO_ALPHA: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < size)[None, :]
    place = row[:, None] * size + column[None, :]
    probs = tl.load(probs_ptr + place, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + row[:, None] * grad_stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
    grad = tl.where(probs > 0, grad, 0.0)
    exponents = load_exponents(exponent, alphas_ptr, row, rows, KIND)
    least = tl.full([ROWS], 1.0, tl.float32)
    if (KIND == STEEP) | (KIND == MIXED):
        least = tl.minimum(tl.min(tl.where(probs > 0, probs, float("inf")), 1), 1.0)
        # A constant added to the gradient changes nothing. Relative to the entry of largest weight nothing cancels.
        is_least = probs == least[:, None]
        ties = tl.maximum(tl.sum(is_least.to(tl.float32), 1), 1.0)
        grad = tl.where(probs > 0, grad - (tl.sum(tl.where(is_least, grad, 0.0), 1) / ties)[:, None], 0.0)
        least = tl.where(exponents > 1, least, 1.0)
    weight = jacobian_weight(probs, least[:, None], exponents[:, None], KIND)
    total = tl.sum(weight, 1)
    mean = tl.sum(weight * grad, 1) / tl.where(total > 0, total, 1.0)
    change = tl.where(probs > 0, grad - mean[:, None], 0.0)
    result = weight * change
    if (KIND == STEEP) | (KIND == MIXED):
        result = tl.minimum(tl.maximum(result * jacobian_scale(least, exponents)[:, None], -3e38), 3e38)
    undefined = probs != probs
    tl.store(result_ptr + place, tl.where(undefined, probs, result), mask=inside)
    if TO_ALPHA:
        share = tl.where(undefined, probs, change * alpha_derivative(probs, exponents[:, None]))
        tl.store(alpha_grad_ptr + row, tl.sum(share, 1), mask=row < rows)
