"""Sparse sequence-to-sequence models for fairseq. Importing the package registers its names with fairseq."""

import sys
from importlib.util import find_spec

__version__ = "0.1.0"

# These commands speak even where fairseq is broken or absent, so they register nothing. While Python imports this
# package on behalf of `python -m fairseq_entmax COMMAND`, the first argument is still "-m".
_SPEAKS_WITHOUT_FAIRSEQ = ("doctor", "user-dir", "report", "mappings")


def _registers() -> bool:
    argv = getattr(sys, "argv", [])
    early = argv[:1] == ["-m"] and argv[1:2] and argv[1] in _SPEAKS_WITHOUT_FAIRSEQ
    return not early and find_spec("fairseq") is not None


if _registers():
    from . import checkpoints, compat_fairseq, output

    checkpoints.allow_fairseq_checkpoints()
    compat_fairseq.avoid_transformer_fast_path()
    output.install_generator_guard()

    from . import criterion, entailment, entailment_task, lstm, plateau, scoring, task, transformer  # noqa: F401
    from .hub import load  # noqa: F401
    from .outputs import enumerate_outputs, suggest  # noqa: F401
