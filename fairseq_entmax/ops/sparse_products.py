"""Gradients of a linear layer from gradients of its outputs that are sparse, dense, or a product of two vectors."""

from typing import NamedTuple

import torch
from torch.nn import functional as F


class Entries(NamedTuple):
    """Non-zero entries of `p - gold * one_hot(target)`, rows rising; the even part of label smoothing is left out."""

    rows: torch.Tensor  # (entries,) int32
    columns: torch.Tensor  # (entries,) int32
    values: torch.Tensor  # (entries,)


class LayerGradients:
    """Sums of the gradients of features, weight and bias, in float32 or wider; None where not asked for or zero."""

    def __init__(self, features, weight, bias, wanted):
        self.inputs = features, weight, bias
        self.wanted = wanted
        self.dtype = torch.float64 if features.dtype == torch.float64 else torch.float32
        self.features = self.weight = self.bias = None

    def add_dense(self, gradient, rows, features, weight):
        """Add the products with `gradient` `(some, classes)` of the logits of some `rows` (numbers or a slice).

        `features` are those of the rows, and `weight` is in their dtype, both as the logits were made from them.
        """
        gradient = gradient.to(features.dtype)
        if self.wanted[0]:
            self._make("features")
            self.features[rows] = (gradient @ weight).to(self.dtype)
        if self.wanted[1]:
            self._make("weight")
            if features.dtype == self.dtype:
                self.weight.addmm_(gradient.t(), features)
            else:
                self.weight += gradient.t() @ features
        if self.wanted[2]:
            self._make("bias")
            self.bias += gradient.sum(0, dtype=self.dtype)

    def add_entries(self, entries, row_grad):
        """Add the products with sparse entries, each multiplied by the upstream gradient of its row."""
        features, weight, bias = self.inputs
        rows, columns = entries.rows, entries.columns
        values = entries.values * row_grad.index_select(0, rows)
        if self.wanted[0]:
            wide, index = weight, columns
            if weight.dtype != self.dtype:
                used, index = columns.unique(return_inverse=True)
                wide, index = weight.index_select(0, used).to(self.dtype), index.int()
            self._add("features", _bags(wide, index, rows, values, len(features)))
        if self.wanted[1]:
            # One bag for each row of the weight: it is written once, with nothing to be zeroed before.
            order = columns.argsort()
            bags = _bags(features.to(self.dtype), rows[order], columns[order], values[order], len(weight))
            self._add("weight", bags)
        if self.wanted[2]:
            self._make("bias")
            self.bias.index_add_(0, columns, values)

    def add_even(self, row_share, mask):
        """Take `row_share` `(rows,)` off the gradient of every logit of `mask`: a product of two vectors."""
        features, weight, bias = self.inputs
        if self.wanted[0]:
            self._make("features")
            self.features.addr_(row_share, mask.to(self.dtype) @ weight.to(self.dtype), alpha=-1)
        if self.wanted[1]:
            self._make("weight")
            self.weight.addr_(mask.to(self.dtype), row_share @ features.to(self.dtype), alpha=-1)
        if self.wanted[2]:
            self._make("bias")
            self.bias.sub_(mask.to(self.dtype) * row_share.sum())

    def buffers(self, rows):
        """The sums themselves, features only of `rows`, to be added to; None where not wanted."""
        names = ("features", "weight", "bias")
        features, weight, bias = (self._make(n) if w else None for n, w in zip(names, self.wanted))
        return None if features is None else features[rows], weight, bias

    def scaled(self, factor):
        """A copy in which everything is multiplied by a single number."""
        copy = LayerGradients(*self.inputs, self.wanted)
        for name in ("features", "weight", "bias"):
            value = getattr(self, name)
            setattr(copy, name, None if value is None else value * factor)
        return copy

    def results(self):
        names = zip(("features", "weight", "bias"), self.inputs, self.wanted)
        return tuple(self._make(name).to(like.dtype) if wanted else None for name, like, wanted in names)

    def _make(self, name):
        if getattr(self, name) is None:
            like = dict(zip(("features", "weight", "bias"), self.inputs))[name]
            setattr(self, name, torch.zeros(like.shape, dtype=self.dtype, device=like.device))
        return getattr(self, name)

    def _add(self, name, value):
        setattr(self, name, value if getattr(self, name) is None else getattr(self, name).add_(value))


def _bags(table, index, bag, values, count):
    """`out[bag[k]] += values[k] * table[index[k]]` for rising `bag`, as `count` rows."""
    sizes = torch.bincount(bag, minlength=count)
    starts = (sizes.cumsum(0) - sizes).int()
    return F.embedding_bag(index, table, starts, mode="sum", per_sample_weights=values)
