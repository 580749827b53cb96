"""Triton kernel of the sparse output layer: products of `p - gold * one_hot(target)` with weights and with features.

The support of each row comes in the buffers of fixed size that the loss kernel filled. A row that overflowed its buffer
is taken from its logits, which are still there, so nothing has to be known on the host.
"""

import torch
import triton
import triton.language as tl
from torch.utils.weak import WeakIdKeyDictionary

from .kernels_launch import kind_of, loss_capacity, loss_forward, on_device_of
from .kernels_solve import probs_of

# Entries of a row that are taken at a time, columns of the features a program takes, and its warps.
CHUNK = 16
DIM = 128
WARPS = 4
# A mean support above this is left to dense products. Not measured: no GPU has run this yet.
SPARSE_MEAN = 64


@triton.jit
def _entries(
    first, end, wide, row_ptr, index_ptr, value_ptr, target, maximum, high, low, exponent, gold, size,
    KIND: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Columns and values of some entries of a row, whether each is there, and how many are the target."""
    place = first + tl.arange(0, CHUNK)
    listed = place < end
    if wide:
        column = place
        scores = tl.load(row_ptr + place, mask=listed, other=-float("inf")).to(tl.float32)
        value, _, _ = probs_of(scores, maximum, high, low, exponent, KIND)
    else:
        column = tl.load(index_ptr + place, mask=listed, other=0)
        value = tl.load(value_ptr + place, mask=listed, other=0.0)
    at_target = listed & (column == target)
    value = tl.where(listed, value - tl.where(at_target, gold, 0.0), 0.0)
    return column, value, listed & (value != 0), tl.sum(at_target.to(tl.int32))


@triton.jit
def layer_gradient_kernel(
    logits_ptr, target_ptr, state_ptr, index_ptr, value_ptr, features_ptr, weight_ptr, features_grad_ptr,
    weight_grad_ptr, bias_grad_ptr, exponent, gold, ignore_index, size, dim, stride, features_stride, weight_stride,
    TO_FEATURES: tl.constexpr, TO_WEIGHT: tl.constexpr, TO_BIAS: tl.constexpr, KIND: tl.constexpr,
    CAPACITY: tl.constexpr, CHUNK: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """One row and a part of its features a program: gathers rows of the weights, adds to rows of their gradient."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    unit = part * DIM + tl.arange(0, DIM)
    inside = unit < dim
    total = tl.zeros([DIM], tl.float32)
    target = tl.load(target_ptr + row)
    if target != ignore_index:
        maximum = tl.load(state_ptr + row * 4)
        high = tl.load(state_ptr + row * 4 + 1)
        low = tl.load(state_ptr + row * 4 + 2)
        length = tl.load(state_ptr + row * 4 + 3).to(tl.int32)
        wide = length > CAPACITY
        end = tl.where(wide, size, length)
        features = tl.load(features_ptr + row * features_stride + unit, mask=inside, other=0.0).to(tl.float32)
        found = 0
        for first in range(0, end, CHUNK):
            column, value, there, at_target = _entries(
                first, end, wide, logits_ptr + row * stride, index_ptr + row * CAPACITY, value_ptr + row * CAPACITY,
                target, maximum, high, low, exponent, gold, size, KIND, CHUNK,
            )  # fmt: skip
            found += at_target
            both = there[:, None] & inside[None, :]
            column = column.to(tl.int64)
            if TO_FEATURES:
                tile = tl.load(weight_ptr + column[:, None] * weight_stride + unit[None, :], mask=both, other=0.0)
                total += tl.sum(value[:, None] * tile.to(tl.float32), 0)
            if TO_WEIGHT:
                place = weight_grad_ptr + column[:, None] * dim + unit[None, :]
                tl.atomic_add(place, value[:, None] * features[None, :], mask=both)
            if TO_BIAS:
                tl.atomic_add(bias_grad_ptr + column, value, mask=there & (part == 0))
        # A target outside the support is in no list.
        if found == 0:
            if TO_FEATURES:
                own = tl.load(weight_ptr + target * weight_stride + unit, mask=inside, other=0.0)
                total -= gold * own.to(tl.float32)
            if TO_WEIGHT:
                tl.atomic_add(weight_grad_ptr + target * dim + unit, -gold * features, mask=inside)
            if TO_BIAS:
                if part == 0:
                    tl.atomic_add(bias_grad_ptr + target, -gold)
    if TO_FEATURES:
        tl.store(features_grad_ptr + row * dim + unit, total, mask=inside)


def loss_and_gradients(logits, target, alpha, smoothing, ignore_index, features, weight, gradients):
    """Loss of some rows, with their share of the gradients added, for an upstream gradient of 1.

    Args:
        logits: `(rows, classes)` of more than 1,024 classes; not needed afterwards.
        target: int64 `(rows,)`.
        features, weight: `(rows, dim)` and `(classes, dim)`.
        gradients: float32 tensors `(rows, dim)`, `(classes, dim)`, `(classes,)` to add to, or None where not wanted.

    Returns:
        the fields of `TokenLoss`. What label smoothing spreads evenly is left out of the gradients.
    """
    mask = smoothing.mask.contiguous() if smoothing.share else None
    numbers = alpha, smoothing.gold, smoothing.share, float(smoothing.count), ignore_index
    loss, support, target_prob, correct, state, columns, values = loss_forward(logits, target, mask, *numbers)
    features, weight = (x if x.stride(-1) == 1 else x.contiguous() for x in (features, weight))
    to_features, to_weight, to_bias = gradients
    dim = features.shape[1]
    with on_device_of(logits):
        layer_gradient_kernel[(len(logits), triton.cdiv(dim, DIM))](
            logits, target, state, columns, values, features, weight, to_features, to_weight, to_bias,
            alpha - 1, smoothing.gold, ignore_index, logits.shape[1], dim, logits.stride(0), features.stride(0),
            weight.stride(0),
            TO_FEATURES=to_features is not None, TO_WEIGHT=to_weight is not None, TO_BIAS=to_bias is not None,
            KIND=kind_of(alpha), CAPACITY=columns.shape[1], CHUNK=CHUNK, DIM=DIM, num_warps=WARPS,
        )  # fmt: skip
    return loss, support, target_prob, correct


def has_lists(size, alpha):
    """Whether the loss kernel lists the support of rows of this size."""
    return loss_capacity(size, kind_of(alpha)) > 0


class Density:
    """Chooses sparse or dense products from the mean support of an earlier step, which costs no wait for the GPU."""

    _known = WeakIdKeyDictionary()

    def __init__(self):
        self.sparse, self.mean, self.event = False, None, None

    @classmethod
    def of(cls, weight) -> "Density":
        return cls._known.setdefault(weight, cls())

    def choose(self) -> bool:
        if self.mean is not None and (self.event is None or self.event.query()):
            self.sparse = float(self.mean) <= SPARSE_MEAN
            self.mean = None
        return self.sparse

    def note(self, support: torch.Tensor) -> None:
        """Remember the mean of `support` `(rows,)`, as soon as it has arrived."""
        if self.mean is not None:
            return
        mean = support.float().mean()
        self.event = None
        if mean.device.type == "cuda":
            self.mean = torch.empty((), pin_memory=True).copy_(mean, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record(torch.cuda.current_stream(mean.device))
        else:
            self.mean = mean
