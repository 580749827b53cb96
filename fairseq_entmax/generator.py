"""Generators as fairseq expects them: a batch in, for each sentence a list of hypotheses out.

`EntmaxGenerator` looks at the output alpha of the models when it is called: a dense ensemble goes to fairseq's own
generator unchanged, anything else to the search of this package.
"""

import math
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from .beam import BeamSearch, SamplingSearch
from .certificate import BEAM, BUDGET, NONE, Certificate, Objective, certify
from .constraints import KINDS, read_constraints
from .diverse import DiverseBeamSearch
from .ensemble import Ensemble, align
from .exact_search import enumerate_mass, listing_ended, prove, select_sentences
from .generation_checks import (
    DIVERSE_STRENGTH,
    check_diversity_rate,
    check_exact,
    check_groups,
    check_numbers,
    check_options,
)
from .hypotheses import Hypothesis, complete_prefix, read_hypotheses
from .output import forbidden_symbols, is_sparse, output_alpha
from .search import SAMPLING, ZERO_PREFIX, Search
from .search_state import SearchOptions, Sentence
from .stock import StockGenerator

EXACT_BUDGET = 2000  # decoder rows a sentence


class SparseGenerator:
    """Generates outputs and certificates for an ensemble in which at least one member has a sparse output.

    A hypothesis of probability zero does not exist: it takes no place in the beam, costs no decoder row and is never
    returned. Every output that ends is kept, so the beam holds only prefixes that go on; the search of a sentence ends
    when nothing live is left, when nothing live can enter the `nbest` best (`bounding`), or, with length normalisation,
    when enough outputs are finished and no live prefix can enter the `nbest` best by ending at the next step.

    Hypotheses have fairseq's keys: `tokens`, `score`, `attention` `(src_len, tgt_len)` without padding, `alignment`,
    `positional_scores`. Further keys: `logprob` (true log probability), `support` (its size at each step), `truncated`
    (no output was reachable within the limits: score -inf, and the only hypothesis), `steps`, `certificate`, and
    `candidates` (the support with its probabilities, step by step) when `want_candidates`.

    Args:
        models: the ensemble.
        tgt_dict: target dictionary.
        beam_size: most live prefixes a sentence; may exceed the vocabulary.
        max_len_a, max_len_b: an output has at most ``a * src_len + b`` tokens; `src_len` is the sentence's own.
        max_len: most tokens of any output (0: what the models allow).
        min_len: fewest tokens before end of sentence.
        normalize_scores, len_penalty: rank by ``logprob / length ** len_penalty``, or by log probability.
        unk_penalty: subtracted from the log score of the unknown word.
        temperature: divides the logits, before the mapping to probabilities.
        no_repeat_ngram_size: forbid repeated n-grams of this size (0: allow).
        eos: end of sentence (default: the dictionary's).
        symbols_to_strip_from_output: left out when outputs are printed.
        lm_model, lm_weight: language model fused into the scores.
        match_source_len: outputs have as many tokens as their sources, ends of sentence not counted.
        diversity_rate: log score taken off for each place of a token among the continuations of its prefix (-1: off).
        diverse_beam_groups, diverse_beam_strength: split the beam into groups that avoid each other's tokens, for each
            of which this log score is taken off (off when not positive).
        constraints: None, "ordered" or "unordered": `generate` gets phrases that outputs must contain.
        nbest: outputs wanted; they may exceed the beam.
        bounding: drop prefixes that cannot enter the `nbest` best; without it, every string that fits is listed.
        sampling, sampling_topk, sampling_topp: draw `beam_size` outputs instead of searching.
        prefix_allowed_tokens_fn: fairseq's ``fn(sentence id, tokens) -> allowed tokens``.
        print_alignment: None, "hard" or "soft".
        want_attention, want_candidates: what to record beyond the hypotheses.
        exact_search: go on after the beam until the answer is proved, or the budget is spent.
        exact_budget: decoder rows a sentence, for exact search and enumeration.
        enumerate_mass: list the most probable outputs until they cover this mass, instead of searching (0: search).
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        tgt_dict,
        beam_size: int = 5,
        max_len_a: float = 0,
        max_len_b: int = 200,
        max_len: int = 0,
        min_len: int = 1,
        normalize_scores: bool = True,
        len_penalty: float = 1.0,
        unk_penalty: float = 0.0,
        temperature: float = 1.0,
        no_repeat_ngram_size: int = 0,
        eos: Optional[int] = None,
        symbols_to_strip_from_output: Optional[set] = None,
        lm_model: Optional[nn.Module] = None,
        lm_weight: float = 1.0,
        match_source_len: bool = False,
        diversity_rate: float = 0.0,
        diverse_beam_groups: int = -1,
        diverse_beam_strength: float = DIVERSE_STRENGTH,
        constraints: Optional[str] = None,
        nbest: int = 1,
        bounding: bool = True,
        sampling: bool = False,
        sampling_topk: int = -1,
        sampling_topp: float = -1.0,
        prefix_allowed_tokens_fn: Optional[Callable[[int, Tensor], List[int]]] = None,
        print_alignment: Optional[str] = None,
        want_attention: bool = False,
        want_candidates: bool = False,
        exact_search: bool = False,
        exact_budget: int = EXACT_BUDGET,
        enumerate_mass: float = 0.0,
    ):
        check_numbers(
            {
                "--unkpen": unk_penalty,
                "--lm-weight": lm_weight,
                "--max-len-a": max_len_a,
                "--max-len-b": max_len_b,
                "--sampling-topp": sampling_topp,
            }
        )
        check_options(beam_size, nbest, min_len, temperature, len_penalty, sampling, sampling_topk, sampling_topp)
        check_exact(exact_search, exact_budget, enumerate_mass, sampling, normalize_scores and len_penalty != 0)
        self.exact_search, self.exact_budget, self.enumerate_mass = exact_search, exact_budget, enumerate_mass
        diversity_rate = check_diversity_rate(diversity_rate)
        if print_alignment not in (None, "hard", "soft"):
            raise ValueError(f"--print-alignment must be hard or soft, got {print_alignment}")
        if constraints is not None and constraints not in KINDS:
            raise ValueError(f"--constraints must be one of {', '.join(KINDS)}, got {constraints}")
        if constraints is not None and sampling:
            raise ValueError("--constraints does not go with --sampling")
        self.constraints = constraints
        others = {
            "--sampling": sampling,
            f"--diversity-rate {diversity_rate:g}": diversity_rate > 0,
            "--exact-search": exact_search,
            f"--enumerate-mass {enumerate_mass:g}": enumerate_mass > 0,
        }
        check_groups(diverse_beam_groups, diverse_beam_strength, beam_size, others)
        self.diverse = {"groups": diverse_beam_groups, "strength": diverse_beam_strength}
        self.ensemble = Ensemble(models, tgt_dict.pad())
        self.tgt_dict = tgt_dict
        self.eos = tgt_dict.eos() if eos is None else eos
        self.symbols_to_strip_from_output = (symbols_to_strip_from_output or set()) | {self.eos}
        self.print_alignment = print_alignment
        self.sampling, self.sampling_topk, self.sampling_topp = sampling, sampling_topk, sampling_topp
        if lm_model is not None:
            lm_model.eval()
        self.options = SearchOptions(
            objective=Objective(normalize_scores, len_penalty, min_len),
            eos=self.eos,
            pad=tgt_dict.pad(),
            unk=tgt_dict.unk(),
            forbidden=[i for i in forbidden_symbols(tgt_dict) if i != self.eos],
            beam_size=beam_size,
            nbest=sys.maxsize if enumerate_mass > 0 else nbest,
            bounding=bounding,
            max_len_a=max_len_a,
            max_len_b=max_len_b,
            max_len=max_len or self.ensemble.max_decoder_positions(),
            match_source_len=match_source_len,
            unk_penalty=unk_penalty,
            temperature=temperature,
            no_repeat_ngram_size=no_repeat_ngram_size,
            lm_model=lm_model,
            lm_weight=lm_weight,
            diversity_rate=diversity_rate,
            prefix_allowed_tokens_fn=prefix_allowed_tokens_fn,
            want_attention=want_attention or bool(print_alignment),
            want_candidates=want_candidates,
        )

    @torch.no_grad()
    def generate(
        self,
        models: Optional[Sequence[nn.Module]],
        sample: Dict[str, Any],
        prefix_tokens: Optional[Tensor] = None,
        constraints: Optional[Tensor] = None,
        bos_token: Optional[int] = None,
    ) -> List[List[Hypothesis]]:
        """Decode a batch.

        Args:
            models: ignored, as in fairseq: the models of the constructor decode.
            sample: fairseq batch with ``net_input``.
            prefix_tokens: `(batch, length)`, forced first tokens, padded.
            constraints: `(batch, length)`, phrases that the outputs must contain, as fairseq packs them.
            bos_token: first decoder input (default: end of sentence, as in fairseq).

        Returns:
            For each sentence its hypotheses, best first; never an empty list.
        """
        phrases = read_constraints(constraints, self.constraints, len(sample["net_input"]["src_tokens"]))
        if phrases is not None:
            sample = {**sample, "phrases": phrases}
        bos = self.eos if bos_token is None else bos_token
        inputs = (self.ensemble.eval(), self.options, sample, prefix_tokens, bos)
        if self.enumerate_mass > 0:
            sentences = enumerate_mass(inputs, self.enumerate_mass, self.exact_budget)
        elif self.sampling:
            sentences = SamplingSearch(*inputs, topk=self.sampling_topk, topp=self.sampling_topp).run()
        elif self.diverse["groups"] > 0:
            sentences = DiverseBeamSearch(*inputs, **self.diverse).run()
        else:
            search = BeamSearch(*inputs)
            sentences = search.run()
            if self.exact_search:
                sentences = self._prove(search, inputs)
        src_tokens = sample["net_input"]["src_tokens"]
        sources = [source[source.ne(self.options.pad)] for source in src_tokens]
        found = [sentence.finished or [sentence.unreachable] for sentence in sentences]
        results = read_hypotheses(found, sources, self.eos)
        for i, (sentence, hypotheses) in enumerate(zip(sentences, results)):
            if sentence.void == ZERO_PREFIX:
                complete_prefix(hypotheses[0], prefix_tokens[i], self.options.pad, self.eos)
            certificate = self._certificate(sentence, hypotheses)
            for hypothesis in hypotheses:
                hypothesis["certificate"] = certificate
                hypothesis["alignment"] = torch.empty(0)
                if self.print_alignment:
                    parts = (hypothesis["attention"], sources[i], hypothesis["tokens"])
                    hypothesis["alignment"] = align(self.print_alignment, *parts, self.options.pad, self.eos)
        return results

    def _prove(self, beam: Search, inputs: tuple) -> List[Sentence]:
        """Go on with the sentences whose answer the beam did not prove; what it found stays where nothing is better."""
        ensemble, options, sample, prefix_tokens, bos = inputs
        sentences = list(beam.sentences)
        pending = [
            i
            for i, s in enumerate(sentences)
            if not self._void(s) and self._certificate(s, []).certificate == NONE
            if s.finished or s.ledger.any_dropped  # else all was looked at, and there is no output
            if s.decoder_rows < self.exact_budget
        ]
        if not pending:
            return sentences
        prefix = None if prefix_tokens is None else prefix_tokens[pending]
        part = (ensemble, options, select_sentences(sample, pending), prefix, bos)
        for i, proved in zip(pending, prove(part, beam, pending, self.exact_budget)):
            proved.merge(sentences[i], beam.keep)
            sentences[i] = proved
        return sentences

    def _void(self, sentence: Sentence) -> Optional[str]:
        """What rules out any proof."""
        for name, value in self._modifiers:
            if value < 0:
                return sentence.void or f"modified scores ({name} {value:g})"
        return sentence.void

    def _certificate(self, sentence: Sentence, hypotheses: List[Hypothesis]) -> Certificate:
        options, void = self.options, self._void(sentence)
        notes = [f"for scores modified by {name} {value:g}" for name, value in self._modifiers if value > 0]
        strings = sentence.strings
        if void == SAMPLING:
            distinct = {tuple(h["tokens"].tolist()): h["logprob"] for h in hypotheses if not h["truncated"]}
            sentence.ledger.finished = sum(math.exp(x - sentence.prefix_logprob) for x in distinct.values())
            strings = len(distinct)
        if self.enumerate_mass > 0 and sentence.finished:
            notes += listing_ended(sentence)
        best = sentence.finished[0] if sentence.finished else None
        score, low = (best.score, best.low) if best else (-math.inf, -math.inf)
        rows, limit = sentence.decoder_rows, BUDGET if self.exact_search or self.enumerate_mass > 0 else BEAM
        limits = options.objective.limits_of_bounds(options.match_source_len)
        return certify(sentence.ledger, options.objective, score, low, strings, rows, void, notes, limit, limits)

    @property
    def _modifiers(self) -> List[Tuple[str, float]]:
        """Options that change scores, with their values (0: none)."""
        options = self.options
        lm_weight = options.lm_weight if options.lm_model is not None else 0.0
        return [
            ("--unkpen", options.unk_penalty),
            ("--diversity-rate", options.diversity_rate),
            ("--lm-weight", lm_weight),
        ]


class EntmaxGenerator:
    """Asks the models for their output alpha when it is called, then lets the right generator decode.

    The alpha is not known earlier: in training, the task builds its generator before the criterion exists.

    Args:
        models: the ensemble, as fairseq gives it to ``build_generator``.
        make_sparse: builds the `SparseGenerator`.
        make_dense: builds fairseq's own generator.
        observer: called with the sample and the hypotheses of each batch.
        print_alignment: None, "hard" or "soft".
        always_sparse: use `SparseGenerator` for dense models too (exact search and enumeration).
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        make_sparse: Callable[[], SparseGenerator],
        make_dense: Callable[[], Any],
        observer: Optional[Callable[[Dict[str, Any], List[List[Hypothesis]]], None]] = None,
        print_alignment: Optional[str] = None,
        always_sparse: bool = False,
    ):
        self.always_sparse = always_sparse
        self.models, self.observer = list(models), observer
        self._make = {True: make_sparse, False: lambda: StockGenerator(self.models, make_dense(), print_alignment)}
        self._made: Dict[bool, Any] = {}

    @property
    def chosen(self):
        """The generator for the models as they are tagged now."""
        sparse = self.always_sparse or any(is_sparse(output_alpha(model)) for model in self.models)
        if sparse not in self._made:
            self._made[sparse] = self._make[sparse]()
        return self._made[sparse]

    def generate(self, models, sample: Dict[str, Any], **kwargs) -> List[List[Hypothesis]]:
        """Decode a batch; see `SparseGenerator.generate`."""
        hypotheses = self.chosen.generate(models, sample, **kwargs)
        if self.observer is not None:
            self.observer(sample, hypotheses)
        return hypotheses

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.chosen, name)
