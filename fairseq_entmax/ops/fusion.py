"""Fuse neighbours of a chain, exactly and for all rows at once: total variation and isotonic regression.

Both are `argmin_x 1/2 |x - y|^2` plus a term on the differences of neighbours, with the dual condition
`x_i = y_i - u_{i-1} + u_i`, `low <= u <= high` on the edges: `u = low` where x falls, `u = high` where it rises and
neighbours equal in between. Total variation of strength s has `[-s, s]`, isotonic (non-increasing) regression
`[0, inf)`, and an edge that keeps two parts of a row apart `[0, 0]`.
"""

import torch

# Contradictions below this, relative to the largest number of the row, are rounding (float64).
ROUNDING = 1e-13
# Rounds before the rows that are still changing are solved by `follow_path`; trials needed 13 at most.
ROUNDS = 40


def fuse(values, low, high):
    """Solve the chain of every row by a primal-dual active set: a handful of passes, whatever the number of rows.

    Each round takes a guess of the edges that fuse, solves for x (group means) and u (running sums), and corrects the
    guess where they contradict it; a guess without contradiction is the solution. With `high = inf` that always
    ends (the dual matrix is an M-matrix and there is one bound: Hintermueller, Ito and Kunisch 2003). With two bounds
    it might cycle: such rows are solved by `follow_path`.

    Args:
        values: float64 `(rows, size)`, finite.
        low, high: float64, broadcastable to `(rows, size - 1)`; `low` <= 0 <= `high`.

    Returns:
        x `(rows, size)`, and the group of each entry: int64 `(rows, size)`, numbers rising along the row.
    """
    if values.shape[-1] == 1:
        return values, torch.zeros_like(values, dtype=torch.long)
    one_bound = bool((high == torch.inf).any())
    low, high = (bound.expand(len(values), -1) for bound in (low, high))
    apart = (low == 0) & (high == 0)
    state = _first_guess(values, apart)
    if one_bound:
        state = torch.where(state > 0, 0.0, state).masked_fill_(apart, -1)
    slack = ROUNDING * (values.abs().amax(-1, keepdim=True) + 1)
    for _ in range(values.shape[-1] + 1 if one_bound else ROUNDS):
        solution, groups, dual = _solve_groups(values, low, high, state)
        changed = torch.where(state * solution.diff(dim=-1) < 0, 0.0, state)
        fused = state == 0
        changed = torch.where(fused & (dual > high + slack), 1.0, changed)
        changed = torch.where(fused & (dual < low - slack), -1.0, changed)
        changed = torch.where(apart, state, changed)
        if torch.equal(changed, state):
            return solution, groups
        last, state = state, changed
    stuck = (last != state).any(-1)
    if not one_bound:
        state[stuck] = follow_path(values[stuck], low[stuck], high[stuck])
    return _solve_groups(values, low, high, state)[:2]


def _first_guess(values, apart):
    """Nothing fuses but ties. +1: x rises along the edge; -1: it falls; 0: fused."""
    return torch.where(apart, -1.0, values.diff(dim=-1).sign())


def group_means(values, groups):
    """The mean of each group at each of its entries; `groups` as from `fuse`."""
    sums = torch.zeros_like(values).scatter_add_(-1, groups, values)
    counts = torch.zeros_like(values).scatter_add_(-1, groups, torch.ones_like(values))
    return (sums / counts.clamp_(min=1)).gather(-1, groups)


def _groups_of(state):
    return torch.nn.functional.pad((state != 0).long().cumsum(-1), (1, 0))


def _pull(low, high, state):
    """What the split edges add to the entry on their left and take from the one on their right."""
    dual = torch.where(state > 0, high, torch.where(state < 0, low, 0.0))
    return torch.nn.functional.pad(dual, (0, 1)) - torch.nn.functional.pad(dual, (1, 0))


def _solve_groups(values, low, high, state):
    """x, group numbers and u when the edges with `state` 0 fuse and the others are at their bound."""
    groups = _groups_of(state)
    solution = group_means(values + _pull(low, high, state), groups)
    return solution, groups, (solution - values).cumsum(-1)[:, :-1]


def follow_path(values, low, high):
    """The state of the edges (as in `fuse`, finite bounds), following the solution as the bounds grow from 0 to 1.

    Between events group values are linear in the bounds and groups only ever merge (Friedman et al. 2007), so every
    round merges at least one pair in each unfinished row: at most `size` rounds.
    """
    apart = (low == 0) & (high == 0)
    state = _first_guess(values, apart)
    reached = torch.zeros_like(values[:, :1])
    for _ in range(values.shape[-1]):
        groups = _groups_of(state)
        steps = group_means(values, groups).diff(dim=-1)
        rates = group_means(_pull(low, high, state), groups).diff(dim=-1)
        closing = (state * rates < 0) & ~apart
        meet = torch.where(closing, torch.maximum(-steps / torch.where(closing, rates, 1.0), reached), torch.inf)
        reached = meet.amin(-1, keepdim=True)
        merging = (meet <= reached * (1 + ROUNDING)) & (reached < 1)
        if not bool(merging.any()):
            break
        state = torch.where(merging, 0.0, state)
    return state
