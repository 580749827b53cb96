"""Runs the Triton kernels in tests: on the GPU if there is one, else in Triton's interpreter on CPU tensors.

Import it before anything that imports kernels; it skips the importing module where there is no usable triton.
"""

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

pytest.importorskip("triton", reason="the kernels need triton")
if not hasattr(torch.library, "custom_op"):
    pytest.skip("the kernels need torch 2.4", allow_module_level=True)


@pytest.fixture(autouse=True)
def only_kernels(monkeypatch):
    """Forces the kernels, and fills what `torch.empty` returns with NaN, so that an output left unwritten shows."""
    monkeypatch.setenv("FAIRSEQ_ENTMAX_BACKEND", "triton")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)


def rows_of(size, dtype=torch.float32):
    """Seven rows: flat noise, noise, spread noise, all equal, a leader, ties, mostly masked."""
    generator = torch.Generator().manual_seed(size)
    scores = torch.randn(7, size, generator=generator) * torch.tensor([0.003, 1, 20, 0, 1, 1, 1])[:, None]
    scores[1, -1] = scores[1].max() + 0.2
    scores[4, -1] += 30
    scores[5, ::2] = scores[5].max()
    scores[6, : size - size // 8 - 1] = -torch.inf
    return scores.to(dtype).to(DEVICE)
