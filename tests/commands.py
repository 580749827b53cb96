"""Runs fairseq's commands in this process, on small corpora that the tests make."""

import contextlib
import importlib
import io
import json
import logging
import random
import sys
from pathlib import Path
from unittest import mock

import fairseq_entmax

USER_DIR = str(Path(fairseq_entmax.__file__).parent)


def run(command: str, *argv) -> str:
    """Runs `fairseq-<command>`; returns what it printed to standard output.

    What a command leaves behind in its process (meters, the best score, log files) is cleared, as a new process would.
    """
    from fairseq import checkpoint_utils
    from fairseq.logging import metrics

    metrics.reset()
    vars(checkpoint_utils.save_checkpoint).clear()
    module = importlib.import_module(f"fairseq_cli.{command}")
    printed = io.StringIO()
    with mock.patch.object(sys, "argv", [f"fairseq-{command}", *map(str, argv)]), contextlib.redirect_stdout(printed):
        try:
            module.cli_main()
        finally:
            root = logging.getLogger()
            root.handlers = [h for h in root.handlers if not isinstance(h, logging.FileHandler)]
    return printed.getvalue()


def write_corpus(folder: Path, sizes: dict, seed: int = 0, shortest: int = 2, longest: int = 5) -> None:
    """Copy task over five letters: `sizes` sentences of `train`, `valid` and `test`, in `<split>.src` and `.tgt`."""
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for split, size in sizes.items():
        lines = [" ".join(rng.choices("abcde", k=rng.randint(shortest, longest))) for _ in range(size)]
        for side in ("src", "tgt"):
            (folder / f"{split}.{side}").write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def preprocess(folder: Path, sizes: dict, **kwargs) -> str:
    """Makes a corpus and its binary form; returns the folder for the other commands."""
    write_corpus(folder, sizes, **kwargs)
    argv = ["-s", "src", "-t", "tgt", "--destdir", folder / "bin", "--joined-dictionary", "--workers", 1]
    for split in sizes:
        argv += [f"--{split}pref", folder / split]
    run("preprocess", *argv)
    return str(folder / "bin")


SMALL = {
    "lstm_entmax": [
        "--encoder-hidden-size",
        16,
        "--decoder-hidden-size",
        16,
        "--encoder-layers",
        1,
        "--decoder-layers",
        1,
    ]
    + ["--encoder-embed-dim", 16, "--decoder-embed-dim", 16],
    "lstm": ["--encoder-hidden-size", 16, "--decoder-hidden-size", 16, "--encoder-embed-dim", 16]
    + ["--decoder-embed-dim", 16, "--decoder-out-embed-dim", 16],
    "transformer": ["--encoder-embed-dim", 16, "--decoder-embed-dim", 16, "--encoder-ffn-embed-dim", 16]
    + ["--decoder-ffn-embed-dim", 16, "--encoder-layers", 1, "--decoder-layers", 1]
    + ["--encoder-attention-heads", 2, "--decoder-attention-heads", 2],
}


def train(data: str, save_dir, *options, arch="lstm_entmax", criterion="entmax15", task="translation_entmax", epochs=1):
    """Trains a small model; returns what was logged in validation, epoch by epoch."""
    log = Path(save_dir) / "log.json"
    log.parent.mkdir(parents=True, exist_ok=True)
    argv = [data, "--user-dir", USER_DIR, "--task", task, "--arch", arch, *SMALL[arch], "--criterion", criterion]
    argv += ["--optimizer", "adam", "--lr", 0.01, "--batch-size", 32, "--max-epoch", epochs, "--save-dir", save_dir]
    argv += ["--no-epoch-checkpoints", "--seed", 1, "--cpu", "--num-workers", 0, "--dropout", 0]
    argv += ["--log-format", "json", "--log-file", log, *options]
    run("train", *argv)
    texts = [line[line.index("{") :] for line in log.read_text().splitlines() if '"valid_loss"' in line]
    entries = {entry["valid_num_updates"]: entry for entry in map(json.loads, texts)}  # a handler may write twice
    return list(entries.values())


def generate(data: str, checkpoint, *options, task="translation_entmax", batch_size=16) -> str:
    argv = [data, "--user-dir", USER_DIR, "--task", task, "--path", checkpoint, "--cpu", "--num-workers", 0]
    return run("generate", *argv, *(["--batch-size", batch_size] if batch_size else []), *options)


def lines(printed: str, kind: str) -> dict:
    """The `<kind>-<id>` lines of fairseq's output: id -> fields, the first of each id."""
    found = {}
    for line in printed.splitlines():
        head, _, rest = line.partition("\t")
        if head.startswith(f"{kind}-") and head[len(kind) + 1 :].isdigit():
            found.setdefault(int(head[len(kind) + 1 :]), rest.split("\t"))
    return found


def records(path) -> list:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
