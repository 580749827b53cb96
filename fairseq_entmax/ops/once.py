"""Refuse second derivatives aloud.

`torch.autograd.function.once_differentiable` only notices when the incoming gradient has a graph; in
`(loss + penalty).backward(create_graph=True)` it has none, and the second derivative would silently miss the loss.
"""

import functools

import torch


class _Refuse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, grad, *_):
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError(
            "sparse mappings and their losses are differentiable once; a second derivative was asked for"
        )


def differentiable_once(backward):
    """Decorate the `backward` of an autograd function whose first saved tensor is one of its outputs."""

    @functools.wraps(backward)
    def wrapper(ctx, *grads):
        with torch.no_grad():
            results = backward(ctx, *grads)
        if not torch.is_grad_enabled():
            return results
        single = isinstance(results, torch.Tensor)
        anchors = [ctx.saved_tensors[0], *(grad for grad in grads if grad is not None)]
        linked = tuple(
            _Refuse.apply(result, *anchors) if isinstance(result, torch.Tensor) else result
            for result in ((results,) if single else results)
        )
        return linked[0] if single else linked

    return wrapper
