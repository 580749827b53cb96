"""Alpha as a tensor: its gradient, its shapes, and the module that keeps it in range."""

from decimal import Decimal

import pytest
import torch
from oracles import entmax_digits

from fairseq_entmax.ops import LearnedAlpha, entmax, normmax
from fairseq_entmax.ops.alpha import alpha_gradient, entmax_backward_each

INF = float("inf")
HEADS = torch.tensor([1.0, 1.00000001, 1.2, 1.5, 2.0, 3.0], dtype=torch.float64)


@pytest.mark.parametrize("size", [1, 8, 60])
def test_each_row_gets_its_own_alpha(size):
    scores = torch.randn(2, 6, 3, size, dtype=torch.float64)
    scores[0, :, 0] = float("-inf")
    scores[0, :, 1, 0] = float("-inf") if size > 1 else 0.0
    scores[1, 2, 1, 0] = float("nan")
    probs = entmax(scores, HEADS.view(6, 1, 1))
    for head, alpha in enumerate(HEADS.tolist()):
        assert torch.allclose(probs[:, head], entmax(scores[:, head], alpha), atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("dim", [-1, 0, 1])
@pytest.mark.parametrize("alpha", [1.0, 1.0001, 1.01, 1.3, 1.5, 1.99, 2.0, 2.5])
def test_gradcheck_to_scores_and_alpha(alpha, dim):
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(3, 5, 4, dtype=torch.float64, generator=generator).requires_grad_()
    for shape in ((), (1,), (5, 1), (3, 1, 1)):
        if len(shape) > 1 and dim != -1:
            continue
        own = torch.full(shape, alpha, dtype=torch.float64).requires_grad_()
        # One-sided at 1, below which alpha is refused.
        inputs = (scores, own) if alpha > 1 else scores

        def run(x, a=own):
            return entmax(x, a, dim)

        assert torch.autograd.gradcheck(run, inputs, eps=1e-7 if alpha < 1.01 else 1e-6, atol=1e-5)


@pytest.mark.parametrize("alpha", [1.0001, 1.001, 1.5, 2.0, 3.5])
def test_gradient_to_alpha_in_float32_against_many_digits(alpha):
    row = [0.3, 0.25, -0.1, -0.6, 0.0]
    weights = [1.0, -2.0, 0.5, 3.0, -1.0]
    alpha = torch.tensor(alpha).item()  # what float32 makes of it
    # Differences of decimals: their rounding is far below the step.
    step = Decimal("1e-12")
    up, down = (entmax_digits(torch.tensor(row).tolist(), Decimal(alpha) + s) for s in (step, -step))
    expected = sum((float((u - d) / (2 * step)) * w for u, d, w in zip(up, down, weights)))
    for shape in ((), (1, 1)):
        own = torch.full(shape, alpha, requires_grad=True)
        (entmax(torch.tensor([row]), own) * torch.tensor(weights)).sum().backward()
        assert abs(own.grad.sum() - expected) < 1e-5 * max(1, abs(expected))


def test_gradient_to_alpha_at_one():
    """The limit from above: `dp = -p (l ** 2 - sum p l ** 2) / 2` with `l = log p`."""
    scores = torch.randn(4, 6, dtype=torch.float64)
    weights = torch.randn(4, 6, dtype=torch.float64)
    p = torch.softmax(scores, -1)
    square = p.log().square()
    expected = (weights * p * ((p * square).sum(-1, keepdim=True) - square) / 2).sum()
    for shape in ((), (4, 1)):
        own = torch.ones(shape, dtype=torch.float64, requires_grad=True)
        (entmax(scores, own) * weights).sum().backward()
        assert torch.allclose(own.grad.sum(), expected)


def test_continuous_through_alpha_one_case_16():
    scores = torch.randn(4, 9)
    limit = torch.softmax(scores, -1)
    for distance in (1e-4, 1e-6, 1e-7, 0.0):
        alpha = torch.full((4, 1), 1 + distance, dtype=torch.float64)
        assert (entmax(scores, alpha) - limit).abs().max() < 2 * distance + 1e-7


def test_heads_case_49():
    scores = torch.randn(2, 4, 5, 5)
    alpha = torch.tensor([1.1, 1.4, 1.7, 2.0], requires_grad=True)
    with pytest.raises(ValueError, match=r"alpha must be a number or broadcast to \(2, 4, 5, 1\).*\(heads, 1, 1\)"):
        entmax(scores, alpha)
    weights = torch.randn(2, 4, 5, 5)
    (entmax(scores, alpha.view(4, 1, 1)) * weights).sum().backward()
    for head in range(4):
        own = alpha[head].detach().requires_grad_()
        (entmax(scores[:, head], own) * weights[:, head]).sum().backward()
        assert torch.allclose(own.grad, alpha.grad[head], rtol=1e-4)


@pytest.mark.parametrize("bad", [0.7, 0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("shape", [(), (3, 1)])
def test_bad_alpha_is_refused_case_17(bad, shape):
    with pytest.raises(ValueError, match="alpha must be finite and >= 1, got"):
        entmax(torch.zeros(3, 4), torch.full(shape, bad))
    with pytest.raises(ValueError, match="alpha must be floating point"):
        entmax(torch.zeros(3, 4), torch.ones(3, 1, dtype=torch.long))


@pytest.mark.parametrize("rate", [0.1, 100.0])
@pytest.mark.parametrize("direction", [1, -1])
def test_learned_alpha_stays_in_range_case_17(direction, rate):
    module = LearnedAlpha(1.33, (4, 1, 1))
    assert torch.allclose(module(), torch.tensor(1.33))
    optimiser = torch.optim.AdamW(module.parameters(), lr=rate)
    for _ in range(200):
        optimiser.zero_grad()
        (direction * module().sum()).backward()
        optimiser.step()
        assert (module() >= 1.01).all() and (module() <= 2).all()
    assert entmax(torch.randn(2, 4, 3, 5), module()).isfinite().all()


def test_learned_alpha_refuses_a_start_outside():
    for arguments in ({"initial": 1.0}, {"initial": 2.5}, {"low": 0.5}, {"low": 3, "high": 2}):
        with pytest.raises(ValueError, match="initial|low"):
            LearnedAlpha(**arguments)


def test_learning_moves_alpha_towards_the_sparser_answer():
    torch.manual_seed(0)
    scores = torch.randn(20, 10)
    wanted = entmax(scores, 1.8)
    module = LearnedAlpha(1.2)
    optimiser = torch.optim.Adam(module.parameters(), lr=0.1)
    for _ in range(150):
        optimiser.zero_grad()
        (entmax(scores, module()) - wanted).square().sum().backward()
        optimiser.step()
    assert abs(module() - 1.8) < 1e-2


def test_long_rows_and_low_precision():
    scores = torch.randn(3, 2000).bfloat16()
    alpha = torch.tensor([[1.3], [1.5], [2.0]], requires_grad=True)
    probs = entmax(scores, alpha)
    assert probs.dtype == torch.bfloat16
    for row in range(3):
        assert torch.equal(probs[row], entmax(scores[row], alpha.detach()[row].item()))
    probs.float().square().sum().backward()
    assert alpha.grad.isfinite().all() and (alpha.grad > 0).all()


def test_backward_in_single_precision_as_on_accelerators():
    """A CPU computes these in float64, where constants fit that float32 does not have."""
    scores = torch.randn(4, 30, generator=torch.Generator().manual_seed(2)) * 2
    scores[1] = -INF
    alpha = torch.tensor([[1.0], [1.3], [2.0], [3.0]])
    grad = torch.randn(4, 30, generator=torch.Generator().manual_seed(3))
    probs = entmax(scores.double(), alpha.double())
    for function in (alpha_gradient, entmax_backward_each):
        exact = function(probs, grad.double(), alpha.double())
        single = function(probs.float(), grad, alpha)
        assert single.dtype == torch.float32 and torch.allclose(single.double(), exact, rtol=2e-3, atol=1e-5)
        assert not single[1].any(), "a row of -inf has no gradient"


def test_a_second_derivative_by_one_alpha_is_refused():
    alpha = torch.tensor(1.4, requires_grad=True)
    for scores in (torch.randn(3, 5), torch.randn(3, 5, requires_grad=True)):
        (grad,) = torch.autograd.grad(entmax(scores, alpha)[:, 0].sum(), alpha, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiable once"):
            grad.square().backward()


@pytest.mark.parametrize("function", [entmax, normmax])
def test_one_alpha_on_the_cpu_goes_with_scores_elsewhere(function):
    alpha = torch.tensor(1.4, requires_grad=True)
    result = function(torch.randn(3, 5, device="meta", requires_grad=True), alpha)
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):  # to bring the gradient to alpha
        result.sum().backward()
