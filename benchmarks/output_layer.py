"""Time and memory of one training step of the output layer on CPU, against softmax and the public `entmax` package.

    python benchmarks/output_layer.py                    # about 10 minutes on two quiet cores
    python benchmarks/output_layer.py --support 10 --rounds 5
    python benchmarks/output_layer.py --only memory

A step goes from features and output weights to the gradients of both. Prints markdown tables. Figures of time are
ratios: each round runs all contenders once, in turn, and the median over the rounds of (time / softmax) is given.
`entmax` is compared if it is installed (`pip install entmax==1.3`). Memory is the peak of a process of its own, above
what it holds before the step (weights and features), as Linux counts it.
"""

import argparse
import importlib.util
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F

from fairseq_entmax.ops import entmax_loss
from fairseq_entmax.ops.linear_loss import linear_entmax_loss, token_linear_entmax_loss

ROWS, DIM, VOCAB = 1024, 500, 18000
MEMORY_ROWS, MEMORY_VOCAB = 4096, 32000
HAS_ENTMAX = importlib.util.find_spec("entmax") is not None


def make_layer(rows, vocab, support, dim=DIM):
    """Features, weights and targets whose 1.5-entmax has supports of about `support` classes on average.

    Each row of features leans towards the weights of a few classes, as those of a trained model do, by as much as it
    takes; without such leading classes the supports are those of noise.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(vocab, dim, generator=generator) * dim**-0.5
    target = torch.randint(vocab, (rows,), generator=generator)
    noise = torch.randn(rows, dim, generator=generator)
    some = target[:64]
    low, high = 1e-3, 1e3
    for _ in range(20):
        scale = (low * high) ** 0.5
        features = scale * (noise + 3 * weight[target])
        sizes = token_linear_entmax_loss(features[: len(some)], weight, some).support
        low, high = (scale, high) if sizes.float().mean() > support else (low, scale)
    return features.requires_grad_(), weight.requires_grad_(), target


def contenders(alpha):
    """Functions from features, weight and targets to a mean loss."""
    found = {
        "softmax": lambda x, w, y: F.cross_entropy(F.linear(x, w), y),
        "linear_entmax_loss": lambda x, w, y: linear_entmax_loss(x, w, y, alpha=alpha),
        "entmax_loss": lambda x, w, y: entmax_loss(F.linear(x, w), y, alpha=alpha),
    }
    if HAS_ENTMAX:
        import entmax

        if alpha == 1.5:
            found["entmax 1.3"] = lambda x, w, y: entmax.entmax15_loss(F.linear(x, w), y).mean()
        found["entmax 1.3, bisection"] = lambda x, w, y: entmax.entmax_bisect_loss(F.linear(x, w), y, alpha).mean()
    return found


def forward_backward(loss, features, weight, target):
    def run():
        features.grad = weight.grad = None
        loss(features, weight, target).backward()

    return run


def relative_times(runs, rounds, yardstick="softmax"):
    """Median over the rounds of the time relative to the yardstick, and the yardstick's own median in ms."""
    for run in runs.values():
        run()
    times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    ratios = {name: statistics.median(a / b for a, b in zip(times[name], times[yardstick])) for name in runs}
    return ratios, 1000 * statistics.median(times[yardstick])


def time_table(supports, alphas, rounds):
    names = list(contenders(1.5))[1:]
    print(f"\n{ROWS} rows, {DIM} units, {VOCAB} classes: time of a step relative to softmax\n")
    print("| alpha | support | softmax, ms | " + " | ".join(names) + " |")
    print("| --- " * (3 + len(names)) + "|")
    for alpha in alphas:
        for support in supports:
            layer = make_layer(ROWS, VOCAB, support)
            with torch.no_grad():
                size = token_linear_entmax_loss(*layer, alpha=alpha).support.float().mean()
            runs = {name: forward_backward(loss, *layer) for name, loss in contenders(alpha).items()}
            ratios, base = relative_times(runs, rounds)
            cells = [f"{ratios[name]:.2f}" if name in ratios else "" for name in names]
            print(f"| {alpha} | {size:.0f} | {base:.0f} | " + " | ".join(cells) + " |", flush=True)


def peak_of(name, support):
    """Peak memory in MB of one step above what was there before; runs in a process of its own."""
    layer = make_layer(MEMORY_ROWS, MEMORY_VOCAB, support)
    run = forward_backward(contenders(1.5)[name], *layer)
    forward_backward(contenders(1.5)["linear_entmax_loss"], *(x[:2] for x in layer))  # loads what code there is
    # Not the peak so far, behind which a part of the step could hide.
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    run()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before) / 1e6


def memory_table(supports):
    print(f"\n{MEMORY_ROWS} rows, {DIM} units, {MEMORY_VOCAB} classes: peak memory of a step, MB\n")
    names = ["softmax", "linear_entmax_loss", "entmax_loss"]
    print("| support | " + " | ".join(names) + " | ratio |")
    print("| --- " * (2 + len(names)) + "|")
    for support in supports:
        peaks = []
        for name in names:
            command = [sys.executable, __file__, "--peak", name, "--support", str(support)]
            peaks.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        cells = " | ".join(f"{peak:.0f}" for peak in peaks)
        print(f"| {support} | {cells} | {peaks[1] / peaks[0]:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--support", type=int, nargs="+", default=[6, 10, 20, 100, 1000, 15000])
    parser.add_argument("--alpha", type=float, nargs="+", default=[1.5])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=["time", "memory"])
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.peak:
        print(peak_of(args.peak, args.support[0]))
        return
    print(f"torch {torch.__version__}, {args.threads} threads, {platform.machine()}, median of {args.rounds} rounds")
    if args.only != "memory":
        time_table(args.support, args.alpha, args.rounds)
    if args.only != "time":
        memory_table([args.support[0], args.support[-1]])


if __name__ == "__main__":
    main()
