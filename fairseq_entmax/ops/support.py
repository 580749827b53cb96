"""Find the support of long rows without looking at most of them, and solve rows whose support is wide.

The threshold of any subset of the scores is a lower bound of the threshold of the row (more entries only add to the
sum that must be one). The subset here is the maximum of each block of columns, and all of the block that holds the
largest score. Only blocks whose maximum passes its threshold can hold probability, and only the few entries above it
are solved, exactly, in float64. Solved by Newton from below, the bound holds at any step; only rounding needs a margin.
"""

from typing import NamedTuple

import torch

from . import reference

BLOCK = 128
MARGIN = 1e-9
CHUNK = 1 << 24
WIDE_CHUNK = 1 << 19
# Rows where more than this share of the entries passes the bound are solved whole.
WIDE_SHARE = 1 / 8
# Rows in which more than this share of the blocks can hold probability are compared whole.
WHOLE_SHARE = 1 / 2
# Rows at least this long are worth the search, for alpha at least this far from softmax, which is never sparse.
LONG_ROW = 1024
SPARSE_FROM = 1.01
# Below this alpha - 1, float32 cannot carry the power 1 / (alpha - 1) to float32 precision.
FLOAT64_BELOW = 0.1


class RowSupport(NamedTuple):
    """Where the probability of each row is. The first three fields list the non-zero entries, rows in no order."""

    rows: torch.Tensor  # (entries,) int64
    columns: torch.Tensor  # (entries,) int64
    probs: torch.Tensor  # (entries,) float64
    maximum: torch.Tensor  # (rows, 1) float64, finite in a row of -inf
    tau: torch.Tensor  # (rows, 1) float64, NaN where the row has no solution; a lower bound in wide rows
    best: torch.Tensor  # (rows,) int64, first column that holds the maximum
    wide: torch.Tensor  # int64 rows to be solved whole by `solve_wide`; the first three fields omit them


def worth_searching(scores, alpha):
    """Whether `find_support` beats solving all of `scores` (it syncs, so never on an accelerator)."""
    return scores.device.type == "cpu" and scores.shape[-1] >= LONG_ROW and alpha >= SPARSE_FROM and scores.numel() > 0


def find_support(scores, alpha):
    """The support of every row of contiguous `scores` `(rows, size)`, for one number `alpha` > 1."""
    step = max(1, CHUNK // scores.shape[-1])
    parts = []
    for first in range(0, len(scores), step):
        part = _find_in_chunk(scores[first : first + step], alpha)
        parts.append(part._replace(rows=part.rows + first, wide=part.wide + first))
    return RowSupport(*(torch.cat(field) for field in zip(*parts)))


def list_support(scores, alpha):
    """The non-zero probabilities of every row of contiguous `scores` `(rows, size)`, never stored as a whole.

    Returns:
        `rows`, `columns` (int64) and `probs` (float64) of the entries, `(entries,)`, rows in no order, and the largest
        score of each row `(rows, 1)` (float64). A row without a solution (NaN, +inf, or nothing but -inf) has no entry.
    """
    found = find_support(scores, alpha)
    entries = [(found.rows, found.columns, found.probs)]
    for rows, _, probs, _ in solve_wide(scores, found, alpha):
        row, column = (probs.to(scores.dtype) > 0).nonzero(as_tuple=True)
        entries.append((rows[row], column, probs[row, column].double()))
    return (*(torch.cat(field) for field in zip(*entries)), found.maximum)


def _find_in_chunk(scores, alpha):
    size, exponent = scores.shape[-1], alpha - 1
    whole = size // BLOCK * BLOCK
    maxima = scores[:, :whole].unflatten(1, (-1, BLOCK)).amax(-1)
    if whole < size:
        maxima = torch.cat([maxima, scores[:, whole:].amax(-1, keepdim=True)], 1)
    # The last block starts early enough to be complete; what it shares with the one before is masked below.
    starts = (torch.arange(maxima.shape[1], device=scores.device) * BLOCK).clamp_(max=size - BLOCK)
    windows = scores.reshape(-1).unfold(0, BLOCK, 1)
    first = torch.arange(len(scores), device=scores.device) * size
    shared = BLOCK - size + whole if whole < size else 0

    best_block = maxima.argmax(-1)
    best_start = starts[best_block]
    best_window = windows.index_select(0, first + best_start)
    best = best_start + best_window.argmax(-1)
    # Frequent words stand side by side, so the best block may hold many of the row's largest: all of it is used.
    if shared:
        overlap = (best_block == maxima.shape[1] - 1)[:, None] & (torch.arange(BLOCK, device=scores.device) < shared)
        best_window = best_window.masked_fill(overlap, -torch.inf)
    subset = torch.cat([maxima.scatter(1, best_block[:, None], -torch.inf), best_window], 1)
    shifted, maximum = reference.shift_rows(subset.double())
    bound = reference.solve(shifted, alpha)[1] - MARGIN
    bound = bound.masked_fill(maximum == torch.finfo(maximum.dtype).min, torch.nan)
    limit = _round_down(maximum + bound / exponent, scores.dtype)

    hits = maxima >= limit
    read_whole = hits.sum(1) > maxima.shape[1] * WHOLE_SHARE
    rows, blocks = (hits & ~read_whole[:, None]).nonzero(as_tuple=True)
    found = windows.index_select(0, first[rows] + starts[blocks])
    inside = found >= limit[rows]
    if shared:
        inside[blocks == maxima.shape[1] - 1, :shared] = False
    window, position = inside.nonzero(as_tuple=True)
    narrow = [(rows[window], starts[blocks[window]] + position, found[window, position])]

    wide = whole_rows = read_whole.nonzero()[:, 0]
    if len(whole_rows):
        # Every eighth block tells which rows are wide (an estimate will do). Above alpha 2 a wide support needs ties to
        # many digits: no second solver for that.
        sample = take_rows(scores[:, :whole].unflatten(1, (-1, BLOCK))[:, ::8], whole_rows)
        share = (sample >= limit[whole_rows][:, :, None]).sum((1, 2)) / max(1, sample.shape[1] * BLOCK)
        is_wide = (share > WIDE_SHARE) & (alpha <= 2)
        wide = whole_rows[is_wide]
        for part in whole_rows[~is_wide].split(wide_step(scores)):
            row, column = (take_rows(scores, part) >= limit[part]).nonzero(as_tuple=True)
            narrow.append((part[row], column, scores[part[row], column]))
    rows, columns, values = narrow[0] if len(narrow) == 1 else _in_row_order(narrow)
    entries, tau = _solve_candidates(rows, columns, values, maximum, bound, alpha)
    return RowSupport(*entries, maximum, tau, best, wide)


def _in_row_order(parts):
    """Rows, columns and values of several lists as one, by rows."""
    rows, *others = (torch.cat(field) for field in zip(*parts))
    order = torch.argsort(rows, stable=True)
    return (rows[order], *(field[order] for field in others))


def take_rows(matrix, rows):
    """`matrix[rows]` for rising `rows`, without a copy where they are consecutive."""
    if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows):
        return matrix[int(rows[0]) : int(rows[-1]) + 1]
    return matrix.index_select(0, rows)


def _round_down(values, dtype):
    """Float64 `values` in `dtype`, never above them."""
    info = torch.finfo(dtype)
    return (values - values.abs() * info.eps - info.tiny).to(dtype)


def _solve_candidates(rows, columns, values, maximum, bound, alpha):
    """Solve ragged rows of candidates, padded into matrices of similar row lengths.

    Args:
        rows, columns, values: of the candidates, by rows.

    Returns:
        the non-zero entries `(rows, columns, probs)`, and tau `(rows, 1)` which is `bound` where a row has none.
    """
    tau = bound.clone()
    dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
    counts = torch.bincount(rows, minlength=len(bound))
    values = values.double() - maximum[rows, 0]
    rank = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    entries, longest, least = [], int(counts.max()) if len(rows) else 0, 0
    while least < longest:
        most = longest if longest * int((counts > least).sum()) <= 4 * len(rows) else max(32, 4 * least)
        members = ((counts > least) & (counts <= most)).nonzero()[:, 0]
        if len(members):
            slot = torch.full_like(counts, -1)
            slot[members] = torch.arange(len(members), device=rows.device)
            here = slot[rows] >= 0
            place = slot[rows[here]], rank[here]
            matrix = values.new_full((len(members), min(most, longest)), -torch.inf)
            matrix[place] = values[here]
            probs, tau[members] = reference.solve(matrix, alpha, bound[members].clamp(min=-1))
            probs = probs[place]
            keep = probs.to(dtype) > 0
            entries.append((rows[here][keep], columns[here][keep], probs[keep]))
        least = most
    if not entries:
        return (rows, columns, values), tau
    return tuple(torch.cat(field) for field in zip(*entries)), tau


def wide_step(scores):
    """How many wide rows are solved at once."""
    return max(1, WIDE_CHUNK // scores.shape[-1])


def scale_rows(scores, rows, maximum, alpha):
    """`(alpha - 1) * (scores - maximum)` of some rows, in the dtype in which wide rows are solved."""
    double = scores.dtype == torch.float64 or alpha - 1 < FLOAT64_BELOW
    dtype = torch.float64 if double else torch.float32
    scaled = take_rows(scores, rows).to(dtype) - maximum[rows].to(dtype)
    return scaled if alpha == 2 else scaled.mul_(alpha - 1)


def wide_base(scaled, tau, out=None, exact=True):
    """`max(scaled - tau, 0)` where `tau` is float64 and `scaled` may be float32.

    Tau is applied in two parts: rounded to float32 it would shift all entries of a wide row the same way, and the sum
    of the row with them. On the way there (`exact` False) one part will do.
    """
    high = tau.to(scaled.dtype)
    base = torch.sub(scaled, high, out=out)
    if exact and scaled.dtype != torch.float64:
        base.sub_((tau - high).to(scaled.dtype))
    return base.clamp_(min=0)


def solve_wide(scores, found, alpha):
    """Solve the wide rows of `found`, a few at a time so that they stay in cache.

    Args:
        scores: `(rows, size)`, as given to `find_support`.

    Yields:
        row numbers, `base` and `probs` `(some, size)`, tau `(some, 1)` in float64.
    """
    exponent = alpha - 1
    for part in found.wide.split(wide_step(scores)) if len(found.wide) else ():
        scaled = scale_rows(scores, part, found.maximum, alpha)
        tolerance = 3e-7 if scaled.dtype == torch.float32 else 1e-13
        tau = _estimate(scaled, found.tau[part], exponent)
        base = torch.empty_like(scaled)
        # A step from the estimate, whichever side of the root it is on, and then Newton from below.
        for step in range(reference.MAX_STEPS):
            exact = step > 1
            wide_base(scaled, tau, base, exact)
            probs = reference.power(base, exponent)
            mass = probs.sum(-1, keepdim=True).double()
            if exact and (step >= 12 or not bool(((mass - 1).abs() > tolerance).any())):
                break
            tau = tau + _newton_step(base, probs, mass, exponent, 1.0)
        yield part, base, probs, tau


def _newton_step(base, probs, mass, exponent, target):
    """Step of tau towards `mass == target`, by Newton on `mass ** exponent`, convex in tau."""
    slope = reference.slope_of(probs, base, exponent).sum(-1, keepdim=True)
    norm = mass**exponent
    return (norm - target**exponent) * mass / (norm * slope)


def _estimate(scaled, bound, exponent):
    """Where to start: tau of every eighth column, which should hold an eighth of the mass. Not a bound.

    From either side the first whole step lands below the root, because the function is convex.
    """
    sample = scaled[:, ::8].contiguous()
    highest = -(scaled.shape[-1] ** -exponent)
    tau = torch.maximum(bound, reference.lower_bound(sample, exponent, 1).double())
    for _ in range(5):
        base = wide_base(sample, tau, exact=False)
        probs = reference.power(base, exponent)
        mass = probs.sum(-1, keepdim=True).double()
        step = _newton_step(base, probs, mass, exponent, sample.shape[-1] / scaled.shape[-1])
        tau = (tau + step.nan_to_num_(nan=0.0)).clamp_(max=highest)
    return tau
