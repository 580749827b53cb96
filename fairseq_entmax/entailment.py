"""Model `entailment_gru`: whether a premise entails a hypothesis, with one sparse look back at the premise."""

import logging
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Optional

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel, register_model
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from .entailment_data import read_vectors
from .lstm_options import LSTMEntmaxConfig, fill, mapping_from

logger = logging.getLogger(__name__)

_ATTENTION = [option for option in fields(LSTMEntmaxConfig) if "attention" in option.name]
_AttentionConfig = make_dataclass(
    "_AttentionConfig",
    [(o.name, o.type, field(default=o.default, metadata=dict(o.metadata))) for o in _ATTENTION],
    bases=(FairseqDataclass,),
)


@dataclass
class EntailmentConfig(_AttentionConfig):
    vectors: Optional[str] = field(
        default=None,
        metadata={"help": "text file of word vectors, which are not trained (default: word vectors are trained)"},
    )
    embed_dim: Optional[int] = field(default=None, metadata={"help": "size of the word vectors (default 300)"})
    hidden_size: Optional[int] = field(default=None, metadata={"help": "units of each layer (default 100)"})
    dropout: Optional[float] = field(
        default=None, metadata={"help": "dropout probability of the inputs of each layer (default 0.1)"}
    )


def complete(args):
    """Sets all that the user left open."""
    fill(args, embed_dim=300, hidden_size=100, dropout=0.1, learn_attention_alpha=False)
    general = args.learn_attention_alpha or getattr(args, "attention_alpha", None) is not None
    fill(args, attention_mapping="entmax" if general else "entmax15")


@register_model("entailment_gru", dataclass=EntailmentConfig)
class EntailmentModel(BaseFairseqModel):
    """The classifier with attention of Rocktaschel et al. (2016), as Martins and Astudillo (2016) and Niculae and
    Blondel (2017) use it.

    A GRU reads the premise; its last state starts another one, which reads the hypothesis. The last state `q` of that
    one is compared with each state `h_j` of the premise, with scores `v tanh(W_h h_j + W_q q)`; the attention mapping
    makes them weights. The label is read off `[c; q]`, where `c` is the weighted sum of the states, by a hidden layer.
    """

    def __init__(self, settings, dictionary, labels: int):
        super().__init__()
        self.padding_idx, hidden = dictionary.pad(), settings.hidden_size
        self.embed_tokens = nn.Embedding(len(dictionary), settings.embed_dim, padding_idx=self.padding_idx)
        self.embed_tokens.weight.requires_grad = settings.vectors is None
        self.dropout = FairseqDropout(settings.dropout, module_name=type(self).__name__)
        self.input_proj = nn.Linear(settings.embed_dim, hidden)
        self.premise_gru = nn.GRU(hidden, hidden, batch_first=True)
        self.hypothesis_gru = nn.GRU(hidden, hidden, batch_first=True)
        self.key_proj = nn.Linear(hidden, hidden, bias=False)
        self.query_proj = nn.Linear(hidden, hidden)
        self.score_proj = nn.Linear(hidden, 1, bias=False)
        self.mapping = mapping_from(settings)
        self.hidden_layer = nn.Linear(2 * hidden, hidden)
        self.output_layer = nn.Linear(hidden, labels)

    @classmethod
    def build_model(cls, cfg, task):
        settings = EntailmentConfig()
        for option in fields(EntailmentConfig):
            value = getattr(cfg, option.name, None)
            if value is not None:
                setattr(settings, option.name, value)
        complete(settings)
        _check(settings)
        model = cls(settings, task.source_dictionary, len(task.labels))
        # A checkpoint has the vectors in it.
        if settings.vectors is not None and not getattr(task, "loads_checkpoint", False):
            model.set_vectors(settings.vectors, task.source_dictionary)
        return model

    def set_vectors(self, path: str, dictionary) -> None:
        """Takes the word vectors of a file; words that it does not have keep random ones, smaller than a real one."""
        vectors = read_vectors(path, dictionary.symbols, self.embed_tokens.embedding_dim)
        with torch.no_grad():
            self.embed_tokens.weight.uniform_(-0.05, 0.05)
            self.embed_tokens.weight[self.padding_idx] = 0
            for word, vector in vectors.items():
                self.embed_tokens.weight[dictionary.index(word)] = torch.from_numpy(vector)
        logger.info("%s has vectors of %d of %d words", path, len(vectors), len(dictionary) - dictionary.nspecial)

    def forward(self, premise: Tensor, hypothesis: Tensor):
        """Reads pairs.

        Args:
            premise, hypothesis: tokens `(batch, length)`, padded on the right

        Returns:
            logits `(batch, 1, labels)` and `{"attn": weights}`, the weights `(batch, premise length)` of the premise's
            words: exactly zero at padding
        """
        words = premise.ne(self.padding_idx)
        states, last = self._read(self.premise_gru, premise)
        _, query = self._read(self.hypothesis_gru, hypothesis, last)
        query = query[0]
        hidden = torch.tanh(self.key_proj(states) + self.query_proj(query).unsqueeze(1))
        weights = self.mapping(self.score_proj(hidden).squeeze(2), words)
        context = torch.bmm(weights.unsqueeze(1), states).squeeze(1)
        features = torch.tanh(self.hidden_layer(self.dropout(torch.cat([context, query], dim=1))))
        return self.output_layer(self.dropout(features)).unsqueeze(1), {"attn": weights}

    def _read(self, gru: nn.GRU, tokens: Tensor, first: Optional[Tensor] = None):
        """States `(batch, length, hidden)`, zero at padding, and the last one of each sentence `(1, batch, hidden)`."""
        lengths = tokens.ne(self.padding_idx).sum(dim=1).cpu()
        inputs = self.dropout(self.input_proj(self.embed_tokens(tokens)))
        packed = nn.utils.rnn.pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
        states, last = gru(packed, first)
        states, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=tokens.size(1))
        return states, last

    def get_normalized_probs(self, net_output, log_probs, sample=None):
        """Softmax of the logits, which is what fairseq's own criterions train."""
        logits = net_output[0].float()
        return logits.log_softmax(dim=-1) if log_probs else logits.softmax(dim=-1)

    def max_positions(self):
        return None

    def prepare_for_inference_(self, cfg):
        raise ValueError("entailment_gru gives labels, not sentences: use fairseq-validate with --predictions-file")


def _check(settings) -> None:
    for name in ("embed_dim", "hidden_size"):
        if getattr(settings, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')}: wanted a number >= 1, got {getattr(settings, name)}")
    if not 0 <= settings.dropout < 1:
        raise ValueError(f"--dropout: wanted a probability in [0, 1), got {settings.dropout}")
