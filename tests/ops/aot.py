"""Compiles the Triton kernels for GPUs that need not be there: `python aot.py [all]` prints one JSON record a kernel.

Run it without `TRITON_INTERPRET`. By default the largest tile of every kernel and form, for two architectures; with
`all`, every tile that the launcher can choose.
"""

import json
import os
import re
import subprocess
import sys
import tempfile

# The ops need no fairseq: the package itself, which registers models with it, is not imported.
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if "fairseq_entmax" not in sys.modules:
    package = types.ModuleType("fairseq_entmax")
    package.__path__ = [str(ROOT / "fairseq_entmax")]
    sys.modules["fairseq_entmax"] = package

import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.backends.nvidia.compiler import get_ptxas  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from fairseq_entmax.ops import kernels_launch as launch  # noqa: E402
from fairseq_entmax.ops.kernels_solve import GENERAL, HALF, MIXED, ONE, STEEP  # noqa: E402

POINTERS = {
    "lengths_ptr": "*i32",
    "index_ptr": "*i32",
    "target_ptr": "*i64",
    "mask_ptr": "*i8",
    "support_ptr": "*i64",
    "correct_ptr": "*i8",
}
MATRICES = ("scores_ptr", "logits_ptr", "probs_ptr", "result_ptr")
NUMBERS = ("exponent", "gold", "share", "mask_size")
NAMES = {HALF.value: "1.5", ONE.value: "2", GENERAL.value: "up to 2", STEEP.value: "above 2", MIXED.value: "by row"}


def signature_of(kernel, constants, matrix):
    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            signature[name] = matrix if name in MATRICES else POINTERS.get(name, "*fp32")
        else:
            signature[name] = "fp32" if name in NUMBERS else "i32"
    return signature


def resources(kernel, constants, matrix, capability, warps):
    """Registers a thread, bytes spilled and shared memory of one compiled kernel."""
    source = ASTSource(fn=kernel, signature=signature_of(kernel, constants, matrix), constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
    ptx = compiled.asm["ptx"]
    architecture = re.search(r"\.target\s+(sm_\w+)", ptx).group(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        command = [get_ptxas(capability).path, "-v", f"--gpu-name={architecture}", str(path), "-o", str(path) + ".o"]
        log = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill", log))
    registers = int(re.search(r"Used (\d+) registers", log).group(1))
    return {
        "architecture": architecture,
        "registers": registers,
        "spilled": spilled,
        "shared": compiled.metadata.shared,
    }


def jobs(everything):
    """Kernel, constants and warps, as the launcher passes them."""
    mapping, long, loss = launch.kernels_mapping, launch.kernels_long, launch.kernels_loss
    long_sizes = (9000, 18000, 32768, 128000, launch.LONGEST) if everything else (launch.LONGEST,)
    row_sizes = [2**n for n in range(4, 14)] if everything else [32, launch.SHORT, launch.IN_REGISTERS]
    for kind in NAMES:
        unused = {} if kind == MIXED.value else {"alphas_ptr": None}
        for size in row_sizes:
            plan = launch.rows_plan(size, kind)
            tile = {"KIND": kind, "ROWS": plan.rows, "COLUMNS": plan.columns}
            if everything or size == launch.IN_REGISTERS or kind == HALF.value:
                yield mapping.entmax_rows_kernel, {**tile, **unused}, plan.warps
                backward = {**tile, **unused, "TO_ALPHA": kind == MIXED.value}
                yield mapping.entmax_rows_backward_kernel, backward, plan.warps
                if kind == MIXED.value:
                    continue
                yield loss.loss_rows_kernel, {**tile, "SMOOTH": True, "CAPACITY": plan.capacity}, plan.warps
                if size <= launch.SHORT:
                    yield loss.loss_rows_backward_kernel, {**tile, "SMOOTH": True}, plan.warps
        shared = {"KIND": kind, "CAPACITY": launch.LIST, "WIDE": launch.WIDE}
        for size in long_sizes:
            plan = launch.long_plan(size)
            searched = {**shared, "BLOCKS": plan.block_tile}
            yield long.entmax_long_kernel, {**searched, **unused}, plan.warps
            if kind != MIXED.value:
                yield loss.loss_long_kernel, {**searched, "SMOOTH": False}, plan.warps
                if everything:
                    yield loss.loss_long_kernel, {**searched, "SMOOTH": True}, plan.warps
        yield long.entmax_long_backward_kernel, {**shared, **unused, "TO_ALPHA": kind == MIXED.value}, 8
        if kind != MIXED.value:
            yield loss.loss_long_backward_kernel, {**shared, "SMOOTH": True}, 8


def main(everything):
    for kernel, constants, warps in jobs(everything):
        exact = constants["KIND"] in (HALF.value, ONE.value)
        for capability in (80, 90) if everything or exact else (90,):
            record = {"kernel": kernel.__name__, "alpha": NAMES[constants["KIND"]], "warps": warps}
            record.update((name.lower(), value) for name, value in constants.items() if name != "alphas_ptr")
            record.update(resources(kernel, constants, "*fp32" if capability == 80 else "*bf16", capability, warps))
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        main("all" in sys.argv[1:])
