"""Interrupted training: it resumes to the same numbers, or stops with a clear message and keeps the last checkpoint."""

import contextlib
import logging
import multiprocessing
import os
import re
import resource
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import commands
import pytest
import torch
from fairseq.optim.adam import FairseqAdam
from fairseq.optim.lr_scheduler import LR_SCHEDULER_REGISTRY
from omegaconf import OmegaConf

from fairseq_entmax import plateau
from fairseq_entmax.criterion import SparseCriterion

commands.SMALL["transformer_entmax"] = commands.SMALL["transformer"]
# In fairseq 0.12.2: second copies of weights in encoder layers, and memory that is never set.
NOT_LEARNT = re.compile(r"\.\d+\.\w+_(weight|bias)$|_float_tensor$")
EPOCHS = 3


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return commands.preprocess(tmp_path_factory.mktemp("data"), {"train": 40, "valid": 12, "test": 3})


def train(data, folder, *options, epochs=EPOCHS, **settings):
    options = ["--batch-size", 16, "--save-interval-updates", 2, "--dropout", 0.1, *options]
    return commands.train(data, folder, *options, epochs=epochs, **settings)


def weights(folder, name="checkpoint_last.pt"):
    state = torch.load(Path(folder) / name, map_location="cpu")["model"]
    return {key: value for key, value in state.items() if not NOT_LEARNT.search(key)}


def same(one, other, atol=0.0):
    return one.keys() == other.keys() and all(torch.allclose(one[key], other[key], rtol=0, atol=atol) for key in one)


@pytest.fixture(scope="module")
def straight(data, tmp_path_factory):
    """Figures and weights of a training that nothing interrupts."""
    folder = tmp_path_factory.mktemp("straight")
    return train(data, folder), weights(folder)


def resumes(data, folder, straight, *options):
    """Starts the same command again, and says whether it ends where it would have."""
    figures = train(data, folder, *options)
    return figures[-1]["valid_loss"] == straight[0][-1]["valid_loss"] and same(weights(folder), straight[1])


def in_a_process(function):
    """Runs `function` in a process that may die; returns the process, which has started."""

    def target():
        logging.disable(logging.CRITICAL)
        with contextlib.suppress(Exception):
            function()
        os._exit(1)

    process = multiprocessing.get_context("fork").Process(target=target)
    process.start()
    return process


def killed_by_itself(function):
    process = in_a_process(function)
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


def half(path, content):
    """What a process leaves that is killed while it writes."""
    path.write_bytes(content[: len(content) // 2])
    os.kill(os.getpid(), signal.SIGKILL)


def test_resumed_after_kill_9_anywhere_in_training(data, straight, tmp_path):
    first, last = tmp_path / "checkpoint_1_2.pt", tmp_path / "checkpoint_last.pt"

    def copied():  # the next test but one dies before this is true
        return first.exists() and last.exists() and first.stat().st_size == last.stat().st_size

    process = in_a_process(lambda: train(data, tmp_path))
    end = time.time() + 120
    while not copied() and time.time() < end:
        time.sleep(0.01)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL and last.exists()
    assert resumes(data, tmp_path, straight)


def test_killed_while_a_checkpoint_is_written(data, straight, tmp_path):
    """The file is written under another name first, so the last one stays whole."""
    save, count = torch.save, []

    def dying_save(state, file, *args, **kwargs):
        count.append(1)
        if len(count) == 3:
            half(Path(file.name), b"0123456789")
        save(state, file, *args, **kwargs)

    with mock.patch.object(torch, "save", dying_save):
        killed_by_itself(lambda: train(data, tmp_path))
    assert resumes(data, tmp_path, straight)


def test_killed_while_the_checkpoint_is_copied_to_its_other_names(data, straight, tmp_path):
    """This is what leaves a broken checkpoint_last.pt; the file that it was copied from is as new and whole."""
    copy, count = shutil.copyfile, []

    def dying_copy(source, target, *args, **kwargs):
        count.append(target)
        if len(count) > 2 and target.endswith("checkpoint_last.pt"):
            half(Path(target), Path(source).read_bytes())
        return copy(source, target, *args, **kwargs)

    with mock.patch.object(shutil, "copyfile", dying_copy):
        killed_by_itself(lambda: train(data, tmp_path))
    with pytest.raises(ValueError, match=r"checkpoint_last.pt is broken .* newest first: checkpoint_.*--restore-file"):
        train(data, tmp_path)
    newest = max(tmp_path.glob("checkpoint_*_*.pt"), key=lambda path: int(path.stem.split("_")[2]))
    assert resumes(data, tmp_path, straight, "--restore-file", newest)


def test_full_disk_stops_training_and_keeps_the_last_checkpoint(data, straight, tmp_path):
    train(data, tmp_path, epochs=1)
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    error = tmp_path / "error"

    def no_space():
        error.write_text("killed by the file system")  # so it is where torch does not turn this into an exception
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, len(before) // 2))
        try:
            with mock.patch("fairseq.checkpoint_utils.time.sleep"):
                train(data, tmp_path)
            error.write_text("")
        except Exception as raised:
            error.write_text(str(raised))

    in_a_process(no_space).join(120)
    assert any(word in error.read_text() for word in ("writ", "large", "space", "killed"))
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == before
    assert resumes(data, tmp_path, straight)


def test_a_batch_of_nan_stops_training_before_it_reaches_the_weights(data, straight, tmp_path):
    forward, count = SparseCriterion.forward, []

    def poisoned(self, model, sample, reduce=True):
        loss, size, logs = forward(self, model, sample, reduce)
        count.extend([1] if model.training else [])
        return (loss * float("nan") if len(count) >= 5 else loss), size, logs

    with mock.patch.object(SparseCriterion, "forward", poisoned), pytest.raises(FloatingPointError, match="(?i)nan"):
        train(data, tmp_path)
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path).values())
    assert resumes(data, tmp_path, straight)


def test_checkpoint_of_another_vocabulary(data, straight, tmp_path):
    commands.write_corpus(tmp_path / "other", {"train": 9, "valid": 3})
    for path in (tmp_path / "other").glob("*.src"):
        path.write_text(path.read_text().replace("e", "e f g"))
    argv = ["-s", "src", "-t", "tgt", "--trainpref", tmp_path / "other" / "train", "--workers", 1]
    commands.run("preprocess", *argv, "--validpref", tmp_path / "other" / "valid", "--destdir", tmp_path / "bin")
    train(data, tmp_path / "run", epochs=1)
    """Both dictionaries are filled up to 16 symbols, so that nothing but their symbols tells them apart."""
    other = str(tmp_path / "bin")
    with pytest.raises(ValueError, match=r"checkpoint_last.pt was trained with other dictionaries"):
        train(other, tmp_path / "run")
    with pytest.raises(ValueError, match=r"checkpoint_last.pt was trained with other dictionaries"):
        train(other, tmp_path / "new", "--finetune-from-model", tmp_path / "run" / "checkpoint_last.pt")
    with pytest.raises(ValueError, match="the checkpoint was trained with other dictionaries"):
        commands.generate(other, tmp_path / "run" / "checkpoint_last.pt", "--gen-subset", "valid")


def test_a_softmax_model_becomes_a_sparse_one(data, tmp_path):
    dense = tmp_path / "dense"
    train(data, dense, arch="transformer", criterion="cross_entropy", task="translation", epochs=2)
    options = ["--finetune-from-model", dense / "checkpoint_last.pt", "--learn-attention-alpha"]
    for criterion, alpha in (("entmax15", 1.5), ("sparsemax", 2.0)):
        folder = tmp_path / criterion
        train(data, folder, *options, "--lr", 1e-9, arch="transformer_entmax", criterion=criterion, epochs=1)
        start = weights(dense)
        state = torch.load(folder / "checkpoint_last.pt", map_location="cpu")
        assert all(torch.allclose(state["model"][key], start[key], atol=1e-6) for key in start)
        assert [key for key in state["model"] if key not in start and not NOT_LEARNT.search(key)] == [
            f"{place}.mapping.alpha.raw"
            for place in ("encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.encoder_attn")
        ]
        assert state["task_state"]["entmax_output_alpha"] == alpha
        options = ["--finetune-from-model", folder / "checkpoint_last.pt", "--learn-attention-alpha"]  # from 1.5 to 2
    assert len(commands.lines(commands.generate(data, folder / "checkpoint_last.pt"), "H")) == 3


def schedule(name, maximize, against="best"):
    """A scheduler, and its optimizer's state, as the trainer makes them."""
    settings = {"lr": [1.0], "adam_betas": "(0.9, 0.98)", "adam_eps": 1e-8, "weight_decay": 0.0, "use_old_adam": True}
    settings = OmegaConf.create({**settings, "fp16_adam_stats": False, "tpu": False})
    optimizer = FairseqAdam(settings, [torch.nn.Parameter(torch.zeros(1))])
    cfg = SimpleNamespace(lr=[1.0], lr_shrink=0.5, lr_threshold=1e-4, lr_patience=1, warmup_updates=0)
    cfg.warmup_init_lr, cfg.maximize_best_checkpoint_metric, cfg.best_checkpoint_metric = -1, maximize, "loss"
    cfg.lr_against = against
    return LR_SCHEDULER_REGISTRY[name](cfg, optimizer)


def rates(name, figures, maximize, interrupted, against="best"):
    """Rates after each epoch. The checkpoint of an epoch is saved before the schedule hears of its figure."""
    scheduler, found = schedule(name, maximize, against), []
    for epoch, figure in enumerate(figures, 1):
        scheduler.step_begin_epoch(epoch)
        scheduler.step_update(10 * epoch)
        plateau.remember({"num_updates": 10 * epoch, "loss": figure})
        if interrupted:
            state, optimizer_state = scheduler.state_dict(), scheduler.optimizer.state_dict()
            scheduler = schedule(name, maximize, against)
            scheduler.load_state_dict(state)
            scheduler.optimizer.load_state_dict(optimizer_state)
            scheduler.step_update(10 * epoch)
            scheduler.step(epoch + 1)  # as the trainer does, which is to begin the next epoch
            scheduler.step(epoch + 1)
        else:
            scheduler.step(epoch, figure)
        found.append(scheduler.optimizer.get_lr())
    return found


def test_plateau_counts_no_validation_within_an_epoch_case_53():
    scheduler = schedule("plateau", maximize=False)
    scheduler.step_begin_epoch(1)
    scheduler.step_update(5)
    plateau.remember({"num_updates": 5, "loss": 1.0})
    state = scheduler.state_dict()
    assert state["unseen"] == 1.0
    scheduler = schedule("plateau", maximize=False)
    scheduler.load_state_dict(state)
    scheduler.step(1)
    scheduler.step_update(6)
    assert scheduler.lr_scheduler.best == float("inf") and scheduler.state_dict()["unseen"] is None
    scheduler.step_begin_epoch(1)
    scheduler.step(1, None)  # no validation at the end of this epoch
    assert scheduler.state_dict()["epochs_seen"] == 1


FIGURES = [3.0, 2.0, 2.0, 2.0, 1.9, 1.9, 1.8, 2.1, 2.2, 2.3, 2.4]


@pytest.mark.parametrize("maximize", [False, True])
def test_plateau_resumes_to_the_same_rates_case_53(maximize):
    figures = [-figure for figure in FIGURES] if maximize else FIGURES
    figures = [figure + 10 for figure in figures]
    expected = [1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125]
    assert rates("plateau", figures, maximize, interrupted=False) == expected
    assert rates("plateau", figures, maximize, interrupted=True) == expected
    assert rates("reduce_lr_on_plateau", figures, maximize, interrupted=False) == expected
    assert rates("reduce_lr_on_plateau", figures, maximize, interrupted=True) != expected  # why there is ours


@pytest.mark.parametrize("maximize", [False, True])
def test_plateau_against_the_epoch_before_case_53(maximize):
    """A leap that is made up for slowly counts once, and so does each rise: patience 1 allows for one."""
    figures = [3.0, 2.0, 9.0, 8.0, 7.0, 7.1, 7.2, 7.3, 6.0]
    figures = [10 - figure for figure in figures] if maximize else figures
    expected = [1, 1, 1, 1, 1, 1, 0.5, 0.5, 0.5]
    for interrupted in (False, True):
        assert rates("plateau", figures, maximize, interrupted, against="previous") == expected
    assert rates("plateau", figures, maximize, False)[-1] == 0.125  # against the best


def test_patience_goes_on_counting_case_53(data, tmp_path, monkeypatch):
    """With a rate of 0 nothing improves, so a patience of 3 ends the training after the fourth validation."""
    from fairseq_cli import train as command

    def ends(folder, *options, parts=(9,)):
        for epochs in parts:
            for name in ("best", "num_runs"):  # as in a new process
                monkeypatch.delattr(command.should_stop_early, name, raising=False)
            settings = ["--batch-size", 16, "--lr", 0, "--patience", 3, "--no-epoch-checkpoints", *options]
            commands.train(data, folder, *settings, epochs=epochs)
        return torch.load(folder / "checkpoint_last.pt", map_location="cpu")["extra_state"]["train_iterator"]["epoch"]

    assert ends(tmp_path / "straight") == ends(tmp_path / "interrupted", parts=(2, 3, 9)) == 5  # the one to begin next
    other = ["--finetune-from-model", tmp_path / "straight" / "checkpoint_last.pt"]
    assert ends(tmp_path / "tuned", *other) == 5
    assert ends(tmp_path / "interrupted", "--reset-meters", "--reset-dataloader") == 5


def test_plateau_in_training_case_53(data, tmp_path):
    options = ["--lr-scheduler", "plateau", "--lr-patience", 1, "--lr-shrink", 0.5, "--lr-threshold", 0.9]
    found = {}
    for name, parts in (("straight", [6]), ("interrupted", [2, 3, 6])):
        for epochs in parts:
            train(data, tmp_path / name, *options, epochs=epochs)
        state = torch.load(tmp_path / name / "checkpoint_last.pt", map_location="cpu")
        found[name] = state["last_optimizer_state"]["param_groups"][0]["lr"]
    assert found["straight"] == found["interrupted"] == pytest.approx(0.01 * 0.25)
