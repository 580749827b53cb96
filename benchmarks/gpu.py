"""Check and time the Triton kernels on a GPU; `benchmarks/gpu.sh` runs it.

Prints which card and versions, a table of errors against PyTorch in float64, and a table of times with what they are
relative to the floor: a copy that reads and writes the same bytes. Exits with 1 if a check fails.
"""

import argparse
import statistics
import sys
import time
import types
from pathlib import Path

import torch
import torch.nn.functional as F

# The ops need no fairseq: the package itself, which registers models with it, is not imported.
package = types.ModuleType("fairseq_entmax")
package.__path__ = [str(Path(__file__).resolve().parents[1] / "fairseq_entmax")]
sys.modules["fairseq_entmax"] = package

from fairseq_entmax import fused_steps  # noqa: E402
from fairseq_entmax.attention import GeneralAttention, build_mapping  # noqa: E402
from fairseq_entmax.ops import backend, entmax, entmax_loss, kernels, linear_entmax_loss, token_entmax_loss  # noqa: E402
from fairseq_entmax.ops.loss_rows import Smoothing  # noqa: E402
from fairseq_entmax.recurrence import StepMatrix, lstm_gates  # noqa: E402

DEVICE = "cuda"
# Every kind of tile; compiling takes most of the time, so not every combination.
CHECK_SIZES = (1, 33, 3001, 8192, 32000, 300001)
CHECK_ALPHAS = (1.5, 2.0)
MORE_ALPHAS, MORE_SIZES = (1.001, 1.25, 3.0), (33, 32000)
LOW_PRECISION_SIZES = (33, 8192, 32000)
TIME_SIZES = (1000, 18000, 32000, 128000)
# Elements of a timed matrix: a few times the cache of any card, small enough for 24 GB in float32.
TIMED = 1 << 28
# Standard deviations of the logits: supports of a trained model, and near uniform as in the first updates.
SPREADS = {"sparse": 3.0, "wide": 0.02}


def rows_of(size, dtype=torch.float32):
    """Seven rows: flat noise, noise, spread noise, all equal, a leader, ties, mostly masked."""
    scores = torch.randn(7, size, device=DEVICE) * torch.tensor([0.003, 1, 20, 0, 1, 1, 1], device=DEVICE)[:, None]
    scores[4, -1] += 30
    scores[5, ::2] = scores[5].max()
    scores[6, : size - size // 8 - 1] = -torch.inf
    return scores.to(dtype)


def mapping_errors(size, alpha, dtype):
    """Largest errors of probabilities, of their sums, and of the gradient relative to its largest entry in the row."""
    scores = rows_of(size, dtype).requires_grad_()
    assert backend.use_kernels(scores)
    upstream = torch.randn_like(scores)
    probs = entmax(scores, alpha)
    probs.backward(upstream)
    exact = scores.detach().double().requires_grad_()
    expected = entmax(exact, alpha)
    expected.backward(upstream.double())
    scale = 1 + exact.grad.abs().amax(-1, keepdim=True)
    grad_error = ((scores.grad - exact.grad).abs() / scale).max()
    return (probs - expected).abs().max(), (probs.double().sum(-1) - 1).abs().max(), grad_error


def loss_errors(size, alpha, dtype):
    """Largest errors of loss (relative above 1) and gradient, and how many supports differ, with label smoothing."""
    logits = rows_of(size, dtype)[:6].requires_grad_()
    target = torch.arange(6, device=DEVICE) * 7 % size
    target[5] = -100
    upstream = torch.rand(6, device=DEVICE)
    got = token_entmax_loss(logits, target, alpha, label_smoothing=0.1)
    (got.loss * upstream).sum().backward()
    exact = logits.detach().double().requires_grad_()
    expected = token_entmax_loss(exact, target, alpha, label_smoothing=0.1)
    (expected.loss * upstream).sum().backward()
    loss_error = ((got.loss - expected.loss).abs() / (1 + expected.loss)).max()
    return loss_error, (got.support != expected.support).sum(), (logits.grad - exact.grad).abs().max()


def check_grid(deadline):
    """Print the worst error of each size; return the number of failures."""
    failures = 0
    titles = ("probs", "sums", "gradient", "loss", "its grad", "supports")
    print(f"{'size':>7} {'dtype':>9} " + " ".join(f"{title:>9}" for title in titles))
    for size in CHECK_SIZES:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            if time.monotonic() > deadline or (dtype != torch.float32 and size not in LOW_PRECISION_SIZES):
                continue
            alphas = CHECK_ALPHAS + (MORE_ALPHAS if size in MORE_SIZES else ())
            worst = [0.0] * 6
            for alpha in alphas if dtype == torch.float32 else (1.5,):
                mapped, lost = mapping_errors(size, alpha, dtype), loss_errors(size, alpha, dtype)
                steep = 100 if alpha > 2 else 1
                values = (mapped[0], mapped[1], mapped[2] / steep, lost[0], lost[2], lost[1])
                worst = [max(a, float(b)) if b == b else float("nan") for a, b in zip(worst, values)]
            rounding = torch.finfo(dtype).eps
            limits = (5e-7 + rounding / 2, 2e-6 + rounding * (dtype != torch.float32) * size, 4e-6 + 4 * rounding)
            limits += (2e-6, 1e-6 + rounding, 6)
            bad = not all(value <= limit for value, limit in zip(worst, limits))
            failures += bad
            name = str(dtype).split(".")[1]
            print(f"{size:>7} {name:>9} " + " ".join(f"{v:9.1e}" for v in worst) + ("  FAILED" if bad else ""))
    return failures


def check_offsets():
    """More than 2**31 elements: the last row must come out like the same row alone (case 57)."""
    rows, size = 70_000, 32_000
    free = torch.cuda.mem_get_info()[0]
    if free < 16e9:
        print(f"offsets beyond 32 bits: skipped, {free / 1e9:.0f} GB free of the 16 needed")
        return 0
    logits = torch.zeros(rows, size, dtype=torch.float16, device=DEVICE)
    logits[-1] = torch.randn(size, device=DEVICE) * 3
    target = torch.full((rows,), 5, device=DEVICE)
    logits.requires_grad_()
    loss = token_entmax_loss(logits, target, 1.5).loss
    loss.sum().backward()
    alone = logits.detach()[-1:].clone().requires_grad_()
    expected = token_entmax_loss(alone, target[-1:], 1.5).loss
    expected.sum().backward()
    right = torch.equal(loss[-1:], expected) and torch.equal(logits.grad[-1:], alone.grad)
    print(f"offsets beyond 32 bits, {rows} x {size}: {'right' if right else 'FAILED'}")
    return int(not right)


def make_layer(size, scale, dtype, rows=256, dim=512):
    """Features, weights and targets of an output layer; the larger `scale`, the sparser its outputs."""
    features = torch.randn(rows, dim, device=DEVICE).mul_(scale * dim**-0.5).to(dtype).requires_grad_()
    weight = torch.randn(size, dim, device=DEVICE).to(dtype).requires_grad_()
    return features, weight, torch.randint(size, (rows,), device=DEVICE)


def check_layer():
    """Gradients of the output layer by sparse products against those of all logits, in float32."""
    failures = 0
    for size in (3001, 32000):
        for scale in (3.0, 0.02):  # the support fits its buffer, and overflows it
            features, weight, target = make_layer(size, scale, torch.float32)
            kernels.Density.of(weight).sparse = True
            loss = linear_entmax_loss(features, weight, target, reduction="sum")
            ours = torch.autograd.grad(loss, (features, weight))
            expected = entmax_loss(F.linear(features.double(), weight.double()), target, reduction="sum")
            right = torch.autograd.grad(expected, (features, weight))
            error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, right))
            bad = not error < 1e-3  # the logits are products in float32, perhaps in tf32
            failures += bad
            print(f"output layer, {size} classes, scale {scale}: {error:.1e}" + ("  FAILED" if bad else ""))
    return failures


def time_layer(size):
    """One step of the output layer in bfloat16, features to gradients, relative to softmax."""
    features, weight, target = make_layer(size, 3.0, torch.bfloat16, rows=4096)

    def step(loss):
        return lambda: torch.autograd.grad(loss(), (features, weight))

    softmax = milliseconds(step(lambda: F.cross_entropy(F.linear(features, weight).float(), target)))
    print(f"{'output layer, softmax':<28} {size:>7} {softmax:.3f} ms")
    for name, sparse in (("sparse", True), ("dense", False)):
        kernels.Density.choose = lambda self, sparse=sparse: sparse
        ours = milliseconds(step(lambda: linear_entmax_loss(features, weight, target)))
        print(f"{'output layer, ' + name + ' products':<28} {size:>7} {ours:.3f} ms {ours / softmax:.2f} x softmax")


class Recurrence(torch.nn.Module):
    """Two decoder layers with attention and input feeding, from random states: `plain` as the model runs them."""

    def __init__(self, batch, source, length, dim, dtype):
        super().__init__()
        self.first_gates = torch.nn.Parameter(torch.randn(length, batch, 4 * dim))
        self.keys = torch.nn.Parameter(torch.randn(batch, source, dim) * dim**-0.5)
        self.values = torch.nn.Parameter(torch.randn(batch, source, dim))
        self.state = torch.nn.Parameter(torch.randn(2, 2, batch, dim))
        self.gates = torch.nn.ModuleList([torch.nn.Linear(2 * dim, 4 * dim, bias=i > 0) for i in range(2)])
        self.attention = GeneralAttention(dim, build_mapping("entmax15"))
        self.to(DEVICE, dtype)
        lengths = torch.randint(source // 2, source + 1, (batch, 1), device=DEVICE)
        self.mask = torch.arange(source, device=DEVICE) < lengths

    def plain(self):
        attend = self.attention.steps(self.keys, self.values, self.mask)
        recurrent = [StepMatrix(layer.weight.t()) for layer in self.gates]
        (hidden, cell), outputs = (list(part) for part in self.state), []
        fed = torch.zeros_like(hidden[0])
        for first_gates in self.first_gates.unbind(0):
            below = fed
            for i, layer in enumerate(self.gates):
                addend = first_gates if i == 0 else layer.bias
                sums = recurrent[i](torch.cat([below, hidden[i]], dim=1), addend)
                hidden[i], cell[i] = lstm_gates(sums, cell[i])
                below = hidden[i]
            fed, _ = attend(below)
            outputs.append(fed)
        return torch.stack(outputs)

    def fused(self):
        query, gates = self.attention.query_proj, self.gates
        weights, biases = tuple(layer.weight for layer in gates), (gates[1].bias,)
        steps = fused_steps.Steps(self.keys, self.values, query.weight, query.bias, *self.state, weights, biases)
        return fused_steps.run(self.first_gates, steps, self.mask, None, 1.5)[0]

    def gradients(self, function):
        torch.manual_seed(1)
        outputs = function()
        upstream = torch.randn(outputs.shape, device=DEVICE).to(outputs.dtype)
        return torch.autograd.grad(outputs, list(self.parameters()), upstream)


class StockSteps(torch.nn.Module):
    """The operations of a step of fairseq's `lstm` with softmax attention, on the inputs of a `Recurrence`."""

    def __init__(self, dim, dtype):
        super().__init__()
        self.cells = torch.nn.ModuleList([torch.nn.LSTMCell(2 * dim, dim), torch.nn.LSTMCell(dim, dim)])
        self.query, self.output = torch.nn.Linear(dim, dim, bias=False), torch.nn.Linear(2 * dim, dim, bias=False)
        self.to(DEVICE, dtype)

    def run(self, other):
        source, padding = other.keys.transpose(0, 1), ~other.mask.t()
        embedded = other.first_gates[:, :, : other.keys.shape[2]]
        (hidden, cell), outputs = (list(part) for part in other.state), []
        fed = torch.zeros_like(hidden[0])
        for word in embedded.unbind(0):
            below = torch.cat([word, fed], dim=1)
            for i, layer in enumerate(self.cells):
                hidden[i], cell[i] = layer(below, (hidden[i], cell[i]))
                below = F.dropout(hidden[i], 0.3)
            scores = (source * self.query(hidden[-1])[None]).sum(2).float().masked_fill(padding, float("-inf"))
            weights = scores.softmax(0).type_as(source)
            context = (weights[:, :, None] * source).sum(0)
            fed = F.dropout(torch.tanh(self.output(torch.cat([context, hidden[-1]], dim=1))), 0.3)
            outputs.append(fed)
        return torch.stack(outputs)


def check_steps():
    """Gradients of the decoder's steps in kernels against those of the plain loop in float64."""
    model = Recurrence(5, 37, 6, 100, torch.float32)
    ours = model.gradients(model.fused)
    right = model.double().gradients(model.plain)
    error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, right))
    bad = not error < 1e-3  # products in float32, perhaps in tf32
    print(f"decoder steps: {error:.1e}" + ("  FAILED" if bad else ""))
    return int(bad)


def time_steps(dtype):
    """Forward and backward of all decoder steps, 64 sentences of 30 words, relative to those of fairseq's `lstm`."""
    model, stock = Recurrence(64, 30, 30, 500, dtype), StockSteps(500, dtype)
    name = str(dtype).split(".")[1]
    parameters = [*stock.parameters(), model.keys, model.state, model.first_gates]

    def stock_step():
        torch.autograd.grad(stock.run(model).sum(), parameters)

    reference = milliseconds(stock_step)
    print(f"{'decoder steps of lstm':<28} {name:>9} {reference:.2f} ms")
    for title, function in (("plain loop", model.plain), ("kernels", model.fused)):
        ours = milliseconds(lambda function=function: model.gradients(function))
        print(f"{'decoder steps, ' + title:<28} {name:>9} {ours:.2f} ms {ours / reference:.2f} x lstm", flush=True)


def check_training():
    """Small models trained in every precision: losses fall, and zeros are those of the logits as they were given."""
    failures = 0
    for name, dtype, scaled in (("float32", None, False), ("amp, float16", torch.float16, True),
                                ("amp, bfloat16", torch.bfloat16, False), ("float16 weights", None, True)):  # fmt: skip
        torch.manual_seed(0)
        whole = torch.float16 if name == "float16 weights" else torch.float32
        layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh()).to(DEVICE, whole)
        weight = torch.nn.Parameter(torch.randn(3001, 64, device=DEVICE).mul_(0.1).to(whole))
        inputs = torch.randn(256, 32, device=DEVICE).to(whole)
        target = torch.randint(3001, (256,), device=DEVICE)
        masters = [p.detach().float().requires_grad_() for p in (*layers.parameters(), weight)]
        optimizer, scale, losses = torch.optim.Adam(masters, lr=0.01), 1024.0 if scaled else 1.0, []
        for _ in range(60):
            for own, master in zip((*layers.parameters(), weight), masters):
                own.data.copy_(master.data)
                own.grad = None
            with torch.autocast(DEVICE, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                features = layers(inputs)
                loss = linear_entmax_loss(features, weight, target)
            (loss * scale).backward()
            for own, master in zip((*layers.parameters(), weight), masters):
                master.grad = own.grad.float() / scale
            optimizer.step()
            losses.append(float(loss.detach()))
        logits = F.linear(features.float(), weight.float()).detach().to(dtype or whole)
        support = token_entmax_loss(logits, target).support
        same = torch.equal(support, token_entmax_loss(logits.double(), target).support)
        bad = not (losses[-1] < 0.5 * losses[0] and same)
        failures += bad
        print(f"training, {name:<16} loss {losses[0]:.3f} to {losses[-1]:.3f}" + ("  FAILED" if bad else ""))
    return failures


def milliseconds(function):
    """Median time of `function()` by events, after a warm-up that compiles; a slow one runs fewer times."""
    function()
    torch.cuda.synchronize()
    begin = time.monotonic()
    function()
    torch.cuda.synchronize()
    times = []
    for _ in range(9 if time.monotonic() - begin < 0.2 else 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def losses_of_others(target):
    """Losses of other packages as functions of the logits, by name, where they can be imported."""
    found = {}
    try:
        import entmax as public

        found["entmax 1.3 loss"] = lambda logits: public.entmax15_loss(logits, target)
    except ImportError:
        pass
    return found


def mappings_of_others():
    """alpha 1.5 mappings of other packages, by name, where they can be imported."""
    found = {}
    try:
        import entmax as public

        found["entmax 1.3 mapping"] = public.entmax15
    except ImportError:
        pass
    try:
        from adasplash import triton_entmax

        found["adasplash mapping"] = lambda scores: triton_entmax(scores, alpha=1.5)
    except ImportError:
        pass
    return found


def forward_and_backward(function, matrix):
    """A call that computes `function(leaf)` and the gradient of its sum."""
    leaf = matrix.detach().requires_grad_()
    upstream = torch.rand_like(function(leaf))

    def step():
        leaf.grad = None
        function(leaf).backward(upstream)

    return step


def report(what, size, dtype, spread, time_ms, floor_ms, moved):
    name = str(dtype).split(".")[1]
    print(
        f"{what:<28} {size:>7} {name:>9} {spread:>7} {time_ms:>9.3f} ms {moved / time_ms / 1e6:>7.0f} GB/s "
        f"{time_ms / floor_ms:>6.2f} x floor",
        flush=True,
    )


def time_size(size, dtype):
    rows = TIMED // size
    noise = torch.randn(rows, size, device=DEVICE)
    target = torch.randint(size, (rows,), device=DEVICE)
    none = Smoothing(1.0, 0.0, None, size)
    moved = 2 * rows * size * dtype.itemsize
    source = noise.to(dtype)
    floor = milliseconds(lambda: torch.empty_like(source).copy_(source))
    report("copy", size, dtype, "-", floor, floor, moved)
    for spread, scale in SPREADS.items():
        logits = (noise * scale).to(dtype)
        losses = {
            f"this loss, alpha {alpha}": lambda x, alpha=alpha: kernels.loss_rows(x, target, alpha, none, -100)[0]
            for alpha in (1.5, 2.0)
        }
        losses["cross_entropy"] = lambda x: F.cross_entropy(x, target, reduction="none")
        for name, function in {**losses, **losses_of_others(target)}.items():
            measure(name, size, dtype, spread, function, logits, floor, moved)
        mappings = {"this mapping, alpha 1.5": lambda x: entmax(x, 1.5), **mappings_of_others()}
        # A mapping reads scores and the incoming gradient, and writes probabilities and its own: twice the floor.
        for name, function in mappings.items():
            measure(name, size, dtype, spread, function, logits, 2 * floor, 2 * moved)


def measure(name, size, dtype, spread, function, logits, floor, moved):
    try:
        report(name, size, dtype, spread, milliseconds(forward_and_backward(function, logits)), floor, moved)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        print(f"{name:<28} {size:>7} out of memory")
    except Exception as error:  # another package may not take this size or dtype
        if name.startswith("this"):
            raise
        print(f"{name:<28} {size:>7} failed: {type(error).__name__}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("check", "time"), help="one of the two parts (default: both)")
    parser.add_argument("--seconds", type=float, default=440, help="start no size after this long (default: 440)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks/gpu.py needs a CUDA GPU; the tests prove the kernels without one")
    torch.manual_seed(0)
    start = time.monotonic()
    module, reason = backend.load_kernels()
    if module is None:
        sys.exit(f"the kernels cannot be used: {reason}")
    import triton

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    failures = 0
    if options.only != "time":
        failures = (
            check_grid(start + options.seconds / 2) + check_offsets() + check_layer() + check_steps() + check_training()
        )
        torch.cuda.empty_cache()
        print(f"checks: {failures} failed, {time.monotonic() - start:.0f} s")
    if options.only != "check":
        for dtype in (torch.bfloat16, torch.float32):
            for size in TIME_SIZES:
                if time.monotonic() - start > options.seconds:
                    print(f"{size} {dtype}: left out, the time is up")
                    continue
                time_size(size, dtype)
                torch.cuda.empty_cache()
        for size in (18000, 32000):
            time_layer(size)
        for dtype in (torch.bfloat16, torch.float32):
            time_steps(dtype)
    print(f"{time.monotonic() - start:.0f} s")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
