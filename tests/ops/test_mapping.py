"""entmax, entmax15, sparsemax: against oracles, at the edges, and their gradients."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import entmax_digits, entmax_oracle
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_entmax.ops import entmax, entmax15, normmax, sparsemax
from fairseq_entmax.ops.loss_rows import ShortLoss, Smoothing
from fairseq_entmax.ops.soft_loss import EntmaxRows, _SoftLoss
from fairseq_entmax.ops.support import find_support

INF = float("inf")
ALPHAS = [1.001, 1.05, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0]
# One, odd, just below and above what takes the search over blocks, and a vocabulary that is no multiple of a block.
SIZES = [1, 7, 130, 1023, 1024, 1153, 9000]


def rows_of(size, scale, count=6):
    scores = torch.randn(count, size, generator=torch.Generator().manual_seed(size)) * scale
    scores[0] = 0
    scores[1, -1] += 1.5
    scores[2, size // 2] += 20 * scale
    scores[3, ::2] = scores[3, 0].item()
    return scores


@pytest.mark.parametrize("scale", [0.001, 0.1, 1, 30])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_matches_oracle(alpha, size, scale):
    scores = rows_of(size, scale)
    probs, expected = entmax(scores, alpha), entmax_oracle(scores, alpha)
    assert probs.dtype == torch.float32
    assert (probs - expected).abs().max() < 2e-7
    assert (probs.double().sum(-1) - 1).abs().max() < 1e-6
    disputed = (probs > 0) != (expected.float() > 0)
    assert not (disputed & (expected > 1e-30)).any()


@pytest.mark.parametrize("alpha", [1.001, 1.25, 1.5, 2.0, 3.0, 10.0])
def test_float64_matches_many_digits(alpha):
    for scale in (0.05, 1, 4):
        row = (torch.randn(9, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * scale).tolist()
        expected = torch.tensor([float(x) for x in entmax_digits(row, alpha)], dtype=torch.float64)
        assert (entmax(torch.tensor(row, dtype=torch.float64), alpha) - expected).abs().max() < 1e-12


def test_many_block_shapes_agree_with_short_path():
    """The last block overlaps its neighbour: no entry may be lost or counted twice, wherever the support lies."""
    for size in (1024, 1025, 1151, 1152, 1279):
        scores = torch.full((3, size), -50.0)
        scores[0, -3:] = 0
        scores[1, size // 128 * 128 - 2 : size // 128 * 128 + 2] = 0
        scores[2, [0, -1]] = 0
        assert torch.allclose(sparsemax(scores)[scores == 0], entmax_oracle(scores, 2.0)[scores == 0].float())


def test_support_far_larger_than_the_others_of_the_batch():
    scores = torch.randn(40, 4000) * 4
    scores[7] = 0.02 * torch.randn(4000)
    scores[8] = torch.cat([torch.randn(300) * 0.1, torch.full((3700,), -9.0)])
    for alpha in (1.3, 1.5, 2.0):
        assert (entmax(scores, alpha) - entmax_oracle(scores, alpha)).abs().max() < 2e-7


@pytest.mark.parametrize("size", [900, 3000, 20_000])
def test_supports_of_every_size_case_75(size):
    """Nothing is cut to the k largest: from one entry to all of the row, exact."""
    for support in (1, 2, size // 9, size // 7, size // 2, size - 1, size):
        scores = torch.full((2, size), -3.0)
        scores[:, torch.randperm(size, generator=torch.Generator().manual_seed(support))[:support]] = 0
        probs = entmax15(scores)
        assert torch.equal(probs > 0, scores == 0)
        assert (probs[scores == 0] * support - 1).abs().max() < 1e-6


def test_fixed_oracles_case_47():
    assert torch.equal(sparsemax(torch.tensor([0, 0.5, 1])), torch.tensor([0, 0.25, 0.75]))
    assert torch.allclose(sparsemax(torch.tensor([0.175, 0, -2])), torch.tensor([0.5875, 0.4125, 0]), atol=1e-7)


def test_alpha_one_is_softmax_case_16():
    scores = torch.tensor([0.0, 0, 1])
    for alpha in (1, 1.0):
        assert torch.equal(entmax(scores, alpha), torch.softmax(scores, -1))
    for alpha in (1 + 1e-4, 1 + 1e-7, 1 + 1e-12):
        assert (entmax(scores, alpha) - torch.softmax(scores, -1)).abs().max() < 0.3 * (alpha - 1) + 1e-7


@pytest.mark.parametrize("alpha", [0.7, 0.0, -1.0, 0.9999, INF, float("nan"), "much", None])
def test_bad_alpha_is_refused_by_name_case_17(alpha):
    with pytest.raises(ValueError, match="alpha"):
        entmax(torch.zeros(3), alpha)


def test_bad_scores_are_refused_by_name_case_55():
    with pytest.raises(ValueError, match="scores must be floating point, got torch.int64"):
        entmax(torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="scores"):
        entmax(torch.zeros(2, 0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shift", [0, 1000, 3000, 10000])
@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_low_precision_of_shifted_scores_case_9(alpha, shift, dtype):
    for size in (128, 2000):
        scores = torch.full((1, size), -5.0)
        scores[0, 0] = 0
        scores = (scores - shift).to(dtype)
        expected = entmax(scores.float(), alpha)
        assert torch.equal(entmax(scores, alpha), expected.to(dtype))
        assert abs(expected.double().sum() - 1) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [50, 3000])
def test_low_precision_keeps_the_support_case_10(size, dtype):
    scores = (torch.randn(20, size) * 2).to(dtype)
    probs, exact = entmax15(scores), entmax15(scores.float())
    assert probs.dtype == dtype
    assert torch.equal(probs, exact.to(dtype))


@pytest.mark.parametrize("size", [4, 1500])
@pytest.mark.parametrize("alpha", [1, 1.02, 1.5, 2, 3])
def test_masked_row_gives_zeros_case_11(alpha, size):
    scores = torch.full((2, size), -INF)
    scores[1, :3] = torch.tensor([0.0, 0.1, 0.2])
    scores.requires_grad_()
    probs = entmax(scores, alpha)
    assert torch.equal(probs[0], torch.zeros(size))
    assert torch.allclose(probs[1, :3], entmax(torch.tensor([0.0, 0.1, 0.2]), alpha))
    assert not probs[1, 3:].any()
    (probs * torch.randn(2, size)).sum().backward()
    assert scores.grad.isfinite().all()
    assert not scores.grad[0].any() and not scores.grad[1, 3:].any() and scores.grad[1].any()


@pytest.mark.parametrize("bad", [float("nan"), INF])
@pytest.mark.parametrize("size", [5, 1500])
@pytest.mark.parametrize("alpha", [1.02, 1.5, 2, 3])
def test_nan_stays_in_its_row_case_12(alpha, size, bad):
    clean = torch.randn(4, size, requires_grad=True)
    scores = clean.detach().clone()
    scores[2, size // 3] = bad
    scores.requires_grad_()
    probs, expected = entmax(scores, alpha), entmax(clean, alpha)
    others = [0, 1, 3]
    assert probs[2].isnan().all()
    assert torch.equal(probs[others], expected[others])
    weights = torch.randn(4, size)
    (probs * weights).sum().backward()
    (expected * weights).sum().backward()
    assert torch.allclose(scores.grad[others], clean.grad[others], atol=1e-7)


@pytest.mark.parametrize("fill", [-1e8, torch.finfo(torch.float16).min, -INF])
def test_mask_values_of_half_precision_case_38(fill):
    scores = torch.randn(3, 6, dtype=torch.float16)
    fill = torch.tensor(fill).half()  # -1e8 becomes -inf
    scores[:, 2:] = fill
    scores[1, 1:] = fill
    scores[2] = fill
    probs = entmax15(scores)
    assert torch.allclose(probs[0, :2].float(), entmax15(scores[0, :2].float()), atol=1e-3)
    assert not probs[0, 2:].any()
    assert probs[1].tolist() == [1, 0, 0, 0, 0, 0]
    assert torch.equal(probs[2], torch.full((6,), 1 / 6).half() if scores[2, 0] > -INF else torch.zeros(6).half())


def test_large_alpha_case_45():
    x = torch.linspace(-0.15, 0.15, 601, dtype=torch.float64)
    probs = entmax(torch.stack([x, torch.zeros_like(x)], -1), 10)
    assert (probs[:, 0] - probs[:, 1].flip(0)).abs().max() < 1e-5
    assert (probs[:, 0].diff() >= 0).all()
    assert probs[x <= -1 / 9, 0].eq(0).all() and probs[x >= 1 / 9, 0].eq(1).all()
    # The slope is 128 at 0, so nothing jagged.
    assert probs[:, 0].diff().max() < 0.0005 * 128
    for alpha in (3, 4):
        scores = 1000 * torch.randn(50, 40)
        probs = entmax(scores, alpha)
        assert (probs.sum(-1) - 1).abs().max() < 1e-6
        assert torch.equal(probs.argmax(-1), scores.argmax(-1))


@pytest.mark.parametrize("alpha", [1, 1.5, 2, 3])
def test_very_large_scores_case_46(alpha):
    for row in ([1.37e8, 1.60e8], [1e30, -1e30, 0], [3e38, -3e38]):
        scores = torch.tensor(row, requires_grad=True)
        probs = entmax(scores, alpha)
        assert probs.tolist() == [float(x == max(row)) for x in row]
        probs[0].backward()
        assert not scores.grad.any()
    scores = torch.randn(3, 2000) * 1e30
    assert torch.equal(entmax(scores, alpha), torch.nn.functional.one_hot(scores.argmax(-1), 2000).float())


@pytest.mark.parametrize("alpha", [1, 1.3, 1.5, 2, 3])
def test_any_dim_and_layout_case_48(alpha):
    scores = torch.randn(2, 5, 3, dtype=torch.float64)
    weights = torch.randn(2, 5, 3, dtype=torch.float64)

    def run(scores, dim, weights):
        scores = scores.detach().requires_grad_()
        probs = entmax(scores, alpha, dim=dim)
        (probs * weights).sum().backward()
        return probs, scores.grad

    probs, grad = run(scores.transpose(1, 2).contiguous(), -1, weights.transpose(1, 2))
    for dim in (1, -2):
        other, other_grad = run(scores, dim, weights)
        assert torch.allclose(other, probs.transpose(1, 2)) and torch.allclose(other_grad, grad.transpose(1, 2))
    strided = torch.randn(2, 5, 6, dtype=torch.float64)[..., ::2]
    assert torch.allclose(entmax(strided, alpha, 0), entmax(strided.contiguous(), alpha, 0))
    # The upstream gradient of a sum is an expanded scalar.
    assert run(scores, 1, torch.ones(()))[1].abs().max() < 1e-12


@pytest.mark.parametrize("size", [12, 1100])
@pytest.mark.parametrize("scale", [1e-4, 1, 4])
@pytest.mark.parametrize("alpha", [1, 1.0001, 1.3, 1.5, 1.9, 2, 2.5])
def test_gradcheck(alpha, scale, size):
    if alpha > 2 and scale < 1:
        pytest.skip("the map of scores that are almost tied is too steep for finite differences")
    generator = torch.Generator().manual_seed(5)
    scores = (torch.randn(3, size, dtype=torch.float64, generator=generator) * scale).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: entmax(x, alpha), scores, fast_mode=size > 100)


@pytest.mark.parametrize("size", [12, 1100])
def test_gradient_in_float32_follows_float64(size):
    for alpha in (1.3, 1.5, 2.0, 3.0):
        scores, weights = torch.randn(4, size) * 2, torch.randn(4, size)
        grads = []
        for dtype in (torch.float32, torch.float64):
            x = scores.to(dtype, copy=True).requires_grad_()
            (entmax(x, alpha) * weights.to(dtype)).sum().backward()
            grads.append(x.grad)
        assert (grads[0] - grads[1]).abs().max() < 2e-6 * grads[1].abs().max().clamp(min=1)


@pytest.mark.parametrize("size", [5, 1200])
def test_second_derivative_is_refused_case_50(size):
    scores = torch.randn(2, size, requires_grad=True)
    for total in (entmax15(scores)[0, 0], entmax15(scores).square().sum()):
        # The penalty has a second derivative of its own, which must not hide that of the mapping.
        (grad,) = torch.autograd.grad(total + scores.square().sum(), scores, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiable once"):
            torch.autograd.grad(grad.sum(), scores)


@pytest.mark.parametrize("size", [6, 1200])
def test_arguments_are_left_alone_and_no_grad_agrees(size):
    scores = torch.randn(3, size, requires_grad=True)
    before = scores.detach().clone()
    probs = entmax15(scores)
    weights = torch.randn(3, size)
    probs.backward(weights, retain_graph=True)
    first = scores.grad.clone()
    probs.backward(weights)
    assert torch.allclose(scores.grad, 2 * first)
    assert torch.equal(scores.detach(), before)
    with torch.no_grad():
        assert torch.equal(entmax15(scores), probs)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40),
    st.floats(1, 4),
    st.floats(-100, 100, width=32),
)
def test_properties(row, alpha, shift):
    scores = torch.tensor(row, dtype=torch.float64)
    probs = entmax(scores, alpha)
    assert (probs >= 0).all() and abs(probs.sum() - 1) < 1e-12
    # Shift-invariant, and equivariant to any reordering.
    assert torch.allclose(entmax(scores + shift, alpha), probs, atol=1e-3 if alpha > 2 else 1e-10)
    assert torch.allclose(entmax(scores.flip(0), alpha), probs.flip(0), atol=1e-12)
    # Monotone: larger scores never get less.
    order = scores.argsort()
    assert (probs[order].diff() >= -1e-12).all()
    # What lies 1 / (alpha - 1) below the maximum is exactly zero.
    if alpha > 1:
        assert not probs[scores < scores.max() - 1 / (alpha - 1) - 1e-9].any()


@settings(max_examples=60, deadline=None)
@given(st.integers(1024, 1500), st.floats(1.02, 3), st.floats(1e-3, 30), st.integers(0, 10**6))
def test_long_rows_agree_with_short_ones(size, alpha, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, size, generator=generator) * scale
    scores[1, torch.randint(size, (5,), generator=generator)] += 3 * scale
    probs = entmax(scores, alpha)
    # Solved alone, each row without the entries that got nothing is a short row.
    for row, result in zip(scores, probs):
        chosen = result > 0
        if chosen.sum() < 1024:
            assert (entmax(row[chosen], alpha) - result[chosen]).abs().max() < 2e-7


def test_ops_import_without_fairseq():
    code = (
        "import sys, importlib.util; sys.modules['fairseq'] = None\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'fairseq' else find(name, *rest)\n"
        "import fairseq_entmax.ops"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("size", [1025, 1100, 4096])
@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
@pytest.mark.parametrize("where", ["first", "last"])
def test_large_scores_side_by_side(where, alpha, size):
    """As the frequent words of a sorted vocabulary are: one block of columns then holds most of the support."""
    scores = torch.randn(9, size, generator=torch.Generator().manual_seed(size)) * 0.2
    columns = slice(0, 130) if where == "first" else slice(size - 130, size)
    scores[:, columns] += torch.linspace(1.5, 0.9, 130) if where == "first" else torch.linspace(0.9, 1.5, 130)
    if alpha > 1.3:  # below, many have probability
        assert len(find_support(scores, alpha).wide) == 0
    probs, exact = entmax(scores, alpha), entmax_oracle(scores, alpha)
    assert (probs - exact).abs().max() < 2e-7
    assert torch.equal((probs > 0) | (exact < 1e-12), torch.ones_like(probs, dtype=torch.bool))
    assert not (probs[exact == 0] > 1e-12).any()


@pytest.mark.parametrize("bad", [-INF, math.nan], ids=["-inf", "NaN"])
@pytest.mark.parametrize("size", [300, 1000])
@pytest.mark.parametrize("alpha", [1.3, 1.5, 2, 2.5])
def test_a_row_without_a_solution_leaves_the_others_right_case_12(alpha, size, bad):
    """Nearly linear rows take many steps; what ends the search must not be the row that has no solution."""
    rows = torch.linspace(0, -1, size).repeat(20, 1) * torch.linspace(0.2, 5, 20)[:, None]
    alone = entmax(rows, alpha)
    together = entmax(torch.cat([rows, torch.full((1, size), bad)]), alpha)
    assert torch.equal(together[:-1], alone) and (alone.double().sum(-1) - 1).abs().max() < 1e-6
    assert together[-1].isnan().all() if math.isnan(bad) else not together[-1].any()


@pytest.mark.parametrize("shape", [(0, 5), (3, 0, 5), (0, 2000)])
@pytest.mark.parametrize("alpha", [1, 1.3, 1.5, 2, 3, torch.tensor(1.5), torch.tensor([1.5])])
def test_no_rows_at_all(alpha, shape):
    scores = torch.zeros(shape, requires_grad=True)
    probs = entmax(scores, alpha)
    probs.sum().backward()
    assert probs.shape == shape and scores.grad.shape == shape


class Count(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operations += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("what", ["mapping", "loss", "soft loss", "each alpha", "normmax"])
def test_an_accelerator_gets_large_pieces(what):
    """The pieces that suit a CPU's cache would be thousands of launches."""

    def operations(rows):
        scores = torch.empty(rows, 32000, device="meta", requires_grad=True)
        target = torch.empty(rows, dtype=torch.long, device="meta")
        with Count() as count:
            if what == "mapping":
                result = entmax15(scores)
            elif what == "loss":
                result = ShortLoss.apply(scores, target[:, None], None, 1.5, Smoothing(1.0, 0.0, None, 32000), True)[0]
            elif what == "soft loss":
                result = _SoftLoss.apply(scores, target, 1.5, 0.0, None, EntmaxRows)
            elif what == "each alpha":
                result = entmax(scores, torch.empty(rows, 1, device="meta"))
            else:
                result = normmax(scores)
            result.sum().backward()
        return count.operations

    few, many = operations(4), operations(400)
    assert many <= 1.2 * few
