"""Triton kernels of one decoder step of an LSTM with attention, forward and backward, and their launches.

Between the matrix products of a step (cuBLAS) lie only these: an LSTM cell, an attention (scores, mapping and context
of one sentence in one program) and the output of a step. They write where the next product reads, so that nothing is
concatenated, and they apply dropout by factors that were drawn for all steps at once.

Everything is computed in float32 and stored in the dtype of the model. `below` and `hidden` are the two halves of the
inputs of a layer, rows `stride` numbers apart.
"""

import triton
import triton.language as tl

from .kernels_launch import kind_of, on_device_of
from .kernels_mapping import jacobian_weight
from .kernels_solve import expm1, probs_of, solve_rows

SOFTMAX = tl.constexpr(5)  # besides the kinds of `kernels_solve`
# Scores of a sentence lie in registers.
LONGEST_SOURCE = 1024
# Numbers of a pointwise program; source positions and features of a tile of keys or values.
BLOCK, POSITIONS, FEATURES = 512, 16, 128
WARPS = 4


@triton.jit
def tanh(x):
    change = expm1(-2 * tl.abs(x))
    size = -change / (2 + change)
    return tl.where(x < 0, -size, size)


@triton.jit
def _place(count, dim, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    return index, index // dim, index % dim, index < count


@triton.jit
def cell_kernel(
    gates_ptr, cell_ptr, next_cell_ptr, hidden_ptr, below_ptr, drop_ptr, count, dim, stride,
    BELOW: tl.constexpr, DROP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums of the gates, overwritten by the gates, and the cell to the next cell and hidden state.

    With BELOW also the dropped hidden state, the input of the layer above.
    """
    index, row, column, inside = _place(count, dim, BLOCK)
    gate = gates_ptr + row * (4 * dim) + column
    into = tl.sigmoid(tl.load(gate, mask=inside, other=0.0).to(tl.float32))
    keep = tl.sigmoid(tl.load(gate + dim, mask=inside, other=0.0).to(tl.float32))
    new = tanh(tl.load(gate + 2 * dim, mask=inside, other=0.0).to(tl.float32))
    out = tl.sigmoid(tl.load(gate + 3 * dim, mask=inside, other=0.0).to(tl.float32))
    cell = keep * tl.load(cell_ptr + index, mask=inside, other=0.0).to(tl.float32) + into * new
    hidden = out * tanh(cell)
    tl.store(gate, into, mask=inside)
    tl.store(gate + dim, keep, mask=inside)
    tl.store(gate + 2 * dim, new, mask=inside)
    tl.store(gate + 3 * dim, out, mask=inside)
    tl.store(next_cell_ptr + index, cell, mask=inside)
    tl.store(hidden_ptr + row * stride + column, hidden, mask=inside)
    if BELOW:
        if DROP:
            hidden *= tl.load(drop_ptr + index, mask=inside, other=0.0).to(tl.float32)
        tl.store(below_ptr + row * stride + column, hidden, mask=inside)


@triton.jit
def cell_backward_kernel(
    gates_ptr, cell_ptr, next_cell_ptr, above_grad_ptr, drop_ptr, hidden_grad_ptr, cell_grad_ptr, sums_grad_ptr,
    count, dim, above_stride, stride,
    LAST: tl.constexpr, DROP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of the sums, and of the cell in place (float32), from those of what used the hidden state.

    `above_grad` is what the layer or the attention above says, through dropout with DROP; `hidden_grad` is what the
    next step says, nothing for the LAST one.
    """
    index, row, column, inside = _place(count, dim, BLOCK)
    grad = tl.load(above_grad_ptr + row * above_stride + column, mask=inside, other=0.0).to(tl.float32)
    if DROP:
        grad *= tl.load(drop_ptr + index, mask=inside, other=0.0).to(tl.float32)
    cell_grad = tl.zeros_like(grad)
    if not LAST:
        grad += tl.load(hidden_grad_ptr + row * stride + column, mask=inside, other=0.0).to(tl.float32)
        cell_grad += tl.load(cell_grad_ptr + index, mask=inside, other=0.0)
    gate = row * (4 * dim) + column
    into = tl.load(gates_ptr + gate, mask=inside, other=0.0).to(tl.float32)
    keep = tl.load(gates_ptr + gate + dim, mask=inside, other=0.0).to(tl.float32)
    new = tl.load(gates_ptr + gate + 2 * dim, mask=inside, other=0.0).to(tl.float32)
    out = tl.load(gates_ptr + gate + 3 * dim, mask=inside, other=0.0).to(tl.float32)
    cell = tl.load(cell_ptr + index, mask=inside, other=0.0).to(tl.float32)
    squashed = tanh(tl.load(next_cell_ptr + index, mask=inside, other=0.0).to(tl.float32))
    cell_grad += grad * out * (1 - squashed * squashed)
    tl.store(sums_grad_ptr + gate, cell_grad * new * into * (1 - into), mask=inside)
    tl.store(sums_grad_ptr + gate + dim, cell_grad * cell * keep * (1 - keep), mask=inside)
    tl.store(sums_grad_ptr + gate + 2 * dim, cell_grad * into * (1 - new * new), mask=inside)
    tl.store(sums_grad_ptr + gate + 3 * dim, grad * squashed * out * (1 - out), mask=inside)
    tl.store(cell_grad_ptr + index, cell_grad * keep, mask=inside)


@triton.jit
def output_kernel(
    sums_ptr, drop_ptr, output_ptr, below_ptr, count, dim, stride, DROP: tl.constexpr, BLOCK: tl.constexpr
):
    """`tanh` of the sums, kept, and dropped to where the next step is fed from."""
    index, row, column, inside = _place(count, dim, BLOCK)
    output = tanh(tl.load(sums_ptr + index, mask=inside, other=0.0).to(tl.float32))
    tl.store(output_ptr + index, output, mask=inside)
    if DROP:
        output *= tl.load(drop_ptr + index, mask=inside, other=0.0).to(tl.float32)
    tl.store(below_ptr + row * stride + column, output, mask=inside)


@triton.jit
def output_backward_kernel(
    output_ptr, drop_ptr, grad_ptr, below_grad_ptr, sums_grad_ptr, count, dim, stride,
    LAST: tl.constexpr, DROP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index, row, column, inside = _place(count, dim, BLOCK)
    grad = tl.load(grad_ptr + index, mask=inside, other=0.0).to(tl.float32)
    if not LAST:
        grad += tl.load(below_grad_ptr + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    if DROP:
        grad *= tl.load(drop_ptr + index, mask=inside, other=0.0).to(tl.float32)
    output = tl.load(output_ptr + index, mask=inside, other=0.0).to(tl.float32)
    tl.store(sums_grad_ptr + index, grad * (1 - output * output), mask=inside)


@triton.jit
def _products(matrix_ptr, vector_ptr, scratch_ptr, source, dim, POSITIONS: tl.constexpr, FEATURES: tl.constexpr):
    """`scratch[s] = matrix[s] . vector` for a matrix `(source, dim)`; read it after a barrier."""
    for first in range(0, source, POSITIONS):
        position = first + tl.arange(0, POSITIONS)
        total = tl.zeros([POSITIONS], tl.float32)
        for start in range(0, dim, FEATURES):
            feature = start + tl.arange(0, FEATURES)
            vector = tl.load(vector_ptr + feature, mask=feature < dim, other=0.0).to(tl.float32)
            inside = (position < source)[:, None] & (feature < dim)[None, :]
            tile = tl.load(matrix_ptr + position[:, None] * dim + feature[None, :], mask=inside, other=0.0)
            total += tl.sum(tile.to(tl.float32) * vector[None, :], 1)
        tl.store(scratch_ptr + position, total, mask=position < source)


@triton.jit
def _combine(
    matrix_ptr, scratch_ptr, add_ptr, result_ptr, source, dim, POSITIONS: tl.constexpr, FEATURES: tl.constexpr
):
    """`result = add + scratch @ matrix`; positions of weight 0 are not read."""
    for start in range(0, dim, FEATURES):
        feature = start + tl.arange(0, FEATURES)
        total = tl.load(add_ptr + feature, mask=feature < dim, other=0.0).to(tl.float32)
        for first in range(0, source, POSITIONS):
            position = first + tl.arange(0, POSITIONS)
            weight = tl.load(scratch_ptr + position, mask=position < source, other=0.0)
            inside = (weight != 0)[:, None] & (feature < dim)[None, :]
            tile = tl.load(matrix_ptr + position[:, None] * dim + feature[None, :], mask=inside, other=0.0)
            total += tl.sum(weight[:, None] * tile.to(tl.float32), 0)
        tl.store(result_ptr + feature, total, mask=feature < dim)


@triton.jit
def attention_kernel(
    query_ptr, keys_ptr, values_ptr, mask_ptr, bias_ptr, scratch_ptr, weights_ptr, context_ptr,
    exponent, source, dim, stride,
    KIND: tl.constexpr, MASKED: tl.constexpr, COLUMNS: tl.constexpr, POSITIONS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Weights of one sentence's source words for one query, and their context with a bias added."""
    row = tl.program_id(0).to(tl.int64)
    keys_ptr += row * source * dim
    scratch_ptr += row * source
    _products(keys_ptr, query_ptr + row * stride, scratch_ptr, source, dim, POSITIONS, FEATURES)
    tl.debug_barrier()
    position = tl.arange(0, COLUMNS)
    inside = position < source
    attended = inside
    if MASKED:
        attended = inside & (tl.load(mask_ptr + row * source + position, mask=inside, other=0) != 0)
    scores = tl.load(scratch_ptr + position, mask=attended, other=-float("inf"))[None, :]
    if KIND == SOFTMAX:
        maximum = tl.max(scores, 1)
        power = tl.exp(scores - tl.where(maximum > -float("inf"), maximum, 0.0)[:, None])
        total = tl.sum(power, 1)
        weights = power / tl.where(total == 0, 1.0, total)[:, None]
        # A maximum drops NaN; the sum keeps it.
        weights = tl.where((total == total)[:, None], weights, float("nan"))
    else:
        exponents = tl.zeros([1], tl.float32) + exponent
        maximum, high, low = solve_rows(scores, exponents, KIND)
        weights, _, _ = probs_of(scores, maximum[:, None], high[:, None], low[:, None], exponents[:, None], KIND)
    # No NaN of a row reaches a masked position.
    weights = tl.where(attended[None, :], weights, 0.0)
    kept = weights.to(weights_ptr.dtype.element_ty)
    tl.store(weights_ptr + row * source + position[None, :], kept, mask=inside[None, :])
    tl.debug_barrier()
    tl.store(scratch_ptr + position[None, :], kept.to(tl.float32), mask=inside[None, :])
    tl.debug_barrier()
    _combine(
        values_ptr + row * source * dim, scratch_ptr, bias_ptr, context_ptr + row * dim,
        source, dim, POSITIONS, FEATURES,
    )  # fmt: skip


@triton.jit
def attention_backward_kernel(
    keys_ptr, values_ptr, weights_ptr, context_grad_ptr, weights_grad_ptr, scratch_ptr, scores_grad_ptr,
    query_grad_ptr, exponent, source, dim,
    KIND: tl.constexpr, COLUMNS: tl.constexpr, POSITIONS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Gradient of the scores, and of the query added to what is there."""
    row = tl.program_id(0).to(tl.int64)
    scratch_ptr += row * source
    values_ptr += row * source * dim
    _products(values_ptr, context_grad_ptr + row * dim, scratch_ptr, source, dim, POSITIONS, FEATURES)
    tl.debug_barrier()
    position = tl.arange(0, COLUMNS)
    inside = position < source
    weights = tl.load(weights_ptr + row * source + position, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(scratch_ptr + position, mask=inside, other=0.0)
    if weights_grad_ptr is not None:
        grad += tl.load(weights_grad_ptr + row * source + position, mask=inside, other=0.0).to(tl.float32)
    if KIND == SOFTMAX:
        slope = weights
    else:
        slope = jacobian_weight(weights, 1.0, exponent, KIND)
    total = tl.sum(slope, 0)
    mean = tl.sum(tl.where(weights != 0, slope * grad, 0.0), 0) / tl.where(total > 0, total, 1.0)
    change = tl.where(weights != 0, slope * (grad - mean), 0.0)
    change = tl.where(weights == weights, change, weights)
    tl.store(scores_grad_ptr + row * source + position, change, mask=inside)
    tl.debug_barrier()
    tl.store(scratch_ptr + position, change, mask=inside)
    tl.debug_barrier()
    query_grad_ptr += row * dim
    _combine(
        keys_ptr + row * source * dim, scratch_ptr, query_grad_ptr, query_grad_ptr, source, dim, POSITIONS, FEATURES
    )


def attention_kind(alpha):
    """The form of the kernel for a number `alpha` in [1, 2]."""
    return SOFTMAX.value if alpha == 1 else kind_of(alpha)


def cell(gates, cell_before, cell_after, hidden, below, drop):
    """`gates` `(batch, 4 * dim)` are overwritten; `hidden` and `below` (or None) are halves of wider rows."""
    count = cell_before.numel()
    with on_device_of(gates):
        cell_kernel[(triton.cdiv(count, BLOCK),)](
            gates, cell_before, cell_after, hidden, below, drop, count, cell_before.shape[1], hidden.stride(0),
            BELOW=below is not None, DROP=drop is not None, BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip


def cell_backward(gates, cell_before, cell_after, above_grad, drop, hidden_grad, cell_grad, sums_grad, last):
    count = cell_before.numel()
    with on_device_of(gates):
        cell_backward_kernel[(triton.cdiv(count, BLOCK),)](
            gates, cell_before, cell_after, above_grad, drop, hidden_grad, cell_grad, sums_grad,
            count, cell_before.shape[1], above_grad.stride(0), hidden_grad.stride(0),
            LAST=last, DROP=drop is not None, BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip


def output(sums, drop, result, below):
    count = sums.numel()
    with on_device_of(sums):
        output_kernel[(triton.cdiv(count, BLOCK),)](
            sums, drop, result, below, count, sums.shape[1], below.stride(0),
            DROP=drop is not None, BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip


def output_backward(result, drop, grad, below_grad, sums_grad, last):
    count = result.numel()
    with on_device_of(result):
        output_backward_kernel[(triton.cdiv(count, BLOCK),)](
            result, drop, grad, below_grad, sums_grad, count, result.shape[1], below_grad.stride(0),
            LAST=last, DROP=drop is not None, BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip


def _tiles(source):
    columns = max(16, triton.next_power_of_2(source))
    return {"COLUMNS": columns, "POSITIONS": POSITIONS, "FEATURES": FEATURES, "num_warps": WARPS}


def attention(query, keys, values, mask, bias, alpha, scratch, weights, context):
    """`query` `(batch, dim)` may be half of wider rows; keys and values `(batch, source, dim)`, `scratch` float32."""
    batch, source, dim = keys.shape
    with on_device_of(keys):
        attention_kernel[(batch,)](
            query, keys, values, mask, bias, scratch, weights, context, alpha - 1, source, dim, query.stride(0),
            KIND=attention_kind(alpha), MASKED=mask is not None, **_tiles(source),
        )  # fmt: skip


def attention_backward(keys, values, weights, context_grad, weights_grad, alpha, scratch, scores_grad, query_grad):
    batch, source, dim = keys.shape
    with on_device_of(keys):
        attention_backward_kernel[(batch,)](
            keys, values, weights, context_grad, weights_grad, scratch, scores_grad, query_grad,
            alpha - 1, source, dim, KIND=attention_kind(alpha), **_tiles(source),
        )  # fmt: skip
