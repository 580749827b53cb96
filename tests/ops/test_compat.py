"""The names of the public packages: their signatures, and what is right here where they are not."""

import inspect

import pytest
import torch

from fairseq_entmax.ops import compat, entmax, entmax_loss, fusedmax, normmax_loss, oscarmax

# Name, parameters with their defaults, as in `entmax` 1.3.
SIGNATURES = {
    "sparsemax": "(X, dim=-1, k=None)",
    "entmax15": "(X, dim=-1, k=None)",
    "sparsemax_bisect": "(X, dim=-1, n_iter=50, ensure_sum_one=True)",
    "entmax_bisect": "(X, alpha=1.5, dim=-1, n_iter=50, ensure_sum_one=True)",
    "normmax_bisect": "(X, alpha=2, dim=-1, n_iter=50)",
    "budget_bisect": "(X, budget=2, dim=-1, n_iter=50)",
    "sparsemax_loss": "(X, target, k=None)",
    "entmax15_loss": "(X, target, k=None)",
    "sparsemax_bisect_loss": "(X, target, n_iter=50)",
    "entmax_bisect_loss": "(X, target, alpha=1.5, n_iter=50)",
    "normmax_bisect_loss": "(X, target, alpha=2, n_iter=50)",
    "Sparsemax": "(dim=-1, k=None)",
    "Entmax15": "(dim=-1, k=None)",
    "SparsemaxBisect": "(dim=-1, n_iter=None)",
    "EntmaxBisect": "(alpha=1.5, dim=-1, n_iter=50)",
    "NormmaxBisect": "(alpha=2, dim=-1, n_iter=50)",
    "BudgetBisect": "(budget=2, dim=-1, n_iter=50)",
    "SparsemaxLoss": "(k=None, ignore_index=-100, reduction='elementwise_mean')",
    "SparsemaxBisectLoss": "(n_iter=50, ignore_index=-100, reduction='elementwise_mean')",
    "Entmax15Loss": "(k=100, ignore_index=-100, reduction='elementwise_mean')",
    "EntmaxBisectLoss": "(alpha=1.5, n_iter=50, ignore_index=-100, reduction='elementwise_mean')",
    "NormmaxBisectLoss": "(alpha=2, n_iter=50, ignore_index=-100, reduction='elementwise_mean')",
    # torchsparseattn
    "Fusedmax": "(alpha=1)",
    "Oscarmax": "(beta=1, exact=True)",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    assert str(inspect.signature(getattr(compat, name))) == SIGNATURES[name]
    assert name in compat.__all__ and len(compat.__all__) == len(SIGNATURES)


@pytest.mark.parametrize("name", ["Sparsemax", "Entmax15", "SparsemaxBisect", "EntmaxBisect"])
def test_mapping_modules(name):
    scores = torch.randn(3, 4, 5)
    alpha = 1.5 if "ntmax" in name else 2.0
    assert torch.equal(getattr(compat, name)(dim=1)(scores), entmax(scores, alpha, 1))


def test_alpha_parameter_is_registered_and_learns():
    module = compat.EntmaxBisect(torch.nn.Parameter(torch.tensor(1.3)))
    module(torch.randn(3, 5)).square().sum().backward()
    assert [name for name, _ in module.named_parameters()] == ["alpha"] and module.alpha.grad != 0


LOSSES = [
    (compat.SparsemaxLoss, compat.sparsemax_loss, 2.0),
    (compat.SparsemaxBisectLoss, compat.sparsemax_bisect_loss, 2.0),
    (compat.Entmax15Loss, compat.entmax15_loss, 1.5),
    (compat.EntmaxBisectLoss, compat.entmax_bisect_loss, 1.5),
    (compat.NormmaxBisectLoss, compat.normmax_bisect_loss, None),
]


@pytest.mark.parametrize("module, function, alpha", LOSSES)
def test_losses_case_6(module, function, alpha):
    logits = torch.randn(2, 3, 5)
    for ignore in (-100, -1, 1):
        target = torch.tensor([[1, ignore, 2], [0, 4, ignore]])
        kept = target != ignore

        def ours(reduction, target=target, ignore=ignore):
            if alpha is None:
                return normmax_loss(logits, target, 2.0, ignore, reduction)
            return entmax_loss(logits, target, alpha, ignore, reduction)

        assert torch.equal(module(ignore_index=ignore, reduction="none")(logits, target), ours("none"))
        assert torch.equal(function(logits[kept], target[kept]), ours("none")[kept])
        for reduction in ("elementwise_mean", "mean"):
            assert torch.allclose(module(ignore_index=ignore, reduction=reduction)(logits, target), ours("mean"))
        assert torch.equal(module(ignore_index=ignore, reduction="sum")(logits, target), ours("sum"))
    assert module()(logits, torch.full((2, 3), -100)) == 0
    with pytest.raises(ValueError, match="reduction must be"):
        module(reduction="average")


def test_loss_with_an_alpha_for_each_row():
    logits, target = torch.randn(4, 6, requires_grad=True), torch.arange(4)
    alpha = torch.tensor([[1.2], [2.0], [1.2], [1.7]])
    loss = compat.entmax_bisect_loss(logits, target, alpha)
    expected = [entmax_loss(logits[i], target[i], alpha[i].item()) for i in range(4)]
    assert torch.allclose(loss, torch.stack(expected))
    loss.sum().backward()
    assert torch.allclose(logits.grad[3], entmax(logits.detach()[3], 1.7) - torch.eye(6)[3], atol=1e-6)


def test_structured_modules_case_55():
    x = torch.randn(3, 6)
    assert torch.equal(compat.Fusedmax(0.3)(x), fusedmax(x, 0.3))
    assert torch.equal(compat.Oscarmax(0.3)(x), oscarmax(x, 0.3))
    assert torch.equal(compat.Oscarmax(0.3, exact=False)(x), oscarmax(x, 0.3, exact=False))
    assert compat.Fusedmax()(x[0]).shape == (6,)
    lengths = [6, 2, 4]
    for module in (compat.Fusedmax(0.2), compat.Oscarmax(0.2), compat.Sparsemax()):
        for given in (lengths, torch.tensor(lengths)):
            result = module(x, given)
            for row, length in enumerate(lengths):
                assert torch.allclose(result[row, :length], module(x[row : row + 1, :length])[0], atol=1e-7)
                assert not result[row, length:].any()


@pytest.mark.parametrize("module", [compat.Sparsemax(), compat.Fusedmax(), compat.Oscarmax()])
def test_lengths_of_a_single_row(module):
    scores = torch.tensor([0.3, 0.1, 0.2, 9.0, 9.0])
    result = module(scores, lengths=[3])
    assert result.shape == (5,) and not result[3:].any() and torch.allclose(result.sum(), torch.tensor(1.0))
    assert torch.equal(result, module(scores[None], lengths=[3])[0])
