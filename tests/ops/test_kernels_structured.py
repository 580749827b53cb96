"""The Triton kernels of fusedmax and oscarmax against PyTorch in float64."""

import pytest
import torch
from interpreted import DEVICE, only_kernels  # noqa: F401

from fairseq_entmax.ops import fusedmax, oscarmax

MAPPINGS = {"fusedmax": fusedmax, "oscarmax": oscarmax}


def assert_matches(name, scores, mask=None, tolerance=1e-6, **options):
    scores = scores.detach().clone().to(DEVICE).requires_grad_()
    upstream = torch.randn(scores.shape, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    exact = scores.detach().double().requires_grad_()
    probs, expected = (MAPPINGS[name](x, mask=mask, **options) for x in (scores, exact))
    (probs * upstream).sum().backward()
    (expected * upstream).sum().backward()
    assert probs.dtype == scores.dtype
    assert (probs - expected).abs().max() < tolerance
    assert not ((probs > 0) != (expected > 1e-7))[expected != 0].any()
    assert (scores.grad - exact.grad).abs().max() < 2 * tolerance
    return probs


@pytest.mark.parametrize("name", MAPPINGS)
@pytest.mark.parametrize("size,strength,gamma", [(1, 0.1, 1.0), (9, 0.5, 0.3), (20, 0.1, 1.0), (40, 0.02, 2.0)])
def test_forward_and_gradient(name, size, strength, gamma):
    generator = torch.Generator().manual_seed(size)
    scores = torch.randn(3, size, generator=generator)
    scores[1] = scores[1].round()
    mask = torch.rand(3, size, generator=generator) > 0.2
    mask[0] = True
    assert_matches(name, scores, mask.to(DEVICE), strength=strength, gamma=gamma)


@pytest.mark.parametrize("name", MAPPINGS)
def test_no_strength_is_sparsemax_and_ties_and_much_strength(name):
    scores = torch.randn(2, 12).round(decimals=1)
    assert_matches(name, scores, strength=0.0)
    assert_matches(name, scores, strength=5.0)
    assert_matches(name, torch.zeros(1, 12), strength=0.3)


@pytest.mark.parametrize("name", MAPPINGS)
def test_low_precision(name):
    assert_matches(name, torch.randn(2, 12).half(), tolerance=1e-3)


@pytest.mark.parametrize("name", MAPPINGS)
def test_rows_without_anything_and_without_solution(name):
    scores = torch.randn(4, 10)
    scores[1] = -torch.inf
    scores[2, 3] = torch.nan
    scores[3, 0] = torch.nan
    mask = torch.ones(4, 10, dtype=torch.bool)
    mask[3, 0] = False
    probs = MAPPINGS[name](scores.to(DEVICE), mask=mask.to(DEVICE)).cpu()
    expected = MAPPINGS[name](scores.double(), mask=mask)
    assert not probs[1].any()
    assert torch.equal(probs.isnan(), expected.isnan())
    assert (probs[[0, 3]] - expected[[0, 3]]).abs().max() < 1e-6
