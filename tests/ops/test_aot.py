"""The kernels compile for two GPU architectures without a GPU, and keep their data in registers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if not hasattr(torch.library, "custom_op"):
    pytest.skip("the kernels need torch 2.4", allow_module_level=True)


@pytest.fixture(scope="module")
def compiled():
    """Records of `aot.py`, which runs without the interpreter; FAIRSEQ_ENTMAX_AOT=all compiles every tile."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    probe = subprocess.run([sys.executable, "-c", "import triton"], env=environment, capture_output=True)
    if probe.returncode:
        pytest.skip("the kernels need triton")
    command = [sys.executable, str(Path(__file__).with_name("aot.py")), os.environ.get("FAIRSEQ_ENTMAX_AOT", "some")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-4000:]
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_nothing_spills(compiled):
    assert {record["architecture"][:5] for record in compiled} == {"sm_80", "sm_90"}
    assert len({record["kernel"] for record in compiled}) == 18
    assert [record for record in compiled if record["spilled"]] == []


def test_several_programs_of_the_search_share_a_multiprocessor(compiled):
    """Reading a row at the speed of memory takes at least two programs; a multiprocessor has 65,536 registers."""
    for record in compiled:
        if record["kernel"] == "loss_long_kernel" and record["blocks"] <= 1024:
            assert record["registers"] * record["warps"] * 32 * 2 <= 65536, record
