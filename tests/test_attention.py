import pytest
import torch

from fairseq_entmax.attention import MAPPINGS, NOT_YET, GeneralAttention, SourceProjection, build_mapping
from fairseq_entmax.ops import entmax
from fairseq_entmax.recurrence import StepMatrix, lstm_gates

ALPHA = {"softmax": 1.0, "entmax15": 1.5, "sparsemax": 2.0, "entmax": 1.5}


def randn(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", MAPPINGS)
def test_masked_equals_truncated_case_25(name):
    mapping, scores = build_mapping(name), 2 * randn(3, 7)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1], [1, 0, 1, 0, 1, 0, 1]]).bool()
    scores[~mask] = torch.tensor([float("nan"), float("inf"), 1e30]).double().repeat(3)[:8]  # never seen
    scores.requires_grad_()
    weights = mapping(scores, mask)
    upstream = randn(3, 7, seed=1)
    (grad,) = torch.autograd.grad((weights * upstream)[mask].sum(), scores)
    assert (weights[~mask] == 0).all() and (grad[~mask] == 0).all()
    for row in range(3):
        alone = scores[row][mask[row]].detach().requires_grad_()
        expected = entmax(alone, ALPHA[name])
        (expected_grad,) = torch.autograd.grad((expected * upstream[row][mask[row]]).sum(), alone)
        assert torch.allclose(weights[row][mask[row]], expected)
        assert torch.allclose(grad[row][mask[row]], expected_grad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", MAPPINGS)
def test_row_with_nothing_to_attend_case_11(name, dtype):
    scores = torch.tensor([[0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 9.0]], dtype=dtype, requires_grad=True)
    mask = torch.tensor([[False] * 4, [True, True, True, False]])
    weights = build_mapping(name)(scores, mask)
    assert (weights[0] == 0).all() and weights.isfinite().all()
    assert float(weights[1].sum()) == pytest.approx(1, abs=1e-3)
    (weights * torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=dtype)).sum().backward()
    assert (scores.grad[0] == 0).all() and scores.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", MAPPINGS)
def test_mask_styles_agree_case_38(name, dtype):
    scores = (3 * randn(2, 5)).to(dtype)
    mask = torch.tensor([[True, True, False, True, True], [False, False, False, True, False]])
    expected = build_mapping(name)(scores, mask)
    wide = entmax(scores.float().masked_fill(~mask, float("-inf")), ALPHA[name])
    assert expected.dtype == dtype and (expected[~mask] == 0).all()
    assert torch.allclose(expected, wide.to(dtype))
    for filler in (-1e8, float("-inf"), torch.finfo(dtype).min):
        filled = scores.masked_fill(~mask, max(filler, torch.finfo(dtype).min) if filler > float("-inf") else filler)
        assert torch.equal(build_mapping(name)(filled, mask), expected)
        assert torch.equal(build_mapping(name)(filled), expected)


@pytest.mark.parametrize("alpha", [1.0, 1.2, 2.5])
def test_alpha_of_entmax_case_16(alpha):
    scores = randn(2, 5)
    assert torch.allclose(build_mapping("entmax", alpha)(scores), entmax(scores, alpha))
    if alpha == 1:
        assert torch.equal(build_mapping("entmax", alpha)(scores), torch.softmax(scores, -1))


@pytest.mark.parametrize("name", MAPPINGS)
def test_mask_is_optional_and_integers_are_refused_case_55(name):
    assert torch.allclose(build_mapping(name)(randn(2, 5)), build_mapping(name)(randn(2, 5), torch.ones(2, 5).bool()))
    with pytest.raises(ValueError, match="attention scores.*int64"):
        build_mapping(name)(torch.tensor([[1, 2, 3]]))


@pytest.mark.parametrize("name", NOT_YET)
def test_structured_mappings_are_not_there_yet(name):
    with pytest.raises(ValueError, match=f"--attention-mapping {name} is not available yet"):
        build_mapping(name)


@pytest.mark.parametrize(
    "name, alpha, message",
    [
        ("sparsemux", None, "--attention-mapping.*sparsemux"),
        ("entmax", 0.5, "--attention-alpha.*0.5"),
        ("entmax", float("nan"), "--attention-alpha.*nan"),
        ("entmax15", 1.5, "--attention-alpha.*entmax15"),
    ],
)
def test_options_that_cannot_be_meant_case_17(name, alpha, message):
    with pytest.raises(ValueError, match=message):
        build_mapping(name, alpha)


class TestRecurrence:
    """Factors noted by the steps give the gradients that autograd gives."""

    def plain_and_recorded(self, shapes, run):
        """Outputs and gradients of `run(multiply, *leaves)` with plain products and with step matrices."""
        results = []
        for wrap in (StepMatrix, lambda matrix: lambda rows, addend=0: rows @ matrix + addend):
            leaves = [randn(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes)]
            out = run(wrap, *leaves)
            (out * randn(*out.shape, seed=9)).sum().backward()
            results.append([out, *(leaf.grad for leaf in leaves)])
        return zip(*results)

    def check(self, shapes, run):
        for recorded, plain in self.plain_and_recorded(shapes, run):
            assert torch.allclose(recorded, plain, atol=1e-12)

    def test_matrix_of_a_recurrence(self):
        def run(wrap, start, matrix, addend):
            multiply, state = wrap(matrix), start
            for _ in range(4):
                state = torch.tanh(multiply(state, addend))
            return state

        self.check([(3, 5), (5, 5), (3, 5)], run)

    def test_batch_of_matrices(self):
        def run(wrap, start, matrix):
            multiply, state = wrap(matrix), start
            for _ in range(4):
                state = torch.tanh(multiply(state))
            return state

        self.check([(3, 1, 5), (3, 5, 5)], run)

    def test_steps_without_gradient_are_left_out(self):
        def run(wrap, start, matrix):
            multiply = wrap(matrix)
            multiply(start)
            return multiply(start.detach()) + multiply(start)

        self.check([(3, 5), (5, 5)], run)

    def test_two_passes_over_one_graph(self):
        rows, matrix = randn(3, 5).requires_grad_(), randn(5, 5, seed=1).requires_grad_()
        out = StepMatrix(matrix)(rows).sum()
        torch.autograd.grad(out, rows, retain_graph=True)  # does not reach the matrix
        (once,) = torch.autograd.grad(out, matrix, retain_graph=True)
        (twice,) = torch.autograd.grad(out, matrix)
        expected = rows.detach().t() @ torch.ones(3, 5, dtype=torch.float64)
        assert torch.allclose(once, expected) and torch.allclose(twice, expected)

    def test_frozen_matrix_records_nothing(self):
        rows = randn(3, 5).requires_grad_()
        multiply = StepMatrix(randn(5, 5))
        multiply(rows).sum().backward()
        assert not multiply.records and not multiply.tape and rows.grad is not None

    def test_gates_are_those_of_an_lstm_cell(self):
        cell = torch.nn.LSTMCell(3, 4).double()
        rows, hidden, state = randn(2, 3), randn(2, 4, seed=1), randn(2, 4, seed=2)
        sums = rows @ cell.weight_ih.t() + cell.bias_ih + hidden @ cell.weight_hh.t() + cell.bias_hh
        for ours, theirs in zip(lstm_gates(sums, state), cell(rows, (hidden, state))):
            assert torch.allclose(ours, theirs)

    def test_gradients_of_gates(self):
        assert torch.autograd.gradcheck(
            lstm_gates, (randn(2, 12).requires_grad_(), randn(2, 3, seed=1).requires_grad_())
        )


def test_second_derivatives_are_refused_case_50():
    sums = randn(2, 12).requires_grad_()
    (grad,) = torch.autograd.grad(
        lstm_gates(sums, randn(2, 3).requires_grad_())[0].square().sum(), sums, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize("name", MAPPINGS)
def test_attention_is_that_of_luong(name):
    """Against the formula: scores s W h, output tanh(W_o [s; c] + b)."""
    projection, attention = SourceProjection(6, 4).double(), GeneralAttention(4, build_mapping(name)).double()
    states, queries = randn(3, 5, 6), randn(2, 3, 4, seed=1)
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
    step = attention.steps(*projection(states), mask)
    for query in queries:
        out, weights = step(query)
        scores = torch.einsum("bd,de,bje->bj", query, projection.key_proj.weight, states)
        expected_weights = entmax(scores.masked_fill(~mask, float("-inf")), ALPHA[name])
        context = torch.einsum("bj,bje->be", expected_weights, states)
        joined = torch.cat([query, context], dim=1)
        combine = torch.cat([attention.query_proj.weight, projection.value_proj.weight], dim=1)
        assert torch.allclose(weights, expected_weights)
        assert torch.allclose(out, torch.tanh(joined @ combine.t() + attention.query_proj.bias))
