"""Training speed of trained models side by side: target tokens a second, and time relative to the first model.

    python speed_translation.py DATA_BIN --out scores.json --model softmax=A/checkpoint_best.pt --model 1.5-entmax=B/...

Times whole training steps (forward, backward, clipping and an Adam update with rate 0) of every model in turn on the
same batches, so that other work on the machine slows all of them alike. Trained models are timed because the cost of a
sparse output falls with the number of words that the model considers.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import torch
from fairseq import checkpoint_utils, utils

from fairseq_entmax import criterion  # noqa: F401  registers what the checkpoints name

CLIP_NORM = 5.0


class Trained:
    """A model with its criterion, ready for training steps that change nothing."""

    def __init__(self, name: str, path: str, data: str, device: torch.device):
        self.name = name
        models, cfg, self.task = checkpoint_utils.load_model_ensemble_and_task([path], arg_overrides={"data": data})
        self.model = models[0].to(device).train()
        self.criterion = self.task.build_criterion(cfg.criterion).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.0)

    def step(self, sample) -> float:
        """Seconds of one training step."""
        start = now(sample)
        self.optimizer.zero_grad()
        loss, size, _ = self.criterion(self.model, sample)
        (loss / size).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
        self.optimizer.step()
        return now(sample) - start


def now(sample) -> float:
    """Seconds; on one thread those of the processor, so that other work on the machine counts less."""
    if sample["target"].is_cuda:
        torch.cuda.synchronize()
    elif torch.get_num_threads() == 1:
        return time.process_time()
    return time.perf_counter()


def first_batches(task, count: int, batch_size: int, device: torch.device) -> List[dict]:
    task.load_dataset("train")
    iterator = task.get_batch_iterator(task.dataset("train"), max_sentences=batch_size, seed=1, epoch=1)
    batches = []
    for sample in iterator.next_epoch_itr(shuffle=True):
        batches.append(utils.move_to_cuda(sample) if device.type == "cuda" else sample)
        if len(batches) == count:
            break
    return batches


def compare(trained: List[Trained], batches: List[dict]) -> Dict[str, Any]:
    """Tokens a second, and the median over batches of the time relative to the first model's on the same batch."""
    seconds: Dict[str, List[float]] = {model.name: [] for model in trained}
    for model in trained:
        model.step(batches[0])  # allocates
    for sample in batches:
        for model in trained:
            seconds[model.name].append(model.step(sample))
    tokens = sum(sample["ntokens"] for sample in batches)
    base = seconds[trained[0].name]
    return {
        name: {
            "target_tokens_per_second": tokens / sum(times),
            "time": statistics.median(mine / first for mine, first in zip(times, base)),
        }
        for name, times in seconds.items()
    }


def named_path(text: str) -> Tuple[str, str]:
    name, equals, path = text.partition("=")
    if not equals or not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"wanted NAME=CHECKPOINT, got {text!r}")
    return name, path


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", help="folder that fairseq-preprocess wrote")
    parser.add_argument("--model", type=named_path, action="append", required=True, metavar="NAME=CHECKPOINT")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--out", type=Path, required=True, help="file for the figures")
    args = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trained = [Trained(name, path, args.data, device) for name, path in args.model]
    figures = compare(trained, first_batches(trained[0].task, args.batches, args.batch_size, device))
    for name, figure in figures.items():
        tokens = figure["target_tokens_per_second"]
        print(f"{name:<20} {tokens:8.0f} target tokens a second, {figure['time']:.2f} x the time")
    args.out.write_text(json.dumps({"speed": figures, "batches": args.batches}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
