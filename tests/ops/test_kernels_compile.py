"""The kernels inside torch.compile and autocast, as custom ops with fake implementations, and on the right device."""

import types

import pytest
import torch
from interpreted import DEVICE, only_kernels, rows_of  # noqa: F401

from fairseq_entmax.ops import entmax, entmax_loss, kernels, kernels_launch
from fairseq_entmax.ops.loss_rows import Smoothing


def both(function, *inputs):
    """Result and gradients of `function`, plain and compiled into one graph."""
    results = []
    torch._dynamo.reset()
    for call in (function, torch.compile(function, backend="aot_eager", fullgraph=True)):
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        result = call(*leaves)
        (result * torch.arange(1, result.numel() + 1, device=DEVICE).view(result.shape)).sum().backward()
        results.append([result.detach(), *(leaf.grad for leaf in leaves)])
    return results


@pytest.mark.parametrize("size", [40, 9001])
def test_mapping_compiles_into_one_graph(size):
    plain, compiled = both(lambda scores: entmax(scores, 1.5), rows_of(size)[:2])
    assert all(torch.equal(a, b) for a, b in zip(plain, compiled))


@pytest.mark.parametrize("size", [40, 1100])
def test_loss_compiles_into_one_graph(size):
    target = torch.tensor([3, -100, 5], device=DEVICE)

    smoothing = Smoothing(0.9, 0.1 / size, torch.ones(size, dtype=torch.bool, device=DEVICE), size)

    def loss(logits):  # what `entmax_loss` calls after its checks, which on a CPU branch on the targets
        return kernels.loss_rows(logits, target, 1.5, smoothing, -100)[0]

    plain, compiled = both(loss, rows_of(size)[:3])
    assert all(torch.equal(a, b) for a, b in zip(plain, compiled))


@pytest.mark.parametrize("size", [40, 1100, 9001])
def test_fakes_agree_with_the_kernels(size):
    scores, target = rows_of(size)[:2], torch.tensor([3, 5], device=DEVICE)
    check, ops = torch.library.opcheck, torch.ops.fairseq_entmax
    tests = ("test_schema", "test_faketensor")
    check(ops.entmax_forward, (scores, 1.5, None), test_utils=tests)
    probs, *lists = kernels_launch.entmax_forward(scores, 1.5, None)
    check(ops.entmax_backward, (probs, *lists, scores, 1.5, None, False), test_utils=tests)
    numbers = 1.5, 0.9, 0.1 / size
    mask = torch.ones(size, dtype=torch.bool, device=DEVICE)
    check(ops.loss_forward, (scores, target, mask, *numbers, float(size), -100), test_utils=tests)
    loss, _, target_prob, _, *saved = kernels_launch.loss_forward(scores, target, mask, *numbers, float(size), -100)
    check(ops.loss_backward, (scores, target, mask, *saved, target_prob, loss, *numbers, -100), test_utils=tests)


def test_under_autocast():
    scores = torch.randn(3, 20, device=DEVICE)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        probs = entmax(scores @ torch.eye(20, device=DEVICE), 1.5)
        loss = entmax_loss(scores @ torch.eye(20, device=DEVICE), torch.tensor([1, 2, 3], device=DEVICE))
    assert probs.dtype == torch.bfloat16 and loss.dtype == torch.float32


def test_launches_on_the_device_of_the_tensor_case_56(monkeypatch):
    entered = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: entered.append(device))
    other = torch.device("cuda", 1)
    kernels_launch.on_device_of(types.SimpleNamespace(device=other))
    assert entered == [other]
