"""Time of a whole training step of `lstm_entmax` on CPU with each attention mapping, relative to softmax attention.

    python benchmarks/attention.py                      # about 3 minutes on two quiet cores
    python benchmarks/attention.py --arch lstm_entmax_translation --vocab 18000 --length 20 --batch 32

Random sentences of one length, softmax output, forward, backward and an Adam update. Each round runs all mappings once,
in turn; the median over the rounds of (time / softmax) is given. Prints a markdown table.
"""

import argparse
import platform
import statistics
import time
from argparse import Namespace

import torch
from fairseq import models
from fairseq.data import Dictionary
from fairseq.tasks.translation import TranslationConfig, TranslationTask

import fairseq_entmax  # noqa: F401  registers the model

SETTINGS = {
    "softmax": {"attention_mapping": "softmax"},
    "sparsemax": {"attention_mapping": "sparsemax"},
    "entmax15": {"attention_mapping": "entmax15"},
    "entmax, learnt": {"attention_mapping": "entmax", "learn_attention_alpha": True},
    "fusedmax": {"attention_mapping": "fusedmax"},
    "oscarmax": {"attention_mapping": "oscarmax"},
    "pnormmax": {"attention_mapping": "pnormmax"},
}


def make_task(vocab):
    symbols = Dictionary()
    for i in range(vocab - len(symbols)):
        symbols.add_symbol(f"w{i}")
    return TranslationTask(TranslationConfig(), symbols, symbols)


def make_batch(vocab, batch, length):
    generator = torch.Generator().manual_seed(0)
    source, target = (torch.randint(4, vocab, (batch, length), generator=generator) for _ in range(2))
    lengths = torch.randint(length // 2, length + 1, (batch,), generator=generator)
    source[torch.arange(length) < (length - lengths)[:, None]] = 1
    previous = torch.cat([torch.full((batch, 1), 2), target[:, :-1]], dim=1)
    return {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": previous}, target


def training_step(task, arch, settings, batch):
    """A function that trains on the batch once more. The attention is made uneven first, as after some training."""
    torch.manual_seed(0)
    model = models.build_model(Namespace(arch=arch, criterion="cross_entropy", **settings), task).train()
    with torch.no_grad():
        model.encoder.projection.key_proj.weight.mul_(20)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    net_input, target = batch

    def step():
        optimizer.zero_grad()
        logits, _ = model(**net_input)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()
        optimizer.step()

    return step


def print_ratios(steps, args):
    """Run all steps in turn, `args.rounds` times; print the medians relative to the step named softmax."""
    times = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(args.rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    print(f"torch {torch.__version__}, {args.threads} threads, {platform.machine()}, median of {args.rounds} rounds")
    print(f"\n{args.arch}, {args.vocab} symbols, {args.batch} sentences of {args.length}: time of a step / softmax\n")
    print("| mapping | ratio | ms |\n| --- | --- | --- |")
    for name, values in times.items():
        ratio = statistics.median(a / b for a, b in zip(values, times["softmax"]))
        print(f"| {name} | {ratio:.2f} | {1000 * statistics.median(values):.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="lstm_entmax_inflection")
    parser.add_argument("--vocab", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    task, batch = make_task(args.vocab), make_batch(args.vocab, args.batch, args.length)
    steps = {name: training_step(task, args.arch, settings, batch) for name, settings in SETTINGS.items()}
    print_ratios(steps, args)


if __name__ == "__main__":
    main()
