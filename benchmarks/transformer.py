"""Time of a whole training step of `transformer_entmax` on CPU with each attention mapping, relative to softmax.

    python benchmarks/transformer.py                            # about 2 minutes on two quiet cores
    python benchmarks/transformer.py --length 32 --batch 32 --mappings entmax15

Random sentences, the mapping in all three kinds of attention, softmax output, forward, backward and an Adam update.
With softmax the modules are fairseq's own, whose attention is one fused function of torch. The model has two layers on
each side (`--layers`), so that several of them fit in memory. Each round runs all mappings once, in turn; the median
over the rounds of (time / softmax) is given. Prints a markdown table.
"""

import argparse
from argparse import Namespace

import torch
from attention import SETTINGS, make_batch, make_task, print_ratios
from fairseq import models

import fairseq_entmax  # noqa: F401  registers the model


def training_step(task, arch, settings, batch, sharpen, layers):
    """A function that trains on the batch once more. Queries are scaled up first, so that attention is uneven."""
    torch.manual_seed(0)
    sizes = {"encoder_layers": layers, "decoder_layers": layers}
    model = models.build_model(Namespace(arch=arch, criterion="cross_entropy", **sizes, **settings), task).train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("q_proj.weight"):
                parameter.mul_(sharpen)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    net_input, target = batch

    def step():
        optimizer.zero_grad()
        logits, _ = model(**net_input)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()
        optimizer.step()

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="transformer_entmax_iwslt_de_en")
    parser.add_argument("--mappings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vocab", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--sharpen", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    task, batch = make_task(args.vocab), make_batch(args.vocab, args.batch, args.length)
    names = dict.fromkeys(["softmax", *args.mappings])
    steps = {name: training_step(task, args.arch, SETTINGS[name], batch, args.sharpen, args.layers) for name in names}
    print_ratios(steps, args)


if __name__ == "__main__":
    main()
