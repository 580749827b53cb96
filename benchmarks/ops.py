"""Time the mappings and losses on CPU against softmax, cross entropy and the public `entmax` package, side by side.

    python benchmarks/ops.py                       # everything: about 10 minutes on two quiet cores
    python benchmarks/ops.py --shape 1024x18000    # one shape
    python benchmarks/ops.py --only loss --rounds 5

Prints markdown tables. Every figure is a ratio of times measured next to each other: each round runs all contenders
once, in turn, and the median over the rounds of (ours / theirs) is given, so that a busy machine disturbs both alike.
Forward plus backward, float32. `entmax` is compared if it is installed (`pip install entmax==1.3`).
"""

import argparse
import importlib.util
import platform
import statistics
import time

import torch

from fairseq_entmax.ops import entmax, entmax_loss, fusedmax, oscarmax, pnormmax

SHAPES = ("64x30", "1024x100", "4096x30", "1024x18000", "256x128000")
# Sharp: a trained model, a handful of entries lead. Noise: standard normal logits. Flat: the first updates of training.
KINDS = ("sharp", "noise", "flat")
HAS_ENTMAX = importlib.util.find_spec("entmax") is not None


def make_logits(rows, size, kind):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, size, generator=generator)
    if kind == "sharp":
        leading = torch.randint(size, (rows, min(20, size)), generator=generator)
        logits.scatter_add_(1, leading, torch.rand(leading.shape, generator=generator) * 2 + 5)
    elif kind == "flat":
        logits *= 0.01
    return logits


def forward_backward(function, leaf):
    """A call without arguments that runs `function(leaf)` to a sum and back."""

    def run():
        leaf.grad = None
        function(leaf).sum().backward()

    return run


def medians(contenders, rounds):
    """Median over the rounds of the time of the first contender relative to each of the others, and its own time."""
    for run in contenders.values():
        run()
    times = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    first, *others = times
    ratios = {name: statistics.median(a / b for a, b in zip(times[first], times[name])) for name in others}
    return statistics.median(times[first]), ratios


def repetitions(run, rounds):
    """Enough rounds that a fast contender is measured for about two seconds."""
    run()
    start = time.perf_counter()
    run()
    return max(rounds, min(400, int(2 / (time.perf_counter() - start))))


def loss_contenders(logits, target, alpha, bisect):
    contenders = {
        "ours": forward_backward(lambda z: entmax_loss(z, target, alpha, reduction="none"), logits),
        "cross_entropy": forward_backward(
            lambda z: torch.nn.functional.cross_entropy(z, target, reduction="none"), logits
        ),
    }
    if HAS_ENTMAX and (bisect or alpha in (1.5, 2.0)):
        import entmax as public

        theirs = {1.5: public.entmax15_loss, 2.0: public.sparsemax_loss}.get(alpha)
        if theirs is None:
            contenders["entmax 1.3"] = forward_backward(lambda z: public.entmax_bisect_loss(z, target, alpha), logits)
        else:
            contenders["entmax 1.3"] = forward_backward(lambda z: theirs(z, target), logits)
    return contenders


def mapping_contenders(logits, alpha, bisect):
    upstream = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    contenders = {
        "ours": forward_backward(lambda z: entmax(z, alpha) * upstream, logits),
        "softmax": forward_backward(lambda z: torch.softmax(z, -1) * upstream, logits),
    }
    if HAS_ENTMAX and (bisect or alpha in (1.5, 2.0)):
        import entmax as public

        theirs = {1.5: public.entmax15, 2.0: public.sparsemax}.get(alpha)
        if theirs is None:
            contenders["entmax 1.3"] = forward_backward(lambda z: public.entmax_bisect(z, alpha) * upstream, logits)
        else:
            contenders["entmax 1.3"] = forward_backward(lambda z: theirs(z) * upstream, logits)
    return contenders


def print_table(title, header, lines):
    print(f"\n### {title}\n\n| " + " | ".join(header) + " |\n|" + " --- |" * len(header))
    for line in lines:
        print("| " + " | ".join(line) + " |", flush=True)


def ratio(value):
    return "-" if value is None else f"{value:.2f}"


def sweep(make, baseline, shapes, alphas, args):
    for shape in shapes:
        rows, size = map(int, shape.split("x"))
        for kind in KINDS:
            logits = make_logits(rows, size, kind).requires_grad_()
            for alpha in alphas:
                support = (entmax(logits.detach(), alpha) > 0).sum(-1).float().mean().item()
                contenders = make(logits, alpha)
                own, ratios = medians(contenders, repetitions(contenders["ours"], args.rounds))
                yield [
                    shape,
                    kind,
                    f"{alpha:g}",
                    f"{support:.0f}",
                    f"{own * 1e3:.2f} ms",
                    ratio(ratios[baseline]),
                    ratio(ratios.get("entmax 1.3")),
                ]


def structured_lines(args):
    for shape in ("64x30", "1024x30", "64x100"):
        rows, size = map(int, shape.split("x"))
        scores = torch.randn(rows, size).requires_grad_()
        mask = torch.arange(size) < torch.randint(size // 2, size + 1, (rows, 1))
        for function in (fusedmax, oscarmax, pnormmax):
            contenders = {
                "ours": forward_backward(lambda z, f=function, m=mask: f(z, mask=m).square(), scores),
                "softmax": forward_backward(
                    lambda z, m=mask: torch.softmax(z.masked_fill(~m, -1e9), -1).square(), scores
                ),
            }
            own, ratios = medians(contenders, repetitions(contenders["ours"], args.rounds))
            yield [function.__name__, shape, f"{own * 1e3:.2f} ms", ratio(ratios["softmax"])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7, help="at least this many rounds for each line")
    parser.add_argument("--shape", action="append", choices=SHAPES, help="only this shape (may be repeated)")
    parser.add_argument("--only", choices=("loss", "mapping", "structured"))
    parser.add_argument("--alpha", action="append", type=float, help="default 1.5, 2 and 1.3 (may be repeated)")
    parser.add_argument("--no-bisect", action="store_true", help="leave out the slow comparison for other alpha")
    parser.add_argument("--no-public", action="store_true", help="leave the entmax package out, slow on long rows")
    args = parser.parse_args()
    if args.no_public:
        global HAS_ENTMAX
        HAS_ENTMAX = False
    torch.set_num_threads(args.threads)
    alphas, shapes, bisect = args.alpha or [1.5, 2.0, 1.3], args.shape or SHAPES, not args.no_bisect
    print(f"torch {torch.__version__}, {args.threads} threads, {platform.processor() or platform.machine()}")
    if args.only in (None, "loss"):

        def make_loss(logits, alpha):
            target = torch.randint(logits.shape[1], (len(logits),), generator=torch.Generator().manual_seed(2))
            return loss_contenders(logits, target, alpha, bisect)

        header = ["shape", "logits", "alpha", "support", "ours", "/ cross_entropy", "/ entmax 1.3"]
        print_table("Loss, forward and backward", header, sweep(make_loss, "cross_entropy", shapes, alphas, args))
    if args.only in (None, "mapping"):
        header = ["shape", "scores", "alpha", "support", "ours", "/ softmax", "/ entmax 1.3"]
        lines = sweep(lambda logits, alpha: mapping_contenders(logits, alpha, bisect), "softmax", shapes, alphas, args)
        print_table("Mapping, forward and backward", header, lines)
    if args.only in (None, "structured"):
        header = ["mapping", "shape", "ours", "/ softmax"]
        print_table("Structured attention with a mask, forward and backward", header, structured_lines(args))


if __name__ == "__main__":
    main()
