"""fusedmax, oscarmax, pnormmax: optimality, groups, masks and gradients; and the chain solver under the first two."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_entmax.ops import fusedmax, fusion, oscarmax, pnormmax, sparsemax

INF = float("inf")


def recipe_of_2017(scores, strength=0.1, gamma=1.0, **rest):
    return oscarmax(scores, strength, gamma, **rest, exact=False)


def pnormmax_of(scores, strength=0.1, gamma=1.0, **rest):
    return pnormmax(scores, 1.1 + 0.5 * strength, gamma, **rest)


MAPPINGS = {
    "fusedmax": fusedmax,
    "oscarmax": oscarmax,
    "oscarmax-2017": recipe_of_2017,
    "pnormmax": pnormmax_of,
}


def total_variation(p):
    return p.diff(dim=-1).abs().sum(-1)


def oscar(p):
    return torch.maximum(p.unsqueeze(-1), p.unsqueeze(-2)).triu(1).sum((-1, -2))


def objective(p, scores, strength, gamma, penalty):
    return (p * scores).sum(-1) - gamma * (p.square().sum(-1) / 2 + strength * penalty(p))


def feasible_points(p, count=60):
    """Points of the simplex near and far from p, among them moves of mass between two entries or groups."""
    generator = torch.Generator().manual_seed(0)
    for number in range(count):
        other = torch.rand(p.shape, generator=generator, dtype=p.dtype).log().neg()
        if number % 3 == 0:
            other = other * (torch.rand(p.shape, generator=generator) < 0.4) + 1e-12
        if number % 3 == 1:
            other = other * (p > 0)
        other = other / other.sum(-1, keepdim=True)
        step = torch.rand(p.shape[:-1] + (1,), generator=generator, dtype=p.dtype).pow(6)
        yield p + step * (other - p)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
@pytest.mark.parametrize("strength", [0.02, 0.2, 1.0])
@pytest.mark.parametrize("name, penalty", [("fusedmax", total_variation), ("oscarmax", oscar)])
def test_no_feasible_point_is_better(name, penalty, strength, gamma):
    for size in (2, 5, 12):
        scores = torch.randn(100, size, dtype=torch.float64)
        p = MAPPINGS[name](scores, strength, gamma)
        assert (p >= 0).all() and (p.sum(-1) - 1).abs().max() < 1e-12
        best = objective(p, scores, strength, gamma, penalty)
        for other in feasible_points(p):
            assert (objective(other, scores, strength, gamma, penalty) <= best + 1e-12).all()


@pytest.mark.parametrize("p_norm", [1.05, 1.3, 1.5, 1.9, 2.0])
def test_no_feasible_point_is_better_than_pnormmax(p_norm):
    for gamma in (0.5, 2.0):
        scores = torch.randn(100, 7, dtype=torch.float64)

        def value(p, scores=scores, gamma=gamma):
            return (p * scores).sum(-1) - gamma / 2 * p.pow(p_norm).sum(-1).pow(2 / p_norm)

        p = pnormmax(scores, p_norm, gamma)
        assert (p >= 0).all() and (p.sum(-1) - 1).abs().max() < 1e-12
        for other in feasible_points(p):
            assert (value(other) <= value(p) + 1e-12).all()


def test_the_recipe_of_2017_is_worse():
    scores = torch.randn(300, 6, dtype=torch.float64)
    exact, recipe = (objective(oscarmax(scores, 0.2, exact=e), scores, 0.2, 1.0, oscar) for e in (True, False))
    assert (recipe <= exact + 1e-12).all()
    assert (recipe < exact - 1e-6).sum() > 30


def test_limits_are_sparsemax():
    scores = torch.randn(20, 9, dtype=torch.float64)
    for gamma in (0.5, 1.0, 3.0):
        for p in (fusedmax(scores, 0, gamma), oscarmax(scores, 0, gamma), pnormmax(scores, 2, gamma)):
            assert torch.allclose(p, sparsemax(scores / gamma), atol=1e-12)
    # A large strength makes everything equal.
    assert torch.allclose(fusedmax(scores, 50.0), torch.full_like(scores, 1 / 9))
    assert torch.allclose(oscarmax(scores, 50.0), torch.full_like(scores, 1 / 9))


def test_known_answers():
    # Total variation of strength 0.1 brings 1.0 down to 0.9 (ends) and leaves the threshold at 0.4 and 0.4.
    p = fusedmax(torch.tensor([1.0, 0.0, 0.0]), 0.1)
    assert torch.allclose(p, torch.tensor([0.9, 0.05, 0.05]))
    # Neighbours fuse, the same scores apart do not.
    p = fusedmax(torch.tensor([0.50, 0.45, -1.0, 0.45, -1.0]), 0.1)
    assert p[0] == p[1] > p[3] and p[2] == p[4] == 0
    # oscarmax fuses equals wherever they stand.
    p = oscarmax(torch.tensor([0.50, -1.0, 0.45, -1.0, 0.46]), 0.1)
    assert torch.allclose(p, torch.tensor([1, 0, 1, 0, 1]) / 3)


@pytest.mark.parametrize("name", MAPPINGS)
@pytest.mark.parametrize("strength", [0.05, 0.3, 1.0])
def test_gradcheck_with_mask_and_dim(name, strength):
    generator = torch.Generator().manual_seed(7)
    scores = torch.randn(4, 7, dtype=torch.float64, generator=generator).requires_grad_()
    mask = torch.rand(4, 7, generator=generator) > 0.3
    mask[:, 0] = True
    for gamma in (0.5, 1.0, 2.0):
        for dim, used in ((-1, None), (-1, mask), (0, None)):

            def run(x, gamma=gamma, dim=dim, used=used):
                return MAPPINGS[name](x, strength, gamma, mask=used, dim=dim)

            assert torch.autograd.gradcheck(run, scores, atol=1e-6)


@pytest.mark.parametrize("name", MAPPINGS)
def test_masked_equals_truncated_case_25(name):
    scores = torch.randn(6, 10, dtype=torch.float64)
    lengths = [10, 1, 4, 7, 2, 9]
    mask = torch.arange(10) < torch.tensor(lengths)[:, None]
    weights = torch.randn(6, 10, dtype=torch.float64)
    for junk in (0.0, 1e4, -1e30, INF, -INF, float("nan")):
        padded = torch.where(mask, scores, junk).requires_grad_()
        p = MAPPINGS[name](padded, 0.2, mask=mask)
        (p * weights).sum().backward()
        assert not p[~mask].any() and not padded.grad[~mask].any()
        for row, length in enumerate(lengths):
            alone = scores[row, :length].clone().requires_grad_()
            q = MAPPINGS[name](alone, 0.2)
            (q * weights[row, :length]).sum().backward()
            assert torch.allclose(p[row, :length], q, atol=1e-12)
            assert torch.allclose(padded.grad[row, :length], alone.grad, atol=1e-12)


def test_weights_do_not_fuse_across_a_gap():
    scores = torch.tensor([[0.5, 9.0, 0.45, 0.4]])
    mask = torch.tensor([[True, False, True, True]])
    p = fusedmax(scores, 0.1, mask=mask)
    assert p[0, 1] == 0 and p[0, 0] > p[0, 2] == p[0, 3]
    # -inf is another way to say so.
    assert torch.equal(fusedmax(scores.masked_fill(~mask, -INF), 0.1), p)


@pytest.mark.parametrize("name", MAPPINGS)
def test_masked_rows_nan_and_low_precision_cases_11_12(name):
    mapping = MAPPINGS[name]
    scores = torch.randn(4, 6)
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[0] = False
    scores[1, 2] = float("nan")
    scores.requires_grad_()
    p = mapping(scores, mask=mask)
    assert not p[0].any() and p[1].isnan().all()
    assert torch.allclose(p[2:], mapping(scores[2:]), atol=1e-7)
    p[[0, 2, 3]].square().sum().backward()
    assert not scores.grad[0].any() and scores.grad[[2, 3]].isfinite().all()
    for dtype in (torch.float16, torch.bfloat16):
        low = scores.detach()[2:].to(dtype)
        assert torch.equal(mapping(low), mapping(low.float()).to(dtype))
    with pytest.raises(RuntimeError, match="differentiable once"):
        total = mapping(scores, mask=mask)[2, 0] + scores[2:].square().sum()
        (grad,) = torch.autograd.grad(total, scores, create_graph=True)
        torch.autograd.grad(grad[2:].sum(), scores)


@pytest.mark.parametrize("name", ["fusedmax", "oscarmax", "pnormmax"])
def test_very_large_scores_case_46(name):
    for row in ([1e30, -1e30, 0.0, 5.0], [0.0, 1.37e8, 1.6e8, -1e38]):
        p = MAPPINGS[name](torch.tensor(row))
        assert p.tolist() == [float(x == max(row)) for x in row]
    # How far below the others an entry lies does not matter to them.
    rows = torch.tensor([0.3, 0.2, 0.1, 0.25, 0.0]).repeat(2, 1)
    rows[:, 4] = torch.tensor([-30.0, -1e20])
    p = MAPPINGS[name](rows, 0.01)
    assert torch.equal(p[0], p[1]) and not p[0, 4]


def test_wrong_arguments_are_named_case_55():
    scores = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="scores must be floating point"):
        fusedmax(scores.long())
    for value in (-0.1, INF, float("nan")):
        with pytest.raises(ValueError, match="strength"):
            oscarmax(scores, value)
    with pytest.raises(ValueError, match="gamma must be a positive number, got 0"):
        fusedmax(scores, gamma=0)
    with pytest.raises(ValueError, match=r"p must lie in \(1, 2\], got 1"):
        pnormmax(scores, 1)
    with pytest.raises(ValueError, match="mask must be bool"):
        pnormmax(scores, mask=torch.ones(2, 3))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=15),
    st.floats(0, 2),
    st.floats(0.2, 4),
    st.floats(-50, 50),
)
def test_properties(row, strength, gamma, shift):
    scores = torch.tensor(row, dtype=torch.float64)
    for mapping in (fusedmax, oscarmax, pnormmax):
        first = 1.2 + strength / 4 if mapping is pnormmax else strength
        p = mapping(scores, first, gamma)
        assert (p >= 0).all() and abs(p.sum() - 1) < 1e-9
        assert torch.allclose(mapping(scores + shift, first, gamma), p, atol=1e-7)
        assert torch.allclose(mapping(scores.flip(0), first, gamma), p.flip(0), atol=1e-7)
        if mapping is not fusedmax:
            assert (p[scores.argsort()].diff() >= -1e-9).all()


def check_chain(values, low, high, solution):
    """The optimality conditions of `fusion`, from the solution alone."""
    dual = (solution - values).cumsum(-1)
    steps = solution.diff(dim=-1)
    assert dual[:, -1].abs().max() < 1e-9
    dual = dual[:, :-1]
    assert (dual <= high + 1e-9).all() and (dual >= low - 1e-9).all()
    assert ((steps <= 1e-12) | (dual >= high - 1e-9)).all()
    assert ((steps >= -1e-12) | (dual <= low + 1e-9)).all()


@pytest.mark.parametrize("kind", ["random", "ties", "walk", "alternating"])
@pytest.mark.parametrize("size", [1, 2, 3, 10, 80])
def test_chain_solvers_agree(size, kind, monkeypatch):
    monkeypatch.setattr(fusion, "COMPACT_ABOVE", 1000)
    generator = torch.Generator().manual_seed(size)
    for strength in (0.0, 0.01, 0.1, 1.0, 5.0):
        values = torch.randn(60, size, dtype=torch.float64, generator=generator)
        if kind == "ties":
            values = values.round()
        elif kind == "walk":
            values = values.cumsum(-1)
        elif kind == "alternating":
            values = values.abs() * (torch.arange(size) % 2 * 2 - 1)
        bound = torch.full((60, size - 1), strength, dtype=torch.float64)
        bound = torch.where(torch.rand(60, size - 1, generator=generator) < 0.1, 0.0, bound)
        solution, groups = fusion.total_variation(values, bound)
        check_chain(values, -bound, bound, solution)
        if size > 1:
            # The slower way, for rows on which the active set would not settle.
            state = fusion.follow_path(values, bound)
            assert (fusion._solve_groups(values, bound, state)[0] - solution).abs().max() < 1e-10
        same = groups.diff(dim=-1) == 0
        assert not (solution.diff(dim=-1)[same]).any()
        above = torch.where(bound == 0, 0.0, INF)
        solution, _ = fusion.isotonic(values, bound == 0)
        check_chain(values, torch.zeros_like(bound), above, solution)


def test_rows_that_do_not_settle_follow_the_path(monkeypatch):
    values = torch.randn(30, 40, dtype=torch.float64)
    bound = torch.full((30, 39), 0.3, dtype=torch.float64)
    expected, _ = fusion.total_variation(values, bound)
    monkeypatch.setattr(fusion, "ROUNDS", 1)
    assert torch.allclose(fusion.total_variation(values, bound)[0], expected, atol=1e-12)


def test_rows_that_leave_in_the_last_round(monkeypatch):
    values = torch.randn(60, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    bound = torch.full((60, 299), 0.7, dtype=torch.float64)
    expected, _ = fusion.total_variation(values, bound)
    for rounds in range(1, 19):
        monkeypatch.setattr(fusion, "ROUNDS", rounds)
        found, _ = fusion.total_variation(values, bound)
        assert torch.allclose(found, expected, atol=1e-9), rounds
