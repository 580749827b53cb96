"""Device functions that solve one long row, which does not fit in registers.

The row is read once for the maximum of each block of 128 scores. The threshold of these maxima, a subset of the row,
is a lower bound of the threshold, so only blocks whose maximum passes it can hold probability: those few are read
again (from cache), their scores above the bound are packed into a list, and the list is solved in registers. A row
whose list would be too long, near uniform, is solved by passes over the whole row.
"""

import triton
import triton.language as tl

from .kernels_solve import (
    GENERAL,
    MAX_STEPS,
    SERIES_BELOW,
    STEEP,
    TINY,
    TOLERANCE,
    add_exactly,
    far_shift,
    gentle_probs,
    lower_bound,
    newton_step,
    root,
    slope_of,
    solve_rows,
    steep_probs,
    steep_slope,
)

BLOCK = tl.constexpr(128)
# Blocks read at a time in the first pass, and of those that are read again.
FIRST = tl.constexpr(32)
AGAIN = tl.constexpr(8)
# Rounding of the bound, in units of the threshold.
MARGIN = tl.constexpr(4e-6)


@triton.jit
def threshold_of(maximum, high, low, exponent, KIND: tl.constexpr):
    """Where the support ends, relative to the maximum."""
    if KIND == STEEP:
        return high - maximum - tl.exp(exponent * tl.log(low)) / exponent
    elif KIND == GENERAL:
        return high + low + far_shift(exponent) - 1 / tl.maximum(exponent, SERIES_BELOW)
    else:
        return high + low


@triton.jit
def read_maxima(row_ptr, mask_ptr, maxima_ptr, size, blocks, SUM_MASK: tl.constexpr):
    """Write the maximum of each block, +inf if it has a NaN; return the sum of the scores of the smoothing mask."""
    rows, lane = tl.arange(0, FIRST), tl.arange(0, BLOCK)
    masked = tl.zeros([FIRST], tl.float32)
    for first in range(0, blocks, FIRST):
        column = (first + rows)[:, None] * BLOCK + lane[None, :]
        inside = column < size
        scores = tl.load(row_ptr + column, mask=inside, other=-float("inf")).to(tl.float32)
        defined = tl.where(scores == scores, scores, float("inf"))
        tl.store(maxima_ptr + first + rows, tl.max(defined, 1), mask=first + rows < blocks)
        if SUM_MASK:
            chosen = tl.load(mask_ptr + column, mask=inside, other=0) != 0
            masked += tl.sum(tl.where(chosen, scores, 0.0), 1)
    return tl.sum(masked)


@triton.jit
def pack_candidates(row_ptr, maxima_ptr, index_ptr, value_ptr, size, blocks, limit, CAPACITY: tl.constexpr):
    """List the scores at or above `limit`; return their number, more than CAPACITY if the list is not complete."""
    lane = tl.arange(0, AGAIN * BLOCK)
    # The maxima are in registers of the caller by now: their place takes the numbers of the blocks to read again.
    count, first = 0, 0
    while (first < blocks) & (count <= CAPACITY):
        slot = first + lane // BLOCK
        block = tl.load(maxima_ptr + slot, mask=slot < blocks, other=0.0).to(tl.int32)
        column = block * BLOCK + lane % BLOCK
        inside = (slot < blocks) & (column < size)
        scores = tl.load(row_ptr + column, mask=inside, other=-float("inf")).to(tl.float32)
        chosen = inside & (scores >= limit)
        place = count + tl.cumsum(chosen.to(tl.int32), 0) - 1
        fits = chosen & (place < CAPACITY)
        tl.store(index_ptr + place, column, mask=fits)
        tl.store(value_ptr + place, scores, mask=fits)
        count += tl.sum(chosen.to(tl.int32))
        first += AGAIN
    return count


@triton.jit
def solve_whole_row(row_ptr, size, maximum, high, low, exponent, KIND: tl.constexpr, WIDE: tl.constexpr):
    """`high` and `low` by passes over the row, from a solution of a subset, which is a lower bound."""
    lane = tl.arange(0, WIDE)
    if KIND == STEEP:
        below, above = maximum + threshold_of(maximum, high, low, exponent, KIND), maximum
        below = tl.maximum(below - tl.abs(below) * 1e-6, maximum - 1 / exponent)
        middle = below + (above - below) * 0.5
        while (middle > below) & (middle < above):
            sums = tl.zeros([WIDE], tl.float32)
            for first in range(0, size, WIDE):
                scores = tl.load(row_ptr + first + lane, mask=first + lane < size, other=-float("inf")).to(tl.float32)
                sums += root(exponent * (scores - middle), exponent)
            if tl.sum(sums) < 1:
                above = middle
            else:
                below = middle
            middle = below + (above - below) * 0.5
        least_score = tl.full([WIDE], float("inf"), tl.float32)
        sums = tl.zeros([WIDE], tl.float32)
        for first in range(0, size, WIDE):
            scores = tl.load(row_ptr + first + lane, mask=first + lane < size, other=-float("inf")).to(tl.float32)
            sums += (scores >= above).to(tl.float32)
            least_score = tl.minimum(least_score, tl.where(scores >= above, scores, float("inf")))
        high, low = tl.min(least_score), 1 / tl.sum(sums)
    else:
        counts = tl.zeros([WIDE], tl.float32)
        sums = tl.zeros([WIDE], tl.float32)
        for first in range(0, size, WIDE):
            scores = tl.load(row_ptr + first + lane, mask=first + lane < size, other=-float("inf")).to(tl.float32)
            near = scores - maximum >= -1 / tl.maximum(exponent, SERIES_BELOW)
            counts += near.to(tl.float32)
            sums += tl.where(near, scores - maximum, 0.0)
        count = tl.sum(counts)
        bound = lower_bound(tl.sum(sums) / count, count, exponent, KIND)
        better = bound > high
        high, low = tl.where(better, bound, high), tl.where(better, 0.0, low)
    step, error = 0, 1.0
    while (error > TOLERANCE) & (step < MAX_STEPS):
        masses = tl.zeros([WIDE], tl.float32)
        slopes = tl.zeros([WIDE], tl.float32)
        for first in range(0, size, WIDE):
            scores = tl.load(row_ptr + first + lane, mask=first + lane < size, other=-float("inf")).to(tl.float32)
            if KIND == STEEP:
                probs, base, x = steep_probs(scores, high, low, exponent)
                slopes += steep_slope(probs, base, low, exponent)
            else:
                probs, base, x = gentle_probs(scores, maximum, high, low, exponent, KIND)
                slopes += slope_of(probs, base, KIND)
            masses += probs
        mass, slope = tl.sum(masses), tl.sum(slopes)
        if KIND == STEEP:
            low = tl.maximum(low - (mass - 1) / tl.maximum(slope, 1.0), TINY)
        else:
            high, low = add_exactly(high, low, newton_step(mass, slope, exponent, KIND))
        error = tl.abs(mass - 1)
        step += 1
    return high, low


@triton.jit
def search_row(
    row_ptr, mask_ptr, maxima_ptr, index_ptr, value_ptr, size, blocks, exponent,
    KIND: tl.constexpr, SUM_MASK: tl.constexpr, BLOCKS: tl.constexpr, CAPACITY: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Solve one row of contiguous scores; `index_ptr` and `value_ptr` get its candidates.

    Returns:
        maximum, high, low, length of the list (above CAPACITY: no list, the support is wide or undefined), block that
        holds the first maximum, sum of the scores of the smoothing mask.
    """
    masked = read_maxima(row_ptr, mask_ptr, maxima_ptr, size, blocks, SUM_MASK)
    tl.debug_barrier()
    block = tl.arange(0, BLOCKS)
    maxima = tl.load(maxima_ptr + block, mask=block < blocks, other=-float("inf"))
    tops, highs, lows = solve_rows(maxima[None, :], tl.full([1], 0.0, tl.float32) + exponent, KIND)
    maximum, high, low = tl.sum(tops), tl.sum(highs), tl.sum(lows)
    best_block = tl.min(tl.where(maxima == maximum, block, BLOCKS))
    limit = maximum + threshold_of(maximum, high, low, exponent, KIND)
    limit -= MARGIN / tl.maximum(exponent, SERIES_BELOW) + tl.abs(limit) * 3e-7
    hit = (maxima >= limit) & (maxima > -float("inf"))
    place = tl.cumsum(hit.to(tl.int32), 0) - 1
    hits = tl.sum(hit.to(tl.int32))
    tl.debug_barrier()
    tl.store(maxima_ptr + place, block.to(tl.float32), mask=hit)
    tl.debug_barrier()
    length = pack_candidates(row_ptr, maxima_ptr, index_ptr, value_ptr, size, hits, limit, CAPACITY)
    tl.debug_barrier()
    if high != high:
        length = length * 0 + (CAPACITY + 1)
    elif length > CAPACITY:
        high, low = solve_whole_row(row_ptr, size, maximum, high, low, exponent, KIND, WIDE)
    else:
        slot = tl.arange(0, CAPACITY)
        values = tl.load(value_ptr + slot, mask=slot < length, other=-float("inf"))
        tops, highs, lows = solve_rows(values[None, :], tl.full([1], 0.0, tl.float32) + exponent, KIND)
        high, low = tl.sum(highs), tl.sum(lows)
    return maximum, high, low, length, best_block, masked
