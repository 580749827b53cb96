"""The sparse output layer by Triton kernels, against the loss of all logits in float64."""

import pytest
import torch
from interpreted import DEVICE, only_kernels  # noqa: F401
from torch.nn import functional as F

from fairseq_entmax.ops import entmax_loss, kernels, kernels_products, linear_entmax_loss, linear_loss

DIM = 12
SCALES = {"sparse": 1.0, "some rows overflow": 0.2, "all rows overflow": 0.001}


@pytest.fixture
def taken(monkeypatch):
    """Always sparse products; the calls of the kernel are counted."""
    calls, real = [], kernels_products.loss_and_gradients
    monkeypatch.setattr(kernels_products.Density, "choose", lambda self: True)
    monkeypatch.setattr(kernels, "loss_and_gradients", lambda *args: calls.append(1) or real(*args))
    return calls


def layer(classes, scale, dtype=torch.float32, rows=5, bias=True):
    generator = torch.Generator().manual_seed(classes)

    def randn(*shape):
        return torch.randn(*shape, generator=generator)

    features = (randn(rows, DIM) * scale * torch.linspace(0.5, 1.5, rows)[:, None]).to(dtype)
    weight, target = randn(classes, DIM).to(dtype), torch.randint(classes, (rows,), generator=generator)
    biases = (scale * randn(classes)).to(dtype) if bias else None
    return [x if x is None else x.to(DEVICE) for x in (features, weight, biases, target)]


def gradients(function, features, weight, bias, target, **options):
    leaves = [x if x is None else x.detach().clone().requires_grad_() for x in (features, weight, bias)]
    loss = function(*leaves, target, **options)
    (loss * 0.3).backward()
    return [loss.detach(), *(leaf.grad for leaf in leaves if leaf is not None)]


def all_logits(features, weight, bias, target, **options):
    return entmax_loss(F.linear(features, weight, bias), target, **options)


def fused(features, weight, bias, target, **options):
    return linear_entmax_loss(features, weight, target, bias=bias, **options)


def compare(inputs, tolerance, **options):
    exact = [x if x is None else x.cpu() for x in inputs]
    exact[:3] = [x if x is None else x.double() for x in exact[:3]]
    expected = gradients(all_logits, *exact, **options)
    for ours, right in zip(gradients(fused, *inputs, **options), expected):
        assert (ours.cpu().double() - right).abs().max() <= tolerance * right.abs().max()


CASES = [
    (1100, 1.5, 0.1, "sparse"),
    (1100, 1.3, 0.0, "sparse"),
    (1100, 2.0, 0.1, "some rows overflow"),
    (1100, 1.5, 0.1, "all rows overflow"),
    (9001, 1.5, 0.0, "sparse"),
]


@pytest.mark.parametrize("classes, alpha, smoothing, scale", CASES)
def test_equals_the_loss_of_all_logits_case_41(classes, alpha, smoothing, scale, taken, monkeypatch):
    monkeypatch.setattr(kernels_products, "CHUNK", 128)  # fewer rounds, as each takes the interpreter long
    inputs = layer(classes, SCALES[scale])
    inputs[3][2] = 7
    compare(inputs, 3e-6, alpha=alpha, label_smoothing=smoothing, reduction="mean", ignore_index=7)
    assert taken


def test_several_blocks_without_bias(taken, monkeypatch):
    monkeypatch.setattr(linear_loss, "BLOCK", 3 * 1100)
    monkeypatch.setattr(linear_loss, "BLOCK_ON_ACCELERATOR", 3 * 1100)
    compare(layer(1100, 1.0, bias=False), 3e-6, reduction="sum")
    assert len(taken) == 2


def test_strided_features_and_wide_layer(taken, monkeypatch):
    monkeypatch.setattr(kernels_products, "DIM", 8)  # two parts, the last one incomplete
    features, weight, bias, target = layer(1100, 1.0)
    spread = torch.zeros(DIM, 10, device=DEVICE)
    spread[:, ::2] = features.t()
    compare([spread[:, ::2].t(), weight, bias, target], 3e-6, reduction="sum")
    assert taken


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_sums_in_float32_case_44(dtype, taken):
    inputs = layer(1100, 1.0, dtype)
    loss, *ours = gradients(fused, *inputs, reduction="sum")
    # The logits are rounded to the dtype; everything after them is not.
    assert loss.dtype == torch.float32 and all(x.dtype == dtype for x in ours)
    exact = [x if x is None else x.cpu() for x in inputs]
    exact[:3] = [x.double() for x in exact[:3]]
    rounding = 20 * torch.finfo(dtype).eps
    for one, right in zip(ours, gradients(all_logits, *exact, reduction="sum")[1:]):
        assert (one.cpu().double() - right).abs().max() < rounding * right.abs().max()


def test_nan_stays_in_its_row(taken):
    inputs = layer(1100, 1.0)
    inputs[0][3] = torch.nan
    loss, to_features, *_ = gradients(fused, *inputs, reduction="sum")
    assert loss.isnan() and to_features[3].isnan().all() and to_features[[0, 1, 2, 4]].isfinite().all()


def test_an_earlier_step_chooses(monkeypatch):
    calls, real = [], kernels_products.loss_and_gradients
    monkeypatch.setattr(kernels, "loss_and_gradients", lambda *args: calls.append(1) or real(*args))
    features, weight, bias, target = layer(1100, 1.0)
    parameter = torch.nn.Parameter(weight)
    taken = []
    for scale in (0.0, 1.0, 1.0, 0.0, 1.0):  # dense at first, then after what the step before saw
        before = len(calls)
        fused(scale * features.requires_grad_(), parameter, scale * bias, target, reduction="sum").backward()
        taken.append(len(calls) > before)
    assert taken == [False, False, True, True, False]
