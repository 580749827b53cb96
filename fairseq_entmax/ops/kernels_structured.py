"""Triton kernels of fusedmax and oscarmax, forward and backward; one program a row of at most 1,024 scores.

A row is cut into groups of neighbours by flags: 1 where a group starts. Groups only ever merge, so both loops end.
"""

import triton
import triton.language as tl

from .kernels_solve import ONE, gentle_probs, solve_rows


@triton.jit
def _add_in_group(sum_a, count_a, pull_a, start_a, sum_b, count_b, pull_b, start_b):
    fresh = start_b > 0
    return (
        tl.where(fresh, sum_b, sum_a + sum_b),
        tl.where(fresh, count_b, count_a + count_b),
        tl.where(fresh, pull_b, pull_a + pull_b),
        tl.maximum(start_a, start_b),
    )


@triton.jit
def _keep_last(sum_a, count_a, pull_a, end_a, sum_b, count_b, pull_b, end_b):
    fresh = end_b > 0
    return (
        tl.where(fresh, sum_b, sum_a),
        tl.where(fresh, count_b, count_a),
        tl.where(fresh, pull_b, pull_a),
        tl.maximum(end_a, end_b),
    )


@triton.jit
def group_sums(values, pulls, starts, following):
    """Sums of `values` and `pulls` over the group of each position, and its size; `following` is the next position."""
    sums, counts, totals, _ = tl.associative_scan((values, values * 0 + 1, pulls, starts), 0, _add_in_group)
    # The last position of a group comes before a start; the scan from the right copies its sums over the group.
    ends = tl.where(following == tl.arange(0, values.shape[0]), 1, tl.gather(starts, following, 0))
    sums, counts, totals, _ = tl.associative_scan((sums, counts, totals, ends), 0, _keep_last, reverse=True)
    return sums, counts, totals


@triton.jit
def project(values, used):
    """Sparsemax of the used values, which are finite."""
    tile = tl.where(used, values, -float("inf"))[None, :]
    maximum, high, low = solve_rows(tile, tl.full([1], 1.0, tl.float32), ONE)
    probs, base, x = gentle_probs(tl.sum(tile, 0), tl.sum(maximum), tl.sum(high), tl.sum(low), 1.0, ONE)
    return tl.where(used, probs, 0.0)


@triton.jit
def load_values(scores_ptr, used_ptr, column, size, floor, gamma):
    """`scores / gamma` minus the maximum of the used ones, not below `floor`; which are used; 0 or NaN to add."""
    inside = column < size
    scores = tl.load(scores_ptr + column, mask=inside, other=0.0).to(tl.float32)
    used = tl.load(used_ptr + column, mask=inside, other=0) != 0
    undefined = tl.max((used & ~(scores < float("inf"))).to(tl.int32), 0) > 0
    maximum = tl.max(tl.where(used & (scores < float("inf")), scores, -float("inf")), 0)
    values = tl.where(used & (scores < float("inf")), tl.maximum((scores - maximum) / gamma, floor), 0.0)
    return values, used, tl.where(undefined, float("nan"), 0.0)


@triton.jit
def fusedmax_kernel(
    scores_ptr, used_ptr, probs_ptr, starts_ptr, strength, gamma, size,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Follows the solution of total variation as its strength grows from 0: neighbouring groups meet and stay together.

    A group moves at the speed (neighbours above it minus neighbours below it) / size, and which of two neighbours is
    above never changes before they meet: it is known from the scores.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    values, used, poison = load_values(
        scores_ptr + row * size, used_ptr + row * size, column, size, -2 - 4 * strength, gamma
    )
    before, after = tl.maximum(column - 1, 0), tl.minimum(column + 1, COLUMNS - 1)
    joined = used & (tl.gather(used.to(tl.int32), before, 0) > 0) & (column > 0)
    rise = values - tl.gather(values, before, 0)
    sign = tl.where(joined, tl.where(rise > 0, 1.0, -1.0), 0.0)
    # Equal neighbours are one group from the start, unless nothing holds them together.
    starts = tl.where(joined & (rise == 0), tl.where(strength > 0, 0, 1), 1)
    now, ended = strength * 0, 0
    means, speeds = values, values * 0
    while ended == 0:
        edges = tl.where(starts > 0, sign, 0.0)
        pulls = tl.where(column < COLUMNS - 1, tl.gather(edges, after, 0), 0.0) - edges
        sums, counts, totals = group_sums(values, pulls, starts, after)
        means, speeds = sums / counts, totals / counts
        heights = means + now * speeds
        gap = (heights - tl.gather(heights, before, 0)) * sign
        closing = (tl.gather(speeds, before, 0) - speeds) * sign
        meeting = (starts > 0) & joined & (closing > 0)
        wait = tl.where(meeting, tl.maximum(gap, 0.0) / tl.where(meeting, closing, 1.0), float("inf"))
        shortest = tl.min(wait, 0)
        if now + shortest < strength:
            starts = tl.where(meeting & (wait <= shortest * (1 + 1e-6)), 0, starts)
            now += shortest
        else:
            ended = 1
    probs = project(means + strength * speeds, used) + poison
    tl.store(probs_ptr + row * size + column, tl.where(used, probs, poison), mask=column < size)
    tl.store(starts_ptr + row * size + column, starts, mask=column < size)


@triton.jit
def oscarmax_kernel(
    scores_ptr, used_ptr, probs_ptr, starts_ptr, order_ptr, strength, gamma, size,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sorts, adds what the ranks cost, merges neighbours that rise until none does, projects, and undoes the sort."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    values, used, poison = load_values(
        scores_ptr + row * size, used_ptr + row * size, column, size, -2 - strength * size, gamma
    )
    # Bits of non-negative floats are ordered like the floats; the column below them keeps the sort stable.
    depth = tl.where(used, -values, float("inf")).to(tl.int32, bitcast=True)
    keys = tl.sort((depth.to(tl.int64) << 32) | column.to(tl.int64))
    order = (keys & 0xFFFFFFFF).to(tl.int32)
    count = tl.sum(used.to(tl.int32), 0)
    within = column < count
    values = -(keys >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    values = tl.where(within, values + strength * column.to(tl.float32), 0.0)
    before, after = tl.maximum(column - 1, 0), tl.minimum(column + 1, COLUMNS - 1)
    joined = within & (column > 0)
    starts = column * 0 + 1
    means, ended = values, 0
    while ended == 0:
        sums, counts, totals = group_sums(values, values, starts, after)
        means = sums / counts
        rising = joined & (starts > 0) & (means >= tl.gather(means, before, 0))
        starts = tl.where(rising, 0, starts)
        ended = 1 - tl.max(rising.to(tl.int32), 0)
    probs = project(means, within) + poison
    tl.store(probs_ptr + row * size + order, tl.where(within, probs, poison), mask=order < size)
    tl.store(starts_ptr + row * size + column, starts, mask=column < size)
    tl.store(order_ptr + row * size + column, order, mask=column < size)


@triton.jit
def structured_backward_kernel(
    probs_ptr, grad_ptr, starts_ptr, order_ptr, result_ptr, gamma, size,
    SORTED: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sparsemax backward, then the mean over each group, divided by gamma."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    inside = column < size
    place = row * size + column
    starts = tl.load(starts_ptr + place, mask=inside, other=1).to(tl.int32)
    if SORTED:
        place = row * size + tl.load(order_ptr + place, mask=inside, other=0)
    probs = tl.load(probs_ptr + place, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + place, mask=inside & (probs > 0), other=0.0).to(tl.float32)
    support = (probs > 0).to(tl.float32)
    product = tl.where(probs > 0, grad - tl.sum(grad, 0) / tl.maximum(tl.sum(support, 0), 1.0), 0.0)
    sums, counts, totals = group_sums(product, product, starts, tl.minimum(column + 1, COLUMNS - 1))
    tl.store(result_ptr + place, tl.where(probs == probs, sums / counts / gamma, probs), mask=inside)
