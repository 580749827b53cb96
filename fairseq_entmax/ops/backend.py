"""Which backend computes an op: the Triton kernels where they can run, plain PyTorch elsewhere.

The kernels are proved in Triton's interpreter and compiled ahead of time, but have not run on a GPU yet: until
`benchmarks/gpu.sh` has passed on one, `auto` means PyTorch, and the kernels are asked for with `triton`.

`FAIRSEQ_ENTMAX_BACKEND` (auto, torch or triton) forces one. Where the kernels cannot run, PyTorch takes over and the
reason is logged once: at debug level, or as a warning when triton was asked for. With `TRITON_INTERPRET=1` and backend
triton the kernels run on CPU tensors, slowly, for tests.
"""

import functools
import importlib
import logging
import os

import torch

VARIABLE = "FAIRSEQ_ENTMAX_BACKEND"
CHOICES = ("auto", "torch", "triton")
RAN_ON_A_GPU = False  # set when `benchmarks/gpu.sh` has passed
DTYPES = (torch.float16, torch.bfloat16, torch.float32)

logger = logging.getLogger(__name__)
_logged = set()


def chosen_backend():
    """The value of `FAIRSEQ_ENTMAX_BACKEND`."""
    choice = os.environ.get(VARIABLE, "auto")
    if choice not in CHOICES:
        raise ValueError(f"{VARIABLE} must be one of {', '.join(CHOICES)}, got {choice!r}")
    return choice


@functools.cache
def load_kernels():
    """The module of kernels, or why there is none. Triton is imported here and nowhere else."""
    if not hasattr(torch.library, "custom_op"):
        return None, f"torch {torch.__version__} is older than 2.4"
    try:
        return importlib.import_module(".kernels", __package__), None
    except Exception as error:  # a broken triton raises anything
        return None, f"triton cannot be imported: {type(error).__name__}: {error}"


@functools.cache
def _unusable_device(device):
    if torch.version.hip is not None:
        return "the kernels are tested for CUDA only"
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        return f"compute capability {major}.{minor} is below 8.0"
    return None


def wants_kernels(choice, device):
    """Whether the kernels are to compute on `device`, if they can."""
    return choice == "triton" or (choice == "auto" and device.type != "cpu" and RAN_ON_A_GPU)


def reason_against(device, dtype, size=1, structured=False):
    """Why the kernels cannot take a matrix with rows of `size`, or None."""
    if dtype not in DTYPES:
        return f"the kernels do not compute in {str(dtype).split('.')[-1]}"
    if device.type != "cuda" and not (device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"):
        return f"the kernels do not run on {device.type} tensors"
    reason = _unusable_device(device) if device.type == "cuda" else None
    if reason is None:
        kernels, reason = load_kernels()
    if reason is None:
        longest = kernels.LONGEST_STRUCTURED if structured else kernels.LONGEST
        if size > longest:
            reason = f"rows of {size} are longer than {longest}"
    return reason


def _decide(device, dtype, size, structured):
    choice = chosen_backend()
    if not wants_kernels(choice, device):
        return False
    reason = reason_against(device, dtype, size, structured)
    if reason is not None and (choice, reason) not in _logged:
        _logged.add((choice, reason))
        level = logging.WARNING if choice == "triton" else logging.DEBUG
        logger.log(level, "fairseq_entmax uses PyTorch in place of its Triton kernels: %s", reason)
    return reason is None


# What `torch.compiler.assume_constant_result` sets: decided while tracing. Calling it would import the whole compiler.
_decide._dynamo_marked_constant = True


def use_kernels(scores, dim=-1, structured=False):
    """Whether the kernels compute `scores`, whose rows lie along `dim`; `structured` for fusedmax and oscarmax."""
    return scores.numel() > 0 and _decide(scores.device, scores.dtype, scores.shape[dim], structured)


def kernels():
    """The module of kernels; only after `use_kernels` said yes."""
    from . import kernels as module  # loaded by now; torch.compile follows this, not a cached function

    return module
