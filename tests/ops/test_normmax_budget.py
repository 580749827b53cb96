"""normmax and budget: against bisection, at the edges, and their gradients, to alpha and k too."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_entmax.ops import budget, normmax, sparsemax

INF = float("inf")


def normmax_oracle(scores, alpha):
    """Bisection of `sum max(z - tau, 0) ** (alpha / (alpha - 1)) = 1` in float64."""
    scores = scores.double() - scores.double().amax(-1, keepdim=True)
    low, high = torch.full_like(scores[..., :1], -1), torch.zeros_like(scores[..., :1])
    for _ in range(100):
        middle = (low + high) / 2
        above = (scores - middle).clamp(min=0).pow(alpha / (alpha - 1)).sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    p = (scores - low).clamp(min=0).pow(1 / (alpha - 1))
    return p / p.sum(-1, keepdim=True)


def budget_oracle(scores, k):
    scores = scores.double()
    low, high = scores.amin(-1, keepdim=True) - 1, scores.amax(-1, keepdim=True)
    for _ in range(100):
        middle = (low + high) / 2
        above = (scores - middle).clamp(0, 1).sum(-1, keepdim=True) >= k
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (scores - low).clamp(0, 1)


@pytest.mark.parametrize("scale", [0.01, 1, 20])
@pytest.mark.parametrize("size", [1, 2, 9, 300])
@pytest.mark.parametrize("alpha", [1.05, 1.25, 1.5, 2.0, 3.0, 5.0])
def test_normmax_matches_bisection(alpha, size, scale):
    scores = torch.randn(8, size) * scale
    scores[0] = 0
    assert (normmax(scores, alpha) - normmax_oracle(scores, alpha)).abs().max() < (2e-7 if alpha <= 3 else 1e-4)
    assert (normmax(scores, alpha).double().sum(-1) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("scale", [0.01, 1, 20])
@pytest.mark.parametrize("size", [2, 9, 300])
@pytest.mark.parametrize("k", [0, 0.5, 1, 1.7, 2])
def test_budget_matches_bisection(k, size, scale):
    scores = torch.randn(8, size, dtype=torch.float64) * scale
    scores[0] = 0
    assert (budget(scores, k) - budget_oracle(scores, k)).abs().max() < 1e-13
    scores = scores.float()
    p = budget(scores, k)
    assert (p - budget_oracle(scores, k)).abs().max() < 2e-7
    assert (p.double().sum(-1) - k).abs().max() < 1e-6
    if k == 1:
        assert torch.allclose(p, sparsemax(scores), atol=1e-7)
    assert torch.equal(budget(scores, size), torch.ones_like(scores))


def test_budget_of_large_scores_is_exact_case_46():
    scores = torch.tensor([1e30, 1e30, 5e29, -1e30, 0.3])
    assert budget(scores, 2).tolist() == [1, 1, 0, 0, 0]
    assert budget(scores, 3).tolist() == [1, 1, 1, 0, 0]
    assert budget(scores, 1).tolist() == [0.5, 0.5, 0, 0, 0]
    assert normmax(scores).tolist() == [0.5, 0.5, 0, 0, 0]


@pytest.mark.parametrize("scale", [0.1, 1, 3])
@pytest.mark.parametrize("dim", [-1, 0])
@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 2.5])
def test_normmax_gradcheck(alpha, dim, scale):
    generator = torch.Generator().manual_seed(2)
    scores = (torch.randn(4, 5, dtype=torch.float64, generator=generator) * scale).requires_grad_()
    for shape in ((), (4, 1) if dim == -1 else (1, 5)):
        own = torch.full(shape, alpha, dtype=torch.float64).requires_grad_()
        assert torch.autograd.gradcheck(lambda x, a: normmax(x, a, dim), (scores, own), atol=1e-5)
    assert torch.autograd.gradcheck(lambda x: normmax(x, alpha, dim), scores, atol=1e-5)


@pytest.mark.parametrize("scale", [0.1, 1, 3])
@pytest.mark.parametrize("dim", [-1, 0])
@pytest.mark.parametrize("k", [0.6, 1.3, 2.2])
def test_budget_gradcheck(k, dim, scale):
    generator = torch.Generator().manual_seed(2)
    scores = (torch.randn(4, 5, dtype=torch.float64, generator=generator) * scale).requires_grad_()
    for shape in ((), (4, 1) if dim == -1 else (1, 5)):
        own = torch.full(shape, k, dtype=torch.float64).requires_grad_()
        assert torch.autograd.gradcheck(lambda x, a: budget(x, a, dim), (scores, own))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("mapping", [lambda x: normmax(x, 1.5), lambda x: budget(x, 2), lambda x: budget(x, 0.5)])
def test_masks_nan_and_low_precision_cases_10_11_12(mapping, dtype):
    scores = torch.randn(4, 6).to(dtype)
    scores[0] = -INF
    scores[1, 3:] = -INF
    scores[2, 1] = float("nan")
    scores.requires_grad_()
    p = mapping(scores)
    assert p.dtype == dtype
    assert not p[0].any() and not p[1, 3:].any() and p[2].isnan().all() and p[3].isfinite().all()
    assert torch.equal(p[3], mapping(scores.detach().float()[3]).to(dtype))
    assert torch.allclose(p[1, :3], mapping(scores[1, :3]))
    p[[0, 1, 3]].float().square().sum().backward()
    assert not scores.grad[0].any() and scores.grad[[1, 3]].isfinite().all()


def test_wrong_arguments_are_named():
    scores = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="k must be at most the number of usable entries .3., got 4"):
        budget(scores, 4)
    with pytest.raises(ValueError, match="k must be finite and >= 0"):
        budget(scores, -1)
    with pytest.raises(ValueError, match="alpha must be finite and > 1, got 1.0"):
        normmax(scores, 1)
    with pytest.raises(ValueError, match="scores must be floating point"):
        normmax(scores.long())
    scores[0, 1:] = -INF
    with pytest.raises(ValueError, match=r"usable entries \(1\), got 2"):
        budget(scores, 2)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=20), st.floats(1.05, 6), st.floats(0, 1))
def test_properties(row, alpha, share):
    scores = torch.tensor(row, dtype=torch.float64)
    order = scores.argsort()
    k = share * len(row)
    for p, total in ((normmax(scores, alpha), 1), (budget(scores, k), k)):
        assert (p >= 0).all() and (p <= 1 + 1e-12).all() and abs(p.sum() - total) < 1e-9
        assert (p[order].diff() >= -1e-9).all()
    assert torch.allclose(budget(scores + 3, k), budget(scores, k), atol=1e-9)
    # The margin of normmax is 1 whatever alpha.
    assert not normmax(scores, alpha)[scores < scores.max() - 1 - 1e-9].any()


@pytest.mark.parametrize("mapping", [normmax, lambda x: budget(x, 2)])
def test_second_derivative_is_refused_case_50(mapping):
    scores = torch.randn(3, 5, requires_grad=True)
    (grad,) = torch.autograd.grad(mapping(scores)[0, 0] + scores.square().sum(), scores, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(grad.sum(), scores)
