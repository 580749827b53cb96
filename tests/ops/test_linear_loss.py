import math

import pytest
import torch
from torch.nn import functional as F

from fairseq_entmax.ops import entmax_loss, linear_entmax_loss, linear_loss, token_entmax_loss
from fairseq_entmax.ops.linear_loss import token_linear_entmax_loss

CLASSES, DIM = 1100, 12


def layer(rows=9, classes=CLASSES, dim=DIM, dtype=torch.float64, bias=True, seed=0, scale=1.0):
    """Features, weight, bias and targets; the larger `scale`, the sparser the outputs."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    target = torch.randint(classes, (rows,), generator=generator)
    with torch.no_grad():
        features = (scale * randn(rows, dim)).requires_grad_()
    return features, randn(classes, dim), randn(classes) if bias else None, target


def gradients(loss, inputs, upstream=None):
    upstream = upstream if upstream is not None else torch.ones_like(loss)
    return torch.autograd.grad(loss, [x for x in inputs if x is not None], upstream)


def compare(inputs, target, tolerance=1e-11, upstream=None, **options):
    features, weight, bias = inputs
    expected = entmax_loss(F.linear(features, weight, bias), target, **options)
    loss = linear_entmax_loss(features, weight, target, bias=bias, **options)
    assert loss.dtype == expected.dtype and torch.allclose(loss, expected, atol=tolerance, rtol=tolerance)
    for ours, theirs in zip(gradients(loss, inputs, upstream), gradients(expected, inputs, upstream)):
        assert ours.dtype == theirs.dtype
        assert torch.allclose(ours, theirs, atol=tolerance * float(theirs.abs().max()), rtol=tolerance)


# Sparse, mixed and flat rows take different ways.
SCALES = {"sparse": 1.0, "narrow and wide rows": 0.2, "wide": 0.01}


@pytest.fixture(params=["one block", "many blocks"])
def blocks(request, monkeypatch):
    if request.param == "many blocks":
        monkeypatch.setattr(linear_loss, "BLOCK", 4 * CLASSES)


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("alpha", [1.0, 1.2, 1.5, 2.0, 2.5])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_equals_the_loss_of_all_logits_case_41(alpha, scale, smoothing, reduction, blocks):
    *inputs, target = layer(scale=scale)
    target[[2, 5]] = 7
    generator = torch.Generator().manual_seed(1)
    upstream = torch.randn(len(target) if reduction == "none" else (), generator=generator, dtype=torch.float64)
    options = {"alpha": alpha, "label_smoothing": smoothing, "reduction": reduction, "ignore_index": 7}
    # The other side rounds the share of each class to float32.
    compare(inputs, target, tolerance=1e-9 if smoothing else 1e-11, upstream=upstream, **options)


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_float32(scale, blocks):
    *inputs, target = layer(rows=40, dtype=torch.float32, scale=scale)
    compare(inputs, target, tolerance=3e-6, reduction="sum")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("frozen", [0, 1])
def test_frozen_features_or_weight(bias, frozen):
    *inputs, target = layer(bias=bias)
    inputs[frozen].requires_grad_(False)
    wanted = [x for x in inputs if x is not None and x.requires_grad]
    features, weight, bias = inputs
    loss, expected = linear_entmax_loss(features, weight, target, bias), entmax_loss(F.linear(*inputs), target)
    for ours, theirs in zip(torch.autograd.grad(loss, wanted), torch.autograd.grad(expected, wanted)):
        assert torch.allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("summed", [True, False])
def test_figures_of_every_token(summed, smoothing, blocks):
    *inputs, target = layer(rows=12, scale=0.5)
    target = target.view(3, 4)
    target[0, 1] = target[2, 3] = -1
    features, weight, bias = inputs
    mask = torch.arange(CLASSES) % 3 != 0
    options = {"ignore_index": -1, "label_smoothing": smoothing, "smoothing_mask": mask if smoothing else None}
    expected = token_entmax_loss(F.linear(*inputs).view(3, 4, -1), target, **options)
    found = token_linear_entmax_loss(features.view(3, 4, -1), weight, target, bias, summed=summed, **options)
    assert torch.allclose(found.loss, expected.loss.sum() if summed else expected.loss)
    for ours, theirs in zip(found[1:], expected[1:]):
        assert ours.dtype == theirs.dtype and ours.shape == (3, 4) and torch.allclose(ours, theirs)
        assert not ours.requires_grad


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_same_value_without_gradients_case_39(scale, reduction):
    features, weight, bias, target = layer(scale=scale)
    loss = linear_entmax_loss(features, weight, target, bias, reduction=reduction)
    with torch.no_grad():
        frozen = linear_entmax_loss(features, weight, target, bias, reduction=reduction)
    constant = linear_entmax_loss(features.detach(), weight.detach(), target, bias.detach(), reduction=reduction)
    assert torch.equal(loss.detach(), frozen) and torch.equal(constant, frozen) and (loss > 0).all()
    assert loss.requires_grad and not frozen.requires_grad and not constant.requires_grad


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_arguments_are_not_written_to_and_backward_may_run_twice_case_40(scale, reduction, blocks):
    *inputs, target = layer(scale=scale)
    before = [x.detach().clone() for x in (*inputs, target)]
    features, weight, bias = inputs
    loss = linear_entmax_loss(features, weight, target, bias, reduction=reduction, label_smoothing=0.1)
    again = linear_entmax_loss(features, weight, target, bias, reduction=reduction, label_smoothing=0.1)
    first = torch.autograd.grad(loss.sum(), inputs, retain_graph=True)
    second = torch.autograd.grad(loss.sum(), inputs)
    third = torch.autograd.grad(again.sum(), inputs)
    for a, b, c in zip(first, second, third):
        assert torch.equal(a, b) and torch.equal(a, c)
    assert all(torch.equal(x, old) for x, old in zip((*inputs, target), before))


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_gradient_accumulation(scale):
    """Two backward passes add up in `.grad`, and a weight that is an embedding too gets both gradients."""
    _, weight, _, target = layer(scale=scale)
    words = torch.tensor([3, 8, 8, 1, 0, 5, 2, 3, 1])

    def run(loss_of):
        weight.grad = None
        for part in (slice(0, 4), slice(4, 9)):
            loss_of(scale * F.embedding(words[part], weight), target[part]).backward()
        return weight.grad

    ours = run(lambda features, gold: 3 * linear_entmax_loss(features, weight, gold, reduction="sum"))
    theirs = run(lambda features, gold: 3 * entmax_loss(F.linear(features, weight), gold, reduction="sum"))
    assert torch.allclose(ours, theirs, atol=1e-11)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_all_targets_ignored_case_19(reduction):
    *inputs, target = layer()
    features, weight, bias = inputs
    loss = linear_entmax_loss(features, weight, target.fill_(-100), bias, reduction=reduction)
    assert (loss == 0).all() and loss.shape == (target.shape if reduction == "none" else ())
    assert all((grad == 0).all() for grad in torch.autograd.grad(loss.sum(), inputs))


def test_nan_and_ignored_rows():
    *inputs, target = layer()
    features, weight, bias = inputs
    with torch.no_grad():
        features[3] = math.nan
        features[5] = math.nan
    target[5] = -100
    losses = linear_entmax_loss(features, weight, target, bias, reduction="none")
    (grad,) = torch.autograd.grad(losses.sum(), features)
    assert losses.isnan().nonzero().tolist() == [[3]] and losses[5] == 0
    assert grad[3].isnan().all() and (grad[5] == 0).all()
    rest = torch.tensor([0, 1, 2, 4, 6, 7, 8])
    expected = entmax_loss(F.linear(*inputs), target, reduction="none")
    assert torch.allclose(losses[rest], expected[rest]) and grad[rest].isfinite().all()


def test_class_that_is_excluded_by_its_bias_case_14():
    *inputs, target = layer()
    with torch.no_grad():
        inputs[2][1] = -math.inf
    target[target == 1] = 0
    compare(inputs, target, reduction="sum")
    target[4] = 1
    assert linear_entmax_loss(inputs[0], inputs[1], target, inputs[2], reduction="sum") == math.inf


@pytest.mark.parametrize(
    "dtype, rows, scale",
    [(torch.bfloat16, 1024, 1.0), (torch.bfloat16, 200, 0.01), (torch.float16, 200, 0.2), (torch.float16, 200, 0.01)],
    ids=str,
)
def test_low_precision_sums_in_float32_case_44(dtype, rows, scale, monkeypatch):
    """Up to 1024 blocks of one row: the error stays that of one product in low precision."""
    features, weight, bias, target = layer(rows=rows, classes=1030, dim=8, dtype=dtype, scale=scale)
    try:
        features @ weight.t()
    except RuntimeError:
        pytest.skip(f"this torch has no products in {dtype} on CPU")
    low = [features, weight, bias]
    exact = [x.detach().float().requires_grad_() for x in low]

    def error(loss):
        grads = torch.autograd.grad(loss, low)
        return max(float((g.float() - e).norm() / e.norm()) for g, e in zip(grads, expected))

    rounded = F.linear(*low).float() - F.linear(*exact)  # the logits themselves are in low precision
    full = entmax_loss(F.linear(*exact) + rounded.detach(), target, reduction="sum")
    expected = torch.autograd.grad(full, exact)
    one_block = error(entmax_loss(F.linear(*low), target, reduction="sum"))
    monkeypatch.setattr(linear_loss, "BLOCK", 1030)
    loss = linear_entmax_loss(features, weight, target, bias, reduction="sum")
    assert loss.dtype == torch.float32 and float(loss) == pytest.approx(float(full), rel=1e-5)
    assert error(loss) <= 2 * max(one_block, torch.finfo(dtype).eps)


def test_float16_loss_does_not_overflow_case_43():
    features, weight = torch.full((40, 2), 100.0).half(), torch.zeros(1100, 2).half()
    weight[3] = 300.0
    try:
        features @ weight.t()
    except RuntimeError:
        pytest.skip("this torch has no products in float16 on CPU")
    loss = linear_entmax_loss(features, weight, torch.zeros(40, dtype=torch.long), reduction="sum")
    assert float(loss) == pytest.approx(40 * 60000, rel=1e-2)


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_autocast(scale):
    *inputs, target = layer(rows=30, dtype=torch.float32, scale=scale)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = linear_entmax_loss(inputs[0], inputs[1], target, inputs[2])
        expected = entmax_loss(F.linear(*inputs), target)
    assert torch.allclose(loss, expected, rtol=1e-5)
    for ours, theirs in zip(gradients(loss, inputs), gradients(expected, inputs)):
        assert ours.dtype == torch.float32 and float((ours - theirs).norm() / theirs.norm()) < 2e-2


def test_few_entries_are_kept_and_logits_forgotten(monkeypatch):
    """What the backward pass holds is bounded, however wide the supports, and the products are right all the same."""
    monkeypatch.setattr(linear_loss, "BLOCK", 4 * CLASSES)
    monkeypatch.setattr(linear_loss, "PENDING", 100)
    *inputs, target = layer(rows=30, scale=0.5)
    for reduction in ("sum", "none"):
        compare(inputs, target, tolerance=1e-9, reduction=reduction, label_smoothing=0.1)
        loss = linear_entmax_loss(inputs[0], inputs[1], target, inputs[2], reduction=reduction)
        work = loss.grad_fn.work if hasattr(loss.grad_fn, "work") else loss.grad_fn.next_functions[0][0].work
        held = sum(len(entries.rows) for entries in work.entries)
        assert held <= 100 and (work.later != []) == (reduction == "none")


def test_second_derivative_is_refused_case_50():
    *inputs, target = layer()
    loss = linear_entmax_loss(inputs[0], inputs[1], target, inputs[2])
    (grad,) = torch.autograd.grad(loss, inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        grad.square().sum().backward()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"weight": torch.zeros(5, 7)}, "weight.*12.*5, 7"),
        ({"bias": torch.zeros(3)}, "bias.*1100.*3"),
        ({"target": torch.zeros(4, dtype=torch.long)}, "target.*9.*4"),
        ({"target": torch.full((9,), 1100)}, "target.*1099.*1100"),
        ({"alpha": 0.5}, "alpha.*0.5"),
        ({"reduction": "max"}, "reduction.*max"),
        ({"features": torch.zeros(9, 12, dtype=torch.long)}, "features.*int64"),
        ({"label_smoothing": 1.0}, "label_smoothing.*1.0"),
    ],
    ids=str,
)
def test_mistakes_are_named(change, message):
    features, weight, bias, target = layer(dtype=torch.float32)
    with pytest.raises(ValueError, match=message):
        linear_entmax_loss(**{"features": features, "weight": weight, "target": target, "bias": bias, **change})


@pytest.mark.parametrize("name", ["features", "weight"])
def test_what_was_changed_in_place_is_refused(name):
    tensors = {"features": torch.randn(6, 4, requires_grad=True), "weight": torch.randn(1100, 4, requires_grad=True)}
    loss = linear_entmax_loss(tensors["features"], tensors["weight"], torch.arange(6))
    with torch.no_grad():
        tensors[name].mul_(0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
