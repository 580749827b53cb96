"""Features, output weights and targets to losses, without ever holding all logits.

The gradient with respect to the logits is `p - q`, a handful of numbers a row, so the two products of the backward pass
touch a few rows of the weights each. Logits are made for one block of rows at a time and forgotten.
"""

from typing import NamedTuple, Optional

import torch
from torch.nn import functional as F

from . import reference
from .backend import kernels, use_kernels
from .loss import TokenLoss, _smoothing, check_reduction, find_kept, token_entmax_loss
from .loss_rows import LongLoss, Smoothing
from .once import differentiable_once
from .rows import check_alpha, check_scores
from .sparse_products import Entries, LayerGradients
from .support import scale_rows, wide_base, wide_step, worth_searching

# Logits in memory at a time: enough for an efficient product.
BLOCK = 1 << 23
BLOCK_ON_ACCELERATOR = 1 << 27
# Non-zero entries of the gradient that wait for the backward pass at most; each takes 12 bytes.
PENDING = 1 << 22
# A block with a larger share of non-zero entries costs less as dense products (measured: 0.15).
DENSE_SHARE = 1 / 8


class _Settings(NamedTuple):
    alpha: float
    ignore_index: int
    smoothing: Smoothing
    label_smoothing: float
    smoothing_mask: Optional[torch.Tensor]
    sparse: bool  # rows are long and on a CPU, and none is ignored
    summed: bool  # one loss for all rows
    grad: bool  # False where nothing will ask for a gradient
    dtype: torch.dtype  # of the logits

    def token_loss(self, logits, target):
        return token_entmax_loss(
            logits, target, self.alpha, self.ignore_index, self.label_smoothing, self.smoothing_mask
        )


class _Recorder:
    """Stands in for the context of an autograd function whose passes are run by hand."""

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors):
        pass


class _Pass:
    """One forward pass over the blocks, and what it leaves for the backward pass."""

    def __init__(self, features, weight, bias, target, settings, wanted):
        self.features, self.weight, self.bias, self.target = features, weight, bias, target
        self.settings = settings
        self.gradients = LayerGradients(features, weight, bias, wanted)  # for an upstream gradient of 1
        self.entries, self.pending = [], 0
        self.even = torch.zeros(len(features), dtype=torch.bool, device=features.device)  # rows in `entries`
        self.later = []  # rows whose logits the backward pass makes again
        self.by_kernels = False

    def run(self):
        """The fields of `TokenLoss`, each `(rows,)`."""
        settings, classes = self.settings, len(self.weight)
        size = _block_rows(self.weight)
        weight = self.weight.to(settings.dtype)
        buffer = torch.empty(min(size, len(self.features)), classes, dtype=settings.dtype, device=weight.device)
        solve, density, parts = self._solve_sparse if settings.sparse else self._solve_dense, None, []
        if self._has_kernels(buffer):
            density = kernels().Density.of(self.weight)
            self.by_kernels = density.choose()
            solve = self._solve_by_kernels if self.by_kernels else self._solve_dense
        for start in range(0, len(self.features), size):
            rows = slice(start, min(start + size, len(self.features)))
            features = self.features[rows].to(settings.dtype)
            logits = buffer[: len(features)]
            _multiply(features, weight, self.bias, logits)
            parts.append(solve(logits, rows, features, weight))
        fields = TokenLoss(*(torch.cat(field) for field in zip(*parts)))
        if density is not None:
            density.note(fields.support)
        return fields

    def _has_kernels(self, logits):
        """Whether the kernels may multiply: they need one upstream gradient for all rows, and lists of the support."""
        settings = self.settings
        wanted = settings.grad and settings.summed and settings.alpha != 1
        return wanted and use_kernels(logits) and kernels().has_lists(logits.shape[1], settings.alpha)

    def _solve_by_kernels(self, logits, rows, features, weight):
        settings, target = self.settings, self.target[rows]
        self.even[rows] = target != settings.ignore_index
        return kernels().loss_and_gradients(
            logits, target, settings.alpha, settings.smoothing, settings.ignore_index, features, weight,
            self.gradients.buffers(rows),
        )  # fmt: skip

    def _solve_dense(self, logits, rows, features, weight):
        settings, target = self.settings, self.target[rows]
        if not settings.grad or not settings.summed:
            if settings.grad:
                self.later.append(torch.arange(rows.start, rows.stop, device=logits.device))
            return settings.token_loss(logits, target)
        tokens, gradient = _loss_and_gradient(settings, logits, target, 1.0)
        self.gradients.add_dense(gradient, rows, features, weight)
        return tokens

    def _solve_sparse(self, logits, rows, features, weight):
        settings, target = self.settings, self.target[rows, None]
        record = _Recorder()
        fields = LongLoss.forward(record, logits, target, None, settings.alpha, settings.smoothing, True)
        if settings.grad:
            _, _, _, undefined, rows_of, place, probs, *more = record.saved_tensors
            columns = place - rows_of * logits.shape[1]
            listed, dense = self._sort_wide(more[1], fields[1]) if more else (target[:0, 0], target[:0, 0])
            entries = len(rows_of) + int(fields[1][listed].sum())
            share = DENSE_SHARE * logits.numel()
            if 2 * len(dense) > len(target) or entries > share or bool(undefined.any()):
                self._keep_whole(record, rows, features, weight)
            elif not settings.summed and self.pending + entries > PENDING:
                self.later.append(torch.arange(rows.start, rows.stop))
            else:
                parts = [(rows_of, columns, probs)]
                if len(listed):
                    parts += self._list_wide(*more, listed, probs.dtype)
                found = (torch.cat(field) for field in zip(*parts))
                self._keep_entries(*found, target[:, 0], dense, rows.start)
                if len(dense):
                    self._keep_dense(logits, dense, rows.start, features, weight)
        return fields

    def _sort_wide(self, wide, support):
        """Those of the rows in `wide` whose support is worth listing after all, and the rest."""
        dense = support[wide] > DENSE_SHARE * len(self.weight)
        return wide[~dense], wide[dense]

    def _list_wide(self, logits, wide, maximum, tau, listed, dtype):
        """Entries of the rows `listed` among the wide ones, which were solved but not listed."""
        for rows in listed.split(wide_step(logits)):
            scaled = scale_rows(logits, rows, maximum, self.settings.alpha)
            probs = reference.power(wide_base(scaled, tau[rows], out=scaled), self.settings.alpha - 1)
            row, column = probs.nonzero(as_tuple=True)
            yield rows[row], column, probs[row, column].to(dtype)

    def _keep_whole(self, record, rows, features, weight):
        if not self.settings.summed:
            self.later.append(torch.arange(rows.start, rows.stop))
            return
        ones = torch.ones(len(features), dtype=self.gradients.dtype)
        self.gradients.add_dense(LongLoss.backward(record, ones)[0], rows, features, weight)

    def _keep_dense(self, logits, some, start, features, weight):
        if not self.settings.summed:
            self.later.append(some + start)
            return
        _, gradient = _loss_and_gradient(self.settings, logits[some], self.target[some + start], 1.0)
        self.gradients.add_dense(gradient, some + start, features[some], weight)

    def _keep_entries(self, rows, columns, values, target, dense, start):
        """Note the entries of a block, and its targets of no probability, of all rows but the `dense` ones."""
        on_target = columns == target[rows]
        missing = torch.ones_like(target, dtype=torch.bool)
        missing[dense] = False
        self.even[start : start + len(target)] |= missing
        missing[rows[on_target]] = False
        missing = missing.nonzero()[:, 0]
        gold = self.settings.smoothing.gold
        values = torch.cat([torch.where(on_target, values - gold, values), values.new_full((len(missing),), -gold)])
        rows, columns = torch.cat([rows, missing]), torch.cat([columns, target[missing]])
        order = rows.argsort()
        self.entries.append(Entries((rows[order] + start).int(), columns[order].int(), values[order]))
        self.pending += len(rows)
        if self.pending > PENDING and self.settings.summed:
            ones = torch.ones(len(self.features), dtype=values.dtype)
            self.gradients.add_entries(self.collected(), ones)
            self.entries, self.pending = [], 0

    def collected(self):
        if not self.entries:
            return None
        return Entries(*(torch.cat(field) for field in zip(*self.entries)))

    def differentiate(self, row_grad):
        """Gradients of features, weight and bias for the upstream gradient `(rows,)` (one number where summed)."""
        settings = self.settings
        gradients = self.gradients.scaled(row_grad)
        row_grad = row_grad.to(gradients.dtype).expand(len(self.features))
        if self.entries:
            gradients.add_entries(self.collected(), row_grad)
        if settings.smoothing.share and (settings.sparse or self.by_kernels):
            gradients.add_even(row_grad * self.even * settings.smoothing.share, settings.smoothing.mask)
        if self.later:
            weight = self.weight.to(settings.dtype)
            for rows in torch.cat(self.later).split(_block_rows(weight)):
                features = self.features[rows].to(settings.dtype)
                logits = _multiply(features, weight, self.bias)
                _, gradient = _loss_and_gradient(settings, logits, self.target[rows], row_grad[rows])
                gradients.add_dense(gradient, rows, features, weight)
        return gradients.results()


def _block_rows(weight):
    return max(1, (BLOCK if weight.device.type == "cpu" else BLOCK_ON_ACCELERATOR) // len(weight))


def _multiply(features, weight, bias, out=None):
    """Logits of a block, by the product that `torch.nn.functional.linear` uses."""
    if bias is None:
        return torch.mm(features, weight.t(), out=out)
    return torch.addmm(bias.to(features.dtype), features, weight.t(), out=out)


def _loss_and_gradient(settings, logits, target, row_grad):
    """`TokenLoss` of some rows, and the gradient with respect to `logits` for an upstream gradient of each row."""
    with torch.enable_grad():
        logits = logits.detach().requires_grad_()
        tokens = settings.token_loss(logits, target)
        upstream = torch.ones_like(tokens.loss) * row_grad
        (gradient,) = torch.autograd.grad(tokens.loss, logits, upstream)
    return tokens._replace(loss=tokens.loss.detach()), gradient


class _LinearLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, weight, bias, target, settings):
        with torch.autocast(features.device.type, enabled=False):
            ctx.work = _Pass(features, weight, bias, target, settings, ctx.needs_input_grad[:3])
            tokens = ctx.work.run()
        loss = tokens.loss.sum() if settings.summed else tokens.loss
        ctx.save_for_backward(loss, features, weight, bias, target)
        ctx.mark_non_differentiable(*tokens[1:])
        return (loss, *tokens[1:])

    @staticmethod
    @differentiable_once
    def backward(ctx, grad, *_):
        _ = ctx.saved_tensors  # where autograd refuses what was changed in place since
        with torch.autocast(grad.device.type, enabled=False):
            return (*ctx.work.differentiate(grad), None, None)


def _logits_dtype(features):
    """The dtype in which `torch.nn.functional.linear` would give the logits."""
    device = features.device.type
    if features.dtype == torch.float64:
        return features.dtype
    try:
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else features.dtype
    except (AttributeError, TypeError):  # torch before 2.4
        if device == "cpu":
            return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else features.dtype
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else features.dtype


def _check_layer(features, weight, bias):
    check_scores(features, -1, "features")
    if not weight.is_floating_point() or weight.dim() != 2 or weight.shape[1] != features.shape[-1]:
        raise ValueError(
            f"weight must be floating point of shape (classes, {features.shape[-1]}), got {weight.dtype} "
            f"{tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must have shape ({len(weight)},), got {tuple(bias.shape)}")


def token_linear_entmax_loss(
    features,
    weight,
    target,
    bias=None,
    alpha=1.5,
    ignore_index=-100,
    label_smoothing=0.0,
    smoothing_mask=None,
    summed=False,
):
    """`token_entmax_loss` of `linear(features, weight, bias)`, without all logits.

    Other arguments as for `linear_entmax_loss`.

    Args:
        summed: the loss is one number, the sum over tokens. Rows with a wide support then cost less, since one
            upstream gradient for all makes their products possible in the forward pass.

    Returns:
        `TokenLoss`; only `loss` has a gradient.
    """
    alpha = check_alpha(alpha)
    _check_layer(features, weight, bias)
    logits_like = features[..., :1].expand(*features.shape[:-1], len(weight))
    kept = find_kept(logits_like, target, ignore_index)
    smoothing = _smoothing(label_smoothing, smoothing_mask, len(weight), weight.device)
    sparse = worth_searching(logits_like, alpha)
    if not sparse and target.numel() <= _block_rows(weight):
        logits = F.linear(features, weight, bias)
        tokens = token_entmax_loss(logits, target, alpha, ignore_index, label_smoothing, smoothing_mask)
        return tokens._replace(loss=tokens.loss.sum()) if summed else tokens
    inputs = [tensor for tensor in (features, weight, bias) if tensor is not None]
    grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    settings = _Settings(
        alpha, ignore_index, smoothing, label_smoothing, smoothing_mask, sparse, summed, grad, _logits_dtype(features)
    )
    rows, flat = features.reshape(-1, features.shape[-1]), target.reshape(-1)
    places = None
    if sparse and kept is not None:
        places = kept.reshape(-1).nonzero()[:, 0]
        rows, flat = rows.index_select(0, places), flat[places]
    if len(flat) == 0:
        fields = _no_tokens(rows, weight, bias, summed)
    else:
        fields = _LinearLoss.apply(rows, weight, bias, flat, settings)
    if places is not None:
        spread = [field.new_zeros(target.numel()).index_copy(0, places, field) for field in fields[summed:]]
        fields = (*fields[:summed], *spread)
    return TokenLoss(*(field if field.dim() == 0 else field.view(target.shape) for field in fields))


def _no_tokens(rows, weight, bias, summed):
    """What remains when every target is ignored: zeros that still have a (zero) gradient."""
    empty = F.linear(rows, weight, bias).sum(-1)
    none = torch.zeros(0, dtype=torch.long, device=rows.device)
    loss = empty.to(torch.float64 if rows.dtype == torch.float64 else torch.float32)
    return loss.sum() if summed else loss, none, none.float(), none.bool()


def linear_entmax_loss(
    features,
    weight,
    target,
    bias=None,
    alpha=1.5,
    ignore_index=-100,
    reduction="mean",
    label_smoothing=0.0,
    smoothing_mask=None,
):
    """Train an output layer whose probabilities are `entmax(linear(features, weight, bias), alpha)`.

    The value and the gradients of `entmax_loss(linear(features, weight, bias), target, ...)`, to rounding, for less
    time and memory: logits exist for a block of rows at a time, the backward pass multiplies the few non-zero entries
    of `p - q` (on a CPU, for at least 1024 classes and alpha of at least 1.01; dense blocks elsewhere), and sums of
    gradients are float32 or wider.

    Args:
        features: floating point `(..., dim)`.
        weight: `(classes, dim)`, in the dtype of `features` (under autocast, any).
        target: int64 `(...)`.
        bias: `(classes,)` or None.
        alpha, ignore_index, reduction, label_smoothing, smoothing_mask: as for `entmax_loss`. Ignored rows are not
            multiplied at all.

    Returns:
        float32 (float64 for float64 features). Nothing is written to the arguments. Differentiable once.
    """
    check_reduction(reduction)
    summed = reduction != "none"
    loss = token_linear_entmax_loss(
        features, weight, target, bias, alpha, ignore_index, label_smoothing, smoothing_mask, summed
    ).loss
    if reduction == "mean":
        return loss / (target != ignore_index).sum().clamp(min=1)
    return loss
