"""fairseq's own generator for dense ensembles, watched from outside so that its answers get certificates too.

Tokens and scores are fairseq's, untouched. The bounds of `certificate` do not need sparsity: they need the score of
everything the beam dropped, and that passes through the search object, which is observed here.
"""

import math
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from fairseq.modules import MultiheadAttention
from fairseq.search import BeamSearch
from torch import Tensor, nn

from .certificate import LENGTH_LIMIT, Ledger, Objective, certify
from .ensemble import Ensemble, align, rounding_error, source_columns

# What a certificate says of fairseq's other searches, which are not watched.
UNWATCHED = {
    "Sampling": "sampling",
    "DiverseBeamSearch": "not watched (--diverse-beam-groups)",
    "DiverseSiblingsSearch": "not watched (--diversity-rate)",
    "LengthConstrainedBeamSearch": "not watched (--match-source-len)",
    "LexicallyConstrainedBeamSearch": "not watched (--constraints)",
    "PrefixConstrainedBeamSearch": "not watched (allowed tokens)",
}
# Searches whose scores are the models' own log probabilities.
TRUE_SCORES = ("BeamSearch", "Sampling", "LexicallyConstrainedBeamSearch", "PrefixConstrainedBeamSearch")


class ObservedBeamSearch(BeamSearch):
    """fairseq's beam search; keeps, for each sentence, the highest upper bound of everything that is dropped.

    Dropped at a step are: candidates that are not returned (each scores at most the last that is), returned ones that
    do not end and rank behind the `beam` that go on, returned ones that end but rank behind the first `beam` (fairseq
    ignores them), and, at a sentence's last step, everything that goes on. An output that ends in time but finds the
    list of finished ones full needs no bound: fairseq takes the outputs of a step in order, so a better one of the same
    length was taken.
    """

    def __init__(self, tgt_dict, eos: int):
        super().__init__(tgt_dict)
        self.stop_on_eos = eos
        self.start(Objective(), 0)

    def start(self, objective: Objective, max_len: int, dtype=torch.float32, temperature: float = 1.0) -> None:
        """Forget the last batch.

        Args:
            max_len: its length limit.
            dtype: what the models compute in.
            temperature: what their logits are divided by.
        """
        self.objective, self.limit, self.dtype, self.scale = objective, max_len, dtype, 1 / min(temperature, 1.0)
        self.token_error = 0.0  # of a log probability, the largest so far
        self.ledgers: Dict[int, Ledger] = {}
        self.live_bound: Dict[int, float] = {}
        self.rows: Dict[int, int] = {}

    def step(self, step, lprobs, scores, prev_output_tokens=None, original_batch_idxs=None, **kwargs):
        # Logits are not seen here; those of improbable tokens are about as large as the logarithms.
        self.token_error = max(self.token_error, rounding_error(lprobs, self.dtype) * self.scale)
        result = super().step(step, lprobs, scores, prev_output_tokens, original_batch_idxs, **kwargs)
        cand, token = result[0].double(), result[1]
        beam, length = lprobs.size(1), step + 1
        error = self.token_error * length
        ends = token.eq(self.stop_on_eos)
        goes_on_rank = (~ends).long().cumsum(dim=1)
        rank = torch.arange(cand.size(1), device=cand.device).expand_as(cand)
        goes_on = ~ends & (goes_on_rank <= beam)
        taken = ends & (rank < beam)
        high = (cand + error).clamp(max=0.0)
        bound = self.objective.bound(high, length, torch.tensor(self.limit, device=cand.device))
        bound = torch.where(ends, self.objective.score(high, length), bound)
        nothing = bound.new_tensor(-math.inf)
        dropped = torch.where(goes_on | taken, nothing, bound).max(dim=1).values
        unseen = self.objective.bound(high[:, -1], length, torch.tensor(self.limit, device=cand.device))
        dropped = torch.maximum(dropped, torch.maximum(unseen, self.objective.score(high[:, -1], length)))
        live = torch.where(goes_on, bound, nothing).max(dim=1).values
        at_limit = (
            scores[:, :, step - 1].double().max(dim=1).values + error if step >= self.limit and step > 0 else None
        )
        for i, s in enumerate(original_batch_idxs.tolist()):
            ledger = self.ledgers.setdefault(s, Ledger(any_dropped=True))
            ledger.drop_bound = max(ledger.drop_bound, dropped[i].item())
            if at_limit is not None:
                ledger.limit_bound = max(ledger.limit_bound, at_limit[i].item())
                ledger.blocked[LENGTH_LIMIT] = 1e-9
            self.live_bound[s] = live[i].item()
            self.rows[s] = self.rows.get(s, 0) + beam
        return result


class StockGenerator:
    """Decodes with fairseq's generator and adds what the hypotheses of `SparseGenerator` have.

    Args:
        models: dense models.
        generator: what ``FairseqTask.build_generator`` returned.
        print_alignment: None, "hard" or "soft"; alignments are computed here, in the order of the source tokens.
    """

    def __init__(self, models: Sequence[nn.Module], generator, print_alignment: Optional[str] = None):
        self.models, self.generator, self.print_alignment = list(models), generator, print_alignment
        searches = type(generator.search).__name__
        self.observed = type(generator.search) is BeamSearch
        self.unwatched = None if self.observed else UNWATCHED.get(searches, f"not watched ({searches})")
        fused = generator.lm_model is not None and generator.lm_weight != 0
        self.modified = fused or generator.unk_penalty != 0 or searches not in TRUE_SCORES
        if self.observed:
            generator.search = ObservedBeamSearch(generator.tgt_dict, generator.eos)
        self.objective = Objective(generator.normalize_scores, generator.len_penalty, generator.min_len)
        self._ids: List[int] = []  # of the batch in work
        self._forward_decoder = generator.model.forward_decoder
        generator.model.forward_decoder = self._without_nan

    def __getattr__(self, name):
        if name in ("generator", "models"):
            raise AttributeError(name)
        return getattr(self.generator, name)

    def _without_nan(self, tokens, *args, **kwargs):
        """fairseq's `forward_decoder`; stops at NaN, which fairseq takes for zero probability until its beam fails."""
        lprobs, attention = self._forward_decoder(tokens, *args, **kwargs)
        bad = lprobs.sum(dim=1).isnan()  # one small tensor; -inf alone makes none
        if bool(bad.any()):
            beam = self.generator.beam_size
            places = torch.unique(bad.nonzero().flatten() // beam).tolist()
            whole = len(bad) == beam * len(self._ids)  # else some sentences are finished, and which is not known here
            where = [self._ids[place] for place in places] if whole else f"some of {self._ids}"
            raise ValueError(f"the model gives NaN for sentences with the ids {where}: broken checkpoint?")
        return lprobs, attention

    @torch.no_grad()
    def generate(self, models, sample: Dict[str, Any], **kwargs) -> List[List[Dict[str, Any]]]:
        """Decode a batch exactly as fairseq does."""
        generator, src_tokens = self.generator, sample["net_input"]["src_tokens"]
        if self.observed:
            width = int(generator.max_len_a * src_tokens.size(1) + generator.max_len_b)
            dtypes = [p.dtype for model in self.models for p in model.parameters() if p.is_floating_point()]
            coarsest = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)
            limit = min(width, generator.max_len - 1)
            generator.search.start(self.objective, limit, coarsest, generator.temperature)
        ids = sample["id"].tolist() if isinstance(sample.get("id"), Tensor) else list(range(len(src_tokens)))
        self._ids = ids
        results = generator.generate(models, sample, **kwargs)
        columns = source_columns(self.models[0], src_tokens, generator.pad)
        flat = [(i, hypothesis) for i, hypotheses in enumerate(results) for hypothesis in hypotheses]
        for (_, hypothesis), logprob in zip(flat, self._logprobs(flat, sample["net_input"], kwargs.get("bos_token"))):
            hypothesis["logprob"] = logprob
        for i, hypotheses in enumerate(results):
            source = src_tokens[i][src_tokens[i].ne(generator.pad)]
            certificate = self._certificate(ids[i], hypotheses)
            for hypothesis in hypotheses:
                self._complete(hypothesis, source, columns[i])
                hypothesis["certificate"] = certificate
        return results

    def _logprobs(self, flat: List[Tuple[int, Dict[str, Any]]], net_input, bos_token: Optional[int]) -> List[float]:
        """True log probability of each (place in the batch, hypothesis); computed anew where scores are modified."""
        if not (self.modified and flat):
            return [hypothesis["positional_scores"].double().sum().item() for _, hypothesis in flat]
        generator, device = self.generator, net_input["src_tokens"].device
        decoders = [module for model in self.models for module in model.decoder.modules()]
        shortcuts = [
            (m, m.beam_size) for m in decoders if isinstance(m, MultiheadAttention) and hasattr(m, "beam_size")
        ]
        state = Ensemble(self.models, generator.pad).eval().start(net_input)
        state.reorder(torch.tensor([i for i, _ in flat], device=device))
        tokens = nn.utils.rnn.pad_sequence([h["tokens"] for _, h in flat], True, generator.pad)
        first = tokens.new_full((len(flat), 1), generator.eos if bos_token is None else bos_token)
        previous, total = torch.cat([first, tokens], dim=1), torch.zeros(len(flat), dtype=torch.float64, device=device)
        for step in range(tokens.size(1)):
            token = tokens[:, step : step + 1]
            logprob = state.step(previous[:, : step + 1], generator.temperature).probs.gather(1, token).log()
            total += torch.where(token.eq(generator.pad), torch.zeros_like(logprob), logprob).squeeze(1)
        for module, beam_size in shortcuts:  # fairseq sets them once, when its generator is made
            module.set_beam_size(beam_size)
        return total.tolist()

    def _complete(self, hypothesis: Dict[str, Any], source: Tensor, columns: Tensor) -> None:
        length = len(hypothesis["tokens"])
        attention = hypothesis["attention"]
        if attention is not None and attention.numel() > 0 and attention.size(0) == columns.numel():
            attention = attention.index_select(0, columns)[: source.numel()]
            hypothesis["attention"] = attention
            if self.print_alignment:
                hypothesis["alignment"] = align(
                    self.print_alignment,
                    attention,
                    source,
                    hypothesis["tokens"],
                    self.generator.pad,
                    self.generator.eos,
                )
        hypothesis["support"] = [self.generator.vocab_size] * length
        hypothesis["truncated"] = False
        hypothesis["steps"] = length

    def _certificate(self, sentence: int, hypotheses: List[Dict[str, Any]]):
        generator, void, notes = self.generator, self.unwatched, []
        distinct = {tuple(h["tokens"].tolist()): h["logprob"] for h in hypotheses}
        lm_weight = generator.lm_weight if generator.lm_model is not None else 0.0
        for name, value in (("--unkpen", generator.unk_penalty), ("--lm-weight", lm_weight)):
            if value < 0:
                void = void or f"modified scores ({name} {value:g})"
            elif value > 0:
                notes.append(f"for scores modified by {name} {value:g}")
        if generator.min_len > 0:
            notes.append("subject to min length")
        if generator.repeat_ngram_blocker is not None:
            notes.append("subject to n-gram blocking")
        ledger = generator.search.ledgers.get(sentence, Ledger()) if self.observed else Ledger()
        ledger.finished = min(1.0, sum(math.exp(logprob) for logprob in distinct.values()))
        ledger.dropped = max(0.0, 1.0 - ledger.finished - sum(ledger.blocked.values()))
        ledger.any_dropped = True
        rows = 0
        if self.observed:
            ledger.drop_bound = max(ledger.drop_bound, generator.search.live_bound.get(sentence, -math.inf))
            rows = generator.search.rows.get(sentence, 0)
        best = max((float(h["score"]) for h in hypotheses), default=-math.inf)
        top = hypotheses[0]
        low = self.objective.score(
            top["positional_scores"].double().sum().item() - self._error(len(top["tokens"])), len(top["tokens"])
        )
        limits = self.objective.limits_of_bounds()
        return certify(ledger, self.objective, best, min(best, low), len(distinct), rows, void, notes, limits=limits)

    def _error(self, length: int) -> float:
        return self.generator.search.token_error * length if self.observed else 0.0
