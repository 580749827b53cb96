"""Task `entailment_entmax`: pairs of a premise and a hypothesis, to be given one of a few labels."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Optional

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask, register_task
from omegaconf import II, MISSING

from . import plateau
from .entailment_data import PREMISE, load_pairs
from .ops import entmax
from .records import above_zero
from .resume import DICTIONARIES_KEY, check_dictionaries, check_start, fingerprint, patience_state

_COUNTS = ("_pairs", "_right", "_attended")


@dataclass
class EntailmentTaskConfig(FairseqDataclass):
    data: str = field(
        default=MISSING,
        metadata={"help": "folder of the binary data: fairseq-preprocess with --source-lang premise --target-lang "
                          "hypothesis --joined-dictionary, and a file SUBSET.label beside each subset"},
    )  # fmt: skip
    labels: str = field(
        default="entailment,neutral,contradiction", metadata={"help": "names of the labels, separated by commas"}
    )
    train_subset: str = II("dataset.train_subset")
    predictions_file: Optional[str] = field(
        default=None,
        metadata={"help": "in fairseq-validate, write one JSON record a pair to this file: its words, its label, the "
                          "model's, the probability of each label, and the attention on the premise's words"},
    )  # fmt: skip


@register_task("entailment_entmax", dataclass=EntailmentTaskConfig)
class EntailmentTask(FairseqTask):
    """Labels pairs; any criterion for logits and targets will do, those of this package among them.

    Validation logs `accuracy` (%) and `attended`, the mean number of premise words with attention above zero.
    """

    cfg: EntailmentTaskConfig

    def __init__(self, cfg: EntailmentTaskConfig, dictionary: Dictionary):
        super().__init__(cfg)
        self.dictionary = dictionary
        self.labels = [label.strip() for label in cfg.labels.split(",")]
        if len(set(self.labels)) != len(self.labels) or "" in self.labels or len(self.labels) < 2:
            raise ValueError(f"--labels: wanted two or more different names, got {cfg.labels!r}")
        self.loads_checkpoint = False
        self._file = None

    @classmethod
    def setup_task(cls, cfg: EntailmentTaskConfig, **kwargs):
        path = Path(cfg.data) / f"dict.{PREMISE}.txt"
        if not path.is_file():
            raise ValueError(f"{path}: no such file; wanted the folder that fairseq-preprocess wrote")
        return cls(cfg, Dictionary.load(str(path)))

    # ------------------------------------------------------------------ data

    def load_dataset(self, split, combine=False, task_cfg=None, **kwargs):
        shuffle = split == self.cfg.train_subset
        self.datasets[split] = load_pairs(self.cfg.data, split, self.dictionary, self.labels, shuffle)

    def get_batch_iterator(self, dataset, *args, **kwargs):
        """fairseq's, with every batch: some builds drop the last one when its size is no multiple of 8."""
        kwargs["required_batch_size_multiple"] = 1
        return super().get_batch_iterator(dataset, *args, **kwargs)

    @property
    def source_dictionary(self):
        return self.dictionary

    @property
    def target_dictionary(self):
        """None: targets are labels, and none of them is padding."""
        return None

    def max_positions(self):
        return None

    # ------------------------------------------------------------------ model

    def load_state_dict(self, state_dict: Dict[str, Any]):
        check_dictionaries(state_dict, fingerprint(self.dictionary), "the checkpoint")
        super().load_state_dict(state_dict)

    def state_dict(self) -> Dict[str, Any]:
        return {**super().state_dict(), **patience_state()}

    def build_model(self, cfg, from_checkpoint=False):
        self.loads_checkpoint = from_checkpoint
        if not from_checkpoint:
            if self.cfg.predictions_file is not None:
                raise ValueError("--predictions-file is an option of fairseq-validate: leave it out in training")
            check_start(cfg, fingerprint(self.dictionary))
        return super().build_model(cfg, from_checkpoint=from_checkpoint)

    def build_criterion(self, cfg, *args, **kwargs):  # from_checkpoint is unknown to fairseq 0.12.2
        self.state.merge_state_dict({DICTIONARIES_KEY: fingerprint(self.dictionary)})
        return super().build_criterion(cfg, *args, **kwargs)

    # ------------------------------------------------------------------ validation

    def post_validate(self, model, stats, agg):
        plateau.remember(stats)

    def valid_step(self, sample, model, criterion):
        loss, sample_size, logging_output = super().valid_step(sample, model, criterion)
        with torch.no_grad():
            logits, extra = model(**sample["net_input"])
        logits, weights = logits.squeeze(1), extra["attn"]
        found = logits.argmax(dim=-1)
        logging_output["_pairs"] = len(found)
        logging_output["_right"] = int(found.eq(sample["target"].squeeze(1)).sum())
        logging_output["_attended"] = int(weights.gt(0).sum())
        if self.cfg.predictions_file is not None:
            probs = entmax(logits.float(), alpha=getattr(criterion, "output_alpha", 1.0))
            if probs.isnan().any():
                raise ValueError("--predictions-file: wanted probabilities of the labels, the model gives NaN")
            self._write(sample, probs, weights)
        return loss, sample_size, logging_output

    def _write(self, sample, probs, weights) -> None:
        if self._file is None:
            folder = Path(self.cfg.predictions_file).resolve().parent
            if not folder.is_dir():
                raise ValueError(f"--predictions-file {self.cfg.predictions_file}: the folder {folder} does not exist")
            self._file = open(self.cfg.predictions_file, "w", encoding="utf-8")
        pad = self.dictionary.pad()
        for i, pair in enumerate(sample["id"].tolist()):
            words = {
                side: [self.dictionary[token] for token in tokens[i].tolist() if token != pad]
                for side, tokens in sample["net_input"].items()
            }
            record = {
                "subset": sample["subset"],
                "id": pair,
                **words,
                "label": self.labels[int(sample["target"][i])],
                "predicted": self.labels[int(probs[i].argmax())],
                "probabilities": dict(zip(self.labels, (round(p, 6) for p in probs[i].tolist()))),
                "attention": above_zero(weights[i].tolist()),
            }
            self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()

    def reduce_metrics(self, logging_outputs, criterion):
        super().reduce_metrics(logging_outputs, criterion)
        pairs, right, attended = (sum(int(log.get(name, 0)) for log in logging_outputs) for name in _COUNTS)
        if pairs:  # none in training steps
            metrics.log_scalar("accuracy", 100 * right / pairs, pairs, round=3)
            metrics.log_scalar("attended", attended / pairs, pairs, round=3)
