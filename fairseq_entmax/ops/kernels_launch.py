"""Block sizes and launches of the Triton kernels, each a function of tensors and a custom op for `torch.compile`.

Matrices are `(rows, size)` with unit stride in the last dimension. Nothing is compiled before the first launch.
"""

import contextlib
import functools
from typing import NamedTuple, Optional, Tuple

import torch
import triton
from torch import Tensor

from . import kernels_long, kernels_loss, kernels_mapping, kernels_structured
from .kernels_solve import GENERAL, HALF, MIXED, ONE, STEEP

# Rows up to this long are read again in the backward of the loss; above, it writes zeros and scatters the support.
SHORT = 1024
# Rows up to this long are held in registers.
IN_REGISTERS = 8192
# The maxima of the blocks of a row must fit in registers.
LONGEST = 4096 * 128
# Rows of the structured mappings up to this long are held in registers, four scores a thread.
LONGEST_STRUCTURED = 1024
LIST = 1024
WIDE = 2048
STATE = 4


class RowsPlan(NamedTuple):
    """A tile of rows in registers, how long a list of their support may be (0: none), and how many registers a thread
    may have (None: left to the compiler, which stops at 64 or 80 for small tiles and then spills a word)."""

    rows: int
    columns: int
    warps: int
    capacity: int
    registers: Optional[int]


class LongPlan(NamedTuple):
    """One long row a program, and how many registers a thread may have (without a limit the compiler prefers 64)."""

    blocks: int
    block_tile: int
    warps: int
    registers: int


def in_registers(kind):
    """The longest row of the kernels in registers; the backward for alphas by row needs more of them."""
    return IN_REGISTERS // 2 if kind == MIXED.value else IN_REGISTERS


def rows_plan(size, kind, loss=False):
    columns = max(16, triton.next_power_of_2(size))
    rows = max(1, min(32, 1024 // columns))
    # Logarithms, exponentials and the terms of a loss take more registers and time than moving bytes does.
    most = 8 if kind in (HALF.value, ONE.value) and not loss else 16
    capacity = 0 if size <= SHORT else columns // 8
    warps = max(1, min(most, rows * columns // 128))
    return RowsPlan(rows, columns, warps, capacity, 128 if columns <= 1024 else None)


def long_plan(size, kind, smooth=False):
    blocks = triton.cdiv(size, 128)
    tile = max(256, triton.next_power_of_2(blocks))
    if tile > 1024:
        registers = 168 if kind in (HALF.value, ONE.value) else 200
    else:
        registers = 80 if kind in (HALF.value, ONE.value) and not smooth else 128
    return LongPlan(blocks, tile, 8, registers)


STRUCTURED_REGISTERS = 128  # a thread; left alone, the compiler stops lower and spills


def structured_plan(size):
    """Columns of the tile and warps."""
    columns = max(16, triton.next_power_of_2(size))
    return columns, max(1, columns // 128)


def kind_of(alpha, alphas=None):
    """Which form of the kernels serves this alpha."""
    if alphas is not None:
        return MIXED.value
    if alpha == 1.5:
        return HALF.value
    if alpha == 2:
        return ONE.value
    return GENERAL.value if alpha < 2 else STEEP.value


def on_device_of(tensor):
    """Triton launches on the current device, whatever the tensors say."""
    return torch.cuda.device(tensor.device) if tensor.device.type == "cuda" else contextlib.nullcontext()


def as_custom_op(fake):
    """Decorate a launcher: called as it is, and as `torch.ops.fairseq_entmax.<name>` while torch compiles."""

    def decorate(launch):
        op = torch.library.custom_op(f"fairseq_entmax::{launch.__name__}", launch, mutates_args=())
        op.register_fake(fake)

        @functools.wraps(launch)
        def call(*args):
            return op(*args) if torch.compiler.is_compiling() else launch(*args)

        return call

    return decorate


def _support_lists(matrix, capacity):
    rows = matrix.shape[0] if capacity else 0
    return (
        matrix.new_empty(rows, dtype=torch.int32),
        matrix.new_empty(rows, capacity, dtype=torch.int32),
        matrix.new_empty(rows, capacity, dtype=torch.float32),
    )


def _entmax_fake(scores, alpha, alphas):
    longest = in_registers(kind_of(alpha, alphas))
    return scores.new_empty(scores.shape), *_support_lists(scores, LIST if scores.shape[1] > longest else 0)


@as_custom_op(_entmax_fake)
def entmax_forward(scores: Tensor, alpha: float, alphas: Optional[Tensor]) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """Probabilities, and for long rows the list of the support: lengths, columns, probabilities."""
    rows, size = scores.shape
    kind, exponent, stride = kind_of(alpha, alphas), alpha - 1, scores.stride(0)
    with on_device_of(scores):
        if size <= in_registers(kind):
            plan = rows_plan(size, kind)
            probs = torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
            kernels_mapping.entmax_rows_kernel[(triton.cdiv(rows, plan.rows),)](
                scores, probs, alphas, exponent, rows, size, stride,
                KIND=kind, ROWS=plan.rows, COLUMNS=plan.columns,
                num_warps=plan.warps, maxnreg=plan.registers,
            )  # fmt: skip
            return probs, *_support_lists(scores, 0)
        plan = long_plan(size, kind)
        probs = torch.zeros(scores.shape, dtype=scores.dtype, device=scores.device)
        lists = _support_lists(scores, LIST)
        maxima = torch.empty(rows, plan.blocks, dtype=torch.float32, device=scores.device)
        kernels_long.entmax_long_kernel[(rows,)](
            scores, probs, alphas, *lists, maxima, exponent, size, plan.blocks, stride,
            KIND=kind, BLOCKS=plan.block_tile, CAPACITY=LIST, WIDE=WIDE, num_warps=plan.warps, maxnreg=plan.registers,
        )  # fmt: skip
    return probs, *lists


def _entmax_backward_fake(probs, lengths, columns, values, grad, alpha, alphas, to_alpha):
    return probs.new_empty(probs.shape), probs.new_empty(len(probs) if to_alpha else 0, dtype=torch.float32)


@as_custom_op(_entmax_backward_fake)
def entmax_backward(
    probs: Tensor, lengths: Tensor, columns: Tensor, values: Tensor, grad: Tensor,
    alpha: float, alphas: Optional[Tensor], to_alpha: bool,
) -> Tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients to the scores and, if `to_alpha`, to alpha row by row."""
    rows, size = probs.shape
    kind, exponent = kind_of(alpha, alphas), alpha - 1
    alpha_grad = probs.new_empty(rows if to_alpha else 0, dtype=torch.float32)
    with on_device_of(probs):
        if size <= in_registers(kind):
            plan = rows_plan(size, kind)
            result = torch.empty(probs.shape, dtype=probs.dtype, device=probs.device)
            kernels_mapping.entmax_rows_backward_kernel[(triton.cdiv(rows, plan.rows),)](
                probs, grad, result, alphas, alpha_grad, exponent, rows, size, grad.stride(0),
                KIND=kind, TO_ALPHA=to_alpha, ROWS=plan.rows, COLUMNS=plan.columns,
                num_warps=plan.warps, maxnreg=plan.registers,
            )  # fmt: skip
        else:
            result = torch.zeros(probs.shape, dtype=probs.dtype, device=probs.device)
            kernels_long.entmax_long_backward_kernel[(rows,)](
                probs, lengths, columns, values, grad, result, alphas, alpha_grad, exponent, size, grad.stride(0),
                KIND=kind, TO_ALPHA=to_alpha, CAPACITY=LIST, WIDE=WIDE, num_warps=8,
            )  # fmt: skip
    return result, alpha_grad


def loss_capacity(size, kind):
    return LIST if size > IN_REGISTERS else rows_plan(size, kind, loss=True).capacity


def _loss_outputs(logits, capacity):
    rows = logits.shape[0]
    return (
        logits.new_empty(rows, dtype=torch.float32),
        logits.new_empty(rows, dtype=torch.int64),
        logits.new_empty(rows, dtype=torch.float32),
        logits.new_empty(rows, dtype=torch.bool),
        logits.new_empty(rows, STATE, dtype=torch.float32),
        *_support_lists(logits, capacity)[1:],
    )


def _loss_fake(logits, target, mask, alpha, gold, share, mask_size, ignore_index):
    return _loss_outputs(logits, loss_capacity(logits.shape[1], kind_of(alpha)))


@as_custom_op(_loss_fake)
def loss_forward(
    logits: Tensor, target: Tensor, mask: Optional[Tensor],
    alpha: float, gold: float, share: float, mask_size: float, ignore_index: int,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Loss, support size, probability of the target and correctness of each row, then what the backward needs.

    `mask` (None: no label smoothing) is bool `(size,)` with `mask_size` classes. The state of a row is its solution and
    the length of its support list, which is incomplete above its capacity.
    """
    rows, size = logits.shape
    kind, stride = kind_of(alpha), logits.stride(0)
    capacity = loss_capacity(size, kind)
    outputs = _loss_outputs(logits, capacity)
    loss, support, target_prob, correct, state, columns, values = outputs
    smooth = mask is not None
    mask = mask.view(torch.int8) if smooth else None
    with on_device_of(logits):
        if size <= IN_REGISTERS:
            plan = rows_plan(size, kind, loss=True)
            kernels_loss.loss_rows_kernel[(triton.cdiv(rows, plan.rows),)](
                logits, target, mask, loss, support, target_prob, correct.view(torch.int8), state, columns, values,
                alpha - 1, gold, share, ignore_index, rows, size, stride,
                KIND=kind, SMOOTH=smooth, ROWS=plan.rows, COLUMNS=plan.columns, CAPACITY=capacity,
                num_warps=plan.warps, maxnreg=plan.registers,
            )  # fmt: skip
        else:
            plan = long_plan(size, kind, smooth)
            maxima = torch.empty(rows, plan.blocks, dtype=torch.float32, device=logits.device)
            kernels_loss.loss_long_kernel[(rows,)](
                logits, target, mask, loss, support, target_prob, correct.view(torch.int8), state, columns, values,
                maxima, alpha - 1, gold, share, mask_size, ignore_index, size, plan.blocks, stride,
                KIND=kind, SMOOTH=smooth, BLOCKS=plan.block_tile, CAPACITY=capacity, WIDE=WIDE,
                num_warps=plan.warps, maxnreg=plan.registers,
            )  # fmt: skip
    return outputs


def _loss_backward_fake(
    logits, target, mask, state, columns, values, target_prob, grad, alpha, gold, share, ignore_index
):
    return logits.new_empty(logits.shape)


@as_custom_op(_loss_backward_fake)
def loss_backward(
    logits: Tensor, target: Tensor, mask: Optional[Tensor], state: Tensor, columns: Tensor, values: Tensor,
    target_prob: Tensor, grad: Tensor, alpha: float, gold: float, share: float, ignore_index: int,
) -> Tensor:  # fmt: skip
    """`grad * (p - q)` in the dtype of the logits."""
    result = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    saved = logits, target, mask, state, columns, values, target_prob
    return loss_backward_into(result, *saved, grad, alpha, gold, share, ignore_index)


def loss_backward_into(
    result, logits, target, mask, state, columns, values, target_prob, grad, alpha, gold, share, ignore_index
):
    """`loss_backward` written to `result`, which may be `logits`: a number is read before it is written over."""
    rows, size = logits.shape
    kind = kind_of(alpha)
    smooth = mask is not None
    mask = mask.view(torch.int8) if smooth else None
    with on_device_of(logits):
        if size <= SHORT:
            plan = rows_plan(size, kind, loss=True)
            kernels_loss.loss_rows_backward_kernel[(triton.cdiv(rows, plan.rows),)](
                logits, target, mask, state, grad, result, alpha - 1, gold, share, ignore_index, rows, size,
                logits.stride(0), grad.stride(0), result.stride(0),
                KIND=kind, SMOOTH=smooth, ROWS=plan.rows, COLUMNS=plan.columns,
                num_warps=plan.warps, maxnreg=plan.registers,
            )  # fmt: skip
        else:
            kernels_loss.loss_long_backward_kernel[(rows,)](
                logits, target, mask, state, columns, values, target_prob, grad, result, alpha - 1, gold, share,
                ignore_index, size, logits.stride(0), grad.stride(0), result.stride(0),
                KIND=kind, SMOOTH=smooth, CAPACITY=columns.shape[1], WIDE=WIDE, num_warps=8,
            )  # fmt: skip
    return result


def _structured_fake(scores, used, strength, gamma, by_rank):
    order = scores.shape if by_rank else (0, 0)
    starts = scores.new_empty(scores.shape, dtype=torch.int8)
    return scores.new_empty(scores.shape), starts, scores.new_empty(order, dtype=torch.int32)


@as_custom_op(_structured_fake)
def structured_forward(
    scores: Tensor, used: Tensor, strength: float, gamma: float, by_rank: bool
) -> Tuple[Tensor, Tensor, Tensor]:
    """oscarmax if `by_rank`, else fusedmax: probabilities, where groups start, for oscarmax the order of the scores.

    Both matrices are contiguous.
    """
    columns, warps = structured_plan(scores.shape[1])
    probs, starts, order = _structured_fake(scores, used, strength, gamma, by_rank)
    with on_device_of(scores):
        kernel = kernels_structured.oscarmax_kernel if by_rank else kernels_structured.fusedmax_kernel
        outputs = (probs, starts, order) if by_rank else (probs, starts)
        kernel[(len(scores),)](
            scores, used.view(torch.int8), *outputs, strength, gamma, scores.shape[1],
            COLUMNS=columns, num_warps=warps, maxnreg=STRUCTURED_REGISTERS,
        )  # fmt: skip
    return probs, starts, order


def _structured_backward_fake(probs, grad, starts, order, gamma):
    return probs.new_empty(probs.shape)


@as_custom_op(_structured_backward_fake)
def structured_backward(probs: Tensor, grad: Tensor, starts: Tensor, order: Tensor, gamma: float) -> Tensor:
    """Gradient to the scores; all matrices are contiguous, `order` is empty for fusedmax."""
    columns, warps = structured_plan(probs.shape[1])
    result = torch.empty(probs.shape, dtype=probs.dtype, device=probs.device)
    with on_device_of(probs):
        kernels_structured.structured_backward_kernel[(len(probs),)](
            probs, grad, starts, order, result, gamma, probs.shape[1],
            SORTED=order.numel() > 0, COLUMNS=columns, num_warps=warps,
        )  # fmt: skip
    return result
