"""Safe loading of fairseq checkpoints: the types that they hold are allowed by name, everything else stays refused."""

import argparse

import numpy as np
import torch

# Scalar types that arrays and numbers among the saved meters may have: booleans, integers and floats of any size.
_NUMBER_CODES = "?bBhHiIlLqQefdg"


def torch_loads_safely() -> bool:
    """True where `torch.load` refuses unknown types unless told otherwise (torch 2.6 and later)."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return (major, minor) >= (2, 6)


def allow_fairseq_checkpoints() -> None:
    """Lets `torch.load` accept the types that fairseq writes into checkpoints, for this process.

    fairseq stores an `argparse.Namespace` (settings of argparse-based models and optimizers) and, with `--eval-bleu`
    or a metric that logs numpy numbers, numpy arrays and scalars. numpy 1 and 2 name their rebuilding functions
    differently inside a file; both names are accepted, so that checkpoints move between environments. Loading stays
    restricted: a file that holds any other type is refused with the type's name, and nothing in it is run.

    Older torch has no such restriction and needs no list: it unpickles anything.
    """
    if not torch_loads_safely():
        return
    try:
        from numpy._core import multiarray
    except ImportError:  # numpy 1
        from numpy.core import multiarray
    allowed = [argparse.Namespace, np.ndarray, np.dtype]
    allowed += sorted({type(np.dtype(code)) for code in _NUMBER_CODES}, key=str)
    allowed += [
        (getattr(multiarray, function), f"{module}.multiarray.{function}")
        for function in ("_reconstruct", "scalar")
        for module in ("numpy.core", "numpy._core")
    ]
    torch.serialization.add_safe_globals(allowed)
