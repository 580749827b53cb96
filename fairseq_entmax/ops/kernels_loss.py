"""Triton kernels of the Fenchel-Young loss of alpha-entmax, forward and backward.

The target distribution q is `gold` on the target plus `share` on every class of the smoothing mask. The loss is a sum
of Bregman divergences of q from p and of what targets outside the support fall short of the threshold: no term is
negative, so nothing cancels.
"""

import triton
import triton.language as tl

from .kernels_search import BLOCK, search_row, threshold_of
from .kernels_solve import HALF, ONE, TINY, expm1, probs_of, solve_rows

# Below this distance of p from 1 the divergence of a certain target is a series.
NEAR_ONE = tl.constexpr(0.05)


@triton.jit
def level_of(q, exponent, KIND: tl.constexpr):
    """What `divergence` needs of q: its root, or `(q ** exponent - 1) / exponent`."""
    if KIND == HALF:
        return tl.sqrt(q)
    elif KIND == ONE:
        return q
    else:
        return expm1(exponent * tl.log(tl.maximum(q, TINY))) / exponent


@triton.jit
def divergence(q, level, probs, base, x, exponent, KIND: tl.constexpr):
    """`phi(q) - phi(p) - phi'(p) (q - p)` with `phi(t) = t ** alpha / (alpha (alpha - 1))`; q may be 0."""
    if KIND == HALF:
        return (2 / 3) * (level - base) * (level - base) * (2 * level + base)
    elif KIND == ONE:
        return 0.5 * (q - probs) * (q - probs)
    else:
        change = q * (level - tl.maximum(x, -1 / exponent)) + base * (probs - q)
        return tl.maximum(tl.where(q > 0, change, base * probs), 0.0) / (1 + exponent)


@triton.jit
def target_divergence(q, probs, base, x, exponent, KIND: tl.constexpr):
    """The same at the target, where q is often 1 and p near it."""
    result = divergence(q, level_of(q, exponent, KIND), probs, base, x, exponent, KIND)
    if (KIND == HALF) | (KIND == ONE):
        return result
    else:
        rest, c = 1 - probs, exponent - 1
        series = 0.5 - c * rest * (1 / 3 - (c - 1) * rest * (1 / 8 - (c - 2) * rest / 30))
        near_one = (q + 0 * rest == 1) & (rest < NEAR_ONE)
        return tl.where(near_one, rest * rest * series, result)


@triton.jit
def shortfall(x, exponent):
    """How far below the threshold a score is."""
    return tl.maximum(-1 / exponent - x, 0.0)


@triton.jit(do_not_specialize=["rows"])
def loss_rows_kernel(
    logits_ptr, target_ptr, mask_ptr, loss_ptr, support_ptr, target_prob_ptr, correct_ptr, state_ptr, index_ptr,
    value_ptr, exponent, gold, share, ignore_index, rows, size, stride,
    KIND: tl.constexpr, SMOOTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """Rows in registers. `state` gets maximum, high and low of each row; CAPACITY > 0 also keeps the support listed."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    target = tl.load(target_ptr + row, mask=row < rows, other=ignore_index)
    kept = (row < rows) & (target != ignore_index)
    target = tl.where(kept, target, 0)
    inside = kept[:, None] & (column < size)[None, :]
    logits = tl.load(logits_ptr + row[:, None] * stride + column[None, :], mask=inside, other=-float("inf"))
    logits = logits.to(tl.float32)
    exponents = tl.full([ROWS], 0.0, tl.float32) + exponent
    maximum, high, low = solve_rows(logits, exponents, KIND)
    probs, base, x = probs_of(logits, maximum[:, None], high[:, None], low[:, None], exponent, KIND)
    other = inside & (column[None, :] != target[:, None])
    at_target = tl.load(logits_ptr + row * stride + target, mask=kept, other=0.0).to(tl.float32)
    target_prob, target_base, target_x = probs_of(at_target, maximum, high, low, exponent, KIND)
    gold_mass = gold
    if SMOOTH:
        chosen = tl.load(mask_ptr + column, mask=column < size, other=0) != 0
        gold_mass = gold + share * (tl.load(mask_ptr + target) != 0).to(tl.float32)
        q = tl.where(chosen, share, 0.0)
        level = tl.where(chosen, level_of(share + probs * 0, exponent, KIND), 0.0)
        terms = tl.where(other, divergence(q[None, :], level, probs, base, x, exponent, KIND), 0.0)
        terms += tl.where(inside & chosen[None, :], share * shortfall(x, exponent), 0.0)
    else:
        terms = tl.where(other, probs * base, 0.0) / (1 + exponent)
    loss = tl.sum(terms, 1) + gold * shortfall(target_x, exponent)
    loss += target_divergence(gold_mass, target_prob, target_base, target_x, exponent, KIND)
    loss = tl.where(high == high, loss, high)
    support = tl.sum((inside & (probs > 0)).to(tl.int32), 1)
    best = tl.min(tl.where(logits == maximum[:, None], column[None, :], COLUMNS), 1)
    written = row < rows
    tl.store(loss_ptr + row, tl.where(kept, loss, 0.0), mask=written)
    tl.store(support_ptr + row, support.to(tl.int64), mask=written)
    tl.store(target_prob_ptr + row, tl.where(kept, target_prob, 0.0), mask=written)
    tl.store(correct_ptr + row, (kept & (best == target)).to(tl.int8), mask=written)
    tl.store(state_ptr + row * 4, maximum, mask=written)
    tl.store(state_ptr + row * 4 + 1, high, mask=written)
    tl.store(state_ptr + row * 4 + 2, low, mask=written)
    if CAPACITY > 0:
        length = tl.where(high == high, support, CAPACITY + 1)
        tl.store(state_ptr + row * 4 + 3, length.to(tl.float32), mask=written)
        listed = inside & (probs > 0)
        place = tl.cumsum(listed.to(tl.int32), 1) - 1
        listed &= place < CAPACITY
        tl.store(index_ptr + row[:, None] * CAPACITY + place, column[None, :] + place * 0, mask=listed)
        tl.store(value_ptr + row[:, None] * CAPACITY + place, probs, mask=listed)


@triton.jit
def loss_long_kernel(
    logits_ptr, target_ptr, mask_ptr, loss_ptr, support_ptr, target_prob_ptr, correct_ptr, state_ptr, index_ptr,
    value_ptr, maxima_ptr, exponent, gold, share, mask_size, ignore_index, size, blocks, stride,
    KIND: tl.constexpr, SMOOTH: tl.constexpr, BLOCKS: tl.constexpr, CAPACITY: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One long row a program; an ignored row is not read. `state` as in `loss_rows_kernel`, with the support listed."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(target_ptr + row)
    state_ptr += row * 4
    loss, target_prob, support, correct = 0.0, 0.0, 0, 0
    maximum, high, low, length = 0.0, 0.0, 0.0, 0
    if target != ignore_index:
        row_ptr = logits_ptr + row * stride
        index_ptr += row * CAPACITY
        value_ptr += row * CAPACITY
        maximum, high, low, length, best_block, masked = search_row(
            row_ptr, mask_ptr, maxima_ptr + row * blocks, index_ptr, value_ptr, size, blocks, exponent,
            KIND, SMOOTH, BLOCKS, CAPACITY, WIDE,
        )  # fmt: skip
        column = best_block * BLOCK + tl.arange(0, BLOCK)
        scores = tl.load(row_ptr + column, mask=column < size, other=-float("inf")).to(tl.float32)
        correct = (tl.min(tl.where(scores == maximum, column, size)) == target).to(tl.int32)
        at_target = tl.load(row_ptr + target).to(tl.float32)
        target_prob, target_base, target_x = probs_of(at_target, maximum, high, low, exponent, KIND)
        gold_mass, target_chosen = gold, 0.0
        if SMOOTH:
            target_chosen = (tl.load(mask_ptr + target) != 0).to(tl.float32)
            gold_mass = gold + share * target_chosen
        loss = gold * shortfall(target_x, exponent)
        loss += target_divergence(gold_mass, target_prob, target_base, target_x, exponent, KIND)
        if length > CAPACITY:
            rest, support = _wide_loss(
                row_ptr, mask_ptr, target, size, maximum, high, low, exponent, share, KIND, SMOOTH, WIDE
            )
        else:
            threshold = threshold_of(maximum, high, low, exponent, KIND)
            below = mask_size * threshold - (masked - mask_size * maximum)
            rest, support = _listed_loss(
                index_ptr, value_ptr, mask_ptr, target, length, maximum, high, low, exponent, share,
                mask_size - target_chosen, below, KIND, SMOOTH, CAPACITY,
            )  # fmt: skip
        loss = tl.where(high == high, loss + rest, high)
    tl.store(loss_ptr + row, loss)
    tl.store(support_ptr + row, support)
    tl.store(target_prob_ptr + row, target_prob)
    tl.store(correct_ptr + row, correct)
    tl.store(state_ptr, maximum)
    tl.store(state_ptr + 1, high)
    tl.store(state_ptr + 2, low)
    tl.store(state_ptr + 3, length)


@triton.jit
def _listed_loss(index_ptr, value_ptr, mask_ptr, target, length, maximum, high, low, exponent, share, others, below,
                 KIND: tl.constexpr, SMOOTH: tl.constexpr, CAPACITY: tl.constexpr):  # fmt: skip
    """Loss but for the target, and support size; writes the probabilities over the scores of the list.

    `others` is the number of smoothed classes but for the target, `below` the sum over the smoothed classes of their
    signed distance below the threshold.
    """
    slot = tl.arange(0, CAPACITY)
    listed = slot < length
    column = tl.load(index_ptr + slot, mask=listed, other=0)
    scores = tl.load(value_ptr + slot, mask=listed, other=-float("inf"))
    probs, base, x = probs_of(scores, maximum, high, low, exponent, KIND)
    tl.store(value_ptr + slot, probs, mask=listed)
    other = listed & (column != target)
    support = tl.sum((listed & (probs > 0)).to(tl.int32))
    if SMOOTH:
        chosen = listed & (tl.load(mask_ptr + column, mask=listed, other=0) != 0)
        q, none = tl.where(chosen, share, 0.0), 0.0 * share
        level = tl.where(chosen, level_of(share, exponent, KIND), 0.0)
        terms = tl.where(other, divergence(q, level, probs, base, x, exponent, KIND), 0.0)
        terms += tl.where(chosen, share * shortfall(x, exponent), 0.0)
        unlisted = others - tl.sum((chosen & other).to(tl.float32))
        outside = divergence(share, level_of(share, exponent, KIND), none, none, none - 1 / exponent, exponent, KIND)
        below -= tl.sum(tl.where(chosen, -1 / exponent - x, 0.0))
        return tl.sum(terms) + unlisted * outside + share * tl.maximum(below, 0.0), support
    else:
        return tl.sum(tl.where(other, probs * base, 0.0)) / (1 + exponent), support


@triton.jit
def _wide_loss(row_ptr, mask_ptr, target, size, maximum, high, low, exponent, share,
               KIND: tl.constexpr, SMOOTH: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    lane = tl.arange(0, WIDE)
    terms = tl.zeros([WIDE], tl.float32)
    support = tl.zeros([WIDE], tl.int32)
    for first in range(0, size, WIDE):
        column = first + lane
        inside = column < size
        scores = tl.load(row_ptr + column, mask=inside, other=-float("inf")).to(tl.float32)
        probs, base, x = probs_of(scores, maximum, high, low, exponent, KIND)
        other = inside & (column != target)
        support += (inside & (probs > 0)).to(tl.int32)
        if SMOOTH:
            chosen = inside & (tl.load(mask_ptr + column, mask=inside, other=0) != 0)
            q = tl.where(chosen, share, 0.0)
            level = tl.where(chosen, level_of(share, exponent, KIND), 0.0)
            terms += tl.where(other, divergence(q, level, probs, base, x, exponent, KIND), 0.0)
            terms += tl.where(chosen, share * shortfall(x, exponent), 0.0)
        else:
            terms += tl.where(other, probs * base, 0.0) / (1 + exponent)
    return tl.sum(terms), tl.sum(support)


@triton.jit(do_not_specialize=["rows"])
def loss_rows_backward_kernel(
    logits_ptr, target_ptr, mask_ptr, state_ptr, grad_ptr, result_ptr, exponent, gold, share, ignore_index, rows, size,
    stride, grad_stride, result_stride,
    KIND: tl.constexpr, SMOOTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Short rows: the logits are read again."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    target = tl.load(target_ptr + row, mask=row < rows, other=ignore_index)
    kept = (row < rows) & (target != ignore_index)
    written = (row < rows)[:, None] & (column < size)[None, :]
    logits = tl.load(
        logits_ptr + row[:, None] * stride + column[None, :], mask=written & kept[:, None], other=-float("inf")
    )
    maximum = tl.load(state_ptr + row * 4, mask=kept, other=0.0)
    high = tl.load(state_ptr + row * 4 + 1, mask=kept, other=0.0)
    low = tl.load(state_ptr + row * 4 + 2, mask=kept, other=1.0)
    grad = tl.load(grad_ptr + row * grad_stride, mask=kept, other=0.0)
    logits = logits.to(tl.float32)
    probs, base, x = probs_of(logits, maximum[:, None], high[:, None], low[:, None], exponent, KIND)
    result = probs - tl.where(column[None, :] == target[:, None], gold, 0.0)
    if SMOOTH:
        chosen = tl.load(mask_ptr + column, mask=column < size, other=0) != 0
        result -= tl.where(chosen, share, 0.0)[None, :]
    result = tl.where(kept[:, None], result * grad[:, None], 0.0)
    tl.store(result_ptr + row[:, None] * result_stride + column[None, :], result, mask=written)


@triton.jit
def loss_long_backward_kernel(
    logits_ptr, target_ptr, mask_ptr, state_ptr, index_ptr, value_ptr, target_prob_ptr, grad_ptr, result_ptr, exponent,
    gold, share, ignore_index, size, stride, grad_stride, result_stride,
    KIND: tl.constexpr, SMOOTH: tl.constexpr, CAPACITY: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Zeros (smoothing: a multiple of the mask) and a scatter of the listed support; only a wide row is read again."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(target_ptr + row)
    kept = target != ignore_index
    target = tl.where(kept, target, 0)
    row_ptr = logits_ptr + row * stride
    result_ptr += row * result_stride
    grad = tl.load(grad_ptr + row * grad_stride, mask=kept, other=0.0)
    length = tl.where(kept, tl.load(state_ptr + row * 4 + 3), 0.0).to(tl.int32)
    maximum = tl.load(state_ptr + row * 4)
    high = tl.load(state_ptr + row * 4 + 1)
    low = tl.load(state_ptr + row * 4 + 2)
    lane = tl.arange(0, WIDE)
    wide = length > CAPACITY
    for first in range(0, size, WIDE):
        column = first + lane
        inside = column < size
        result = tl.zeros([WIDE], tl.float32)
        if wide:
            logits = tl.load(row_ptr + column, mask=inside, other=-float("inf")).to(tl.float32)
            probs, base, x = probs_of(logits, maximum, high, low, exponent, KIND)
            result = (probs - tl.where(column == target, gold, 0.0)) * grad
        if SMOOTH:
            chosen = tl.load(mask_ptr + column, mask=inside, other=0) != 0
            result -= tl.where(chosen & kept, share * grad, 0.0)
        tl.store(result_ptr + column, result, mask=inside)
    if kept & ~wide:
        # The scatter must come after the fill of all threads.
        tl.debug_barrier()
        slot = tl.arange(0, CAPACITY)
        listed = slot < length
        column = tl.load(index_ptr + row * CAPACITY + slot, mask=listed, other=0)
        result = tl.load(value_ptr + row * CAPACITY + slot, mask=listed, other=0.0)
        at_target = tl.load(target_prob_ptr + row) - gold
        if SMOOTH:
            result -= tl.where(tl.load(mask_ptr + column, mask=listed, other=0) != 0, share, 0.0)
            at_target -= share * (tl.load(mask_ptr + target) != 0).to(tl.float32)
        tl.store(result_ptr + column, result * grad, mask=listed & (column != target))
        tl.store(result_ptr + target, at_target * grad)
