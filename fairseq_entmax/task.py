"""Task `translation_entmax`: fairseq's `translation`, with a generator that knows zero probability."""

import json
import logging
from argparse import Namespace
from dataclasses import dataclass, field, fields
from typing import Any, Dict, List, Optional

import torch
from fairseq import utils
from fairseq.data import LanguagePairDataset, encoders
from fairseq.dataclass.configs import GenerationConfig
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask, register_task
from fairseq.tasks.translation import EVAL_BLEU_ORDER, TranslationConfig, TranslationTask

from . import plateau
from .certificate import COMPLETE, OPTIMAL
from .compat_fairseq import check_batch_buckets
from .generation_checks import check_language_model, check_numbers, refuse_unknown
from .generator import EXACT_BUDGET, EntmaxGenerator, SparseGenerator
from .output import checkpoint_output_alpha, is_sparse, output_alpha, set_output_alpha
from .records import CertificateRecorder
from .reference_scorer import ReferenceScorer
from .resume import DICTIONARIES_KEY, check_dictionaries, check_start, fingerprint, patience_state
from .scoring import edit_distance, edit_units, spelling, unit_of

logger = logging.getLogger(__name__)

_NAMED_AT_MOST = 100  # skipped pairs named in a warning


@dataclass
class TranslationEntmaxConfig(TranslationConfig):
    eval_accuracy: bool = field(
        default=False,
        metadata={
            "help": "in validation, decode and log word_accuracy (exact match of detokenised text, %%), edit_distance, "
            "and, as --eval-bleu does, the shares of complete and optimal answers (%%); uses --eval-bleu-args, "
            "--eval-bleu-detok and --eval-bleu-remove-bpe"
        },
    )
    certificate_file: Optional[str] = field(
        default=None,
        metadata={"help": "in fairseq-generate and fairseq-interactive, write one JSON record a sentence to this file"},
    )
    certificate_attention: bool = field(
        default=False, metadata={"help": "add the attention of each step to the certificate file (sparse)"}
    )
    certificate_candidates: bool = field(
        default=False, metadata={"help": "add the support of each step with its probabilities to the certificate file"}
    )
    exact_search: bool = field(
        default=False,
        metadata={"help": "after the beam, search until the best output is proved best or --exact-budget is spent"},
    )
    exact_budget: int = field(
        default=EXACT_BUDGET,
        metadata={"help": "decoder rows a sentence for --exact-search and --enumerate-mass, the beam's among them"},
    )
    enumerate_mass: float = field(
        default=0.0,
        metadata={
            "help": "instead of searching, list the most probable outputs of each sentence until they cover this "
            "probability, in (0, 1], or --exact-budget is spent; needs --unnormalized (0: off)"
        },
    )


class InferenceDataset(LanguagePairDataset):
    """Sentences typed in `fairseq-interactive`; tells the task the ids of each batch, which fairseq keeps back."""

    def __init__(self, task: "TranslationEntmaxTask", first_id: int, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.task, self.first_id = task, first_id

    def collater(self, samples, pad_to_length=None):
        batch = super().collater(samples, pad_to_length)
        if batch:
            self.task.interactive_ids = [self.first_id + i for i in batch["id"].tolist()]
        return batch


class WatchedIterator:
    """An iterator over batches that calls `at_end` when it is exhausted."""

    def __init__(self, iterator, at_end):
        self.iterator, self.at_end = iterator, at_end

    def __iter__(self):
        yield from self.iterator
        self.at_end()

    def __len__(self):
        return len(self.iterator)

    def __getattr__(self, name):
        if name in ("iterator", "at_end"):
            raise AttributeError(name)
        return getattr(self.iterator, name)


@register_task("translation_entmax", dataclass=TranslationEntmaxConfig)
class TranslationEntmaxTask(TranslationTask):
    """Translation with sparse outputs: exact zeros in validation and generation, certificates, no lost sentence.

    Models are decoded with the output alpha of their checkpoint, whatever their architecture. Dense models decode
    exactly as under `translation`.
    """

    has_sparse_generator = True

    cfg: TranslationEntmaxConfig

    def __init__(self, cfg: TranslationEntmaxConfig, src_dict, tgt_dict):
        super().__init__(cfg, src_dict, tgt_dict)
        self.recorder: Optional[CertificateRecorder] = None
        self.reference_scorer: Optional[ReferenceScorer] = None
        self.interactive_ids: Optional[List[int]] = None
        self._typed = 0  # sentences typed so far
        self._loaded_state: Optional[Dict[str, Any]] = None
        self._decodes_only = True  # no criterion was built: neither training nor validation
        self._generation_cfg = None
        self._bpe = self._tokenizer = None

    @classmethod
    def setup_task(cls, cfg: TranslationEntmaxConfig, **kwargs):
        if not cfg.data:
            raise ValueError("no data folder given: name the folder that fairseq-preprocess wrote")
        check_batch_buckets(cfg.num_batch_buckets)
        return super().setup_task(cfg, **kwargs)

    # ------------------------------------------------------------------ data: no sentence is lost

    def load_dataset(self, split, epoch=1, combine=False, **kwargs):
        try:
            super().load_dataset(split, epoch=epoch, combine=combine, **kwargs)
            empty = len(self.datasets[split]) == 0
        except ValueError as error:
            if "mmap an empty file" not in str(error):
                raise
            empty = True
        if empty:
            raise ValueError(f"subset {split} of {self.cfg.data} has no sentence")

    def get_batch_iterator(self, dataset, *args, **kwargs):
        """fairseq's, but with every batch, and the same batches after an interruption.

        Some builds of fairseq drop the last batch when its size is no multiple of --required-batch-size-multiple (8 by
        default), without a word."""
        kwargs["required_batch_size_multiple"] = 1
        epoch, known = kwargs.get("epoch", 1), self.dataset_to_epoch_iter.get(dataset)
        if not kwargs.get("update_epoch_batch_itr", False):
            kwargs["epoch"] = 1  # some builds mix the batches anew by the epoch that a process happens to begin with
        iterator = super().get_batch_iterator(dataset, *args, **kwargs)
        if iterator is not known:
            iterator.epoch = max(epoch, 1)
            dataset.set_epoch(iterator.epoch)
        if self._decodes_only and not isinstance(dataset, InferenceDataset):
            next_epoch_itr = iterator.next_epoch_itr

            def watched(*args, **kwargs):
                itr = next_epoch_itr(*args, **kwargs)
                return WatchedIterator(itr, self._end_of_set)

            iterator.next_epoch_itr = watched
        return iterator

    def filter_indices_by_size(self, indices, dataset, max_positions=None, ignore_invalid_inputs=False):
        """Leave out what is too long: counted and named where fairseq trains, an error elsewhere."""
        kept, ignored = dataset.filter_indices_by_size(indices, max_positions)
        if len(ignored) == 0:
            return kept
        limits = f"--max-source-positions and --max-target-positions allow {tuple(max_positions)}"
        if not ignore_invalid_inputs:
            raise ValueError(
                f"sentence {int(ignored[0])} is too long ({len(ignored)} such): (source, target) lengths "
                f"{dataset.size(ignored[0])}, but {limits}; shorten it, raise the limits, or pass "
                "--skip-invalid-size-inputs-valid-test"
            )
        names = ", ".join(str(int(i)) for i in sorted(ignored)[:_NAMED_AT_MOST])
        more = ", ..." if len(ignored) > _NAMED_AT_MOST else ""
        logger.warning("%d sentence(s) are too long and left out (%s): %s%s", len(ignored), limits, names, more)
        if len(kept) == 0:
            raise ValueError(f"every sentence is too long: {limits}")
        return kept

    def build_dataset_for_inference(self, src_tokens, src_lengths, constraints=None):
        generation = self._generation_cfg
        if generation is not None and getattr(generation, "score_reference", False):
            raise ValueError("--score-reference has nothing to score in fairseq-interactive: use fairseq-generate")
        if generation is not None and getattr(generation, "print_alignment", None) == "soft":
            raise ValueError("--print-alignment soft is not available in fairseq-interactive: use hard")
        first_id, self._typed = self._typed, self._typed + len(src_tokens)
        return InferenceDataset(
            self,
            first_id,
            src_tokens,
            src_lengths,
            self.source_dictionary,
            tgt_dict=self.target_dictionary,
            constraints=constraints,
        )

    # ------------------------------------------------------------------ models

    def load_state_dict(self, state_dict: Dict[str, Any]):
        check_dictionaries(state_dict, fingerprint(self.src_dict, self.tgt_dict), "the checkpoint")
        self._loaded_state = dict(state_dict)  # of this checkpoint alone: the task's own state merges them
        super().load_state_dict(state_dict)

    def state_dict(self) -> Dict[str, Any]:
        return {**super().state_dict(), **patience_state()}

    def build_criterion(self, cfg, *args, **kwargs):  # from_checkpoint is unknown to fairseq 0.12.2
        self._decodes_only = False
        self.state.merge_state_dict({DICTIONARIES_KEY: fingerprint(self.src_dict, self.tgt_dict)})
        return super().build_criterion(cfg, *args, **kwargs)

    def build_model(self, cfg, from_checkpoint=False):
        if not from_checkpoint:
            check_start(cfg, fingerprint(self.src_dict, self.tgt_dict))
        model = FairseqTask.build_model(self, cfg, from_checkpoint=from_checkpoint)
        if from_checkpoint:
            alpha = checkpoint_output_alpha(self._loaded_state, cfg)
            self._loaded_state = None
            if is_sparse(alpha):
                set_output_alpha(model, alpha)
        if self._validates_by_decoding:
            detok_args = json_option("--eval-bleu-detok-args", self.cfg.eval_bleu_detok_args)
            self.tokenizer = encoders.build_tokenizer(Namespace(tokenizer=self.cfg.eval_bleu_detok, **detok_args))
            gen_args = json_option("--eval-bleu-args", self.cfg.eval_bleu_args)
            refuse_unknown("--eval-bleu-args", gen_args, (option.name for option in fields(GenerationConfig)))
            gen_args = Namespace(**gen_args)
            self.sequence_generator = self._build_generator([model], gen_args)
        return model

    @property
    def _validates_by_decoding(self) -> bool:
        return self.cfg.eval_bleu or self.cfg.eval_accuracy

    # ------------------------------------------------------------------ generation

    def build_generator(self, models, args, seq_gen_cls=None, extra_gen_cls_kwargs=None, prefix_allowed_tokens_fn=None):
        """The generator for `fairseq-generate`, `fairseq-interactive` and Python users; it writes certificates."""
        if seq_gen_cls is not None:
            if any(is_sparse(output_alpha(m)) for m in models):
                raise ValueError(f"{seq_gen_cls.__name__} cannot decode a model with a sparse output")
            return super().build_generator(models, args, seq_gen_cls, extra_gen_cls_kwargs, prefix_allowed_tokens_fn)
        self._generation_cfg = args
        check_certificate_options(self.cfg, bool(getattr(args, "score_reference", False)))
        # Options are checked before the recorder empties the file of an earlier run.
        generator = self._build_generator(models, args, extra_gen_cls_kwargs, prefix_allowed_tokens_fn, self._record)
        parent = args._get_parent() if hasattr(args, "_get_parent") else None
        self.recorder = CertificateRecorder(
            self.source_dictionary,
            self.target_dictionary,
            self.cfg.certificate_file,
            post_process=parent.common_eval.post_process if parent is not None else None,
            detokenize=self._detokenize,
            attention=self.cfg.certificate_attention,
        )
        return generator

    def _build_generator(self, models, args, extra_gen_cls_kwargs=None, prefix_allowed_tokens_fn=None, observer=None):
        args = as_namespace(args)
        names = ("lenpen", "unkpen", "temperature", "lm_weight", "max_len_a", "sampling_topp")
        check_numbers({"--" + name.replace("_", "-"): getattr(args, name, None) for name in names})
        print_alignment = getattr(args, "print_alignment", None)
        if getattr(args, "score_reference", False):
            if print_alignment == "soft":
                raise ValueError("--print-alignment soft is not available with --score-reference: use hard")
            self.reference_scorer = ReferenceScorer(self.target_dictionary, print_alignment)
            return self.reference_scorer
        want_attention = bool(print_alignment) or (observer is not None and self.cfg.certificate_attention)
        if want_attention:
            for model in models:
                if hasattr(model.decoder, "need_attn"):  # fairseq's LSTM keeps its attention to itself otherwise
                    model.decoder.need_attn = True
        extra = dict(extra_gen_cls_kwargs or {})
        check_language_model(extra.get("lm_model"), self.target_dictionary)
        exact: Dict[str, Any] = {}
        if observer is not None:  # options of generation; validation in training must not act on them
            names = ("exact_search", "exact_budget", "enumerate_mass")
            exact = {name: getattr(self.cfg, name) for name in names}

        def make_sparse() -> SparseGenerator:
            refuse_for_sparse(args)
            return SparseGenerator(
                models,
                self.target_dictionary,
                prefix_allowed_tokens_fn=prefix_allowed_tokens_fn or getattr(args, "prefix_allowed_tokens_fn", None),
                want_attention=want_attention,
                want_candidates=observer is not None and self.cfg.certificate_candidates,
                **exact,
                **generation_options(args),
                **extra,
            )

        def make_dense():
            full_context = any(getattr(m, "full_context_alignment", False) for m in models)
            dense = args if full_context else Namespace(**{**vars(args), "print_alignment": None})
            stock = FairseqTask.build_generator(
                self, models, dense, extra_gen_cls_kwargs=extra, prefix_allowed_tokens_fn=prefix_allowed_tokens_fn
            )
            beam = getattr(args, "beam", stock.beam_size)
            if beam > stock.beam_size:
                logger.warning("--beam %d: fairseq's generator takes %d for this vocabulary", beam, stock.beam_size)
            return stock

        always_sparse = bool(exact.get("exact_search") or exact.get("enumerate_mass", 0) > 0)
        generator = EntmaxGenerator(models, make_sparse, make_dense, observer, print_alignment, always_sparse)
        if self._decodes_only:
            _ = generator.chosen  # so that an option that does not fit fails now, not at the first batch
        return generator

    def build_tokenizer(self, args):
        self._tokenizer = super().build_tokenizer(args)
        return self._tokenizer

    def build_bpe(self, args):
        self._bpe = super().build_bpe(args)
        return self._bpe

    def _detokenize(self, text: str) -> str:
        for step in (self._bpe, self._tokenizer):
            text = text if step is None else step.decode(text)
        return text

    def _record(self, sample, hypotheses) -> None:
        ids = sample.get("id")
        ids = ids.tolist() if torch.is_tensor(ids) else self.interactive_ids or list(range(len(hypotheses)))
        self.recorder.add(ids, sample["net_input"]["src_tokens"], hypotheses)

    def _end_of_set(self) -> None:
        """After the last batch of `fairseq-generate`: the summary line."""
        if self.reference_scorer is not None:
            print(f"References: {self.reference_scorer.summary()}", flush=True)
        elif self.recorder is not None and self.recorder.sentences > 0:
            print(f"Certificates: {self.recorder.summary()}", flush=True)
            self.recorder.close()

    # ------------------------------------------------------------------ validation in training

    def post_validate(self, model, stats, agg):
        plateau.remember(stats)

    def valid_step(self, sample, model, criterion):
        loss, sample_size, logging_output = FairseqTask.valid_step(self, sample, model, criterion)
        if self._validates_by_decoding:
            for member in self.sequence_generator.models:
                set_output_alpha(member, getattr(criterion, "output_alpha", 1.0))
            logging_output.update(self._decode_and_compare(sample, model))
        return loss, sample_size, logging_output

    def _decode_and_compare(self, sample, model) -> Dict[str, Any]:
        hypotheses = self.inference_step(self.sequence_generator, [model], sample, prefix_tokens=None)
        best = [h[0] for h in hypotheses]
        texts = [self._validation_text(h["tokens"], "UNKNOWNTOKENINHYP") for h in best]
        references = [
            self._validation_text(utils.strip_pad(target, self.tgt_dict.pad()), "UNKNOWNTOKENINREF")
            for target in sample["target"]
        ]
        if self.cfg.eval_bleu_print_samples:
            logger.info("example hypothesis: " + texts[0])
            logger.info("example reference: " + references[0])
        kinds = [h["certificate"].certificate for h in best]
        logs: Dict[str, Any] = {
            "_entmax_sentences": len(best),
            "_entmax_complete": kinds.count(COMPLETE),
            "_entmax_optimal": kinds.count(OPTIMAL),
        }
        if self.cfg.eval_bleu:
            logs.update(bleu_counts(texts, references, self.cfg.eval_tokenized_bleu))
        if self.cfg.eval_accuracy:
            pairs = list(zip(texts, references))
            logs["_entmax_correct"] = sum(t == r for t, r in pairs)
            # What an edit is depends on all references of the set, of which this batch is a part. Its own long symbols
            # decide that characters are counted.
            logs["_entmax_long"], logs["_entmax_several"] = spelling(references)
            for unit in ("characters", "symbols"):
                counts = pairs if unit == "characters" or not logs["_entmax_long"] else []
                edits = (edit_distance(edit_units(r, unit), edit_units(t, unit)) for t, r in counts)
                logs[f"_entmax_edits_{unit}"] = sum(edits)
        return logs

    def _validation_text(self, tokens, unk_string: str) -> str:
        text = self.tgt_dict.string(tokens.int().cpu(), self.cfg.eval_bleu_remove_bpe, unk_string=unk_string)
        return self.tokenizer.decode(text) if self.tokenizer else text

    def reduce_metrics(self, logging_outputs, criterion):
        super().reduce_metrics(logging_outputs, criterion)

        def total(key: str) -> int:
            return sum(int(log.get(key, 0)) for log in logging_outputs)

        sentences = total("_entmax_sentences")
        if sentences == 0:
            return  # training step, or nothing decoded
        figures = [("complete", "_entmax_complete", 100.0), ("optimal", "_entmax_optimal", 100.0)]
        if self.cfg.eval_accuracy:
            unit = unit_of(total("_entmax_long"), total("_entmax_several"))
            figures += [("word_accuracy", "_entmax_correct", 100.0), ("edit_distance", f"_entmax_edits_{unit}", 1.0)]
        for name, key, scale in figures:
            metrics.log_scalar(name, scale * total(key) / sentences, sentences, round=3)


def bleu_counts(texts: List[str], references: List[str], tokenized: bool) -> Dict[str, Any]:
    """Summable sacrebleu counts, under the names that fairseq's `translation` adds up."""
    import sacrebleu

    kwargs = {"tokenize": "none"} if tokenized else {}
    bleu = sacrebleu.corpus_bleu(texts, [references], **kwargs)
    logs: Dict[str, Any] = {"_bleu_sys_len": bleu.sys_len, "_bleu_ref_len": bleu.ref_len}
    for i in range(EVAL_BLEU_ORDER):
        logs[f"_bleu_counts_{i}"] = bleu.counts[i]
        logs[f"_bleu_totals_{i}"] = bleu.totals[i]
    return logs


def json_option(name: str, value: Optional[str]) -> Dict[str, Any]:
    """The dictionary in a JSON option, or an error that names the option."""
    try:
        parsed = json.loads(value or "{}")
    except json.JSONDecodeError as error:
        raise ValueError(f"{name} must be a JSON object, got {value!r} ({error})") from None
    if not isinstance(parsed, dict):
        raise ValueError(f"{name} must be a JSON object, got {value!r}")
    return parsed


def check_certificate_options(cfg, scores_references: bool) -> None:
    """Refuse options of the task that would do nothing."""
    if scores_references:
        on = {
            "--certificate-file": cfg.certificate_file is not None,
            "--exact-search": cfg.exact_search,
            "--enumerate-mass": cfg.enumerate_mass != 0,
        }
        for name in (name for name, given in on.items() if given):
            raise ValueError(f"{name} does not go with --score-reference, which searches for nothing")
    for name, on in (("attention", cfg.certificate_attention), ("candidates", cfg.certificate_candidates)):
        if on and cfg.certificate_file is None:
            raise ValueError(f"--certificate-{name} needs --certificate-file")
    if cfg.exact_budget != EXACT_BUDGET and not cfg.exact_search and cfg.enumerate_mass == 0:
        raise ValueError(f"--exact-budget {cfg.exact_budget} needs --exact-search or --enumerate-mass")


def as_namespace(args) -> Namespace:
    """Generation options as a plain Namespace, from a dataclass config, an omegaconf node or a Namespace."""
    if isinstance(args, Namespace):
        return Namespace(**vars(args))
    items = {key: args[key] for key in args} if hasattr(args, "keys") else vars(args)
    return Namespace(**items)


def generation_options(args: Namespace) -> Dict[str, Any]:
    """Options of `SparseGenerator` from fairseq's generation options."""
    return {
        "beam_size": getattr(args, "beam", 5),
        "nbest": getattr(args, "nbest", 1),
        "max_len_a": getattr(args, "max_len_a", 0),
        "max_len_b": getattr(args, "max_len_b", 200),
        "min_len": getattr(args, "min_len", 1),
        "normalize_scores": not getattr(args, "unnormalized", False),
        "len_penalty": getattr(args, "lenpen", 1),
        "unk_penalty": getattr(args, "unkpen", 0),
        "temperature": getattr(args, "temperature", 1.0),
        "no_repeat_ngram_size": getattr(args, "no_repeat_ngram_size", 0),
        "match_source_len": getattr(args, "match_source_len", False),
        "diversity_rate": getattr(args, "diversity_rate", -1.0),
        "diverse_beam_groups": getattr(args, "diverse_beam_groups", -1),
        "diverse_beam_strength": getattr(args, "diverse_beam_strength", 0.5),
        "constraints": getattr(args, "constraints", None),
        "sampling": getattr(args, "sampling", False),
        "sampling_topk": getattr(args, "sampling_topk", -1),
        "sampling_topp": getattr(args, "sampling_topp", -1.0),
        "print_alignment": getattr(args, "print_alignment", None),
    }


def refuse_for_sparse(args: Namespace) -> None:
    """Name generation options that do not go with a sparse output."""
    if getattr(args, "retain_iter_history", False):  # of models that refine their output, which have no beam
        raise ValueError("--retain-iter-history True is not available for models with a sparse output")
