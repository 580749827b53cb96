"""Criterions `entmax15`, `sparsemax`, `entmax`: the loss per token, with padding, reduction and logging for fairseq."""

from dataclasses import dataclass, field

import torch
from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from omegaconf import II
from omegaconf.errors import OmegaConfBaseException

from . import output
from .attention import attention_alpha
from .ops import token_entmax_loss
from .output_layer import token_loss_in_forward

# Options with which a task decodes while it validates.
_VALIDATION_DECODES = ("eval_bleu", "eval_accuracy", "eval_wer", "eval_inference")


@dataclass
class SparseCriterionConfig(FairseqDataclass):
    label_smoothing: float = field(
        default=0.0,
        metadata={"help": "share of the target's mass that is spread over the vocabulary, in [0, 1); 0 is none"},
    )
    sentence_avg: bool = II("optimization.sentence_avg")


@dataclass
class Entmax15Config(SparseCriterionConfig):
    pass


@dataclass
class SparsemaxConfig(SparseCriterionConfig):
    pass


@dataclass
class EntmaxConfig(SparseCriterionConfig):
    entmax_alpha: float = field(
        default=1.5,
        metadata={"help": "alpha of the output mapping and its loss, at least 1: 1 is softmax and cross entropy, "
                          "2 is sparsemax; the larger, the sparser"},
    )  # fmt: skip


class SparseCriterion(FairseqCriterion):
    """Fenchel-Young loss of alpha-entmax, whose gradient is the sparse output minus the target.

    The loss is in nats per token and is no log-likelihood: it is 0 as soon as the target has all probability, and
    stays finite where the target has none. So there is no perplexity; `gold_outside` counts such targets instead.
    """

    def __init__(self, task, alpha, label_smoothing=0.0, sentence_avg=False):
        super().__init__(task)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"--label-smoothing: wanted a number in [0, 1), got {label_smoothing}")
        self.output_alpha = float(alpha)
        self.label_smoothing = label_smoothing
        self.sentence_avg = sentence_avg
        self.register_buffer("smoothing_mask", self._smoothing_mask(task.target_dictionary), persistent=False)

    @staticmethod
    def alpha_from_settings(cfg) -> float:
        """The output alpha that the settings of a run ask for; `output` finds it by this name."""
        raise NotImplementedError

    @classmethod
    def build_criterion(cls, cfg, task):
        criterion = cls(
            task,
            alpha=cls.alpha_from_settings(cfg),
            label_smoothing=getattr(cfg, "label_smoothing", 0.0),
            sentence_avg=_sentence_avg(cfg),
        )
        criterion.refuse_stock_validation(task)
        output.record_output_alpha(task, criterion.output_alpha)
        return criterion

    def refuse_stock_validation(self, task):
        """Stops a run now whose first validation would decode with fairseq's own generator."""
        options = getattr(task, "cfg", None) or getattr(task, "args", None)
        decodes = any(getattr(options, name, False) for name in _VALIDATION_DECODES)
        if decodes and output.is_sparse(self.output_alpha) and not getattr(type(task), "has_sparse_generator", False):
            output.refuse_stock_generator(output.registered_task_name(type(task)), self.output_alpha)

    def forward(self, model, sample, reduce=True):
        """Computes the loss of a batch.

        Returns:
            tuple:
                - the summed loss, or the loss of each target position `(batch * tgt_len,)` without `reduce`
                - the sample size, by which the trainer divides the gradient
                - logging outputs, which can be summed across workers
        """
        output.refuse_adaptive_softmax(getattr(model, "decoder", None))
        output.refuse_sharded_weights(model)
        tokens, target = self._token_loss(model, sample, reduce)
        loss = tokens.loss.sum() if reduce else tokens.loss.reshape(-1)
        kept = target.ne(self.padding_idx)
        sample_size = target.size(0) if self.sentence_avg else sample["ntokens"]
        logging_output = {
            "loss": loss.detach().sum(),
            "ntokens": sample["ntokens"],
            "nsentences": target.size(0),
            "sample_size": sample_size,
            "kept": kept.sum(),
            "correct": tokens.correct.sum(),
            "support": tokens.support.sum(),
            "gold_outside": (tokens.target_prob.eq(0) & kept).sum(),
        }
        alpha = attention_alpha(model)
        if alpha is not None:
            logging_output.update(attention_alpha=alpha, alphas=1)
        return loss, sample_size, logging_output

    def _token_loss(self, model, sample, summed):
        """`TokenLoss`, whose loss may be summed already, and the targets."""
        options = {
            "alpha": self.output_alpha,
            "ignore_index": self.padding_idx,
            "label_smoothing": self.label_smoothing,
            "smoothing_mask": self.smoothing_mask if self.label_smoothing else None,
        }
        target = model.get_targets(sample, None)
        tokens = token_loss_in_forward(model, sample["net_input"], target, summed=summed, **options)
        if tokens is None:
            net_output = model(**sample["net_input"])
            target = model.get_targets(sample, net_output)
            tokens = token_entmax_loss(net_output[0], target, **options)
        return tokens, target

    @classmethod
    def reduce_metrics(cls, logging_outputs) -> None:
        """Logs averages over target tokens. A batch without any has no weight, but its names exist."""

        def total(name):
            return utils.item(sum(log.get(name, 0) for log in logging_outputs))

        kept = total("kept")
        for name, key, scale, digits in (
            ("loss", "loss", 1, 4),
            ("token_accuracy", "correct", 100, 3),
            ("support", "support", 1, 3),
            ("gold_outside", "gold_outside", 100, 3),
        ):
            metrics.log_scalar(name, scale * total(key) / max(kept, 1), kept, round=digits)
        alphas = total("alphas")
        if alphas:
            metrics.log_scalar("attention_alpha", total("attention_alpha") / alphas, alphas, round=4)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True

    @staticmethod
    def _smoothing_mask(dictionary):
        """`(vocab,)`, True where a symbol shares in the smoothing mass: all that outputs may contain."""
        if dictionary is None:
            return None
        mask = torch.ones(len(dictionary), dtype=torch.bool)
        mask[output.forbidden_symbols(dictionary)] = False
        return mask


@register_criterion("entmax15", dataclass=Entmax15Config)
class Entmax15Criterion(SparseCriterion):
    """The loss of 1.5-entmax."""

    @staticmethod
    def alpha_from_settings(cfg) -> float:
        return 1.5


@register_criterion("sparsemax", dataclass=SparsemaxConfig)
class SparsemaxCriterion(SparseCriterion):
    """The loss of sparsemax, which is 2-entmax."""

    @staticmethod
    def alpha_from_settings(cfg) -> float:
        return 2.0


@register_criterion("entmax", dataclass=EntmaxConfig)
class EntmaxCriterion(SparseCriterion):
    """The loss of alpha-entmax for any alpha >= 1; alpha 1 is cross entropy."""

    @staticmethod
    def alpha_from_settings(cfg) -> float:
        alpha = float(getattr(cfg, "entmax_alpha", 1.5))
        if not 1 <= alpha < float("inf"):
            raise ValueError(f"--entmax-alpha: wanted a finite number >= 1, got {alpha}")
        return alpha


def _sentence_avg(cfg) -> bool:
    """The setting, or False where it still refers to a configuration that is not there (settings made by hand)."""
    try:
        value = getattr(cfg, "sentence_avg", False)
    except OmegaConfBaseException:
        return False
    return value if isinstance(value, bool) else False
