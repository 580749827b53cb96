"""Learning-rate schedule `plateau`: fairseq's `reduce_lr_on_plateau`, resumed to the same rates."""

from dataclasses import dataclass, field
from typing import Any, Dict

from fairseq.dataclass import ChoiceEnum
from fairseq.optim.lr_scheduler import register_lr_scheduler
from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import (
    ReduceLROnPlateauLRSchedule,
    ReduceLROnPlateauLRScheduleConfig,
)
from omegaconf import II

_validated: Dict[str, Any] = {}  # figures of the last validation, on the first subset


def remember(stats: Dict[str, Any]) -> None:
    """Takes note of a validation: fairseq saves its checkpoint before it tells the schedule of the figures."""
    if _validated.get("num_updates") != stats["num_updates"]:
        _validated.clear()
        _validated.update(stats)


@dataclass
class PlateauConfig(ReduceLROnPlateauLRScheduleConfig):
    lr_against: ChoiceEnum(["best", "previous"]) = field(
        default="best",
        metadata={"help": "validation that an epoch has to improve on: the best so far, or that of the epoch before"},
    )
    best_checkpoint_metric: str = II("checkpoint.best_checkpoint_metric")


@register_lr_scheduler("plateau", dataclass=PlateauConfig)
class Plateau(ReduceLROnPlateauLRSchedule):
    """Shrinks the rate when validation has not improved for more than `--lr-patience` epochs.

    To improve is to be better than the best epoch, or than the one before (`--lr-against previous`, as in the code of
    Peters, Niculae and Martins, 2019, public as deep-spin/OpenNMT-entmax): a single bad epoch then shrinks the rate
    once, however many it takes to make up for it.

    An interruption makes fairseq's forget two things: for how many epochs there was no improvement, and the validation
    of the epoch whose end is in the checkpoint. This one saves both, and also goes on from what fairseq's has saved.
    """

    def __init__(self, cfg, optimizer):
        super().__init__(cfg, optimizer)
        self.num_updates = 0
        self.epoch_begun = None
        self.epochs_seen = 0  # the last epoch whose end this schedule was told of
        self.unseen = None  # a figure that the checkpoint was saved with, but that came too late for its schedule
        _validated.clear()

    def state_dict(self):
        fresh = self.num_updates > 0 and _validated.get("num_updates") == self.num_updates
        return {
            **super().state_dict(),
            "num_bad_epochs": self.lr_scheduler.num_bad_epochs,
            "epochs_seen": self.epochs_seen,
            "unseen": float(_validated[self.cfg.best_checkpoint_metric]) if fresh else None,
        }

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self.lr_scheduler.num_bad_epochs = state_dict.get("num_bad_epochs", 0)
        self.epochs_seen, self.unseen = state_dict.get("epochs_seen", 0), state_dict.get("unseen")

    def step_begin_epoch(self, epoch):
        self.epoch_begun = epoch

    def step(self, epoch, val_loss=None):
        if epoch == self.epoch_begun:
            self.epochs_seen, self.unseen = epoch, None
        elif self.unseen is not None:  # the trainer has loaded a checkpoint and is about to begin `epoch`
            if epoch - 1 > self.epochs_seen:
                self._judge(epoch - 1, self.unseen)
                self.epochs_seen = epoch - 1
            self.unseen = None
        return self._judge(epoch, val_loss)

    def _judge(self, epoch, figure):
        """What fairseq's does at the end of an epoch; `best` is what torch's schedule compares with next time."""
        rate = super().step(epoch, figure)
        if self.cfg.lr_against == "previous" and figure is not None:
            self.lr_scheduler.best = figure
        return rate

    def step_update(self, num_updates):
        self.num_updates = num_updates
        return super().step_update(num_updates)
