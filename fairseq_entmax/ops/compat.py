"""The public names of `entmax` 1.3 and of `torchsparseattn`, with their signatures, on the ops of this package.

Switching is one import: `from fairseq_entmax.ops.compat import entmax15, Entmax15Loss, Fusedmax`. Where the originals
are wrong this is right; `docs/ops.md` lists the differences. `k`, `n_iter` and `ensure_sum_one` tuned the originals'
solvers; they are accepted and change nothing, because every result here is exact and sums to one.
"""

import torch
from torch import nn

from . import budget as _budget
from . import entmax as _entmax
from . import entmax_loss as _entmax_loss
from . import fusedmax as _fusedmax
from . import normmax as _normmax
from . import normmax_loss as _normmax_loss
from . import oscarmax as _oscarmax

__all__ = [
    "BudgetBisect",
    "Entmax15",
    "Entmax15Loss",
    "EntmaxBisect",
    "EntmaxBisectLoss",
    "Fusedmax",
    "NormmaxBisect",
    "NormmaxBisectLoss",
    "Oscarmax",
    "Sparsemax",
    "SparsemaxBisect",
    "SparsemaxBisectLoss",
    "SparsemaxLoss",
    "budget_bisect",
    "entmax15",
    "entmax15_loss",
    "entmax_bisect",
    "entmax_bisect_loss",
    "normmax_bisect",
    "normmax_bisect_loss",
    "sparsemax",
    "sparsemax_bisect",
    "sparsemax_bisect_loss",
    "sparsemax_loss",
]


def sparsemax(X, dim=-1, k=None):
    """`fairseq_entmax.ops.sparsemax`."""
    return _entmax(X, 2.0, dim)


def entmax15(X, dim=-1, k=None):
    """`fairseq_entmax.ops.entmax15`."""
    return _entmax(X, 1.5, dim)


def sparsemax_bisect(X, dim=-1, n_iter=50, ensure_sum_one=True):
    """`fairseq_entmax.ops.sparsemax`, exact."""
    return _entmax(X, 2.0, dim)


def entmax_bisect(X, alpha=1.5, dim=-1, n_iter=50, ensure_sum_one=True):
    """`fairseq_entmax.ops.entmax`, alpha a number or tensor >= 1, with a gradient to alpha."""
    return _entmax(X, alpha, dim)


def normmax_bisect(X, alpha=2, dim=-1, n_iter=50):
    """`fairseq_entmax.ops.normmax`, alpha > 1, with a gradient to alpha too."""
    return _normmax(X, alpha, dim)


def budget_bisect(X, budget=2, dim=-1, n_iter=50):
    """`fairseq_entmax.ops.budget`, with a gradient to the budget too."""
    return _budget(X, budget, dim)


def _loss_of_rows(loss, X, target, alpha, ignore_index=-100):
    """Loss of each sample; a tensor alpha of one value a row is solved value by value."""
    if not isinstance(alpha, torch.Tensor) or alpha.numel() == 1:
        return loss(X, target, float(alpha), ignore_index, "none")
    alpha = alpha.detach().expand(*X.shape[:-1], 1).reshape(target.shape)
    result = X.new_zeros(target.shape, dtype=torch.float64 if X.dtype == torch.float64 else torch.float32)
    for value in alpha.unique():
        chosen = alpha == value
        some = loss(X[chosen], target[chosen], value.item(), ignore_index, "none")
        result = result.masked_scatter(chosen, some)
    return result


def sparsemax_loss(X, target, k=None):
    """`entmax_loss` with alpha 2, one value a sample."""
    return _entmax_loss(X, target, 2.0, reduction="none")


def entmax15_loss(X, target, k=None):
    """`entmax_loss` with alpha 1.5, one value a sample."""
    return _entmax_loss(X, target, 1.5, reduction="none")


def sparsemax_bisect_loss(X, target, n_iter=50):
    """`entmax_loss` with alpha 2, one value a sample."""
    return _entmax_loss(X, target, 2.0, reduction="none")


def entmax_bisect_loss(X, target, alpha=1.5, n_iter=50):
    """`entmax_loss`, one value a sample; alpha a number or one for each row."""
    return _loss_of_rows(_entmax_loss, X, target, alpha)


def normmax_bisect_loss(X, target, alpha=2, n_iter=50):
    """`normmax_loss`, one value a sample; alpha a number or one for each row."""
    return _loss_of_rows(_normmax_loss, X, target, alpha)


class _Loss(nn.Module):
    """Loss module with the originals' reductions `elementwise_mean`, `sum` and `none`; `mean` is accepted too."""

    _loss = staticmethod(_entmax_loss)
    alpha = 2.0

    def __init__(self, ignore_index=-100, reduction="elementwise_mean"):
        super().__init__()
        if reduction not in ("elementwise_mean", "mean", "sum", "none"):
            raise ValueError(f"reduction must be elementwise_mean, mean, sum or none, got {reduction!r}")
        self.ignore_index = ignore_index
        self.reduction = reduction

    def loss(self, X, target):
        """One value a sample, zero where the target is ignored."""
        return _loss_of_rows(self._loss, X, target, self.alpha, self.ignore_index)

    def forward(self, X, target):
        loss = self.loss(X, target)
        if self.reduction == "none":
            return loss
        total = loss.sum()
        return total if self.reduction == "sum" else total / (target != self.ignore_index).sum().clamp(min=1)


class SparsemaxLoss(_Loss):
    def __init__(self, k=None, ignore_index=-100, reduction="elementwise_mean"):
        super().__init__(ignore_index, reduction)
        self.k = k


class SparsemaxBisectLoss(_Loss):
    def __init__(self, n_iter=50, ignore_index=-100, reduction="elementwise_mean"):
        super().__init__(ignore_index, reduction)
        self.n_iter = n_iter


class Entmax15Loss(_Loss):
    alpha = 1.5

    def __init__(self, k=100, ignore_index=-100, reduction="elementwise_mean"):
        super().__init__(ignore_index, reduction)
        self.k = k


class EntmaxBisectLoss(_Loss):
    def __init__(self, alpha=1.5, n_iter=50, ignore_index=-100, reduction="elementwise_mean"):
        super().__init__(ignore_index, reduction)
        self.alpha, self.n_iter = alpha, n_iter


class NormmaxBisectLoss(_Loss):
    _loss = staticmethod(_normmax_loss)

    def __init__(self, alpha=2, n_iter=50, ignore_index=-100, reduction="elementwise_mean"):
        super().__init__(ignore_index, reduction)
        self.alpha, self.n_iter = alpha, n_iter


def _mask_of_lengths(x, lengths):
    """True at the first `lengths[i]` positions of row i of `x` `(rows, size)` or `(size,)`; None for all."""
    if lengths is None:
        return None
    lengths = torch.as_tensor(lengths, device=x.device).reshape(-1, 1)
    mask = torch.arange(x.shape[-1], device=x.device) < lengths
    return mask.reshape(x.shape) if x.dim() == 1 else mask


class Sparsemax(nn.Module):
    """Of both packages: `Sparsemax(dim, k)` as in `entmax`, and `lengths` in the call as in `torchsparseattn`."""

    def __init__(self, dim=-1, k=None):
        super().__init__()
        self.dim, self.k = dim, k

    def forward(self, X, lengths=None):
        mask = _mask_of_lengths(X, lengths)
        return _entmax(X if mask is None else X.masked_fill(~mask, -torch.inf), 2.0, self.dim)


class Entmax15(nn.Module):
    def __init__(self, dim=-1, k=None):
        super().__init__()
        self.dim, self.k = dim, k

    def forward(self, X):
        return _entmax(X, 1.5, self.dim)


class SparsemaxBisect(nn.Module):
    def __init__(self, dim=-1, n_iter=None):
        super().__init__()
        self.dim, self.n_iter = dim, n_iter

    def forward(self, X):
        return _entmax(X, 2.0, self.dim)


class EntmaxBisect(nn.Module):
    """alpha may be a `Parameter`, which is then registered; `ops.LearnedAlpha` keeps one in range."""

    def __init__(self, alpha=1.5, dim=-1, n_iter=50):
        super().__init__()
        self.alpha, self.dim, self.n_iter = alpha, dim, n_iter

    def forward(self, X):
        return _entmax(X, self.alpha, self.dim)


class NormmaxBisect(nn.Module):
    def __init__(self, alpha=2, dim=-1, n_iter=50):
        super().__init__()
        self.alpha, self.dim, self.n_iter = alpha, dim, n_iter

    def forward(self, X):
        return _normmax(X, self.alpha, self.dim)


class BudgetBisect(nn.Module):
    def __init__(self, budget=2, dim=-1, n_iter=50):
        super().__init__()
        self.budget, self.dim, self.n_iter = budget, dim, n_iter

    def forward(self, X):
        return _budget(X, self.budget, self.dim)


class Fusedmax(nn.Module):
    """`fusedmax` on `(size,)` or `(rows, size)`; `alpha` is the strength (its default of 1 fuses nearly everything)."""

    def __init__(self, alpha=1):
        super().__init__()
        self.alpha = alpha

    def forward(self, x, lengths=None):
        return _fusedmax(x, self.alpha, mask=_mask_of_lengths(x, lengths))


class Oscarmax(nn.Module):
    """`oscarmax`, exact, on `(size,)` or `(rows, size)`; `exact=False` is the composition of the original."""

    def __init__(self, beta=1, exact=True):
        super().__init__()
        self.beta, self.exact = beta, exact

    def forward(self, x, lengths=None):
        return _oscarmax(x, self.beta, mask=_mask_of_lengths(x, lengths), exact=self.exact)
