"""The Triton kernels of alpha-entmax against the PyTorch solvers in float64."""

import pytest
import torch
from interpreted import DEVICE, only_kernels, rows_of  # noqa: F401

from fairseq_entmax.ops import backend, entmax, entmax15, kernels, sparsemax

INF = float("inf")
# One entry; several rows a program; the longest of these; one row in registers; a long row.
SIZES = [1, 33, 1000, 3001, 9001]
ALPHAS = [1.001, 1.25, 1.5, 2.0, 3.0]


def reference(scores, alpha, upstream):
    """Probabilities and gradient by PyTorch in float64 (float64 never goes to the kernels)."""
    scores = scores.detach().double().cpu().requires_grad_()
    probs = entmax(scores, alpha)
    (probs * upstream.double().cpu()).sum().backward()
    return probs.detach(), scores.grad


def assert_matches(scores, alpha, tolerance=3e-7, grad_tolerance=2e-6):
    scores = scores.detach().requires_grad_()
    upstream = torch.randn(scores.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    probs = kernels.entmax_rows(scores, alpha)
    (probs * upstream).sum().backward()
    expected, expected_grad = reference(scores, alpha, upstream)
    assert probs.dtype == scores.dtype and scores.grad.dtype == scores.dtype
    error = (probs.detach().cpu().double() - expected).abs()
    assert error.max() < tolerance
    # Single precision may lose what is smaller than its rounding, never more.
    assert not (((probs.cpu() > 0) != (expected > 0)) & (expected > 1e-12)).any()
    if scores.dtype == torch.float32:
        sums = probs.detach().cpu().double().sum(-1)
        assert (sums - 1).abs().max() < 1e-6
    # Above alpha 2 the gradient grows like a negative power of the smallest probability.
    scale = 1 + expected_grad.abs().amax(-1, keepdim=True)
    assert ((scores.grad.cpu().double() - expected_grad) / scale).abs().max() < grad_tolerance


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("size", SIZES)
def test_forward_and_gradient(size, alpha):
    assert_matches(rows_of(size), alpha, grad_tolerance=2e-4 if alpha > 2 else 2e-6)


def assert_rounded(probs, exact, dtype):
    if dtype == torch.bfloat16 and DEVICE == "cpu":  # where the interpreter cuts instead of rounding
        exact = exact.float()
        assert ((probs.float() - exact).abs() <= exact * torch.finfo(dtype).eps).all()
    else:
        assert torch.equal(probs, exact.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [33, 9001])
def test_low_precision_is_float32_rounded_cases_9_10(size, dtype):
    scores = rows_of(size, dtype)[[0, 1, 4]]
    exact = kernels.entmax_rows(scores.float(), 1.5)
    assert_rounded(kernels.entmax_rows(scores, 1.5), exact, dtype)
    rounding = torch.finfo(dtype).eps
    assert_matches(scores, 1.5, rounding, 4 * rounding)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_far_from_zero_case_9(dtype):
    scores = torch.full((3, 128), -5.0, device=DEVICE)
    scores[:, 0] = 0
    scores = (scores - torch.tensor([[1000.0], [3000.0], [10000.0]], device=DEVICE)).to(dtype)
    for alpha in (1.5, 2.0):
        assert_rounded(kernels.entmax_rows(scores, alpha), entmax(scores.double(), alpha), dtype)


@pytest.mark.parametrize("size", [5, 200, 9001, 4097])
def test_alpha_of_each_row_and_its_gradient(size):
    scores = rows_of(size)[[1, 2, 5, 6]].requires_grad_()
    alphas = torch.tensor([1.0, 2.7, 1.3, 2.0], device=DEVICE, requires_grad=True)
    upstream = torch.randn(scores.shape, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    probs = kernels.entmax_rows_each(scores, alphas)
    (probs * upstream).sum().backward()
    exact, exact_alphas = scores.detach().double().cpu().requires_grad_(), alphas.detach().double().cpu()
    exact_alphas.requires_grad_()
    expected = entmax(exact, exact_alphas[:, None])
    (expected * upstream.double().cpu()).sum().backward()
    assert (probs.cpu() - expected).abs().max() < 5e-7
    for got, wanted in ((scores.grad.cpu(), exact.grad), (alphas.grad.cpu(), exact_alphas.grad)):
        assert ((got - wanted).abs() / (1 + wanted.abs())).max() < 2e-5


@pytest.mark.parametrize("size", [6, 9001])
@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0, 3.0])
def test_masked_rows_and_rows_without_solution_case_12(size, alpha):
    scores = torch.randn(5, size)
    scores[1] = -INF
    scores[2, size // 3] = float("nan")
    scores[3, size // 2] = INF
    clean = scores[[0, 4]].to(DEVICE).requires_grad_()
    scores = scores.to(DEVICE).requires_grad_()
    probs, expected = kernels.entmax_rows(scores, alpha), kernels.entmax_rows(clean, alpha)
    assert torch.equal(probs[[0, 4]], expected)
    assert not probs[1].any()
    assert probs[2].isnan().all() and probs[3].isnan().all()
    upstream = torch.randn(5, size).to(DEVICE)
    (probs * upstream).sum().backward()
    (expected * upstream[[0, 4]]).sum().backward()
    assert torch.equal(scores.grad[[0, 4]], clean.grad)
    assert not scores.grad[1].any()


def test_very_large_scores_and_fixed_oracles_cases_46_47():
    assert torch.equal(
        kernels.entmax_rows(torch.tensor([[1.37e8, 1.60e8]], device=DEVICE), 1.5).cpu(), torch.eye(2)[1:]
    )
    scores = torch.tensor([[0, 0.5, 1], [0.175, 0, -2]], device=DEVICE)
    expected = torch.tensor([[0, 0.25, 0.75], [0.5875, 0.4125, 0]])
    assert torch.allclose(kernels.entmax_rows(scores, 2.0).cpu(), expected, atol=1e-7)


@pytest.mark.parametrize("fill", [-1e8, torch.finfo(torch.float16).min, -INF])
def test_mask_values_of_half_precision_case_38(fill):
    scores = torch.randn(2, 40).half()
    scores[:, 5:] = fill
    probs = kernels.entmax_rows(scores.to(DEVICE), 1.5).cpu()
    assert not probs[:, 5:].any()
    assert torch.equal(probs[:, :5], kernels.entmax_rows(scores[:, :5].to(DEVICE), 1.5).cpu())


def test_dimensions_and_strides_case_48():
    scores = torch.randn(2, 5, 3, 7, device=DEVICE)
    for dim in range(4):
        got, wanted = (x.requires_grad_() for x in (scores.clone(), scores.double()))
        probs, expected = entmax15(got, dim), entmax15(wanted, dim)
        upstream = torch.randn_like(scores)
        (probs * upstream).sum().backward()
        (expected * upstream).sum().backward()
        assert (probs - expected).abs().max() < 3e-7 and (got.grad - wanted.grad).abs().max() < 1e-6
    wide = torch.randn(6, 50, device=DEVICE)
    for view in (wide[:, 3:40], wide.t(), wide[::2]):
        assert (sparsemax(view) - sparsemax(view.double())).abs().max() < 3e-7


def test_alpha_of_each_head_case_49():
    scores, alpha = torch.randn(2, 4, 5, 5, device=DEVICE), torch.tensor([1.0, 1.5, 2.0, 2.5], device=DEVICE)
    probs = entmax(scores, alpha[:, None, None])
    for head in range(4):
        assert (probs[:, head] - entmax(scores[:, head].double(), float(alpha[head]))).abs().max() < 5e-7


def test_support_of_the_longest_list_and_one_more_case_75():
    scores = torch.full((3, 9000), -20.0)
    for row, count in enumerate((1023, 1024, 1025)):
        scores[row, torch.randperm(9000)[:count]] = 0
    assert_matches(scores.to(DEVICE), 1.5)


def test_vocabulary_of_300000_case_58():
    scores = torch.randn(2, 300_001)
    scores[0] *= 3
    assert_matches(scores.to(DEVICE), 1.5)


def test_rows_too_long_for_the_kernels_go_to_torch_case_58(monkeypatch, caplog):
    monkeypatch.setattr(backend, "_logged", set())
    scores = torch.zeros(1, kernels.LONGEST + 1, device=DEVICE)
    assert backend.use_kernels(scores[:, 1:]) and not backend.use_kernels(scores)
    assert f"rows of {kernels.LONGEST + 1} are longer than {kernels.LONGEST}" in caplog.text
    scores[0, [3, -1]] = 9
    assert entmax15(scores)[0, [3, -1]].tolist() == [0.5, 0.5]


def test_offsets_beyond_32_bits_case_57():
    torch.use_deterministic_algorithms(False)  # the buffer must stay untouched, or it takes the memory for real
    rows, stride, size = 4, 2**30, 50
    try:
        buffer = torch.empty((rows - 1) * stride + size, dtype=torch.float16, device=DEVICE)
    except RuntimeError:
        pytest.skip("no address space for 6 GB")
    scores = buffer.as_strided((rows, size), (stride, 1))
    scores.copy_(torch.randn(rows, size))
    assert torch.equal(kernels.entmax_rows(scores, 1.5), kernels.entmax_rows(scores.contiguous(), 1.5))


def test_a_second_derivative_is_refused():
    scores = torch.randn(2, 5, device=DEVICE, requires_grad=True)
    grad = torch.autograd.grad(kernels.entmax_rows(scores, 1.5)[:, 0].sum(), scores, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="second derivative"):
        grad.sum().backward()
