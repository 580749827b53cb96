"""Snags of the supported fairseq releases that reach users of this package, absorbed or refused in one line."""

from typing import Any

import numpy as np


def _never(layer: Any) -> bool:
    return False


def _ignore(layer: Any, value: Any) -> None:
    pass


def avoid_transformer_fast_path() -> bool:
    """Keeps encoder layers of fairseq 0.12.2 off torch's fused inference kernel; returns whether this fairseq has it.

    With torch 1.13 and later that path stops on every padded batch (`Mask Type should be defined`), for stock
    transformers too. Later fairseq releases dropped it. Each layer decides once, when it is built, by setting
    `can_use_fastpath`; a class-level property answers for all of them, those built elsewhere included.
    """
    from fairseq.modules.transformer_layer import TransformerEncoderLayerBase

    if "can_use_fastpath" not in TransformerEncoderLayerBase.forward.__code__.co_names:
        return False
    TransformerEncoderLayerBase.can_use_fastpath = property(_never, _ignore)
    return True


def check_batch_buckets(num_batch_buckets: int) -> None:
    """Refuses `--num-batch-buckets` where fairseq would stop in it: its code uses names that numpy 2 removed."""
    if num_batch_buckets > 0 and int(np.__version__.split(".")[0]) >= 2:
        raise ValueError(
            f"--num-batch-buckets: wanted 0, as fairseq's code for it needs numpy below 2 "
            f"(this is numpy {np.__version__}), got {num_batch_buckets}"
        )
