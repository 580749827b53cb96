"""Triton kernels of alpha-entmax for long rows, forward and backward. One program a row."""

import triton
import triton.language as tl

from .kernels_mapping import alpha_derivative, jacobian_scale, jacobian_weight, load_exponents
from .kernels_search import search_row
from .kernels_solve import GENERAL, MIXED, STEEP, probs_of


@triton.jit
def entmax_long_kernel(
    scores_ptr, probs_ptr, alphas_ptr, lengths_ptr, index_ptr, value_ptr, maxima_ptr, exponent, size, blocks, stride,
    KIND: tl.constexpr, BLOCKS: tl.constexpr, CAPACITY: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """`probs` arrives as zeros; only the support, or all of a wide row, is written. Keeps the support in a list."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = scores_ptr + row * stride
    maxima_ptr += row * blocks
    index_ptr += row * CAPACITY
    value_ptr += row * CAPACITY
    probs_ptr += row * size
    exponent = load_exponents(exponent, alphas_ptr, row, row + 1, KIND)
    if KIND == MIXED:
        if exponent > 1:
            maximum, high, low, length, best, masked = search_row(
                row_ptr, row_ptr, maxima_ptr, index_ptr, value_ptr, size, blocks, exponent,
                STEEP, False, BLOCKS, CAPACITY, WIDE,
            )  # fmt: skip
        else:
            maximum, high, low, length, best, masked = search_row(
                row_ptr, row_ptr, maxima_ptr, index_ptr, value_ptr, size, blocks, exponent,
                GENERAL, False, BLOCKS, CAPACITY, WIDE,
            )  # fmt: skip
    else:
        maximum, high, low, length, best, masked = search_row(
            row_ptr, row_ptr, maxima_ptr, index_ptr, value_ptr, size, blocks, exponent,
            KIND, False, BLOCKS, CAPACITY, WIDE,
        )  # fmt: skip
    tl.store(lengths_ptr + row, length)
    if length > CAPACITY:
        lane = tl.arange(0, WIDE)
        for first in range(0, size, WIDE):
            inside = first + lane < size
            scores = tl.load(row_ptr + first + lane, mask=inside, other=-float("inf")).to(tl.float32)
            probs, base, x = probs_of(scores, maximum, high, low, exponent, KIND)
            tl.store(probs_ptr + first + lane, probs, mask=inside)
    else:
        slot = tl.arange(0, CAPACITY)
        listed = slot < length
        scores = tl.load(value_ptr + slot, mask=listed, other=-float("inf"))
        probs, base, x = probs_of(scores, maximum, high, low, exponent, KIND)
        tl.store(probs_ptr + tl.load(index_ptr + slot, mask=listed, other=0), probs, mask=listed)
        tl.store(value_ptr + slot, probs, mask=listed)


@triton.jit
def _listed_backward(index_ptr, value_ptr, grad_ptr, result_ptr, length, exponent,
                     KIND: tl.constexpr, TO_ALPHA: tl.constexpr, CAPACITY: tl.constexpr):  # fmt: skip
    slot = tl.arange(0, CAPACITY)
    probs = tl.load(value_ptr + slot, mask=slot < length, other=0.0)
    column = tl.load(index_ptr + slot, mask=slot < length, other=0)
    grad = tl.load(grad_ptr + column, mask=probs > 0, other=0.0).to(tl.float32)
    least = 1.0
    if (KIND == STEEP) | (KIND == MIXED):
        least = tl.minimum(tl.min(tl.where(probs > 0, probs, float("inf"))), 1.0)
        # A constant added to the gradient changes nothing. Relative to the entry of largest weight nothing cancels.
        is_least = probs == least
        ties = tl.maximum(tl.sum(is_least.to(tl.float32)), 1.0)
        grad = grad - tl.sum(tl.where(is_least, grad, 0.0)) / ties
        least = tl.where(exponent > 1, least, 1.0)
    weight = jacobian_weight(probs, least, exponent, KIND)
    total = tl.sum(weight)
    change = grad - tl.sum(weight * grad) / tl.where(total > 0, total, 1.0)
    result = weight * change
    if (KIND == STEEP) | (KIND == MIXED):
        result = tl.minimum(tl.maximum(result * jacobian_scale(least, exponent), -3e38), 3e38)
    tl.store(result_ptr + column, result, mask=probs > 0)
    if TO_ALPHA:
        return tl.sum(change * alpha_derivative(probs, exponent))
    else:
        return 0.0


@triton.jit
def _wide_backward(probs_ptr, grad_ptr, result_ptr, size, exponent,
                   KIND: tl.constexpr, TO_ALPHA: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    lane = tl.arange(0, WIDE)
    least, centre = 1.0, 0.0
    if (KIND == STEEP) | (KIND == MIXED):
        smallest = tl.full([WIDE], 1.0, tl.float32)
        for first in range(0, size, WIDE):
            probs = tl.load(probs_ptr + first + lane, mask=first + lane < size, other=0.0).to(tl.float32)
            smallest = tl.minimum(smallest, tl.where(probs > 0, probs, 1.0))
        least = tl.min(smallest)
        ties = tl.zeros([WIDE], tl.float32)
        sums = tl.zeros([WIDE], tl.float32)
        for first in range(0, size, WIDE):
            probs = tl.load(probs_ptr + first + lane, mask=first + lane < size, other=0.0).to(tl.float32)
            grad = tl.load(grad_ptr + first + lane, mask=probs == least, other=0.0).to(tl.float32)
            ties += (probs == least).to(tl.float32)
            sums += grad
        centre = tl.sum(sums) / tl.maximum(tl.sum(ties), 1.0)
        least = tl.where(exponent > 1, least, 1.0)
    weights = tl.zeros([WIDE], tl.float32)
    sums = tl.zeros([WIDE], tl.float32)
    for first in range(0, size, WIDE):
        probs = tl.load(probs_ptr + first + lane, mask=first + lane < size, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + first + lane, mask=probs > 0, other=0.0).to(tl.float32) - centre
        weight = jacobian_weight(probs, least, exponent, KIND)
        weights += weight
        sums += weight * grad
    total = tl.sum(weights)
    mean = centre + tl.sum(sums) / tl.where(total > 0, total, 1.0)
    to_alpha = tl.zeros([WIDE], tl.float32)
    for first in range(0, size, WIDE):
        inside = first + lane < size
        probs = tl.load(probs_ptr + first + lane, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + first + lane, mask=probs > 0, other=0.0).to(tl.float32)
        change = tl.where(probs > 0, grad - mean, 0.0)
        result = jacobian_weight(probs, least, exponent, KIND) * change
        if (KIND == STEEP) | (KIND == MIXED):
            result = tl.minimum(tl.maximum(result * jacobian_scale(least, exponent), -3e38), 3e38)
        tl.store(result_ptr + first + lane, tl.where(probs != probs, probs, result), mask=inside)
        if TO_ALPHA:
            share = change * alpha_derivative(probs, exponent)
            to_alpha += tl.where(probs != probs, probs, share)
    return tl.sum(to_alpha)


@triton.jit
def entmax_long_backward_kernel(
    probs_ptr, lengths_ptr, index_ptr, value_ptr, grad_ptr, result_ptr, alphas_ptr, alpha_grad_ptr, exponent, size,
    grad_stride,
    KIND: tl.constexpr, TO_ALPHA: tl.constexpr, CAPACITY: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """`result` arrives as zeros. Reads the gradient at the listed support only, or all of a wide row."""
    row = tl.program_id(0).to(tl.int64)
    exponent = load_exponents(exponent, alphas_ptr, row, row + 1, KIND)
    length = tl.load(lengths_ptr + row)
    grad_ptr += row * grad_stride
    result_ptr += row * size
    if length > CAPACITY:
        to_alpha = _wide_backward(probs_ptr + row * size, grad_ptr, result_ptr, size, exponent, KIND, TO_ALPHA, WIDE)
    else:
        place = row * CAPACITY
        to_alpha = _listed_backward(
            index_ptr + place, value_ptr + place, grad_ptr, result_ptr, length, exponent, KIND, TO_ALPHA, CAPACITY
        )
    if TO_ALPHA:
        tl.store(alpha_grad_ptr + row, to_alpha)
