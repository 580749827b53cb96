"""The Triton kernels of the entmax loss against PyTorch in float64."""

import pytest
import torch
from interpreted import DEVICE, only_kernels, rows_of  # noqa: F401

from fairseq_entmax.ops import kernels, token_entmax_loss
from fairseq_entmax.ops.loss_rows import Smoothing

INF = float("inf")
SIZES = [1, 33, 1025, 9001]


def targets_of(scores):
    """The last class, some class, the best class, an ignored one."""
    target = torch.arange(len(scores)) * 7 % scores.shape[1]
    target[[1, 4]] = scores.shape[1] - 1
    target[2] = scores[2].argmax()
    target[5] = -100
    return target.to(DEVICE)


def smoothing_of(share, size):
    mask = torch.arange(size) % 5 != 3
    count = int(mask.sum())
    return Smoothing(1 - share, share / count, mask.to(DEVICE), count)


def assert_matches(scores, alpha, share=0.0, tolerance=1e-6):
    scores = scores.detach().requires_grad_()
    before, target = scores.detach().clone(), targets_of(scores)
    smoothing = smoothing_of(share, scores.shape[1])
    upstream = torch.randn(len(scores), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    loss, support, target_prob, correct = kernels.loss_rows(scores, target, alpha, smoothing, -100)
    (loss * upstream).sum().backward()
    exact = scores.detach().double().cpu().requires_grad_()
    expected = token_entmax_loss(exact, target.cpu(), alpha, -100, share, smoothing.mask.cpu())
    finite = expected.loss.isfinite()
    (expected.loss[finite] * upstream.cpu()[finite]).sum().backward()
    assert torch.equal(scores.detach(), before)  # case 40
    assert loss.dtype == torch.float32 and scores.grad.dtype == scores.dtype  # case 43
    assert torch.equal(loss.cpu().isfinite(), finite) and not (loss < 0).any()
    error = (loss.detach().cpu() - expected.loss).abs()[finite]
    assert (error / (1 + expected.loss[finite])).max() < 1e-6
    assert torch.equal(support.cpu(), expected.support)
    assert (target_prob.cpu() - expected.target_prob).abs().max() < 3e-7
    assert torch.equal(correct.cpu(), expected.correct)
    assert (scores.grad.cpu() - exact.grad)[finite].abs().max() < tolerance
    assert not scores.grad[5].any()


@pytest.mark.parametrize("share", [0.0, 0.1])
@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("size", SIZES)
def test_loss_figures_and_gradient(size, alpha, share):
    assert_matches(rows_of(size), alpha, share)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [33, 9001])
def test_low_precision(size, dtype):
    assert_matches(rows_of(size, dtype), 1.5, 0.1, 2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("size", [12, 1200, 9001])
@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 3.0])
def test_exactly_zero_once_the_target_leads(size, alpha):
    scores = torch.randn(2, size).clamp(max=3)
    scores[:, 4] = 3 + 1.01 / (alpha - 1)
    scores = scores.to(DEVICE).requires_grad_()
    target = torch.full((2,), 4, device=DEVICE)
    loss, support, target_prob, correct = kernels.loss_rows(scores, target, alpha, smoothing_of(0.0, size), -100)
    loss.sum().backward()
    assert not loss.any() and not scores.grad.any()
    assert support.tolist() == [1, 1] and target_prob.tolist() == [1, 1] and correct.all()


@pytest.mark.parametrize("size", [12, 1200, 9001])
def test_masked_classes_and_rows_without_solution(size):
    scores = torch.randn(5, size)
    scores[1, 3] = -INF  # the target
    scores[2, 4] = -INF  # only a smoothed class
    scores[3, 5] = float("nan")
    scores[4, 5] = INF
    scores = scores.to(DEVICE).requires_grad_()
    target = torch.full((5,), 3, device=DEVICE)
    plain = kernels.loss_rows(scores, target, 1.5, smoothing_of(0.0, size), -100)[0]
    smooth = kernels.loss_rows(scores, target, 1.5, smoothing_of(0.1, size), -100)[0]
    assert plain.isfinite().tolist() == [True, False, True, False, False]
    assert plain[1] == INF and plain[3].isnan() and plain[4].isnan()
    assert smooth.isfinite().tolist() == [True, False, False, False, False]
    plain.sum().backward()
    assert scores.grad[:3].isfinite().all()
    assert scores.grad[3].isnan().all() and scores.grad[4].isnan().all()


@pytest.mark.parametrize("size", [33, 9001])
def test_without_gradient_case_39_and_twice_case_40(size):
    scores, smoothing = rows_of(size), smoothing_of(0.0, size)
    target = targets_of(scores)
    silent = kernels.loss_rows(scores, target, 1.5, smoothing, -100)[0]
    scores.requires_grad_()
    loss = kernels.loss_rows(scores, target, 1.5, smoothing, -100)[0]
    assert torch.equal(loss, silent)
    loss.sum().backward(retain_graph=True)
    once = scores.grad.clone()
    loss.sum().backward()
    assert torch.allclose(scores.grad, 2 * once)


@pytest.mark.parametrize("size", [33, 9001])
def test_every_target_ignored(size):
    scores = rows_of(size).requires_grad_()
    target = torch.full((7,), -100, device=DEVICE)
    loss, support, target_prob, correct = kernels.loss_rows(scores, target, 1.5, smoothing_of(0.1, size), -100)
    loss.sum().backward()
    assert not any(x.any() for x in (loss, support, target_prob, correct, scores.grad))


def test_rows_far_apart():
    wide = rows_of(9100)
    part = wide[:, 50:9051]
    smoothing = smoothing_of(0.1, 9001)
    for got, wanted in zip(
        kernels.loss_rows(part, targets_of(part), 1.5, smoothing, -100),
        kernels.loss_rows(part.contiguous(), targets_of(part), 1.5, smoothing, -100),
    ):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("share", [0.0, 0.1])
@pytest.mark.parametrize("size", [33, 1025, 9001])
def test_gradient_over_the_logits_case_40(size, share):
    leaf = rows_of(size).requires_grad_()
    target, found = targets_of(leaf), []
    for inplace in (False, True):
        logits = leaf * 1
        kept = logits.detach()  # the same memory
        loss = token_entmax_loss(logits, target, 1.5, -100, share, inplace_backward=inplace).loss[:6]
        (found_here,) = torch.autograd.grad(loss.sum(), leaf)
        found.append(found_here)
        assert torch.equal(kept, found_here if inplace else leaf.detach())
    assert torch.equal(*found)


def test_gradient_over_logits_that_somebody_needs_is_refused():
    leaf = rows_of(33)[:3].requires_grad_()
    logits = leaf.exp()  # whose own gradient needs its result
    loss = token_entmax_loss(logits, targets_of(rows_of(33))[:3], 1.5, inplace_backward=True).loss.sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with pytest.raises(ValueError, match="inplace_backward: wanted logits that a model computed, got a leaf"):
        token_entmax_loss(leaf, targets_of(rows_of(33))[:3], 1.5, inplace_backward=True)
