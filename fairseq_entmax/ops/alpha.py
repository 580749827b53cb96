"""alpha-entmax where alpha is a tensor with a gradient, and a module that learns alpha without leaving its range."""

import math

import torch

from . import reference
from .backend import kernels, use_kernels
from .once import differentiable_once
from .rows import as_rows, from_rows, rows_at_once

CHUNK = 1 << 16
# Newton steps in single precision before those in double precision.
SINGLE_STEPS = 4


def check_alpha_tensor(alpha, scores, dim, name="alpha", least=1, strict=False):
    """Refuse, by name, what cannot be spread over the rows of `scores` or lies out of range."""
    wanted = list(scores.shape)
    wanted[dim] = 1
    try:
        spread = alpha.expand(wanted)
    except RuntimeError:
        raise ValueError(
            f"{name} must be a number or broadcast to {tuple(wanted)} (size 1 along dim {dim}; one value for each "
            f"head of (batch, heads, queries, keys) has shape (heads, 1, 1)), got shape {tuple(alpha.shape)}"
        ) from None
    if not alpha.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {alpha.dtype}")
    values = alpha.detach()
    legal = ((values > least) if strict else (values >= least)) & (values < math.inf)
    if alpha.device.type != "cpu":
        torch._assert_async(legal.all(), f"{name} must be finite and {'>' if strict else '>='} {least}")
    elif not bool(legal.all()):
        worst = values[~legal].flatten()[0].item()
        raise ValueError(f"{name} must be finite and {'>' if strict else '>='} {least}, got {worst}")
    return spread


def solve_each(shifted, alpha):
    """Like `reference.solve`, with one alpha >= 1 for each row: `(rows, 1)`. Returns the probabilities."""
    steep = alpha > 2
    if alpha.device.type == "cpu":
        if not bool(steep.any()):
            return _solve_gentle(shifted, alpha - 1)
        if bool(steep.all()):
            return reference.solve_from_smallest(shifted * (alpha - 1), alpha - 1)[0]
    scaled = shifted * (alpha.clamp(min=2) - 1)
    above = reference.solve_from_smallest(scaled, alpha.clamp(min=2) - 1)[0]
    return torch.where(steep, above, _solve_gentle(shifted, alpha.clamp(max=2) - 1))


def _lowest_offset(shifted, exponent):
    """The lower bound of the threshold from the mean of the row; log(size) at alpha 1."""
    rise = torch.expm1(-exponent * math.log(shifted.shape[-1])) / exponent
    return (shifted.mean(-1, keepdim=True) - rise).clamp(min=0)


def _solve_gentle(shifted, exponent, offset=None, tolerance=reference.TOLERANCE):
    """1 <= alpha <= 2: the Newton steps of `reference`; a distance of 1e-14 from softmax stands for none."""
    safe = exponent.clamp(min=1e-14)
    least = 3 if offset is None else 1
    if offset is None:
        offset = _lowest_offset(shifted, safe)
    near = shifted.device.type != "cpu" or bool((exponent < reference.LOG1P_BELOW).any())
    ones = torch.ones_like(safe)
    for step in range(reference.MAX_STEPS):
        difference = shifted - offset
        base = torch.addcmul(ones, difference, safe).clamp_(min=0)
        probs = reference.near_softmax(difference, safe) if near else reference.power(base, safe)
        mass = probs.sum(-1, keepdim=True)
        if reference.converged(mass, step, least, tolerance):
            break
        slope = reference.slope_of(probs, base, None).sum(-1, keepdim=True)
        offset = offset + _step(mass, slope, safe)
    return probs


def _step(mass, slope, exponent):
    """How far Newton on `mass ** exponent` moves the offset."""
    log_norm = mass.log() * exponent
    return torch.expm1(log_norm) / exponent * mass / (log_norm.exp() * slope)


def _offset_in_single(shifted, exponent):
    """Offsets `(rows, 1)` after some steps in single precision, for exponents that float32 can carry.

    Entries without probability count as e ** -80: a sum does not see it, and nothing has to keep log and exp from 0.
    """
    scaled, floor = shifted * exponent, (-80 * exponent).exp_()
    offset = _lowest_offset(shifted, exponent)
    base, probs = torch.empty_like(scaled), torch.empty_like(scaled)
    for _ in range(SINGLE_STEPS):
        torch.maximum(torch.add(scaled, 1 - offset * exponent, out=base), floor, out=base)
        torch.log(base, out=probs).div_(exponent).exp_()
        mass, slope = probs.sum(-1, keepdim=True), probs.div_(base).sum(-1, keepdim=True)
        offset = offset + _step(mass, slope, exponent)
    return offset


def _solve_single_first(scores, alpha):
    """Probabilities, one alpha <= 2 for each row of float32 or narrower scores: most of the way in single precision."""
    shifted, maximum = reference.shift_rows(scores.float())
    exponent = alpha.double() - 1
    if bool((exponent < reference.LOG1P_BELOW).any()):
        probs = _solve_gentle(shifted.double(), exponent)
    else:
        offset = _offset_in_single(shifted, exponent.float())
        probs = _solve_gentle(shifted.double(), exponent, offset.double(), 1e-9)
    return probs.masked_fill_(maximum == torch.finfo(torch.float32).min, 0)


def _curvature(x):
    """`(exp(x) - 1 - x) / x ** 2`, by its series near 0."""
    if x.dtype == torch.float32 and x.device.type == "cpu":
        wide = x.double()  # fewer operations than the series takes
        far = wide.abs() > 1e-4
        return torch.where(far, (torch.expm1(wide) - wide).div_(wide.square()), 0.5 + wide / 6).float()
    series = 0.5 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720 + x * (1 / 5040 + x / 40320)))))
    far = x.abs() > (0.3 if x.dtype == torch.float32 else 1e-2)
    apart = torch.where(far, x, 1.0)
    return torch.where(far, (torch.expm1(apart) - apart) / apart.square(), series)


def alpha_gradient(probs, grad, alpha):
    """Derivative of `(probs * grad).sum(-1)` by alpha, `(rows, 1)`, stable down to alpha 1.

    With `v = p ** (2 - alpha)`, `dp_i / dalpha = a_i - v_i / sum(v) * sum(a)`, where
    `a = -p log(p) ** 2 phi((1 - alpha) log p)`, `phi(x) = (exp(x) - 1 - x) / x ** 2`. (The form of Correia, Niculae and
    Martins 2019 subtracts terms that grow like `1 / (alpha - 1) ** 2`.)
    """
    positive = probs > 0
    log_p = torch.where(positive, probs, 1.0).log()
    # Relative to the largest: powers of tiny probabilities overflow above alpha 2.
    log_v = torch.where(positive, (2 - alpha) * log_p, -math.inf)
    weight = (log_v - log_v.amax(-1, keepdim=True).clamp(min=torch.finfo(log_v.dtype).min)).exp()
    total = weight.sum(-1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny)
    centre = (weight * grad).sum(-1, keepdim=True) / total
    change = -probs * log_p.square() * _curvature((1 - alpha) * log_p)
    return (torch.where(positive, change * (grad - centre), 0.0)).sum(-1, keepdim=True)


def entmax_backward_each(probs, grad, alpha):
    """Product of `grad` with the Jacobian of alpha-entmax, one alpha for each row, in float64."""
    positive = probs > 0
    # A constant added to `grad` changes nothing; above alpha 2 the smallest probability has the largest weight.
    smallest = torch.where(positive, probs, math.inf).amin(-1, keepdim=True)
    scale = torch.where((alpha > 2) & (smallest < math.inf), smallest, 1.0)
    weight = torch.where(positive, (torch.where(positive, probs, 1.0) / scale).pow(2 - alpha), 0.0)
    reference_grad = grad.gather(-1, weight.argmax(-1, keepdim=True))
    grad = torch.where(positive, grad - reference_grad, 0.0)
    total = weight.sum(-1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny)
    mean = (weight * grad).sum(-1, keepdim=True) / total
    return weight * (grad - mean) * scale.pow(2 - alpha)


def _gentle_gradients(probs, grad, alpha):
    """Gradients to the scores and to alpha, `(rows, 1)`, where no alpha is above 2: nothing overflows."""
    positive = probs > 0
    log_p = torch.where(positive, probs, 1.0).log_()
    weight = ((2 - alpha) * log_p).exp_().mul_(positive)
    centre = (weight * grad).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True).clamp_(min=1)
    grad = grad - centre
    # Zero where the probability is, whatever the gradient there.
    change = torch.where(positive, (probs * log_p.square()).mul_(_curvature((1 - alpha) * log_p)).mul_(grad), 0.0)
    return torch.where(positive, weight.mul_(grad), 0.0), -change.sum(-1, keepdim=True)


def _all_gentle(scores, alpha):
    return scores.device.type == "cpu" and scores.dtype != torch.float64 and bool((alpha <= 2).all())


class _EntmaxEach(torch.autograd.Function):
    """Rows with their own alpha `(rows, 1)`; both arguments have a gradient."""

    @staticmethod
    def forward(ctx, scores, alpha):
        probs = torch.empty_like(scores)
        step = rows_at_once(scores, CHUNK)
        single = _all_gentle(scores, alpha)
        for part, own, out in zip(scores.split(step), alpha.split(step), probs.split(step)):
            if single:
                out.copy_(_solve_single_first(part, own))
                continue
            dtype = reference.working_dtype(part)
            shifted, maximum = reference.shift_rows(part.to(dtype))
            solved = solve_each(shifted, own.to(dtype))
            out.copy_(solved.masked_fill(maximum == torch.finfo(dtype).min, 0))
        ctx.save_for_backward(probs, alpha)
        return probs

    @staticmethod
    @differentiable_once
    def backward(ctx, grad):
        probs, alpha = ctx.saved_tensors
        by_scores, by_alpha = torch.empty_like(probs), torch.empty_like(alpha)
        step = rows_at_once(probs, CHUNK)
        single = _all_gentle(probs, alpha)
        dtype = torch.float32 if single else reference.working_dtype(probs)
        for part in range(0, len(probs), step):
            here = slice(part, part + step)
            some, incoming, own = (x[here].to(dtype) for x in (probs, grad, alpha))
            if single:
                by_scores[here], by_alpha[here] = _gentle_gradients(some, incoming, own)
                continue
            by_scores[here] = entmax_backward_each(some, incoming, own).to(probs.dtype)
            by_alpha[here] = alpha_gradient(some, incoming, own).to(alpha.dtype)
        return by_scores, by_alpha


class _AlphaOfOne(torch.autograd.Function):
    """Adds the gradient to a single alpha to probabilities that were solved for its value as a number."""

    @staticmethod
    def forward(ctx, probs, alpha):
        same = probs.view_as(probs)
        ctx.save_for_backward(same, alpha)
        return same

    @staticmethod
    @differentiable_once
    def backward(ctx, grad):
        probs, alpha = ctx.saved_tensors
        dtype = reference.working_dtype(probs)
        own = alpha.to(device=probs.device, dtype=dtype).reshape(1, 1)
        total = torch.zeros((), dtype=dtype, device=probs.device)
        step = rows_at_once(probs, CHUNK)
        for some, incoming in zip(probs.split(step), grad.split(step)):
            total += alpha_gradient(some.to(dtype), incoming.to(dtype), own).sum()
        return grad, total.to(alpha).reshape(alpha.shape)


def entmax_of_tensor(scores, alpha, dim, solve_number):
    """`entmax` for a tensor `alpha`; `solve_number(scores, number, dim)` is the way of a single number."""
    spread = check_alpha_tensor(alpha, scores, dim)
    if alpha.numel() == 1 and alpha.device.type == "cpu":
        probs = solve_number(scores, float(alpha.detach()), dim)
        if alpha.requires_grad and torch.is_grad_enabled():
            rows, shape = as_rows(probs, dim)
            probs = from_rows(_AlphaOfOne.apply(rows, alpha), shape, dim)
        return probs
    rows, shape = as_rows(scores, dim)
    each = spread.movedim(dim, -1).reshape(-1, 1)
    probs = kernels().entmax_rows_each(rows, each[:, 0]) if use_kernels(rows) else _EntmaxEach.apply(rows, each)
    return from_rows(probs, shape, dim)


class LearnedAlpha(torch.nn.Module):
    """An alpha to learn, that stays in range after any number of steps of any optimiser.

    A plain parameter drifts below 1, where alpha-entmax is no longer sparse and then not defined. Here
    `alpha = low + (high - low) * sigmoid(raw)` and the parameter is `raw`. Give the result to `entmax`:

        alpha = LearnedAlpha(shape=(heads, 1, 1))
        weights = entmax(scores, alpha())        # scores (batch, heads, queries, keys)

    Args:
        initial: the value to start from, strictly between `low` and `high`.
        shape: shape of alpha; `()` is one value for all, `(heads, 1, 1)` one for each head.
        low, high: the range, 1 <= low < high. The default floor of 1.01 keeps off softmax, where no entry is zero.
    """

    def __init__(self, initial=1.5, shape=(), low=1.01, high=2.0):
        super().__init__()
        if not 1 <= low < high < math.inf:
            raise ValueError(f"low and high must satisfy 1 <= low < high, got {low} and {high}")
        if not low < initial < high:
            raise ValueError(f"initial must lie strictly between {low} and {high}, got {initial}")
        self.low, self.high = low, high
        position = (initial - low) / (high - low)
        self.raw = torch.nn.Parameter(torch.full(tuple(shape), math.log(position / (1 - position))))

    def forward(self):
        """Alpha, of the shape asked for, with its gradient."""
        return self.low + (self.high - self.low) * torch.sigmoid(self.raw)

    def extra_repr(self):
        return f"shape={tuple(self.raw.shape)}, low={self.low}, high={self.high}"
