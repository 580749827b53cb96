"""Fuse neighbours of a chain, exactly and for all rows at once: total variation and isotonic regression.

Both are `argmin_x 1/2 |x - y|^2` plus a term on the differences of neighbours, with the dual condition
`x_i = y_i - u_{i-1} + u_i` and an interval for u on each edge: u is at its upper end where x rises, at its lower end
where x falls, and neighbours are equal in between. Total variation of strength s has `[-s, s]`, non-increasing isotonic
regression `[0, inf)`, and an edge that keeps two parts of a row apart `[0, 0]`.

The state of an edge is +1 where x rises, -1 where it falls, 0 where it fuses.
"""

import torch

# Contradictions below this, relative to the largest number of the row, are rounding (float64).
ROUNDING = 1e-13
# Rounds before the rows that are still changing are solved by `follow_path`.
ROUNDS = 40
# Smaller batches are not worth splitting.
COMPACT_ABOVE = 1 << 13


def total_variation(values, bound):
    """`argmin_x 1/2 |x - values|^2 + sum_j bound_j |x_{j+1} - x_j|` of every row.

    Args:
        values: float64 `(rows, size)`, finite.
        bound: float64 `(rows, size - 1)`, at least 0; 0 keeps two neighbours apart.

    Returns:
        x `(rows, size)`, and the group of each entry: int64 `(rows, size)`, numbers rising along the row.
    """
    return _solve_groups(values, bound, _active_set(values, bound, bound == 0))


def isotonic(values, apart):
    """`argmin_x 1/2 |x - values|^2` subject to `x_j >= x_{j+1}`, but for the edges in `apart`.

    Args:
        values: float64 `(rows, size)`, finite.
        apart: bool `(rows, size - 1)`.

    Returns:
        as `total_variation`.
    """
    return _solve_groups(values, None, _active_set(values, None, apart))


def _active_set(values, bound, apart):
    """The state of all edges, by a primal-dual active set: a handful of passes, whatever the number of rows.

    Each round takes a guess of the edges that fuse, solves for x (group means) and u (running sums), and corrects the
    guess where they contradict it; a guess without contradiction is the solution. Isotonic regression, with one bound,
    always ends (the dual matrix is an M-matrix: Hintermueller, Ito and Kunisch 2003). Total variation might cycle:
    rows that do not settle are solved by `follow_path`.
    """
    if values.shape[-1] == 1:
        return torch.zeros_like(values[:, 1:])
    state = _first_guess(values, apart)
    if bound is None:
        state = state.clamp_(max=0)
    rounds = values.shape[-1] + 1 if bound is None else ROUNDS
    # The slowest rows decide the number of rounds: the others leave as soon as they are half of the batch.
    rows, settled = torch.arange(len(values), device=values.device), state
    for _ in range(rounds):
        changed = _correct(values, bound, apart, state)
        moving = (changed != state).any(-1)
        count = int(moving.sum())
        state = changed
        if count == 0:
            break
        if count * 2 < len(rows) and state.numel() > COMPACT_ABOVE:
            settled = settled.index_copy(0, rows, state)
            rows, values, apart, state = rows[moving], values[moving], apart[moving], state[moving]
            bound = bound if bound is None else bound[moving]
            moving = moving[moving]
    else:
        if bound is not None:
            state[moving] = follow_path(values[moving], bound[moving])
    return settled.index_copy(0, rows, state)


def _correct(values, bound, apart, state):
    """The next guess: split edges on which x moves the wrong way fuse; fused ones whose u leaves its interval split."""
    slack = ROUNDING * (values.abs().amax(-1, keepdim=True) + 1)
    solution, _ = _solve_groups(values, bound, state)
    dual = (solution - values).cumsum(-1)[:, :-1]
    steps = (solution[:, 1:] - solution[:, :-1]).masked_fill_(apart, 0)
    changed = state * (state * steps >= 0)
    # On split edges the dual is at its bound, so nothing is added there.
    if bound is None:
        return changed.sub_((dual < -slack) * (1 - state.abs()))
    return changed.add_(dual.sign() * (dual.abs() > bound + slack))


def _first_guess(values, apart):
    """Nothing fuses but ties; edges that are apart never do."""
    return (values[:, 1:] - values[:, :-1]).sign_().masked_fill_(apart, -1)


def group_means(values, groups):
    """The mean of each group at each of its entries; `groups` as from `total_variation`."""
    sums = torch.zeros_like(values).scatter_add_(-1, groups, values)
    counts = torch.zeros_like(values).scatter_add_(-1, groups, torch.ones_like(values))
    return (sums / counts.clamp_(min=1)).gather(-1, groups)


def _groups_of(state):
    groups = torch.zeros(len(state), state.shape[1] + 1, dtype=torch.long, device=state.device)
    groups[:, 1:] = state.abs().cumsum(-1)
    return groups


def _pull(base, bound, state):
    """`base` plus what split edges add to the entry on their left and take from the one on their right."""
    if bound is None:
        return base
    edge = state * bound
    pulled = base.clone()
    pulled[:, :-1] += edge
    pulled[:, 1:] -= edge
    return pulled


def _solve_groups(values, bound, state):
    """x and group numbers when the edges with state 0 fuse and the others are at their bound."""
    groups = _groups_of(state)
    return group_means(_pull(values, bound, state), groups), groups


def follow_path(values, bound):
    """The state of the edges of `total_variation`, following the solution as the strength grows from nothing.

    Between events group values are linear in the strength and groups only ever merge (Friedman et al. 2007), so every
    round merges at least one pair in each unfinished row: at most `size` rounds.
    """
    apart = bound == 0
    state = _first_guess(values, apart)
    reached = torch.zeros_like(values[:, :1])
    nothing = torch.zeros_like(values)
    for _ in range(values.shape[-1]):
        groups = _groups_of(state)
        steps = group_means(values, groups).diff(dim=-1)
        rates = group_means(_pull(nothing, bound, state), groups).diff(dim=-1)
        closing = (state * rates < 0) & ~apart
        meet = torch.where(closing, torch.maximum(-steps / torch.where(closing, rates, 1.0), reached), torch.inf)
        reached = meet.amin(-1, keepdim=True)
        merging = (meet <= reached * (1 + ROUNDING)) & (reached < 1)
        if not bool(merging.any()):
            break
        state = torch.where(merging, 0.0, state)
    return state
