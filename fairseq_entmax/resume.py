"""The checkpoint that training is about to start from: what is wrong with it, and what fairseq leaves in it."""

import hashlib
import sys
from argparse import Namespace
from pathlib import Path
from typing import Optional

import torch

# In the task's state.
DICTIONARIES_KEY = "entmax_dictionaries"
PATIENCE_KEY = "entmax_patience"


def fingerprint(*dictionaries) -> str:
    """Stands for the symbols of dictionaries, in their order; sizes are padded to a multiple of 8 and often agree."""
    symbols = "\n\n".join("\n".join(dictionary.symbols) for dictionary in dictionaries)
    return hashlib.sha256(symbols.encode("utf-8", "surrogatepass")).hexdigest()


def check_dictionaries(state: dict, own: str, path: str) -> None:
    """Refuses a task's state that was saved with other dictionaries; older ones do not say."""
    if state.get(DICTIONARIES_KEY, own) != own:
        raise ValueError(
            f"{path} was trained with other dictionaries than those of the data folder: its symbols would be taken "
            "for others. Use the folder it was trained on, or one made with its dictionaries (--srcdict, --tgtdict)"
        )


def check_start(model_cfg, own: str) -> None:
    """Refuses to train from a checkpoint that is broken or belongs to other dictionaries; restores `--patience`.

    Args:
        model_cfg: settings of the model, which lead to those of the whole run
        own: fingerprint of the dictionaries of this run
    """
    options = _checkpoint_options(model_cfg)
    path = _start(options)
    if path is None or not path.is_file():
        return
    refuse_broken(path)
    try:
        state = torch.load(path, map_location="cpu", mmap=True)  # reads no weights
    except TypeError:  # older torch
        state = torch.load(path, map_location="cpu")
    except RuntimeError as error:
        if "mmap" in str(error):
            return  # a file of the old format
        raise
    kept = state.get("task_state") or {}
    check_dictionaries(kept, own, str(path))
    # Where fairseq goes on from the best figure so far, too.
    anew = options.reset_optimizer or options.reset_meters or str(path) == options.finetune_from_model
    if not anew:
        restore_patience(kept)


def _stopping():
    """fairseq's function behind `--patience`, which counts in its own attributes; None where nothing trains."""
    modules = (sys.modules.get(name) for name in ("fairseq_cli.train", "__main__"))
    return next((found for found in (getattr(module, "should_stop_early", None) for module in modules) if found), None)


def patience_state() -> dict:
    """For the task's state: the best validation so far and how many since then were not better."""
    stopping = _stopping()
    if getattr(stopping, "best", None) is None:
        return {}
    return {PATIENCE_KEY: (float(stopping.best), int(stopping.num_runs))}


def restore_patience(state: dict) -> None:
    """fairseq would begin to count anew."""
    stopping = _stopping()
    if stopping is not None and PATIENCE_KEY in state:
        stopping.best, stopping.num_runs = state[PATIENCE_KEY]


def refuse_broken(path: Path) -> None:
    """A file that torch writes is a zip archive, with its directory at the end: what is cut off has none."""
    with open(path, "rb") as file:
        head, size = file.read(2), path.stat().st_size
        file.seek(max(0, size - 66000))
        whole = b"PK\x05\x06" in file.read()
    if size and (whole or head != b"PK"):
        return
    others = sorted(
        (other for other in path.parent.glob("*.pt") if other != path), key=lambda other: -other.stat().st_mtime
    )
    raise ValueError(
        f"{path} is broken (cut off after {size} bytes); others there, newest first: "
        f"{', '.join(other.name for other in others) or 'none'}. Go on from one by --restore-file, or move {path.name} "
        "away to start anew"
    )


def _checkpoint_options(model_cfg):
    """The settings about checkpoints, or None."""
    if isinstance(model_cfg, Namespace):
        return model_cfg
    parent = model_cfg._get_parent() if hasattr(model_cfg, "_get_parent") else None
    return getattr(parent, "checkpoint", None)


def _start(options) -> Optional[Path]:
    """The checkpoint that fairseq will load, which need not exist."""
    restore = getattr(options, "restore_file", None)
    if not restore:
        return None
    if restore != "checkpoint_last.pt":
        return Path(restore)
    last = Path(options.save_dir) / restore
    return Path(options.finetune_from_model) if options.finetune_from_model and not last.exists() else last
