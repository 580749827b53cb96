"""entmax_loss and token_entmax_loss: against an oracle with many digits, at the edges, and their gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import fenchel_young_digits

from fairseq_entmax.ops import entmax, entmax_loss, reference, token_entmax_loss

INF = float("inf")
ALPHAS = [1.02, 1.3, 1.5, 2.0, 3.0]
# Solved whole; solved on the support found through blocks.
SIZES = [9, 1100]


def batch(size, scale, dtype=torch.float32):
    """Logits `(6, size)` and targets: random, leading, outside the support, tied, almost one-hot, the best class."""
    generator = torch.Generator().manual_seed(size)
    logits = torch.randn(6, size, dtype=dtype, generator=generator) * scale
    target = torch.randint(size, (6,), generator=generator)
    logits[1, target[1]] += 40
    logits[2, target[2]] -= 10
    logits[3] = 0.1
    logits[4, target[4]] = logits[4].max() + 1
    target[5] = logits[5].argmax()
    return logits, target


def distribution(target, size, smoothing=0.0, mask=None):
    mask = torch.ones(size, dtype=torch.bool) if mask is None else mask
    q = torch.zeros(len(target), size, dtype=torch.float64).scatter_(1, target[:, None], 1 - smoothing)
    return q + smoothing * mask.double() / mask.sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [0.05, 1, 5])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_matches_many_digits(alpha, scale, smoothing):
    logits, target = batch(9, scale)
    mask = torch.arange(9) != 2
    loss = entmax_loss(logits, target, alpha, reduction="none", label_smoothing=smoothing, smoothing_mask=mask)
    q = distribution(target, 9, smoothing, mask)
    for value, row, gold in zip(loss, logits, q):
        expected = fenchel_young_digits(row.tolist(), gold.tolist(), alpha)
        assert abs(value - expected) <= 2e-7 * max(abs(expected), 1e-2)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [0.002, 0.05, 1, 5])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_long_rows_match_float64_and_gradient_is_p_minus_q(alpha, scale, smoothing):
    logits, target = batch(2500, scale)
    mask = torch.rand(2500, generator=torch.Generator().manual_seed(0)) > 0.1
    upstream = torch.rand(6)
    p, q = entmax(logits.double(), alpha), distribution(target, 2500, smoothing, mask)

    def entropy(p):
        return (p - p.pow(alpha)).sum(-1) / (alpha * (alpha - 1))

    expected = ((p - q) * (logits.double() - logits.max())).sum(-1) + entropy(p) - entropy(q)
    logits.requires_grad_()
    loss, support, target_prob, correct = token_entmax_loss(
        logits, target, alpha, label_smoothing=smoothing, smoothing_mask=mask
    )
    assert loss.dtype == torch.float32
    # Where the optimum of smoothing is near, the loss is a difference of sums ten times its size.
    assert ((loss - expected).abs() <= 3e-7 * expected.abs().clamp(min=1e-2 if smoothing == 0 else 1e-1)).all()
    (loss * upstream).sum().backward()
    assert (logits.grad - (p - q) * upstream[:, None]).abs().max() < 2e-7
    disputed = (p > 0) & (p < 1e-12)
    assert ((support - (p > 0).sum(-1)).abs() <= disputed.sum(-1)).all()
    assert (target_prob - p.gather(1, target[:, None])[:, 0]).abs().max() < 2e-7
    assert torch.equal(correct, logits.argmax(-1) == target)


def test_fixed_oracles_case_15():
    logits = torch.tensor([[2.0, 0, 0], [1, 0, 0]], requires_grad=True)
    loss = entmax_loss(logits, torch.zeros(2, dtype=torch.long), reduction="none")
    loss.sum().backward()
    assert loss[0] == 0 and not logits.grad[0].any()
    assert abs(loss[1] - 0.0995783) < 1e-7
    assert torch.allclose(logits.grad[1], torch.tensor([-0.259747, 0.129873, 0.129873]), atol=1e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_margin_shift_and_sign_case_15(alpha, size):
    logits, target = batch(size, 1)
    margin = 1 / (alpha - 1)
    for offset in (0, 1e4, -1e6):
        # One step of float32 more than the margin, where the offset allows no finer one.
        led = logits + offset
        led.scatter_(1, target[:, None], INF).clamp_(max=0)
        led = (logits * 0.1 + offset).scatter_(1, target[:, None], 0)
        top = led.scatter(1, target[:, None], -INF).amax(-1, keepdim=True)
        led.scatter_(1, target[:, None], top + margin + max(1e-5, abs(offset) * 2e-7)).requires_grad_()
        loss = entmax_loss(led, target, alpha, reduction="none")
        loss.sum().backward()
        assert torch.equal(loss, torch.zeros(6)) and not led.grad.any()
    # Multiples of 1/256 survive the shift exactly.
    coarse = (logits * 256).round() / 256
    for offset in (0.0, 1000.0, -4096.0):
        loss = entmax_loss(coarse + offset, target, alpha, reduction="none")
        assert (loss >= 0).all()
        assert torch.equal(loss, entmax_loss(coarse, target, alpha, reduction="none"))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=30),
    st.floats(1, 4),
    st.integers(0, 29),
    st.sampled_from([0.0, 0.1]),
)
def test_never_negative_case_15(row, alpha, target, smoothing):
    logits, target = torch.tensor(row), torch.tensor(target % len(row))
    loss = entmax_loss(logits, target, alpha, label_smoothing=smoothing)
    assert loss >= 0
    # Bounded by the spread of the logits, unlike a log-likelihood.
    if alpha > 1:
        assert loss <= logits.max() - logits.min() + 1 / (alpha - 1) + 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("alpha", [1, 1.5, 2, 3])
def test_ignored_targets_case_6(alpha, size):
    logits, _ = batch(size, 2)
    for ignore in (-100, -1, 5):
        target = torch.tensor([1, ignore, 2, ignore, 0, 3])
        kept = target != ignore
        leaf = logits.clone().requires_grad_()
        # What an ignored row holds does not matter.
        poisoned = torch.where(kept[:, None], leaf, torch.tensor(float("nan")))
        none = entmax_loss(leaf, target, alpha, ignore, "none")
        assert not none[~kept].any()
        assert torch.allclose(none[kept], entmax_loss(logits[kept], target[kept], alpha, reduction="none"))
        mean = entmax_loss(leaf, target, alpha, ignore)
        assert torch.allclose(mean, none[kept].mean())
        assert torch.allclose(entmax_loss(leaf, target, alpha, ignore, "sum"), none.sum())
        mean.backward()
        assert not leaf.grad[~kept].any() and leaf.grad[kept].any()
        if alpha != 1:
            other = poisoned.detach().requires_grad_()
            entmax_loss(other, target, alpha, ignore).backward()
            assert torch.equal(other.grad, leaf.grad)


@pytest.mark.parametrize("alpha", [1, 1.5])
def test_leading_shapes_case_6(alpha):
    logits, target = torch.randn(2, 3, 5, requires_grad=True), torch.randint(5, (2, 3))
    target[0, 1] = -100
    loss = entmax_loss(logits, target, alpha, reduction="none")
    flat = entmax_loss(logits.reshape(6, 5), target.reshape(6), alpha, reduction="none")
    assert loss.shape == (2, 3) and torch.equal(loss.reshape(6), flat)
    assert entmax_loss(logits[0, 0], target[0, 0], alpha, reduction="none").shape == ()
    turned = torch.randn(5, 2, 3).movedim(0, -1).requires_grad_()
    entmax_loss(turned, target, alpha, label_smoothing=0.1).backward()
    assert turned.grad.shape == (2, 3, 5) and turned.grad.any()
    assert entmax_loss(torch.zeros(0, 5), torch.zeros(0, dtype=torch.long), alpha) == 0


@pytest.mark.parametrize("size", SIZES)
def test_wrong_arguments_are_named_case_6(size):
    logits, target = torch.zeros(2, size), torch.tensor([0, size])
    with pytest.raises(ValueError, match=f"target must lie in .0, {size - 1}. or be ignore_index, got {size}"):
        entmax_loss(logits, target)
    with pytest.raises(ValueError, match="got -1"):
        entmax_loss(logits, torch.tensor([0, -1]))
    with pytest.raises(ValueError, match="target must be int64"):
        entmax_loss(logits, torch.zeros(2, dtype=torch.int32))
    with pytest.raises(ValueError, match="class numbers must be int64"):
        entmax_loss(logits, torch.zeros(2))
    with pytest.raises(ValueError, match="target must have shape"):
        entmax_loss(logits, torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="reduction must be none, sum or mean, got 'average'"):
        entmax_loss(logits, target * 0, reduction="average")
    with pytest.raises(ValueError, match="label_smoothing"):
        entmax_loss(logits, target * 0, label_smoothing=1.5)
    with pytest.raises(ValueError, match="smoothing_mask"):
        entmax_loss(logits, target * 0, label_smoothing=0.1, smoothing_mask=torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="alpha must be a finite number >= 1, got 0.5"):
        entmax_loss(logits, target * 0, alpha=0.5)
    with pytest.raises(ValueError, match="logits must be floating point"):
        entmax_loss(logits.long(), target - 1)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("alpha", [1, 1.5, 2, 3])
def test_everything_ignored_case_19(alpha, size):
    for reduction in ("none", "sum", "mean"):
        logits = torch.randn(3, size, requires_grad=True)
        loss = entmax_loss(logits, torch.full((3,), 1), alpha, 1, reduction, label_smoothing=0.1)
        loss.sum().backward()
        assert not loss.any() and torch.equal(logits.grad, torch.zeros(3, size))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("alpha", [1, 1.02, 1.5, 2, 3])
def test_masked_classes_case_14(alpha, size):
    logits, target = torch.rand(10, size), torch.randint(4, (10,))
    logits[:, 4] = -INF
    kept = torch.arange(size) != 4
    without = logits[:, kept]
    for leaf in (logits, without):
        leaf.requires_grad_()
    loss = entmax_loss(logits, target, alpha)
    assert torch.allclose(loss, entmax_loss(without, target, alpha), atol=1e-7)
    loss.backward()
    entmax_loss(without, target, alpha).backward()
    assert torch.allclose(logits.grad[:, kept], without.grad, atol=1e-7) and not logits.grad[:, 4].any()
    # Smoothing that spares the class sees nothing of it; smoothing that does not is infinitely wrong.
    logits = logits.detach()
    smoothed = entmax_loss(logits, target, alpha, label_smoothing=0.1, smoothing_mask=kept)
    assert torch.allclose(smoothed, entmax_loss(without, target, alpha, label_smoothing=0.1), atol=1e-6)
    assert entmax_loss(logits, target, alpha, label_smoothing=0.1) == INF
    assert entmax_loss(logits, torch.full((10,), 4), alpha, reduction="none").eq(INF).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("alpha", [1.5, 2, 3])
def test_nan_stays_in_its_row_case_12(alpha, size):
    logits, target = batch(size, 1)
    logits[2, 1] = float("nan")
    logits.requires_grad_()
    loss = entmax_loss(logits, target, alpha, reduction="none")
    assert loss[2].isnan() and loss[[0, 1, 3, 4, 5]].isfinite().all()
    loss.sum().backward()
    assert logits.grad[2].isnan().all() and logits.grad[[0, 1, 3, 4, 5]].isfinite().all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [0.001, 1, 4])
@pytest.mark.parametrize("alpha", [1, 1.2, 1.5, 2, 3])
def test_gradcheck(alpha, scale, size, smoothing):
    logits, target = batch(size, scale, torch.float64)
    logits[3, 0] = 0.2  # the loss has a kink in its gradient at exact ties
    target[0] = -100

    def loss(x):
        return entmax_loss(x, target, alpha, reduction="none", label_smoothing=smoothing)

    assert torch.autograd.gradcheck(loss, logits.requires_grad_(), fast_mode=True, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("alpha", [1, 1.5, 2])
def test_low_precision_logits_case_43(alpha, size, dtype):
    logits, target = batch(size, 3)
    logits[0] *= 3000  # spreads beyond what a float16 loss could hold
    logits = logits.clamp(-6e4, 6e4).to(dtype)
    low, high = logits.clone().requires_grad_(), logits.float().requires_grad_()
    for smoothing in (0.0, 0.1):
        low_loss = entmax_loss(low, target, alpha, reduction="none", label_smoothing=smoothing)
        high_loss = entmax_loss(high, target, alpha, reduction="none", label_smoothing=smoothing)
        assert low_loss.dtype == torch.float32 and low_loss.isfinite().all()
        assert torch.allclose(low_loss, high_loss, rtol=1e-6)
        low.grad = high.grad = None
        low_loss.sum().backward()
        high_loss.sum().backward()
        assert low.grad.dtype == dtype and torch.equal(low.grad, high.grad.to(dtype))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("alpha", [1, 1.5])
def test_no_grad_agrees_case_39(alpha, size):
    logits, target = batch(size, 1)
    with_grad = entmax_loss(logits.clone().requires_grad_(), target, alpha)
    assert entmax_loss(logits, target, alpha) == with_grad
    with torch.no_grad():
        assert entmax_loss(logits.requires_grad_(), target, alpha) == with_grad > 0


@pytest.mark.parametrize("scale", [0.001, 3])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("alpha", [1.5, 2])
def test_logits_are_left_alone_case_40(alpha, size, scale):
    logits, target = batch(size, scale)
    before = logits.clone()
    logits.requires_grad_()
    first = entmax_loss(logits, target, alpha)
    second = entmax_loss(logits, target, alpha, label_smoothing=0.1)
    (one,) = torch.autograd.grad(first, logits, retain_graph=True)
    (again,) = torch.autograd.grad(first, logits, retain_graph=True)
    (both,) = torch.autograd.grad(first + second, logits, retain_graph=True)
    assert torch.equal(one, again)
    assert torch.allclose(both - one, torch.autograd.grad(second, logits)[0], atol=1e-8)
    assert torch.equal(logits.detach(), before)


@pytest.mark.parametrize("scale", [0.001, 3])
@pytest.mark.parametrize("size", SIZES)
def test_upstream_gradient_case_41(size, scale):
    logits, target = batch(size, scale)
    target[0] = -100
    weights = torch.randn(6)
    logits.requires_grad_()
    (entmax_loss(logits, target, reduction="none") * weights).sum().backward()
    p = entmax(logits.detach().double())
    expected = (p - distribution(target.clamp(min=0), size)) * weights[:, None]
    expected[0] = 0
    assert (logits.grad - expected).abs().max() < 1e-6


@pytest.mark.parametrize("size", SIZES)
def test_second_derivative_is_refused_case_50(size):
    logits, target = batch(size, 1)
    logits.requires_grad_()
    for total in (entmax_loss(logits, target), entmax_loss(logits, target).square()):
        # The penalty has a second derivative of its own, which must not hide that of the loss.
        (grad,) = torch.autograd.grad(total + logits.square().sum(), logits, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiable once"):
            torch.autograd.grad(grad.sum(), logits)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_alpha_one_is_cross_entropy_case_16(smoothing):
    logits, target = torch.randn(5, 7), torch.tensor([1, 2, -100, 3, 0])
    for reduction in ("none", "sum", "mean"):
        ours = entmax_loss(logits, target, 1, reduction=reduction, label_smoothing=smoothing)
        theirs = torch.nn.functional.cross_entropy(logits, target, reduction=reduction, label_smoothing=smoothing)
        assert torch.allclose(ours, theirs)
    near = entmax_loss(logits, target, 1 + 1e-6, reduction="none")
    assert torch.allclose(near, entmax_loss(logits, target, 1, reduction="none"), atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("alpha", [1, 1.5, 2])
def test_figures_of_a_token(alpha, size):
    logits, target = batch(size, 4)
    target[0] = -100
    figures = token_entmax_loss(logits, target, alpha)
    p = entmax(logits, alpha)
    assert figures.support.dtype == torch.int64 and figures.correct.dtype == torch.bool
    assert figures.support.tolist() == [0] + (p[1:] > 0).sum(-1).tolist()
    assert torch.allclose(figures.target_prob[1:], p[range(1, 6), target[1:]], atol=1e-7)
    # All classes are tied in row 3: only the first of them counts as the answer.
    assert figures.correct.tolist() == [False] + (logits[1:].argmax(-1) == target[1:]).tolist()
    assert token_entmax_loss(logits[3], torch.tensor(0), alpha).correct


@pytest.mark.parametrize("size", SIZES)
def test_softmax_counts_the_classes_that_are_possible(size):
    logits, target = batch(size, 4)
    every = token_entmax_loss(logits, target, 1).support
    assert every.tolist() == [size] * 6 and every.dtype == torch.int64
    logits[0, :3], logits[2, 5] = -INF, -INF
    target[0], target[2] = 4, 6
    assert token_entmax_loss(logits, target, 1).support.tolist() == [size - 3, size, size - 1, size, size, size]
    assert token_entmax_loss(logits[:0], target[:0], 1).support.tolist() == []


def test_softmax_looks_at_its_classes_without_counting_them(monkeypatch):
    """On a CPU, to sum booleans costs more than the loss itself."""
    added = []
    plain = torch.Tensor.sum
    monkeypatch.setattr(torch.Tensor, "sum", lambda self, *a, **k: added.append(self.dtype) or plain(self, *a, **k))
    token_entmax_loss(*batch(1100, 4), 1)
    assert torch.bool not in added


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["weights", "distributions"])
def test_many_rows_are_counted_in_more_than_half_precision(kind, dtype):
    """float16 ends at 65,504 and bfloat16 counts to 256."""
    logits = torch.randn(70000, 3, generator=torch.Generator().manual_seed(0))
    target = torch.arange(70000) % 3
    expected = entmax_loss(logits, target)
    if kind == "weights":
        loss = entmax_loss(logits, target, weight=torch.ones(3, dtype=dtype))
    else:
        loss = entmax_loss(logits, torch.nn.functional.one_hot(target, 3).to(dtype))
    assert torch.allclose(loss, expected, rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_autocast_lowers_no_part_of_the_loss(smoothing, monkeypatch):
    """As on accelerators, where rows are solved in float32: float64 is left alone by autocast anyway."""
    monkeypatch.setattr(reference, "working_dtype", lambda scores: torch.float32)
    logits, target = batch(60, 2)
    mask = torch.arange(60) != 2
    options = {"reduction": "none", "label_smoothing": smoothing, "smoothing_mask": mask}
    plain = entmax_loss(logits, target, 1.5, **options)
    weight = torch.rand(60)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.allclose(entmax_loss(logits, target, 1.5, **options), plain, rtol=1e-6)
        soft = torch.softmax(logits, -1)
        lowered = entmax_loss(logits, soft, weight=weight)
    assert torch.allclose(lowered, entmax_loss(logits, soft, weight=weight), rtol=1e-6)


def test_no_targets_at_all_against_distributions():
    logits = torch.zeros(0, 5, requires_grad=True)
    for alpha in (1, 1.5, 2):
        loss = entmax_loss(logits, torch.zeros(0, 5), alpha)
        loss.backward()
        assert loss == 0 and logits.grad.shape == (0, 5)


@pytest.mark.parametrize("second", [-1.0, float("nan")])
def test_strange_class_weights_are_not_dropped(second):
    """As `cross_entropy` does: nothing is silently left out."""
    logits, target = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    weight = torch.tensor([1.0, second, 2.0], dtype=torch.float64)
    expected = torch.nn.functional.cross_entropy(logits, target, weight)
    assert torch.allclose(entmax_loss(logits, target, alpha=1.0, weight=weight), expected, equal_nan=True)
