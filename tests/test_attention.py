from functools import partial

import pytest
import torch

from fairseq_entmax.attention import (
    ALPHAS,
    MAPPINGS,
    STRUCTURED,
    GeneralAttention,
    SourceProjection,
    attention_alpha,
    build_mapping,
)
from fairseq_entmax.ops import entmax, fusedmax, oscarmax, pnormmax, sparsemax
from fairseq_entmax.recurrence import StepMatrix, lstm_gates


def op(name):
    """The function behind a mapping, with its default options."""
    structured = {"fusedmax": fusedmax, "oscarmax": partial(oscarmax, strength=0.01), "pnormmax": pnormmax}
    return structured[name] if name in structured else lambda scores: entmax(scores, ALPHAS[name])


def randn(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", MAPPINGS)
def test_masked_equals_truncated_case_25(name):
    mapping, scores = build_mapping(name), 2 * randn(3, 7)
    # In fusedmax a hole matters: those at its sides are no neighbours.
    last = [0, 1, 1, 1, 1, 0, 0] if name == "fusedmax" else [1, 0, 1, 0, 1, 0, 1]
    mask = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1], last]).bool()
    scores[~mask] = torch.tensor([float("nan"), float("inf"), 1e30]).double().repeat(3)[:8]  # never seen
    scores.requires_grad_()
    weights = mapping(scores, mask)
    upstream = randn(3, 7, seed=1)
    (grad,) = torch.autograd.grad((weights * upstream)[mask].sum(), scores)
    assert (weights[~mask] == 0).all() and (grad[~mask] == 0).all()
    for row in range(3):
        alone = scores[row][mask[row]].detach().requires_grad_()
        expected = op(name)(alone)
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
    wide = op(name)(scores.float().masked_fill(~mask, float("-inf")))
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


@pytest.mark.parametrize("name", STRUCTURED)
def test_structured_weights_are_independent_of_padding_case_55(name):
    """Whatever stands at padding, on either side of it or in the middle of a row, also when NaN."""
    scores = torch.tensor([[1.0, 0.9, 0.2, 0.9, 1.0, 0.3]]).double()
    mask = torch.tensor([[True, True, False, True, True, False]])
    expected = build_mapping(name)(scores, mask)
    assert (expected[~mask] == 0).all() and float(expected.sum()) == pytest.approx(1)
    for content in (1.0, 50.0, -50.0, float("nan"), float("inf")):
        assert torch.equal(build_mapping(name)(scores.masked_fill(~mask, content), mask), expected)


def test_nothing_fuses_across_padding_case_25():
    scores, mask = torch.tensor([[1.2, 0.7, 1.0]]).double(), torch.tensor([[True, False, True]])
    apart = build_mapping("fusedmax")(scores, mask)
    assert torch.allclose(apart, torch.tensor([[0.6, 0.0, 0.4]]).double())  # sparsemax of 1.2 and 1
    together = build_mapping("fusedmax")(scores[:, ::2])
    assert torch.allclose(together, torch.tensor([[0.5, 0.5]]).double())


def test_nan_is_seen_and_stays_in_its_row_case_12():
    scores = torch.tensor([[0.0, float("nan"), 1.0], [0.0, 0.5, 1.0]])
    for name in MAPPINGS:
        weights = build_mapping(name)(scores, torch.ones(2, 3).bool())
        assert weights[0].isnan().any() and weights[1].isfinite().all()


@pytest.mark.parametrize(
    "name, options, function",
    [
        ("fusedmax", {"strength": 0.3, "gamma": 2.0}, lambda z: fusedmax(z, strength=0.3, gamma=2.0)),
        ("fusedmax", {"strength": 0}, sparsemax),
        ("oscarmax", {"strength": 0.05}, lambda z: oscarmax(z, strength=0.05)),
        ("oscarmax", {"gamma": 3.0}, lambda z: oscarmax(z, strength=0.01, gamma=3.0)),
        ("pnormmax", {"p": 1.2, "gamma": 0.5}, lambda z: pnormmax(z, p=1.2, gamma=0.5)),
        ("pnormmax", {"p": 2}, sparsemax),
    ],
)
def test_options_of_structured_mappings_arrive(name, options, function):
    scores = randn(4, 6)
    assert torch.allclose(build_mapping(name, **options)(scores), function(scores))
    assert not torch.allclose(build_mapping(name, **options)(scores), build_mapping(name)(scores))
    assert all(f"{key}={float(value)}" in repr(build_mapping(name, **options)) for key, value in options.items())


NOT_A_NUMBER = float("nan")


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("sparsemux", {}, "--attention-mapping.*sparsemux"),
        ("entmax", {"alpha": 0.5}, "--attention-alpha.*0.5"),
        ("entmax", {"alpha": NOT_A_NUMBER}, "--attention-alpha.*nan"),
        ("entmax15", {"alpha": 1.5}, "--attention-alpha.*entmax15"),
        ("fusedmax", {"alpha": 1.5}, "--attention-alpha goes with --attention-mapping entmax, got 1.5 with fusedmax"),
        ("softmax", {"learn_alpha": True}, "--learn-attention-alpha goes with .*entmax or entmax15.*softmax"),
        ("oscarmax", {"learn_alpha": True}, "--learn-attention-alpha goes with .*oscarmax"),
        ("entmax", {"alpha": 1.0, "learn_alpha": True}, "--attention-alpha 1.0 with --learn-attention-alpha"),
        ("entmax", {"alpha": 2.5, "learn_alpha": True}, "--attention-alpha 2.5 with --learn-attention-alpha"),
        ("pnormmax", {"strength": 0.1}, "--attention-strength goes with .*fusedmax or oscarmax, got 0.1 with pnormmax"),
        ("sparsemax", {"strength": 0.1}, "--attention-strength goes with .*sparsemax"),
        ("fusedmax", {"strength": -0.1}, "--attention-strength.*-0.1"),
        ("fusedmax", {"strength": float("inf")}, "--attention-strength.*inf"),
        ("entmax", {"gamma": 1.0}, "--attention-gamma goes with .*entmax"),
        ("oscarmax", {"gamma": 0.0}, "--attention-gamma.*0.0"),
        ("fusedmax", {"gamma": NOT_A_NUMBER}, "--attention-gamma.*nan"),
        ("fusedmax", {"p": 1.5}, "--attention-p goes with .*pnormmax, got 1.5 with fusedmax"),
        ("pnormmax", {"p": 1.0}, "--attention-p.*1.0"),
        ("pnormmax", {"p": 2.1}, "--attention-p.*2.1"),
    ],
)
def test_options_that_cannot_be_meant_case_17(name, options, message):
    with pytest.raises(ValueError, match=message) as refused:
        build_mapping(name, **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("options, start", [({}, 1.5), ({"alpha": 1.33}, 1.33)])
@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_learned_alpha_stays_in_range_case_17(options, start, direction, optimizer):
    mapping = build_mapping("entmax", **options, learn_alpha=True)
    assert float(attention_alpha(mapping)) == pytest.approx(start)
    scores = torch.tensor([[3.0, 1.0, 0.5, 0.0], [1.0, 1.0, 0.9, 0.0]])
    step = optimizer(mapping.parameters(), lr=6.0)
    for _ in range(100):
        step.zero_grad()
        (direction * mapping(scores).square().sum()).backward()
        step.step()
        assert 1.0099999 < float(attention_alpha(mapping)) <= 2
    moved = float(attention_alpha(mapping)) - start
    assert moved * direction < 0 and torch.allclose(mapping(scores).sum(-1), torch.ones(2))


def test_gradient_to_the_learned_alpha():
    mapping = build_mapping("entmax15", learn_alpha=True).double()
    scores, upstream = randn(3, 6), randn(3, 6, seed=1)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]]).bool()
    (mapping(scores, mask) * upstream).sum().backward()
    raw, step, values = mapping.alpha.raw, 1e-6, []
    with torch.no_grad():
        for sign in (1, -1):
            raw += sign * step
            values.append(float((mapping(scores, mask) * upstream).sum()))
            raw -= sign * step
    assert float(raw.grad) == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-6)


def test_only_a_learned_alpha_is_reported():
    assert attention_alpha(build_mapping("entmax", alpha=1.3)) is None
    assert list(build_mapping("entmax", alpha=1.3).parameters()) == []


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


def test_oscarmax_of_a_fresh_model_gets_a_gradient():
    """With the strength of fusedmax, scores as small as those at the beginning would stay fused for good."""
    for options, learns in (({}, True), ({"strength": 0.1}, False)):
        scores = (0.05 * randn(8, 12)).requires_grad_()
        (grad,) = torch.autograd.grad(
            (build_mapping("oscarmax", **options)(scores) * randn(8, 12, seed=1)).sum(), scores
        )
        assert (grad.abs().amax(-1) > 1e-3).all() if learns else (grad.abs() < 1e-12).all()


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
        expected_weights = op(name)(scores.masked_fill(~mask, float("-inf")))
        context = torch.einsum("bj,bje->be", expected_weights, states)
        joined = torch.cat([query, context], dim=1)
        combine = torch.cat([attention.query_proj.weight, projection.value_proj.weight], dim=1)
        assert torch.allclose(weights, expected_weights)
        assert torch.allclose(out, torch.tanh(joined @ combine.t() + attention.query_proj.bias))
