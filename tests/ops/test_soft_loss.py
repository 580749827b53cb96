"""Losses against distributions, the loss of normmax, and class weights."""

import pytest
import torch
from oracles import fenchel_young_digits

from fairseq_entmax.ops import entmax, entmax_loss, normmax, normmax_loss

INF = float("inf")


def distributions(count, classes, **kwargs):
    q = torch.rand(count, classes, **kwargs).pow(3)
    q[:, 0] = 0
    q[0] = torch.nn.functional.one_hot(torch.tensor(2), classes)
    return q / q.sum(-1, keepdim=True)


@pytest.mark.parametrize("scale", [0.1, 1, 5])
@pytest.mark.parametrize("alpha", [1.02, 1.5, 2, 3])
def test_soft_targets_match_many_digits(alpha, scale):
    logits, target = torch.randn(5, 7, dtype=torch.float64) * scale, distributions(5, 7, dtype=torch.float64)
    loss = entmax_loss(logits, target, alpha, reduction="none")
    for value, row, q in zip(loss, logits, target):
        expected = fenchel_young_digits(row.tolist(), q.tolist(), alpha)
        assert abs(value - expected) < 1e-11 * max(1, expected)
    leaf = logits.clone().requires_grad_()
    entmax_loss(leaf, target, alpha, reduction="sum").backward()
    assert torch.allclose(leaf.grad, entmax(logits, alpha) - target, atol=1e-12)


@pytest.mark.parametrize("size", [6, 1100])
@pytest.mark.parametrize("alpha", [1, 1.5, 2, 3])
def test_one_hot_distributions_agree_with_labels(alpha, size):
    logits, target = torch.randn(4, 3, size) * 2, torch.randint(size, (4, 3))
    hot = torch.nn.functional.one_hot(target, size).float()
    mask = torch.rand(size) > 0.2
    for keywords in ({}, {"label_smoothing": 0.1}, {"label_smoothing": 0.1, "smoothing_mask": mask}):
        for reduction in ("none", "sum", "mean"):
            labels = entmax_loss(logits, target, alpha, reduction=reduction, **keywords)
            soft = entmax_loss(logits, hot, alpha, reduction=reduction, **keywords)
            assert labels.shape == soft.shape and torch.allclose(labels, soft, rtol=1e-5)


def test_zero_loss_at_the_solution_and_never_negative():
    logits = torch.randn(20, 9)
    for alpha in (1.3, 1.5, 2, 3):
        assert entmax_loss(logits, entmax(logits, alpha), alpha, reduction="none").abs().max() < 1e-6
        assert (entmax_loss(logits, distributions(20, 9), alpha, reduction="none") >= 0).all()


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 4.0])
def test_normmax_loss_is_the_fenchel_young_loss(alpha):
    logits = torch.randn(6, 8, dtype=torch.float64).requires_grad_()
    target, soft = torch.randint(8, (6,)), distributions(6, 8, dtype=torch.float64)
    p = normmax(logits, alpha).detach()
    conjugate = (p * logits).sum(-1) - torch.linalg.vector_norm(p, alpha, dim=-1)
    for given, q in ((target, torch.nn.functional.one_hot(target, 8).double()), (soft, soft)):
        expected = conjugate + torch.linalg.vector_norm(q, alpha, dim=-1) - (q * logits).sum(-1)
        loss = normmax_loss(logits, given, alpha, reduction="none")
        assert torch.allclose(loss, expected) and (loss >= 0).all()
        (grad,) = torch.autograd.grad(loss.sum(), logits)
        assert torch.allclose(grad, p - q)
        assert torch.autograd.gradcheck(lambda x, g=given: normmax_loss(x, g, alpha), logits)


def test_normmax_loss_at_the_edges():
    logits = torch.tensor([[3.0, 2, 2], [0, -INF, 1], [float("nan"), 0, 0]], requires_grad=True)
    loss = normmax_loss(logits, torch.tensor([0, 1, -100]), reduction="none")
    assert loss[0] == 0 and loss[1] == INF and loss[2] == 0
    assert normmax_loss(logits, torch.tensor([0, 2, -100])) == normmax_loss(logits[1], torch.tensor(2)) / 2
    normmax_loss(logits, torch.tensor([0, 2, -100])).backward()
    assert not logits.grad[0].any() and not logits.grad[2].any() and logits.grad[1].isfinite().all()
    assert normmax_loss(logits.bfloat16(), torch.tensor([0, 2, -100])).dtype == torch.float32
    for bad in (1, 0.5):
        with pytest.raises(ValueError, match=f"alpha must be a finite number > 1, got {bad}"):
            normmax_loss(logits, torch.tensor([0, 0, 0]), bad)


@pytest.mark.parametrize("alpha", [1, 1.5, 2])
def test_class_weights(alpha):
    logits, target = torch.randn(6, 5), torch.tensor([0, 1, -100, 4, 1, 3])
    weight = torch.tensor([1.0, 0.2, 3, 0, 2])
    plain = entmax_loss(logits, target, alpha, reduction="none")
    rows = torch.where(target >= 0, weight[target.clamp(min=0)], 0)
    leaf = logits.clone().requires_grad_()
    weighted = entmax_loss(leaf, target, alpha, reduction="none", weight=weight)
    assert torch.allclose(weighted, plain * rows)
    mean = entmax_loss(leaf, target, alpha, weight=weight)
    assert torch.allclose(mean, weighted.sum() / rows.sum())
    mean.backward()
    assert not leaf.grad[2].any() and not leaf.grad[5].any()
    if alpha == 1:
        assert torch.allclose(mean, torch.nn.functional.cross_entropy(logits, target, weight=weight))
    hot = torch.nn.functional.one_hot(target.clamp(min=0), 5).float()
    soft = entmax_loss(logits, hot, alpha, reduction="none", weight=weight)
    assert torch.allclose(soft[target >= 0], weighted[target >= 0], atol=1e-6)
    with pytest.raises(ValueError, match=r"weight must be floating point of shape \(5,\)"):
        entmax_loss(logits, target, alpha, weight=weight[:4])


def test_wrong_distributions_are_refused():
    logits = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="sum to one in each row, got a sum of 3.0"):
        entmax_loss(logits, torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"shape \(2, 3\), got \(2, 4\)"):
        entmax_loss(logits, torch.ones(2, 4) / 4)


@pytest.mark.parametrize("loss", [entmax_loss, normmax_loss])
def test_second_derivative_is_refused_case_50(loss):
    logits = torch.randn(3, 5, requires_grad=True)
    total = loss(logits, distributions(3, 5)) + logits.square().sum()
    (grad,) = torch.autograd.grad(total, logits, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(grad.sum(), logits)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_case_43(dtype):
    logits, target = (torch.randn(4, 9) * 3).to(dtype), distributions(4, 9).to(dtype)
    for loss in (entmax_loss, normmax_loss):
        leaf = logits.clone().requires_grad_()
        value = loss(leaf, target)
        assert value.dtype == torch.float32
        assert torch.allclose(value, loss(logits.float(), target.float()))
        value.backward()
        assert leaf.grad.dtype == dtype
