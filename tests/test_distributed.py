"""Two processes on CPU. Ranks are forked from this process, so that they need not import fairseq again."""

import json
import multiprocessing
import os
import pickle
import re
import shlex
import socket
import sys
import traceback
from argparse import Namespace
from pathlib import Path

import commands
import pytest
import torch
import toy
from fairseq import models
from fairseq.distributed import LegacyDistributedDataParallel, ModuleProxyWrapper
from omegaconf import OmegaConf

from fairseq_entmax.criterion import Entmax15Criterion

DOCS = Path(__file__).parent.parent / "docs" / "running.md"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks")


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def in_two_processes(function, *args):
    """`function(rank, *args)` in two processes at once; what each returned."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()

    def target(rank):
        try:
            queue.put((rank, pickle.dumps(function(rank, *args))))  # tensors by value
        except BaseException:
            queue.put((rank, traceback.format_exc()))
        queue.close()
        queue.join_thread()
        os._exit(0)  # without the clean-up of the test session

    processes = [context.Process(target=target, args=(rank,)) for rank in range(2)]
    for process in processes:
        process.start()
    results = dict(queue.get(timeout=240) for _ in processes)
    for process in processes:
        process.join()
    failed = [result for result in results.values() if isinstance(result, str)]
    assert not failed, failed[0]
    return pickle.loads(results[0]), pickle.loads(results[1])


def halves(batch):
    """Sentences 0 and 1, and 2 and 3, with sizes that differ."""
    for rows in (slice(0, 2), slice(2, 4)):
        net_input = {name: value[rows] for name, value in batch["net_input"].items()}
        target = batch["target"][rows]
        yield {"net_input": net_input, "target": target, "ntokens": int(target.ne(1).sum()), "nsentences": len(target)}


def step(wrap, settings, sample, world):
    """Gradients of one training step, averaged over all target tokens, and what was logged; wrappers average over
    processes first."""
    torch.manual_seed(0)
    task = toy.task()
    model = models.build_model(OmegaConf.create(settings), task).double().train()
    model = model if wrap is None else ModuleProxyWrapper(wrap(model))
    criterion = Entmax15Criterion.build_criterion(Namespace(), task)
    loss, size, logs = criterion(model, sample)
    loss.backward()
    if isinstance(getattr(model, "module", None), LegacyDistributedDataParallel):
        model.module.all_reduce_grads()
    size = torch.tensor(float(size))
    if wrap is not None:
        torch.distributed.all_reduce(size)
    parameters = {name.replace("module.", ""): parameter for name, parameter in model.named_parameters()}
    gradients = {name: p.grad * world / size for name, p in parameters.items() if p.grad is not None}
    return gradients, {name: float(value) for name, value in logs.items()}


WRAPPERS = {
    "pytorch_ddp": torch.nn.parallel.DistributedDataParallel,
    "find_unused": lambda model: torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True),
    "legacy_ddp": lambda model: LegacyDistributedDataParallel(model, torch.distributed.group.WORLD, buffer_size=100),
}
SMALL = {"dropout": 0.0, "encoder_embed_dim": 8, "decoder_embed_dim": 8, "encoder_layers": 1, "decoder_layers": 1}
MODELS = [
    {"_name": "lstm_entmax", **SMALL},
    {
        "_name": "transformer_entmax",
        **SMALL,
        **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_embed_dim": 8},
        "learn_attention_alpha": True,
    },
]


def steps_of_a_rank(rank, port, cases, batch):
    torch.distributed.init_process_group("gloo", init_method=f"tcp://localhost:{port}", world_size=2, rank=rank)
    sample = list(halves(batch))[rank]
    return [step(WRAPPERS[name], settings, sample, world=2) for name, settings in cases]


def test_every_wrapper_gives_the_gradient_of_the_whole_batch():
    batch = toy.sample((5, 3, 4, 6), (3, 6, 2, 4))
    cases = [(name, settings) for settings in MODELS for name in WRAPPERS]
    results = in_two_processes(steps_of_a_rank, free_port(), cases, batch)
    for index, (name, settings) in enumerate(cases):
        expected, logs = step(None, settings, batch, world=1)
        for rank in range(2):
            gradients, _ = results[rank][index]
            assert gradients.keys() == expected.keys()
            for parameter, gradient in expected.items():
                assert torch.allclose(gradients[parameter], gradient, atol=1e-9), (name, parameter)
        added = {key: results[0][index][1][key] + results[1][index][1][key] for key in logs}
        assert added == pytest.approx({**logs, **{k: 2 * logs[k] for k in ("attention_alpha", "alphas") if k in logs}})


def documented_command(rank, port, data, save_dir):
    """The command of the documentation, with what differs here put in."""
    block = re.search(r"<!-- tested: two processes -->\n```bash\n(.*?)```", DOCS.read_text(), re.S)[1]
    line = re.search(r"fairseq-train (.*?) &\n", block.replace("\\\n", " "), re.S)[1]
    line = line.replace("DATA", data).replace("$USER_DIR", commands.USER_DIR).replace("$RANK", str(rank))
    return shlex.split(line.replace("29500", str(port)))


def train_as_documented(rank, port, data, save_dir, options):
    argv = documented_command(rank, port, data, save_dir) + options + ["--save-dir", save_dir]
    log = Path(save_dir) / f"rank{rank}.json"
    commands.run("train", *argv, "--log-file", log)
    state = torch.load(Path(save_dir) / "checkpoint_last.pt", map_location="cpu") if rank == 0 else None
    return logged(log), state and state["model"]


DECODED = ("bleu", "word_accuracy", "edit_distance", "complete", "optimal")


def logged(log):
    """What was logged of each epoch in training and validation."""
    names = ("loss", "token_accuracy", "support", "gold_outside", "attention_alpha", *DECODED)
    found = {}
    for line in log.read_text().splitlines():
        entry = json.loads(line[line.index("{") :]) if '"epoch"' in line and "{" in line else {}
        found.update({(entry["epoch"], key): float(v) for key, v in entry.items() if key.partition("_")[2] in names})
    return found


def test_two_processes_learn_what_one_does_with_the_doubled_batch_case_22_case_51(tmp_path):
    """Also one process that adds up two batches. Every metric can pick the best checkpoint."""
    data = commands.preprocess(tmp_path / "corpus", {"train": 32, "valid": 11, "test": 1})
    size = ["--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "16", "--encoder-layers", "1"]
    size += ["--decoder-layers", "1", "--encoder-attention-heads", "2", "--decoder-attention-heads", "2"]
    options = [*size, "--learn-attention-alpha", "--dropout", "0", "--max-epoch", "3", "--seed", "1"]
    options += ["--no-epoch-checkpoints", "--log-format", "json", "--num-workers", "0"]
    options += ["--optimizer", "sgd", "--lr", "0.5"]  # Adam makes a step of the rounding errors around zero
    options += ["--best-checkpoint-metric", "token_accuracy", "--maximize-best-checkpoint-metric"]
    options += ["--eval-accuracy", "--eval-bleu", "--eval-bleu-args", '{"beam": 2, "max_len_b": 6}']
    (tmp_path / "two").mkdir()
    shards = ["--batch-size-valid", "4"]  # three batches for two processes; one has a dummy
    (log, state), _ = in_two_processes(train_as_documented, free_port(), data, str(tmp_path / "two"), options + shards)
    expected = {"train_loss", "valid_loss", "valid_support", "train_attention_alpha", *(f"valid_{n}" for n in DECODED)}
    assert expected <= {key for _, key in log}
    for name, batch in (("added", ["--update-freq", "2"]), ("doubled", ["--batch-size", "32"])):
        (tmp_path / name).mkdir()
        argv = [*documented_command(0, 1, data, ""), *options, *batch, "--save-dir", str(tmp_path / name)]
        argv = [
            *argv,
            "--batch-size-valid",
            "11",
            "--distributed-world-size",
            "1",
            "--log-file",
            str(tmp_path / name / "log.json"),
        ]
        drop = ["--distributed-no-spawn", "--distributed-init-method", "tcp://localhost:1"]
        commands.run("train", *(word for word in argv if word not in drop))
        one = torch.load(tmp_path / name / "checkpoint_last.pt", map_location="cpu")["model"]
        assert logged(tmp_path / name / "log.json") == pytest.approx(log, abs=2e-3)
        assert all(
            torch.allclose(one[key], state[key], atol=1e-4) for key in state if not key.endswith("_float_tensor")
        )
    assert (tmp_path / "two" / "checkpoint_best.pt").exists()
