"""Model `lstm_entmax`: bidirectional LSTM encoder, LSTM decoder with input feeding and sparse attention."""

from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from fairseq.models import (
    FairseqEncoder,
    FairseqEncoderDecoderModel,
    FairseqIncrementalDecoder,
    register_model,
    register_model_architecture,
)
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from . import fused_steps, output
from .attention import GeneralAttention, SourceProjection
from .lstm_options import (
    LSTMEntmaxConfig,
    build_embeddings,
    complete,
    fill,
    is_bidirectional,
    mapping_from,
    settings_from,
)
from .ops import LearnedAlpha
from .recurrence import StepMatrix, lstm_gates

MAX_POSITIONS = 100_000  # the recurrence has no limit; the task's options set the one that matters


class EncoderOut(NamedTuple):
    """The source as the decoder needs it; positions are those of `src_tokens`, padding included."""

    keys: Tensor  # (batch, src_len, decoder hidden)
    values: Tensor  # (batch, src_len, decoder hidden)
    mask: Optional[Tensor]  # (batch, src_len), True at words; None if there is no padding
    hidden: Tensor  # (layers, batch, encoder output)
    cell: Tensor  # (layers, batch, encoder output)


@register_model("lstm_entmax", dataclass=LSTMEntmaxConfig)
class LSTMEntmaxModel(FairseqEncoderDecoderModel):
    """Attention encoder-decoder of Luong et al. (2015) whose attention mapping gives exact zeros.

    Returns logits `(batch, tgt_len, vocab)` and `{"attn": [weights (batch, tgt_len, src_len)]}`, with weights in the
    layout of `src_tokens` (None instead while training).
    """

    @classmethod
    def build_model(cls, cfg, task):
        settings = settings_from(cfg)
        source_embed, target_embed = build_embeddings(settings, task.source_dictionary, task.target_dictionary)
        mapping = mapping_from(settings)
        encoder = LSTMEntmaxEncoder(settings, task.source_dictionary, source_embed)
        decoder = LSTMEntmaxDecoder(settings, task.target_dictionary, target_embed, mapping)
        model = cls(encoder, decoder)
        # Tasks other than ours tag no model. Without this, Python code under one of them would see a softmax.
        alpha = output.checkpoint_output_alpha(None, cfg)
        if output.is_sparse(alpha):
            output.set_output_alpha(model, alpha)
        return model

    def prepare_for_inference_(self, cfg):
        output.refuse_stock_inference(self, cfg)
        super().prepare_for_inference_(cfg)


class LSTMEntmaxEncoder(FairseqEncoder):
    def __init__(self, settings, dictionary, embed_tokens):
        super().__init__(dictionary)
        self.padding_idx = dictionary.pad()
        self.embed_tokens = embed_tokens
        self.dropout_in = FairseqDropout(settings.encoder_dropout_in, module_name=type(self).__name__)
        self.dropout_memory = FairseqDropout(settings.encoder_memory_dropout, module_name=type(self).__name__)
        self.lstm = nn.LSTM(
            settings.encoder_embed_dim,
            settings.encoder_hidden_size,
            num_layers=settings.encoder_layers,
            dropout=settings.encoder_dropout_out if settings.encoder_layers > 1 else 0.0,
            bidirectional=settings.encoder_bidirectional,
        )
        self.projection = SourceProjection(settings.encoder_output_size, settings.decoder_hidden_size)
        _init_uniform(self.lstm, self.projection)

    def forward(self, src_tokens, src_lengths=None) -> EncoderOut:
        """Encodes sentences in any order, padded on either side.

        Args:
            src_tokens: `(batch, src_len)`
            src_lengths: unused, since the padding tells the lengths; part of fairseq's interface
        """
        words = src_tokens.ne(self.padding_idx)
        lengths = words.sum(dim=1)
        # Longest first and words before padding, as packing wants it. Both are undone below.
        order = lengths.argsort(descending=True)
        columns = words.to(torch.uint8).sort(dim=1, descending=True, stable=True).indices
        lengths = lengths[order].cpu()
        tokens = src_tokens.gather(1, columns)[order]

        embedded = self.dropout_in(self.embed_tokens(tokens.t()))
        packed = nn.utils.rnn.pack_padded_sequence(embedded, lengths.clamp(min=1))
        states, (hidden, cell) = self.lstm(packed)
        states, _ = nn.utils.rnn.pad_packed_sequence(states, total_length=src_tokens.size(1))

        rank = order.argsort()
        states = self.dropout_memory(_restore(states, columns, rank))
        keys, values = self.projection(states)
        return EncoderOut(
            keys=keys,
            values=values,
            mask=words if int(lengths[-1]) < src_tokens.size(1) else None,
            hidden=self._join_directions(hidden, rank),
            cell=self._join_directions(cell, rank),
        )

    def _join_directions(self, final: Tensor, rank: Tensor) -> Tensor:
        """`(layers * directions, batch, hidden)` in packed order to `(layers, batch, directions * hidden)`."""
        by_layer = final.index_select(1, rank).view(self.lstm.num_layers, -1, *final.shape[1:])
        return by_layer.transpose(1, 2).flatten(2)

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """Takes any rows, in any number."""
        keys, values, mask, hidden, cell = encoder_out
        return EncoderOut(
            keys=keys.index_select(0, new_order),
            values=values.index_select(0, new_order),
            mask=None if mask is None else mask.index_select(0, new_order),
            hidden=hidden.index_select(1, new_order),
            cell=cell.index_select(1, new_order),
        )

    def max_positions(self):
        return MAX_POSITIONS


def _restore(states: Tensor, columns: Tensor, rank: Tensor) -> Tensor:
    """Packed order `(src_len, batch, dim)` back to sentences and positions as they came, `(batch, src_len, dim)`.

    Args:
        columns: `(batch, src_len)`, the position in the sentence of each packed position
        rank: `(batch,)`, the packed row of each sentence
    """
    src_len, batch, dim = states.shape
    packed_position = columns.argsort(dim=1)
    rows = packed_position * batch + rank.unsqueeze(1)
    return states.reshape(src_len * batch, dim).index_select(0, rows.reshape(-1)).view(batch, src_len, dim)


class LSTMEntmaxDecoder(FairseqIncrementalDecoder):
    """Each step feeds its output, the attentional state, to the next one ("input feeding")."""

    def __init__(self, settings, dictionary, embed_tokens, mapping):
        super().__init__(dictionary)
        hidden = settings.decoder_hidden_size
        self.num_layers = settings.decoder_layers
        self.embed_tokens = embed_tokens
        self.dropout_in = FairseqDropout(settings.decoder_dropout_in, module_name=type(self).__name__)
        self.dropout_out = FairseqDropout(settings.decoder_dropout_out, module_name=type(self).__name__)
        # Only the first layer sees the embeddings, and it can do so for all steps at once.
        self.embed_gates = nn.Linear(settings.decoder_embed_dim, 4 * hidden)
        # Of [input; own state], where the input of the first layer is the fed output.
        self.gates = nn.ModuleList(
            [nn.Linear(2 * hidden, 4 * hidden, bias=layer > 0) for layer in range(self.num_layers)]
        )
        self.attention = GeneralAttention(hidden, mapping)
        self.hidden_proj = self.cell_proj = None
        if settings.encoder_output_size != hidden:
            self.hidden_proj = nn.Linear(settings.encoder_output_size, hidden)
            self.cell_proj = nn.Linear(settings.encoder_output_size, hidden)
        self.feature_proj = None
        if settings.decoder_out_embed_dim != hidden:
            self.feature_proj = nn.Linear(hidden, settings.decoder_out_embed_dim)
        self.fc_out = None
        if not settings.share_decoder_input_output_embed:
            self.fc_out = nn.Linear(settings.decoder_out_embed_dim, len(dictionary))
        _init_uniform(*(module for name, module in self.named_children() if name != "embed_tokens"))

    def forward(self, prev_output_tokens, encoder_out=None, incremental_state=None):
        features, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state)
        return self.output_layer(features), extra

    def extract_features(self, prev_output_tokens, encoder_out=None, incremental_state=None):
        """Decodes all tokens given, or only the last one where `incremental_state` holds what came before.

        Returns:
            features `(batch, tgt_len, out_embed_dim)` for `output_layer`, and `{"attn": [weights]}`
        """
        state = self.get_incremental_state(incremental_state, "state")
        if state is not None:
            prev_output_tokens = prev_output_tokens[:, -1:]
            hidden, cell, fed = self._unpack(state["rows"])
        else:
            hidden, cell = self._first_state(encoder_out)
            fed = torch.zeros_like(hidden[0])
        if incremental_state is None and fused_steps.can_run(self.attention.mapping, encoder_out.keys):
            features, weights = self._run_fused(prev_output_tokens, encoder_out, hidden, cell)
        else:
            features, weights, last = self._run(prev_output_tokens, encoder_out, hidden, cell, fed)
        if incremental_state is not None:
            self.set_incremental_state(incremental_state, "state", {"rows": torch.stack(last)})
        if self.feature_proj is not None:
            features = self.dropout_out(self.feature_proj(features))
        return features, {"attn": [None if self.training else weights]}

    def _run(self, prev_output_tokens, encoder_out, hidden, cell, fed):
        """Runs the recurrence over `prev_output_tokens` `(batch, tgt_len)` from the state given.

        Returns:
            features `(batch, tgt_len, hidden)`, attention weights `(batch, tgt_len, src_len)` (None in training), and
            the state after the last step
        """
        embedded = self.dropout_in(self.embed_tokens(prev_output_tokens.t()))
        attend = self.attention.steps(encoder_out.keys, encoder_out.values, encoder_out.mask)
        recurrent = [StepMatrix(layer.weight.t()) for layer in self.gates]
        features, weights = [], []
        for first_gates in self.embed_gates(embedded).unbind(0):
            below = fed
            for layer, gates in enumerate(self.gates):
                addend = first_gates if layer == 0 else gates.bias
                sums = recurrent[layer](torch.cat([below, hidden[layer]], dim=1), addend)
                hidden[layer], cell[layer] = lstm_gates(sums, cell[layer])
                below = self.dropout_out(hidden[layer])
            attended, step_weights = attend(hidden[-1])
            fed = self.dropout_out(attended)
            features.append(fed)
            weights.append(step_weights)
        weights = None if self.training else torch.stack(weights, dim=1)
        return torch.stack(features, dim=1), weights, [*hidden, *cell, fed]

    def _run_fused(self, prev_output_tokens, encoder_out, hidden, cell):
        """What `_run` does from the first state on, in kernels that run all steps; dropout draws other numbers."""
        embedded = self.dropout_in(self.embed_tokens(prev_output_tokens.t()))
        first_gates = self.embed_gates(embedded)
        shape = (self.num_layers, *first_gates.shape[:2], hidden[0].shape[1])
        ones = first_gates.new_ones(shape)
        factors = self.dropout_out(ones)
        steps = fused_steps.Steps(
            encoder_out.keys,
            encoder_out.values,
            self.attention.query_proj.weight,
            self.attention.query_proj.bias,
            torch.stack(hidden),
            torch.stack(cell),
            tuple(layer.weight for layer in self.gates),
            tuple(layer.bias for layer in self.gates[1:]),
        )
        alpha = self.attention.mapping.alpha
        features, weights = fused_steps.run(
            first_gates, steps, encoder_out.mask, None if factors is ones else factors, alpha
        )
        return features.transpose(0, 1), weights.transpose(0, 1)

    def _first_state(self, encoder_out):
        """Each layer starts from the encoder's layer beside it, counted from the top; the lowest one serves for all
        that lie below it."""
        hidden, cell = encoder_out.hidden, encoder_out.cell
        if self.hidden_proj is not None:
            hidden, cell = self.hidden_proj(hidden), self.cell_proj(cell)
        above = hidden.size(0) - self.num_layers
        beside = [max(0, layer + above) for layer in range(self.num_layers)]
        return [hidden[layer] for layer in beside], [cell[layer] for layer in beside]

    def _unpack(self, rows):
        hidden, cell, fed = rows.split([self.num_layers, self.num_layers, 1])
        return list(hidden), list(cell), fed[0]

    def output_layer(self, features):
        """Logits `(..., vocab)` of features `(..., out_embed_dim)`."""
        return F.linear(features, *self.output_weights())

    def output_weights(self):
        """Weight `(vocab, out_embed_dim)` and bias, or None, of `output_layer`."""
        if self.fc_out is None:
            return self.embed_tokens.weight, None
        return self.fc_out.weight, self.fc_out.bias

    def reorder_incremental_state(self, incremental_state, new_order):
        """Takes any rows, in any number."""
        state = self.get_incremental_state(incremental_state, "state")
        if state is not None:
            rows = state["rows"].index_select(1, new_order)
            self.set_incremental_state(incremental_state, "state", {"rows": rows})

    def max_positions(self):
        return MAX_POSITIONS


def _init_uniform(*modules):
    for module in modules:
        for part in module.modules():
            if not isinstance(part, LearnedAlpha):  # starts where its option says
                for parameter in part.parameters(recurse=False):
                    nn.init.uniform_(parameter, -0.1, 0.1)


def _two_layers_of(args, units):
    """As the paper's toolkit counts: `units` are those of both directions of the encoder together."""
    fill(args, encoder_layers=2, decoder_layers=2, dropout=0.3, encoder_embed_dim=units, decoder_embed_dim=units)
    fill(args, encoder_bidirectional="true", decoder_hidden_size=units)
    fill(args, encoder_hidden_size=units // 2 if is_bidirectional(args) else units)
    complete(args)


@register_model_architecture("lstm_entmax", "lstm_entmax_inflection")
def lstm_entmax_inflection(args):
    """For word forms: sources and targets of a dozen symbols, small vocabularies."""
    _two_layers_of(args, units=300)


@register_model_architecture("lstm_entmax", "lstm_entmax_translation")
def lstm_entmax_translation(args):
    """For sentences of words or subwords."""
    _two_layers_of(args, units=500)
