"""Which backend is chosen, and that a missing or broken triton does not show (cases 56, 59)."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fairseq_entmax.ops import backend, entmax, entmax_loss

OPS = Path(backend.__file__).parent


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """Each test decides, and logs, anew."""
    monkeypatch.setattr(backend, "_logged", set())
    backend.load_kernels.cache_clear()
    yield
    backend.load_kernels.cache_clear()


def messages(caplog):
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_unknown_choice_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("FAIRSEQ_ENTMAX_BACKEND", "cuda")
    with pytest.raises(ValueError, match="FAIRSEQ_ENTMAX_BACKEND must be one of auto, torch, triton, got 'cuda'"):
        entmax(torch.zeros(3))


@pytest.mark.parametrize("choice", ["auto", "torch"])
def test_cpu_tensors_use_torch_silently(choice, monkeypatch, caplog):
    monkeypatch.setenv("FAIRSEQ_ENTMAX_BACKEND", choice)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with caplog.at_level(logging.DEBUG):
        assert not backend.use_kernels(torch.zeros(2, 3))
    assert not messages(caplog)


def test_forced_kernels_that_cannot_run_warn_once(monkeypatch, caplog):
    monkeypatch.setenv("FAIRSEQ_ENTMAX_BACKEND", "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for _ in range(3):
        entmax(torch.zeros(2, 3))
        entmax_loss(torch.zeros(2, 3), torch.tensor([0, 1]))
    entmax(torch.zeros(2, 3, dtype=torch.float64))
    assert messages(caplog) == [
        ("WARNING", "fairseq_entmax uses PyTorch in place of its Triton kernels: " + reason)
        for reason in ("the kernels do not run on cpu tensors", "the kernels do not compute in float64")
    ]


@pytest.mark.parametrize("error", [ImportError("no module"), RuntimeError("0 active drivers"), OSError("libcuda")])
def test_a_triton_that_cannot_be_imported_case_59(error, monkeypatch, caplog):
    def fail(*_):
        raise error

    monkeypatch.setenv("FAIRSEQ_ENTMAX_BACKEND", "auto")
    monkeypatch.setattr(torch.library, "custom_op", None, raising=False)
    monkeypatch.setattr(backend, "RAN_ON_A_GPU", True)
    monkeypatch.setattr(backend, "_unusable_device", lambda device: None)
    monkeypatch.setattr(backend.importlib, "import_module", fail)
    with caplog.at_level(logging.DEBUG):
        for _ in range(2):
            assert not backend._decide(torch.device("cuda", 1), torch.float16, 100, False)
    ((level, text),) = messages(caplog)
    assert level == "DEBUG" and f"triton cannot be imported: {type(error).__name__}: {error}" in text


@pytest.mark.parametrize("ran", [False, True])
def test_kernels_that_never_ran_on_a_gpu_wait_to_be_asked_for(ran, monkeypatch):
    monkeypatch.setattr(backend, "RAN_ON_A_GPU", ran)
    monkeypatch.setattr(backend, "reason_against", lambda *args: None)
    device = torch.device("cuda", 0)
    for choice, expected in (("auto", ran), ("triton", True), ("torch", False)):
        monkeypatch.setenv("FAIRSEQ_ENTMAX_BACKEND", choice)
        assert backend._decide(device, torch.float16, 100, False) is expected


def test_old_torch_has_no_custom_ops(monkeypatch):
    monkeypatch.delattr(torch.library, "custom_op", raising=False)
    assert "older than 2.4" in backend.load_kernels()[1]


def test_only_kernel_files_import_triton_and_only_when_asked():
    for path in OPS.glob("*.py"):
        assert path.name.startswith("kernels") or "import triton" not in path.read_text(), path.name
    script = (
        "import sys, torch, fairseq_entmax.ops as ops\n"
        "ops.entmax15(torch.randn(3, 4)); ops.entmax_loss(torch.randn(3, 4), torch.tensor([1, 2, 3]))\n"
        "assert 'fairseq_entmax.ops.kernels' not in sys.modules"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("FAIRSEQ_ENTMAX_BACKEND", "TRITON_INTERPRET")}
    subprocess.run([sys.executable, "-c", script], check=True, cwd=OPS.parents[1], env=environment)
