"""One or several models as one next-token distribution, over any number of decoder rows.

Probabilities are averaged, not their logarithms: a token is possible when one member says so. Rows are free: a sentence
may own any number of them, and the number may change at every step ("ragged" beams).
"""

import math
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from fairseq import utils
from fairseq.models import FairseqIncrementalDecoder
from fairseq.models.lstm import LSTMEncoder
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from .ops.support import list_support
from .output import output_alpha, searchable_alpha

Entries = Tuple[Tensor, Tensor, Tensor]  # rows, tokens, probabilities
# Where more than this share of the vocabulary is possible, as early in training, lists are longer than rows.
LISTED_SHARE = 1 / 8


class StepOutput(NamedTuple):
    """Next-token distribution of every row.

    `probs`: `(rows, columns)`, float64, rows add up to one; NaN where a model said so.
    `attention`: `(rows, src_len)` in the order of the source tokens without padding, or None.
    `logit_error`: bound of the rounding error of a logit, from the type the models computed in.
    `support`: `(rows,)`, number of possible tokens.
    `tokens`: `(columns,)`, ascending: the token of each column, when tokens that are possible in no row are left out;
        None when the columns are the whole vocabulary.
    """

    probs: Tensor
    attention: Optional[Tensor]
    logit_error: float
    support: Tensor
    tokens: Optional[Tensor] = None


def rounding_error(numbers: Tensor, dtype: Optional[torch.dtype] = None) -> float:
    """How far rounding may have moved logits or log probabilities apart: 32 units in the last place of 1, or of an
    eighth of the largest where that is more.

    A bound from experience, not a proof: in two trained models (float32, float16, bfloat16, against float64) the errors
    of likely tokens lay apart by at most 0.6 of it. An error that all logits share changes nothing.

    Args:
        numbers: the logits, or those of them that matter.
        dtype: what they were computed in, if it is not their dtype.
    """
    dtype = dtype or numbers.dtype
    if numbers.dtype not in (torch.float32, torch.float64):
        numbers = numbers.float()  # older torch has no minimum in half precision on CPU
    least, most = (float(x) for x in torch.aminmax(numbers))
    largest = max(-least, most)
    if not math.isfinite(largest):  # masked tokens, or NaN
        finite = numbers[numbers.isfinite()]
        largest = float(finite.abs().max()) if finite.numel() else 0.0
    return 32 * torch.finfo(dtype).eps * max(1.0, largest / 8)


class Ensemble:
    """Encoders and decoders of one or several models.

    Args:
        models: fairseq encoder-decoder models, output alpha tagged (untagged means softmax).
        pad: padding index of the source.
    """

    def __init__(self, models: Sequence[nn.Module], pad: int):
        self.models = list(models)
        self.pad = pad
        self.incremental = all(isinstance(m.decoder, FairseqIncrementalDecoder) for m in self.models)

    @property
    def alphas(self) -> List[float]:
        """Output alpha of each member."""
        return [1.0 if output_alpha(m) is None else output_alpha(m) for m in self.models]

    def max_decoder_positions(self) -> int:
        return int(min(m.max_decoder_positions() for m in self.models))

    def eval(self) -> "Ensemble":
        for model in self.models:
            model.eval()
            for module in model.decoder.modules():
                # the stock generator's shortcut for a fixed number of rows a sentence, if one ran before us
                if isinstance(module, MultiheadAttention) and getattr(module, "beam_size", 1) != 1:
                    module.set_beam_size(1)
        return self

    def start(self, net_input: Dict[str, Tensor]) -> "EnsembleState":
        """Run the encoders; one row a sentence."""
        encoder_outs = [m.encoder.forward_torchscript(net_input) for m in self.models]
        columns = [source_columns(m, net_input["src_tokens"], self.pad) for m in self.models]
        return EnsembleState(self, encoder_outs, columns, net_input["src_tokens"].size(0))


def source_columns(model: nn.Module, src_tokens: Tensor, pad: int) -> Tensor:
    """Attention column of each source token, padding left out: `(batch, src_len)`, padding columns come last.

    fairseq's LSTM encoder moves left padding to the right before it reads the source; everything else keeps the layout
    of `src_tokens`.
    """
    if isinstance(model.encoder, LSTMEncoder) and getattr(model.encoder, "left_pad", False):
        return torch.arange(src_tokens.size(1), device=src_tokens.device).expand_as(src_tokens)
    return src_tokens.eq(pad).long().argsort(dim=1, stable=True)


def align(kind: Optional[str], attention: Tensor, source: Tensor, tokens: Tensor, pad: int, eos: int) -> list:
    """fairseq's hard or soft alignment.

    Args:
        kind: "hard" or "soft" (anything else counts as hard, as in fairseq).
        attention: `(src_len, tgt_len)`, without padding; empty when the model has none.
        source: `(src_len,)`.
        tokens: `(tgt_len,)`.
    """
    if attention.numel() == 0:
        return []
    extract = utils.extract_soft_alignment if kind == "soft" else utils.extract_hard_alignment
    return extract(attention.t().cpu(), source.cpu(), tokens.cpu(), pad, eos)


def decoder_attention(decoder_out) -> Optional[Tensor]:
    """Attention of the last step, `(rows, src_len)`, from what a fairseq decoder returned; None when there is none."""
    extra = decoder_out[1] if len(decoder_out) > 1 else None
    if isinstance(extra, dict):
        extra = extra.get("attn")
    if isinstance(extra, (list, tuple)):
        extra = extra[0] if extra else None
    return extra[:, -1, :] if isinstance(extra, Tensor) and extra.dim() == 3 else None


def reorder_decoder(decoder: nn.Module, state: dict, order: Tensor, same_sentences: bool) -> None:
    """Reorder the incremental state of a decoder to any number of rows.

    fairseq's multi-head attention leaves the cached keys and values of the source alone when the number of rows does
    not change, which is right only while every row keeps its sentence; so those are indexed here.
    """
    for module in decoder.modules():
        if isinstance(module, MultiheadAttention) and module.encoder_decoder_attention:
            if same_sentences:
                continue
            cached = module._get_input_buffer(state)
            if cached:
                cached = {k: None if v is None else v.index_select(0, order) for k, v in cached.items()}
                module._set_input_buffer(state, cached)
        elif hasattr(module, "reorder_incremental_state"):
            module.reorder_incremental_state(state, order)


class EnsembleState:
    """Encoder outputs and incremental states of the live rows."""

    def __init__(self, ensemble: Ensemble, encoder_outs: list, columns: List[Tensor], batch_size: int):
        self.ensemble = ensemble
        self.encoder_outs = encoder_outs
        self.columns = columns
        self.states: List[dict] = [{} for _ in ensemble.models]
        self.sentence = torch.arange(batch_size, device=columns[0].device)

    def reorder(self, order: Tensor) -> None:
        """Row i of the new state is row ``order[i]`` of the old one."""
        n_rows = self.sentence.numel()
        if order.numel() == n_rows and torch.equal(order, torch.arange(n_rows, device=order.device)):
            return
        sentence = self.sentence.index_select(0, order)
        same = sentence.numel() == n_rows and torch.equal(sentence, self.sentence)
        for i, model in enumerate(self.ensemble.models):
            if self.ensemble.incremental and self.states[i]:
                reorder_decoder(model.decoder, self.states[i], order, same)
            if not same:
                self.encoder_outs[i] = model.encoder.reorder_encoder_out(self.encoder_outs[i], order)
        self.sentence = sentence

    def step(
        self,
        tokens: Tensor,
        temperature: float = 1.0,
        want_attention: bool = False,
        columns_for: Optional[Tensor] = None,
    ) -> StepOutput:
        """Next-token distribution after `tokens`, `(rows, steps + 1)`, which begin with the start symbol.

        Args:
            columns_for: tokens that need a column whether they are possible or not; where the vocabulary is large and
                every output sparse, only these and the possible ones get one. None: the whole vocabulary.
        """
        attention, logits, dtypes = None, [], []
        for i, model in enumerate(self.ensemble.models):
            kwargs = {"incremental_state": self.states[i]} if self.ensemble.incremental else {}
            out = model.decoder.forward(tokens, encoder_out=self.encoder_outs[i], **kwargs)
            last = out[0][:, -1:, :]
            dtypes.append(last.dtype)
            if temperature != 1.0:
                last = (last if last.dtype == torch.float64 else last.float()) / temperature
            logits.append((last, out[1:]))
            if want_attention:
                attention = self._add_attention(attention, decoder_attention(out), self.columns[i])
        if attention is not None and len(logits) > 1:
            attention = attention / len(logits)
        listed = None if columns_for is None else self._list_entries([x for x, _ in logits])
        # Of a sparse output, only logits near the largest of a row matter.
        matter = [x for x, _ in logits] if listed is None else [maximum for *_, maximum in listed]
        matter = matter if temperature == 1.0 else [x * temperature for x in matter]
        error = max(map(rounding_error, matter, dtypes)) / min(temperature, 1.0)
        if listed is not None:
            shape = tokens.size(0), logits[0][0].size(-1)
            return _in_columns([entries for *entries, _ in listed], shape, columns_for, attention, error)
        total = None
        for model, (last, extra) in zip(self.ensemble.models, logits):
            probs = model.get_normalized_probs((last,) + tuple(extra), log_probs=False, sample=None)
            probs = probs[:, -1, :].double()
            probs = probs / probs.sum(dim=-1, keepdim=True)
            total = probs if total is None else total.add_(probs)
        total = total if len(logits) == 1 else total.div_(len(logits))
        return StepOutput(total, attention, error, (total > 0).sum(dim=-1))

    def _list_entries(self, logits: List[Tensor]) -> Optional[List[Tuple[Tensor, Tensor, Tensor, Tensor]]]:
        """What `list_support` finds for each member; None unless that is short for all of them."""
        last = [x[:, -1, :] for x in logits]
        alphas = [searchable_alpha(model, x) for model, x in zip(self.ensemble.models, last)]
        if None in alphas:
            return None
        last = [x.contiguous() if x.dtype == torch.float64 else x.float().contiguous() for x in last]
        entries = [list_support(x, alpha) for x, alpha in zip(last, alphas)]
        is_short = all(len(p) <= LISTED_SHARE * x.numel() for x, (_, _, p, _) in zip(last, entries))
        return entries if is_short else None

    def _add_attention(self, total: Optional[Tensor], attention: Optional[Tensor], columns: Tensor) -> Optional[Tensor]:
        if attention is None or attention.size(1) != columns.size(1):
            return total
        attention = attention.float().gather(1, columns.index_select(0, self.sentence))
        return attention if total is None else total + attention


def _in_columns(
    members: List[Entries], shape: Tuple[int, int], columns_for: Tensor, attention: Optional[Tensor], error: float
) -> StepOutput:
    """The average of what each member lists, `shape` if whole, over the tokens that are in some list."""
    n_rows, vocab = shape
    column_of = torch.zeros(vocab, dtype=torch.long, device=columns_for.device)
    for token in (columns_for, *(token for _, token, _ in members)):
        column_of[token] = 1
    tokens = column_of.nonzero().squeeze(1)
    column_of = column_of.cumsum_(0).sub_(1)
    total = torch.zeros(n_rows, len(tokens), dtype=torch.float64, device=tokens.device)
    for row, token, p in members:
        sums = total.new_zeros(n_rows).index_add_(0, row, p)
        total.index_put_((row, column_of[token]), p / sums[row], accumulate=True)
        unsolved = sums.eq(0)
        if unsolved.any():
            total.masked_fill_(unsolved.unsqueeze(1), math.nan)
    if len(members) == 1:
        return StepOutput(total, attention, error, torch.bincount(members[0][0], minlength=n_rows), tokens)
    return StepOutput(total.div_(len(members)), attention, error, (total > 0).sum(dim=-1), tokens)
