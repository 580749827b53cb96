"""The decoder's recurrence for GPUs, where launches dominate: one autograd function for all steps.

A step is one matrix product and one kernel a layer, one kernel for the attention, one product and one kernel for the
output, and the same again backwards; gradients of the weights, keys and values are one product each for all steps. The
plain loop of `lstm.LSTMEntmaxDecoder` is the reference, and does what this cannot: learnt alpha, alpha above 2,
structured mappings, and decoding step by step.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from .attention import ALPHAS
from .ops import backend
from .ops.once import differentiable_once
from .recurrence import autocasts


class Steps(NamedTuple):
    """What the steps need besides the first layer's share of the gates; `dim` is the size of the hidden state."""

    keys: Tensor  # (batch, source, dim)
    values: Tensor  # (batch, source, dim)
    query_weight: Tensor  # (dim, dim)
    query_bias: Tensor  # (dim,)
    hidden: Tensor  # (layers, batch, dim)
    cell: Tensor  # (layers, batch, dim)
    weights: Tuple[Tensor, ...]  # (4 * dim, 2 * dim) each
    biases: Tuple[Tensor, ...]  # (4 * dim,) each, from the second layer on


def can_run(mapping, keys: Tensor) -> bool:
    """Whether the kernels take this attention `Mapping` over `keys` `(batch, source, dim)`."""
    if mapping.name not in ALPHAS or not isinstance(mapping.alpha, float) or not 1 <= mapping.alpha <= 2:
        return False
    if not backend.use_kernels(keys, dim=1) or torch.compiler.is_compiling():  # kernels mean torch 2.4 or later
        return False
    return keys.shape[1] <= backend.kernels().steps.LONGEST_SOURCE


def run(first_gates: Tensor, steps: Steps, mask: Optional[Tensor], drop: Optional[Tensor], alpha: float):
    """All steps of teacher forcing, from an attentional state of zeros.

    Args:
        first_gates: `(tgt_len, batch, 4 * dim)`, the share of the embeddings in the sums of the first layer
        mask: bool `(batch, source)`, True where one may attend; None for everywhere
        drop: `(layers, tgt_len, batch, dim)`, factors 0 or 1 / (1 - p) of the hidden states of all layers but the
            last, then of the attentional states; None for no dropout
        alpha: of the attention, in [1, 2]

    Returns:
        attentional states `(tgt_len, batch, dim)`, dropout applied, and attention weights `(tgt_len, batch, source)`
    """
    tensors = [first_gates, *steps[:6], *steps.weights, *steps.biases]
    if autocasts(first_gates):
        dtype = torch.get_autocast_dtype(first_gates.device.type)
        tensors = [tensor.to(dtype) for tensor in tensors]
        drop = None if drop is None else drop.to(dtype)
    return _Steps.apply(mask, drop, alpha, len(steps.weights), *tensors)


class _Steps(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, mask, drop, alpha, layers, first_gates, keys, values, query_weight, query_bias, hidden, cell, *rest
    ):
        kernels = backend.kernels().steps
        weights, biases = rest[:layers], rest[layers:]
        first_gates, keys, values = first_gates.contiguous(), keys.contiguous(), values.contiguous()
        mask = None if mask is None else mask.contiguous().view(torch.uint8)
        length, batch, dim = len(first_gates), first_gates.shape[1], first_gates.shape[2] // 4
        # Of each layer and step: the input [below; own hidden state], the gates, and the cell before the step.
        inputs = first_gates.new_empty(layers, length + 1, batch, 2 * dim)
        gates = first_gates.new_empty(layers, length, batch, 4 * dim)
        cells = first_gates.new_empty(layers, length + 1, batch, dim)
        inputs[:, 0, :, dim:], inputs[0, 0, :, :dim], cells[:, 0] = hidden, 0, cell
        outputs = first_gates.new_empty(length, batch, dim)
        attention = first_gates.new_empty(length, batch, keys.shape[1])
        scratch = keys.new_empty(keys.shape[:2], dtype=torch.float32)
        context, sums = (first_gates.new_empty(batch, dim) for _ in range(2))
        with torch.autocast(keys.device.type, enabled=False):
            for t in range(length):
                for layer in range(layers):
                    addend = first_gates[t] if layer == 0 else biases[layer - 1]
                    torch.addmm(addend, inputs[layer, t], weights[layer].t(), out=gates[layer, t])
                    top = layer == layers - 1
                    kernels.cell(
                        gates[layer, t], cells[layer, t], cells[layer, t + 1], inputs[layer, t + 1, :, dim:],
                        None if top else inputs[layer + 1, t, :, :dim],
                        None if top or drop is None else drop[layer, t],
                    )  # fmt: skip
                query = inputs[-1, t + 1, :, dim:]
                kernels.attention(query, keys, values, mask, query_bias, alpha, scratch, attention[t], context)
                torch.addmm(context, query, query_weight.t(), out=sums)
                dropped = None if drop is None else drop[-1, t]
                kernels.output(sums, dropped, outputs[t], inputs[0, t + 1, :, :dim])
        ctx.alpha = alpha
        ctx.set_materialize_grads(False)
        features = outputs if drop is None else outputs * drop[-1]
        ctx.save_for_backward(
            features, attention, keys, values, query_weight, inputs, gates, cells, outputs, drop, *weights
        )
        return features, attention

    @staticmethod
    @differentiable_once
    def backward(ctx, grad, attention_grad):
        _, attention, keys, values, query_weight, inputs, gates, cells, outputs, drop, *weights = ctx.saved_tensors
        kernels = backend.kernels().steps
        layers, length, batch, dim = len(weights), *outputs.shape
        grad = torch.zeros_like(outputs) if grad is None else grad.contiguous()
        attention_grad = [None] * length if attention_grad is None else attention_grad.contiguous()
        output_sums_grad = torch.empty_like(outputs)
        scores_grad = torch.empty_like(attention)
        sums_grad = torch.empty_like(gates)
        input_grad = inputs.new_empty(layers, batch, 2 * dim)
        cell_grad = inputs.new_empty(layers, batch, dim, dtype=torch.float32)
        query_grad = inputs.new_empty(batch, dim)
        scratch = keys.new_empty(keys.shape[:2], dtype=torch.float32)
        with torch.autocast(keys.device.type, enabled=False):
            for t in reversed(range(length)):
                last = t == length - 1
                dropped = None if drop is None else drop[-1, t]
                kernels.output_backward(outputs[t], dropped, grad[t], input_grad[0, :, :dim], output_sums_grad[t], last)
                torch.mm(output_sums_grad[t], query_weight, out=query_grad)
                kernels.attention_backward(
                    keys, values, attention[t], output_sums_grad[t], attention_grad[t], ctx.alpha, scratch,
                    scores_grad[t], query_grad,
                )  # fmt: skip
                above, dropped = query_grad, None
                for layer in reversed(range(layers)):
                    kernels.cell_backward(
                        gates[layer, t], cells[layer, t], cells[layer, t + 1], above, dropped,
                        input_grad[layer, :, dim:], cell_grad[layer], sums_grad[layer, t], last,
                    )  # fmt: skip
                    torch.mm(sums_grad[layer, t], weights[layer], out=input_grad[layer])
                    above = input_grad[layer, :, :dim]
                    dropped = None if drop is None else drop[layer - 1, t]
            queries = inputs[-1, 1:, :, dim:]
            return (
                None, None, None, None,
                sums_grad[0],
                torch.bmm(scores_grad.permute(1, 2, 0), queries.transpose(0, 1)),
                torch.bmm(attention.permute(1, 2, 0), output_sums_grad.transpose(0, 1)),
                output_sums_grad.flatten(0, 1).t() @ queries.flatten(0, 1),
                output_sums_grad.sum((0, 1)),
                input_grad[:, :, dim:],
                cell_grad.to(cells.dtype),
                *(sums_grad[i].flatten(0, 1).t() @ inputs[i, :-1].flatten(0, 1) for i in range(layers)),
                *(sums_grad[i].sum((0, 1)) for i in range(1, layers)),
            )  # fmt: skip
