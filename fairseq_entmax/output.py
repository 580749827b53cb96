"""Turns decoder output into probabilities, and owns the one fact this needs: the output alpha of a model.

The criterion records alpha in the task's state, which fairseq saves with every checkpoint; whoever loads a checkpoint
asks `checkpoint_output_alpha` and tags the model with `set_output_alpha`. Alpha 1 is softmax, and leaves no key behind.
"""

import functools
import re
from argparse import Namespace
from typing import Any, Optional

import torch
from torch import Tensor

from .ops import entmax
from .ops.support import worth_searching

ALPHA_KEY = "entmax_output_alpha"  # in the task's state, present only when the output is sparse

_MADE_UP = re.compile(r"madeupword\d{4,}")


def is_sparse(alpha: Optional[float]) -> bool:
    """Whether an output alpha gives exact zeros; None (unknown) and 1 (softmax) do not."""
    return alpha is not None and alpha != 1


def normalized_probs(logits: Tensor, alpha: float, log_probs: bool) -> Tensor:
    """Probabilities over the last dimension, in float32 (float64 for float64); the log of an exact zero is -inf."""
    if logits.dtype != torch.float64:
        logits = logits.float()
    if not is_sparse(alpha):
        return torch.log_softmax(logits, dim=-1) if log_probs else torch.softmax(logits, dim=-1)
    probs = entmax(logits, alpha=alpha, dim=-1)
    return probs.log() if log_probs else probs


def _get_normalized_probs(alpha: float, net_output, log_probs: bool, sample=None) -> Tensor:
    """Stands in for a decoder's `get_normalized_probs`; the whole distribution, whether or not `sample` is given."""
    return normalized_probs(net_output[0], alpha, log_probs)


def set_output_alpha(model, alpha: float) -> None:
    """Tags an unwrapped model with its output alpha and makes `get_normalized_probs` obey it; alpha 1 undoes this.

    Works for every architecture with a decoder, because fairseq's models ask their decoder. The replacement holds no
    reference to the decoder, so that copies of the model stay independent.
    """
    alpha = float(alpha)
    if not 1 <= alpha < float("inf"):
        raise ValueError(f"output alpha: wanted a finite number >= 1, got {alpha}")
    decoder = getattr(model, "decoder", None)
    if decoder is None:
        raise ValueError(f"{type(model).__name__} has no decoder, so it cannot have a sparse output")
    refuse_adaptive_softmax(decoder)
    decoder.output_alpha = alpha
    decoder.__dict__.pop("get_normalized_probs", None)
    if is_sparse(alpha):
        decoder.get_normalized_probs = functools.partial(_get_normalized_probs, alpha)


def output_alpha(model) -> Optional[float]:
    """The output alpha a model was tagged with, or None."""
    return getattr(getattr(model, "decoder", None), "output_alpha", None)


def searchable_alpha(model, logits: Tensor) -> Optional[float]:
    """The output alpha, if listing the support of `logits` `(rows, vocab)` beats computing every probability."""
    replacement = getattr(getattr(model, "decoder", None), "__dict__", {}).get("get_normalized_probs")
    if getattr(replacement, "func", None) is not _get_normalized_probs:
        return None
    return output_alpha(model) if worth_searching(logits, output_alpha(model)) else None


def refuse_adaptive_softmax(decoder) -> None:
    """An adaptive softmax never computes the logits that a sparse output needs."""
    if getattr(decoder, "adaptive_softmax", None) is not None:
        raise ValueError(
            "--adaptive-softmax-cutoff does not go with the criterions of fairseq-entmax, which need all logits: "
            "leave the option out"
        )


def refuse_sharded_weights(model) -> None:
    """The sparse output layer needs whole weights; fairscale hands out flattened pieces of them."""
    if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(model).__mro__):
        raise ValueError(
            "--ddp-backend fully_sharded does not go with the criterions of fairseq-entmax: wanted pytorch_ddp or "
            "legacy_ddp"
        )


def made_up_symbols(dictionary) -> list[int]:
    """Indices of the symbols that only round a dictionary up to a multiple of 8; no text contains them."""
    return [i for i, symbol in enumerate(dictionary.symbols) if _MADE_UP.fullmatch(symbol)]


def forbidden_symbols(dictionary) -> list[int]:
    """Indices no output may contain: padding, beginning of sentence (unless that is its end), made-up symbols."""
    return sorted({dictionary.pad(), dictionary.bos(), *made_up_symbols(dictionary)} - {dictionary.eos()})


def record_output_alpha(task, alpha: float) -> None:
    """Notes alpha in the task's state. Softmax leaves no key: a dense member of an ensemble that is loaded after a
    sparse one must not hide it, since fairseq merges the states."""
    if is_sparse(alpha):
        task.state.merge_state_dict({ALPHA_KEY: float(alpha)})
    else:
        task.state.state_dict.pop(ALPHA_KEY, None)


def checkpoint_output_alpha(task_state: Optional[dict[str, Any]], model_cfg) -> float:
    """The output alpha of a checkpoint.

    Args:
        task_state: the state saved in this checkpoint (not a state merged from several), or None
        model_cfg: the model's settings as `task.build_model` gets them; they lead to the criterion's settings

    Returns:
        what the state says, else what the criterion's settings say, else 1
    """
    recorded = (task_state or {}).get(ALPHA_KEY)
    settings = _criterion_settings(model_cfg)
    name = _criterion_name(settings)
    criterion = _registered_criterion(name)
    alpha_from_settings = getattr(criterion, "alpha_from_settings", None)
    if recorded is None:
        return 1.0 if alpha_from_settings is None else float(alpha_from_settings(settings))
    if is_sparse(recorded) and criterion is not None and alpha_from_settings is None:
        raise ValueError(
            f"the checkpoint's task state says {ALPHA_KEY}={recorded}, but its last --criterion was {name}, which "
            "trains a softmax output; train with one of entmax15, sparsemax, entmax (alpha 1 is cross entropy)"
        )
    return float(recorded)


def _criterion_settings(model_cfg):
    """The settings of the criterion that a model was trained with, or None.

    An argparse architecture gets all options in one Namespace; a dataclass one knows its parent in the whole
    configuration."""
    if model_cfg is None or isinstance(model_cfg, Namespace):
        return model_cfg
    get_parent = getattr(model_cfg, "_get_parent", None)
    parent = get_parent() if get_parent is not None else None
    return getattr(parent, "criterion", None)


def _criterion_name(settings) -> Optional[str]:
    if settings is None or isinstance(settings, str):
        return settings
    name = getattr(settings, "_name", None) if not isinstance(settings, Namespace) else None
    return name or getattr(settings, "criterion", None)


def _registered_criterion(name: Optional[str]):
    from fairseq.criterions import CRITERION_REGISTRY

    return CRITERION_REGISTRY.get(name)


def task_has_sparse_generator(name: Optional[str]) -> bool:
    """Whether the task registered under `name` decodes with a generator that knows zero probability."""
    from fairseq.tasks import TASK_REGISTRY

    return getattr(TASK_REGISTRY.get(name), "has_sparse_generator", False)


def refuse_stock_generator(task_name: str, alpha: float) -> None:
    """Raises the error that all guards against decoding a sparse model with fairseq's own generator share."""
    raise ValueError(
        f"this model has a sparse output (alpha {alpha}), which the generator of task {task_name} would decode as a "
        "softmax: use --task translation_entmax"
    )


def install_generator_guard() -> None:
    """Wraps `build_generator` of fairseq's tasks, those that are registered later too (`__init_subclass__`).

    A task without the sparse generator (class attribute `has_sparse_generator`) may not decode or score with a model
    whose output is sparse: fairseq's own models would silently fall back to softmax. Tasks that build a generator of
    their own (`translation_lev` and others) are guarded too, those that other plugins register later among them.
    """
    from fairseq.tasks import TASK_REGISTRY, FairseqTask

    if getattr(FairseqTask.build_generator, "guards_sparse_output", False):
        return
    for task_class in [FairseqTask, *TASK_REGISTRY.values()]:
        for base in task_class.__mro__:
            _guard_generator_of(base)

    @classmethod
    def guard_subclass(cls, **kwargs):
        super(FairseqTask, cls).__init_subclass__(**kwargs)
        _guard_generator_of(cls)

    FairseqTask.__init_subclass__ = guard_subclass


def _guard_generator_of(task_class) -> None:
    build_generator = vars(task_class).get("build_generator")
    if build_generator is None or getattr(build_generator, "guards_sparse_output", False):
        return

    @functools.wraps(build_generator)
    def guarded_build_generator(self, models, *args, **kwargs):
        if not getattr(type(self), "has_sparse_generator", False):
            state = getattr(self, "state", None)
            alphas = [state.state_dict.get(ALPHA_KEY)] if state is not None else []
            alphas += [output_alpha(model) for model in models]
            for alpha in filter(is_sparse, alphas):
                refuse_stock_generator(registered_task_name(type(self)), alpha)
        return build_generator(self, models, *args, **kwargs)

    guarded_build_generator.guards_sparse_output = True
    task_class.build_generator = guarded_build_generator


def registered_task_name(task_class) -> str:
    from fairseq.tasks import TASK_REGISTRY

    names = [name for name, registered in TASK_REGISTRY.items() if registered is task_class]
    return names[0] if names else task_class.__name__


def refuse_stock_inference(model, cfg) -> None:
    """Refuses to decode a sparse output under a task whose generator would take it for a softmax."""
    name = getattr(cfg.task, "_name", None)
    alpha = output_alpha(model)
    if name is not None and is_sparse(alpha) and not task_has_sparse_generator(name):
        refuse_stock_generator(name, alpha)
