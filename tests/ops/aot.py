"""Compiles the Triton kernels for GPUs that need not be there: `python aot.py [all]` prints one JSON record a kernel.

Run it without `TRITON_INTERPRET`. By default every kernel for alpha 1.5 at its largest tile, for two architectures, and
two kernels for the other forms of alpha; with `all`, every form at every tile that the launcher chooses.
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
from fairseq_entmax.ops import kernels_products, kernels_step  # noqa: E402
from fairseq_entmax.ops.kernels_solve import GENERAL, HALF, MIXED, ONE, STEEP  # noqa: E402

POINTERS = {
    "lengths_ptr": "*i32",
    "index_ptr": "*i32",
    "target_ptr": "*i64",
    "mask_ptr": "*i8",
    "support_ptr": "*i64",
    "correct_ptr": "*i8",
    "used_ptr": "*i8",
    "starts_ptr": "*i8",
    "order_ptr": "*i32",
}
MATRICES = ("scores_ptr", "logits_ptr", "probs_ptr", "result_ptr", "features_ptr", "weight_ptr")
# Of a decoder step all is in the dtype of the model but these.
STEP_FLOATS = ("scratch_ptr", "cell_grad_ptr")
NUMBERS = ("exponent", "gold", "share", "mask_size", "strength", "gamma")
NAMES = {HALF.value: "1.5", ONE.value: "2", GENERAL.value: "up to 2", STEEP.value: "above 2", MIXED.value: "by row"}


def signature_of(kernel, constants, matrix):
    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            of_step = kernel.fn.__module__ == kernels_step.__name__ and name not in (*STEP_FLOATS, *POINTERS)
            signature[name] = matrix if name in MATRICES or of_step else POINTERS.get(name, "*fp32")
        else:
            signature[name] = "fp32" if name in NUMBERS else "i32"
    return signature


def resources(kernel, constants, matrix, capability, warps, registers=None):
    """Registers a thread, bytes spilled and shared memory of one compiled kernel."""
    source = ASTSource(fn=kernel, signature=signature_of(kernel, constants, matrix), constexprs=constants)
    options = {"num_warps": warps, "maxnreg": registers}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
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


def jobs_of(kind, row_sizes, long_sizes):
    """Kernel, constants and warps, as the launcher passes them, for one form of alpha."""
    mapping, long, loss = launch.kernels_mapping, launch.kernels_long, launch.kernels_loss
    by_row = kind == MIXED.value
    unused = {} if by_row else {"alphas_ptr": None}
    for size in sorted({min(size, launch.in_registers(kind)) for size in row_sizes}):
        plan, loss_plan = launch.rows_plan(size, kind), launch.rows_plan(size, kind, loss=True)
        tile = {"KIND": kind, "ROWS": plan.rows, "COLUMNS": plan.columns}
        yield mapping.entmax_rows_kernel, {**tile, **unused}, plan.warps, plan.registers
        yield mapping.entmax_rows_backward_kernel, {**tile, **unused, "TO_ALPHA": by_row}, plan.warps, plan.registers
        if not by_row:
            capacity = {"CAPACITY": loss_plan.capacity}
            limits = loss_plan.warps, loss_plan.registers
            yield loss.loss_rows_kernel, {**tile, **capacity, "SMOOTH": True}, *limits
            if size <= launch.SHORT:
                yield loss.loss_rows_backward_kernel, {**tile, "SMOOTH": True}, *limits
    lists = {"KIND": kind, "CAPACITY": launch.LIST, "WIDE": launch.WIDE}
    for size in long_sizes:
        plan = launch.long_plan(size, kind)
        searched = {**lists, "BLOCKS": plan.block_tile}
        yield long.entmax_long_kernel, {**searched, **unused}, plan.warps, plan.registers
        for smooth in () if by_row else (False, True):
            plan = launch.long_plan(size, kind, smooth)
            yield loss.loss_long_kernel, {**searched, "SMOOTH": smooth}, plan.warps, plan.registers
    yield long.entmax_long_backward_kernel, {**lists, **unused, "TO_ALPHA": by_row}, 8
    if not by_row:
        yield loss.loss_long_backward_kernel, {**lists, "SMOOTH": True}, 8


def structured_jobs(sizes):
    structured = launch.kernels_structured
    for size in sizes:
        columns, warps = launch.structured_plan(size)
        yield structured.fusedmax_kernel, {"COLUMNS": columns}, warps, launch.STRUCTURED_REGISTERS
        yield structured.oscarmax_kernel, {"COLUMNS": columns}, warps, launch.STRUCTURED_REGISTERS
        yield structured.structured_backward_kernel, {"COLUMNS": columns, "SORTED": True}, warps


def layer_jobs(kind, capacities):
    products = kernels_products
    for capacity in capacities:
        constants = {"TO_FEATURES": True, "TO_WEIGHT": True, "TO_BIAS": True, "KIND": kind, "CAPACITY": capacity}
        yield (
            products.layer_gradient_kernel,
            {**constants, "CHUNK": products.CHUNK, "DIM": products.DIM},
            products.WARPS,
        )


def step_jobs(sources):
    """The kernels of a decoder step: all switches on, for alpha 1.5 and the general form."""
    step = kernels_step
    block = {"BLOCK": step.BLOCK}
    yield step.cell_kernel, {**block, "BELOW": True, "DROP": True}, step.WARPS
    yield step.cell_backward_kernel, {**block, "LAST": False, "DROP": True}, step.WARPS
    yield step.output_kernel, {**block, "DROP": True}, step.WARPS
    yield step.output_backward_kernel, {**block, "LAST": False, "DROP": True}, step.WARPS
    for source in sources:
        for kind in (step.SOFTMAX.value, HALF.value, ONE.value, GENERAL.value):
            tiles = {"COLUMNS": source, "POSITIONS": step.POSITIONS, "FEATURES": step.FEATURES, "KIND": kind}
            yield step.attention_kernel, {**tiles, "MASKED": True}, step.WARPS
            yield step.attention_backward_kernel, {**tiles, "weights_grad_ptr": None}, step.WARPS


def compile_for(capability, matrix, kernel, constants, *limits, **more):
    """Compile one kernel and print its record."""
    record = {"kernel": kernel.__name__, "warps": limits[0], **more}
    record.update((name.lower(), value) for name, value in constants.items() if value is not None)
    record.update(resources(kernel, constants, matrix, capability, *limits))
    print(json.dumps(record), flush=True)


def main(everything):
    row_sizes = [2**n for n in range(4, 14)] if everything else [launch.SHORT, launch.IN_REGISTERS]
    long_sizes = [launch.IN_REGISTERS * 2**n for n in range(1, 7)] if everything else [2**17]
    for kind, name in NAMES.items():
        whole = everything or kind == HALF.value
        for kernel, constants, *limits in jobs_of(kind, row_sizes, long_sizes):
            longest = constants.get("COLUMNS") in (None, launch.in_registers(kind))
            last = kernel.__name__ == "loss_rows_backward_kernel"  # whose largest tile is smaller
            costly = kernel.__name__ == "entmax_rows_kernel" or constants.get("SMOOTH") is False
            if not everything and not (longest and (whole or costly) or last and whole):
                continue
            if whole:
                compile_for(80, "*fp32", kernel, constants, *limits, alpha=name)
            compile_for(90, "*bf16", kernel, constants, *limits, alpha=name)
        for kernel, constants, *limits in layer_jobs(kind, [256, launch.LIST] if everything else [launch.LIST]):
            if name != "by row" and whole:
                compile_for(80, "*fp32", kernel, constants, *limits, alpha=name)
                compile_for(90, "*bf16", kernel, constants, *limits, alpha=name)
    for kernel, constants, *limits in structured_jobs([2**n for n in range(4, 11)] if everything else [1024]):
        compile_for(80, "*fp32", kernel, constants, *limits)
        compile_for(90, "*bf16", kernel, constants, *limits)
    sources = [2**n for n in range(4, 11)] if everything else [kernels_step.LONGEST_SOURCE]
    for kernel, constants, *limits in step_jobs(sources):
        if everything or constants.get("KIND") in (None, GENERAL.value):
            compile_for(80, "*fp32", kernel, constants, *limits)
            compile_for(90, "*bf16", kernel, constants, *limits)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        main("all" in sys.argv[1:])
