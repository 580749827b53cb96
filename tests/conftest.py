"""Corpora and trained models that several tests share; made once a session, by the real commands."""

import sys
import tempfile
from pathlib import Path

import commands
import pytest
import recipe_runs
import torch
import warm

from fairseq_entmax import ensemble
from fairseq_entmax.ops import support

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


@pytest.fixture(params=["all columns", "possible columns"])
def columns(request, monkeypatch):
    """Search over the whole vocabulary, and over what is possible only, as it is done where the vocabulary is large."""
    if request.param == "possible columns":
        monkeypatch.setattr(support, "LONG_ROW", 1)
        monkeypatch.setattr(support, "BLOCK", 2)
        monkeypatch.setattr(ensemble, "LISTED_SHARE", 1)


@pytest.fixture(scope="session")
def warm_environment():
    """An environment for recipes whose commands need no start; see warm.py."""
    if sys.platform != "linux":
        yield sys.prefix
        return
    with tempfile.TemporaryDirectory() as folder, warm.environment(Path(folder)) as environment:
        yield str(environment)


@pytest.fixture
def warm_recipes(warm_environment, monkeypatch):
    """Recipes run in that environment."""
    monkeypatch.setattr(recipe_runs, "environment", warm_environment)
