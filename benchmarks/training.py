"""Whole training steps on real data against softmax, as training goes from dense to sparse.

    python benchmarks/training.py DATA_BIN --out DIR [--epochs 3]     # training.sh makes DATA_BIN and runs it

Trains `lstm_entmax_translation` (or `--arch`), 1.5-entmax in attention and output. Now and then it stops to time one
step on a few batches for each contender in turn: forward, backward and an Adam update with rate 0. The entmax
contenders share the weights of the model that is being trained; the time of a softmax step does not depend on its
weights, so the twin stays untrained. Figures are medians over the batches of (time / time of the softmax twin on the
same batch, a moment before). The output layer alone (features and weights to gradients) is timed on the features of
those batches.

`--check-unfused N` trains a second copy of the model, same seed, through all logits (`entmax_loss`) for N updates, and
compares losses and validation figures with those of the fused path.

`--keep` keeps the weights at every measurement; `--again` measures from kept weights once more, without training.

Writes `training.json`; prints markdown tables; draws `training.png` where matplotlib is installed.
"""

import argparse
import contextlib
import importlib.util
import json
import logging
import platform
import statistics
import time
from argparse import Namespace
from pathlib import Path
from unittest import mock

import torch
from fairseq import models, options, tasks
from fairseq.criterions import build_criterion
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from torch.nn import functional as F

import fairseq_entmax  # noqa: F401  registers the model
from fairseq_entmax import criterion as criterions
from fairseq_entmax.ops import linear_entmax_loss

SEED = 1
UNITS = {"lstm_entmax_translation": 500, "lstm_entmax_inflection": 300}
HAS_ENTMAX = importlib.util.find_spec("entmax") is not None


class Contender:
    """A model, a loss on it, and an optimiser that changes nothing."""

    def __init__(self, name, model, loss):
        self.name, self.model, self.loss = name, model, loss
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.0)

    def time_step(self, sample):
        start = time.perf_counter()
        self.optimizer.zero_grad()
        self.loss(self.model, sample).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()
        return time.perf_counter() - start


def make_task(data, arch):
    given = [data, "--task", "translation_entmax", "--arch", arch, "--criterion", "entmax15"]
    args = options.parse_args_and_arch(options.get_training_parser(), given)
    task = tasks.setup_task(convert_namespace_to_omegaconf(args).task)
    for split in ("train", "valid"):
        task.load_dataset(split)
    return task


def make_model(task, arch, **settings):
    torch.manual_seed(SEED)
    return models.build_model(Namespace(arch=arch, criterion="entmax15", **settings), task).train()


def make_criterion(task):
    return build_criterion(Namespace(criterion="entmax15", sentence_avg=False), task)


def batches(task, split, max_tokens, epoch):
    iterator = task.get_batch_iterator(
        task.dataset(split), max_tokens=max_tokens, max_positions=(1024, 1024), seed=SEED, epoch=epoch,
        ignore_invalid_inputs=True, required_batch_size_multiple=1,
    )  # fmt: skip
    return iterator.next_epoch_itr(shuffle=split == "train")


def cross_entropy(task):
    pad = task.target_dictionary.pad()

    def loss(model, sample):
        logits = model(**sample["net_input"])[0]
        return F.cross_entropy(logits.flatten(0, 1), sample["target"].flatten(), ignore_index=pad)

    return loss


def public_loss(task):
    from entmax import entmax15_loss

    pad = task.target_dictionary.pad()

    def loss(model, sample):
        logits, target = model(**sample["net_input"])[0].flatten(0, 1), sample["target"].flatten()
        kept = target != pad
        return entmax15_loss(logits[kept], target[kept]).mean()

    return loss


def our_loss(criterion, fused=True):
    def loss(model, sample):
        patch = mock.patch.object(criterions, "token_loss_in_forward", lambda *args, **kwargs: None)
        with contextlib.nullcontext() if fused else patch:
            total, size, _ = criterion(model, sample)
        return total / size

    return loss


def features_of(model, sample):
    """Features of the targets that are no padding, their targets, and the output weights, of a fused model."""
    net_input = sample["net_input"]
    with torch.no_grad():
        encoder_out = model.encoder(net_input["src_tokens"], net_input["src_lengths"])
        features = model.decoder.extract_features(net_input["prev_output_tokens"], encoder_out)[0]
    kept = sample["target"] != model.decoder.dictionary.pad()
    return features[kept], sample["target"][kept], model.decoder.output_weights()


def time_layer(model, sample):
    """Seconds from features to gradients: softmax, ours."""
    features, target, (weight, bias) = features_of(model, sample)
    times = []
    for loss in (
        lambda x, w, b: F.cross_entropy(F.linear(x, w, b), target),
        lambda x, w, b: linear_entmax_loss(x, w, target, b),
    ):
        leaves = [t if t is None else t.detach().clone().requires_grad_() for t in (features, weight, bias)]
        start = time.perf_counter()
        loss(*leaves).backward()
        times.append(time.perf_counter() - start)
    return times


@torch.no_grad()
def validate(task, model, criterion, max_tokens):
    """Loss (nats per token), token accuracy (%) and mean support on the validation set."""
    model.eval()
    logs = [criterion(model, sample)[2] for sample in batches(task, "valid", max_tokens, 1)]
    model.train()
    kept = sum(int(log["kept"]) for log in logs)
    loss, correct, support = (sum(float(log[key]) for log in logs) / kept for key in ("loss", "correct", "support"))
    return {"loss": loss, "token_accuracy": 100 * correct, "support": support}


def measure(contenders, model, samples):
    """Medians over the samples, relative to the first contender; its seconds; supports of the sparse model."""
    steps, layer = {c.name: [] for c in contenders}, []
    for sample in samples:
        own = {c.name: c.time_step(sample) for c in contenders}
        for name, seconds in own.items():
            steps[name].append((seconds, seconds / own[contenders[0].name]))
        softmax, sparse = time_layer(model, sample)
        layer.append(sparse / softmax)
    return {
        "seconds": statistics.median(seconds for seconds, _ in steps[contenders[0].name]),
        "steps": {name: statistics.median(r for _, r in values) for name, values in steps.items()},
        "layer": statistics.median(layer),
    }


class Training:
    """The training of one model, update by update."""

    def __init__(self, task, arch, criterion, fused, rate):
        self.model = make_model(task, arch, attention_mapping="entmax15")
        self.criterion, self.fused = criterion, fused
        self.loss = our_loss(criterion, fused)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate)
        self.log = []

    def update(self, sample):
        torch.manual_seed(SEED + len(self.log))  # both copies drop the same units
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.loss(self.model, sample)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()
        self.log.append({"loss": loss.item(), "seconds": time.perf_counter() - start})


def print_tables(result):
    names = list(result["points"][0]["steps"])
    print("\n### Whole training step / softmax\n")
    print("| update | support | softmax step | " + " | ".join(names[1:]) + " | output layer alone |")
    print("|" + " --- |" * (len(names) + 3))
    for point in result["points"]:
        cells = [f"{point['steps'][name]:.2f}" for name in names[1:]]
        print(
            f"| {point['update']} | {point['support']:.1f} | {point['seconds']:.2f} s | "
            + " | ".join(cells)
            + f" | {point['layer']:.2f} |"
        )
    print("\n### Validation\n\n| epoch | path | loss | token accuracy | support |\n|" + " --- |" * 5)
    for row in result["validation"]:
        figures = f"{row['loss']:.4f} | {row['token_accuracy']:.2f} % | {row['support']:.1f}"
        print(f"| {row['epoch']} | {row['path']} | {figures} |")
    if result.get("differences"):
        first, worst = max(result["differences"][:10]), max(result["differences"])
        print(
            f"\nLosses, fused and all logits, differ by {first:.1e} at most in ten updates, {worst:.1e} in "
            f"{len(result['differences'])}."
        )


def draw(result, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10.5, 3.2))
    losses = [row["loss"] for row in result["log"]]
    width = max(1, len(losses) // 60)
    smooth = [statistics.mean(losses[i : i + width]) for i in range(0, len(losses), width)]
    left.plot([i * width for i in range(len(smooth))], smooth)
    left.set(xlabel="update", ylabel="training loss (nats per token)")
    updates = [point["update"] for point in result["points"]]
    for name in result["points"][0]["steps"]:
        right.plot(updates, [point["steps"][name] for point in result["points"]], marker="o", label=name)
    right.plot(
        updates, [p["layer"] for p in result["points"]], marker="s", linestyle=":", label="output layer alone, ours"
    )
    right.set(xlabel="update", ylabel="time of a step / softmax", ylim=(0, None))
    right.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="folder made by fairseq-preprocess")
    parser.add_argument("--out", type=Path, required=True, help="folder for training.json and training.png")
    parser.add_argument("--arch", default="lstm_entmax_translation", choices=sorted(UNITS))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--updates", type=int, default=0, help="stop after so many (default: whole epochs)")
    parser.add_argument("--max-tokens", type=int, default=1000, help="target tokens of a batch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--every", type=int, default=150, help="updates between measurements after the first 50")
    parser.add_argument("--samples", type=int, default=6, help="batches timed at each measurement")
    parser.add_argument("--check-unfused", type=int, default=0, metavar="UPDATES", help="train a second copy so long")
    parser.add_argument("--keep", action="store_true", help="keep the weights at every measurement in --out")
    parser.add_argument("--again", action="store_true", help="measure again from weights that --keep left")
    args = parser.parse_args()
    logging.getLogger().setLevel(logging.WARNING)
    torch.set_num_threads(args.threads)
    task = make_task(args.data, args.arch)
    criterion = make_criterion(task)
    fused = Training(task, args.arch, criterion, True, args.lr)
    contenders = make_contenders(task, args.arch, fused.model, criterion)
    args.out.mkdir(parents=True, exist_ok=True)
    print(f"torch {torch.__version__}, {args.threads} threads, vocabulary of {len(task.target_dictionary)}", flush=True)
    run = Run(args, task, criterion, contenders)
    if args.again:
        run.again(fused.model)
    else:
        run.train(fused)
    run.write()
    print_tables(run.result)
    if importlib.util.find_spec("matplotlib"):
        draw(run.result, args.out / "training.png")


class Run:
    """Trains, measures now and then, and keeps what came out."""

    def __init__(self, args, task, criterion, contenders):
        self.args, self.task, self.criterion, self.contenders = args, task, criterion, contenders
        held = zip(batches(task, "valid", args.max_tokens, 1), range(args.samples))
        self.held = [sample for sample, _ in held]
        self.warm = False
        self.result = {
            "torch": torch.__version__, "threads": args.threads, "machine": platform.processor() or platform.machine(),
            "arch": args.arch, "vocabulary": len(task.target_dictionary), "seed": SEED, "max_tokens": args.max_tokens,
            "points": [], "validation": [], "log": [],
        }  # fmt: skip

    def write(self):
        (self.args.out / "training.json").write_text(json.dumps(self.result))

    def weights_at(self, update):
        return self.args.out / f"weights-{update}.pt"

    def point(self, model, update, support=None):
        """Measure now; `support` unless it is to be found."""
        if not self.warm:
            measure(self.contenders, model, self.held[:1])
            self.warm = True
        if support is None:
            support = self.validate(model)["support"]
        point = {**measure(self.contenders, model, self.held), "update": update, "support": support}
        self.result["points"].append(point)
        print(json.dumps(point), flush=True)
        if self.args.keep:
            torch.save(model.state_dict(), self.weights_at(update))

    def validate(self, model):
        return validate(self.task, model, self.criterion, self.args.max_tokens)

    def add_validation(self, epoch, path, model):
        self.result["validation"].append({"epoch": epoch, "path": path, **self.validate(model)})
        print(json.dumps(self.result["validation"][-1]), flush=True)

    def train(self, fused):
        args, update = self.args, 0
        other = Training(self.task, args.arch, self.criterion, False, args.lr) if args.check_unfused else None
        for epoch in range(1, args.epochs + 1):
            for sample in batches(self.task, "train", args.max_tokens, epoch):
                if update in (0, 20, 50) or update % args.every == 0:
                    self.point(fused.model, update)
                fused.update(sample)
                update += 1
                if other is not None:
                    other.update(sample)
                    if update == args.check_unfused:
                        self.compare(epoch, fused, other)
                        other = None
                if update == args.updates:
                    break
            self.add_validation(epoch, "fused", fused.model)
            self.result["log"] = fused.log
            self.write()
            if update == args.updates:
                break
        self.point(fused.model, update, self.result["validation"][-1]["support"])

    def compare(self, epoch, fused, other):
        self.result["differences"] = [abs(a["loss"] - b["loss"]) for a, b in zip(fused.log, other.log)]
        for path, training in (("fused", fused), ("all logits", other)):
            self.add_validation(f"{epoch}, update {len(other.log)}", path, training.model)

    def again(self, model):
        before = json.loads((self.args.out / "training.json").read_text())
        self.result = {**before, **{key: self.result[key] for key in ("torch", "threads", "machine", "points")}}
        self.args.keep = False
        for point in before["points"]:
            if self.weights_at(point["update"]).exists():
                model.load_state_dict(torch.load(self.weights_at(point["update"])))
                self.point(model, point["update"], point["support"])


def make_contenders(task, arch, model, criterion):
    """The softmax twin first; `model` is the one that is being trained."""
    contenders = [
        Contender("softmax", make_model(task, arch, attention_mapping="softmax"), cross_entropy(task)),
        Contender("ours", model, our_loss(criterion)),
        Contender("ours, all logits", model, our_loss(criterion, fused=False)),
        Contender("fairseq's lstm, softmax", make_model(task, "lstm", **stock_sizes(UNITS[arch])), cross_entropy(task)),
    ]
    if HAS_ENTMAX:
        contenders.insert(3, Contender("entmax 1.3 loss", model, public_loss(task)))
    return contenders


def stock_sizes(units):
    """fairseq's own LSTM in the sizes of an architecture of ours."""
    return dict(
        encoder_embed_dim=units, encoder_hidden_size=units // 2, encoder_bidirectional=True, encoder_layers=2,
        decoder_embed_dim=units, decoder_hidden_size=units, decoder_out_embed_dim=units, decoder_layers=2,
        dropout=0.3, adaptive_softmax_cutoff=None,
    )  # fmt: skip


if __name__ == "__main__":
    main()
