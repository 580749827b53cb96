"""Pieces of a recurrence that meet every step: matrices whose gradient is computed once for all steps, and LSTM gates.

Left to autograd, a weight's gradient is a small product and a pass over the whole weight at every step. Here the steps
only note their factors, and one large product follows when the last of them is done.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _AllSteps(torch.autograd.Function):
    """Identity in front of a matrix. Autograd comes here after all steps have left their factors in `tape`."""

    @staticmethod
    def forward(ctx, matrix, tape):
        ctx.tape = tape
        ctx.set_materialize_grads(False)
        return matrix.view_as(matrix)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        assert grad is None, "steps give no gradient of their own"
        rows = torch.cat([row for row, _ in ctx.tape.values()], dim=-2)
        grads = torch.cat([grad for _, grad in ctx.tape.values()], dim=-2)
        ctx.tape.clear()
        return rows.transpose(-1, -2) @ grads, None


class _OneStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, matrix, addend, tape, step):
        ctx.save_for_backward(rows, matrix)
        ctx.tape, ctx.step = tape, step
        return rows @ matrix if addend is None else torch.addmm(addend, rows, matrix)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        rows, matrix = ctx.saved_tensors
        if ctx.needs_input_grad[1]:
            ctx.tape[ctx.step] = rows, grad
        grad_rows = grad @ matrix.transpose(-1, -2) if ctx.needs_input_grad[0] else None
        return grad_rows, None, grad if ctx.needs_input_grad[2] else None, None, None


class StepMatrix:
    """A matrix, or a batch of them, for the steps of one recurrence: `step_matrix(rows)` is `rows @ matrix`.

    Args:
        matrix: `(in, out)` or `(batch, in, out)`
    """

    def __init__(self, matrix: Tensor):
        self.tape = {}
        self.steps = 0
        # Under autocast the factors of a product have several types; autograd keeps track of them.
        self.records = torch.is_grad_enabled() and matrix.requires_grad and not autocasts(matrix)
        self.matrix = _AllSteps.apply(matrix, self.tape) if self.records else matrix

    def __call__(self, rows: Tensor, addend=None) -> Tensor:
        """`(..., out)` for rows `(batch, in)` or `(batch, 1, in)`; only the former take an `addend`."""
        if self.records:
            self.steps += 1
            return _OneStep.apply(rows, self.matrix, addend, self.tape, self.steps)
        return rows @ self.matrix if addend is None else torch.addmm(addend, rows, self.matrix)


def autocasts(tensor: Tensor) -> bool:
    try:
        return torch.is_autocast_enabled(tensor.device.type)
    except TypeError:  # torch before 2.4
        return torch.is_autocast_enabled() if tensor.is_cuda else torch.is_autocast_cpu_enabled()


class _LSTMGates(torch.autograd.Function):
    """One node instead of the dozen that autograd would keep for each cell of each step."""

    @staticmethod
    def forward(ctx, gates, cell):
        into, keep, new, out = gates.chunk(4, dim=1)
        into, keep, new, out = into.sigmoid(), keep.sigmoid(), new.tanh(), out.sigmoid()
        next_cell = torch.addcmul(keep * cell, into, new)
        squashed = next_cell.tanh()
        ctx.save_for_backward(into, keep, new, out, cell, squashed)
        return out * squashed, next_cell

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_hidden, grad_next_cell):
        into, keep, new, out, cell, squashed = ctx.saved_tensors
        through_hidden = grad_hidden * out
        grad_cell = torch.addcmul(grad_next_cell + through_hidden, through_hidden * squashed, squashed, value=-1)
        grad_gates = torch.cat(
            [
                grad_cell * new * (into - into * into),
                grad_cell * cell * (keep - keep * keep),
                grad_cell * torch.addcmul(into, into * new, new, value=-1),
                grad_hidden * squashed * (out - out * out),
            ],
            dim=1,
        )
        return grad_gates, grad_cell * keep


def lstm_gates(gates: Tensor, cell: Tensor):
    """The next hidden state and cell, each `(batch, hidden)`, from the input, forget, new and output gates' sums
    `(batch, 4 * hidden)` in the order of `torch.nn.LSTMCell`."""
    return _LSTMGates.apply(gates, cell)
