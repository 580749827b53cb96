"""Corpora and trained models that several tests share; made once a session, by the real commands."""

import commands
import pytest
import torch

torch.set_num_threads(1)

SIZES = {"train": 197, "valid": 13, "test": 30}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Binary data of a copy task with 197 training, 13 validation and 30 test pairs."""
    return commands.preprocess(tmp_path_factory.mktemp("corpus"), SIZES)


@pytest.fixture(scope="session")
def trained(corpus, tmp_path_factory):
    """A `lstm_entmax` that has learnt the copy task: path of its checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    commands.train(corpus, folder, epochs=20)
    return folder / "checkpoint_best.pt"
