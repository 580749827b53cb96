"""Multi-head attention whose mapping may give exact zeros, in the place of fairseq's."""

from typing import Dict, Optional, Tuple

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor

from .attention import Mapping
from .ops import LearnedAlpha

# fairseq marks what may not be attended by -inf, -1e8 or, in half precision, -1e4, added to the scores.
_EXCLUDED = -1e4

Incremental = Optional[Dict[str, Dict[str, Optional[Tensor]]]]


class SparseMultiheadAttention(MultiheadAttention):
    """fairseq's multi-head attention with the same parameters and caches, but `mapping` instead of softmax.

    fairseq's own forward hands everything to one fused function of torch, softmax included, so this one is written
    out. A query that may attend nothing gets a context of zeros (and no NaN).

    Args:
        mapping: from scores `(batch, heads, tgt_len, src_len)`, -inf where one may not attend, to weights
        others: those of `MultiheadAttention`; additional keys (`add_bias_kv`, `add_zero_attn`) are refused
    """

    def __init__(self, mapping: Mapping, embed_dim: int, num_heads: int, **options):
        for name in ("add_bias_kv", "add_zero_attn", "xformers_att_config"):
            if options.get(name):
                raise ValueError(f"{name}: not available with sparse attention, got {options[name]}")
        super().__init__(embed_dim, num_heads, **options)
        self.mapping = mapping

    def prepare_for_onnx_export_(self):
        raise ValueError("export to ONNX is not available with sparse attention: its mappings are no ONNX operators")

    def set_beam_size(self, beam_size):
        """Keeps one row of cached source keys for each decoder row; fairseq would share them within a full beam."""

    def forward(
        self,
        query: Tensor,
        key: Optional[Tensor],
        value: Optional[Tensor],
        key_padding_mask: Optional[Tensor] = None,
        incremental_state: Incremental = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Optional[Tensor] = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Attends, time first.

        Args:
            query: `(tgt_len, batch, embed_dim)`
            key, value: `(src_len, batch, dim)`; not read in self-attention, nor where `static_kv` finds them cached
            key_padding_mask: `(batch, src_len)`, true at padding
            attn_mask: `(tgt_len, src_len)`, added to the scores, or bool and true where one may not attend
            before_softmax: return the scores, `(batch * heads, tgt_len, src_len)`, and the values instead

        Returns:
            output `(tgt_len, batch, embed_dim)`, and the weights if asked for: mean over heads
            `(batch, tgt_len, src_len)`, or with `need_head_weights` `(heads, batch, tgt_len, src_len)`
        """
        tgt_len, batch, _ = query.size()
        queries = self._split_heads(self.q_proj(query) * self.scaling)
        keys, values, key_padding_mask = self._source(
            query, key, value, key_padding_mask, incremental_state, static_kv, batch
        )
        scores = torch.bmm(queries, keys.transpose(1, 2))
        by_head = scores.view(batch, self.num_heads, tgt_len, -1)
        bias = _bias(attn_mask, key_padding_mask, scores.dtype)
        if bias is not None:
            by_head.add_(bias)
        if before_softmax:
            return scores, values
        weights = self.mapping(by_head)
        context = torch.bmm(self.dropout_module(weights).view_as(scores), values)
        output = self.out_proj(context.transpose(0, 1).reshape(tgt_len, batch, self.embed_dim))
        if need_head_weights:
            return output, weights.transpose(0, 1)
        return output, weights.mean(dim=1) if need_weights else None

    def _split_heads(self, states: Tensor) -> Tensor:
        """`(length, batch, embed_dim)` to `(batch * heads, length, head_dim)`."""
        length, batch, _ = states.size()
        return states.reshape(length, batch * self.num_heads, self.head_dim).transpose(0, 1)

    def _source(self, query, key, value, padding, incremental_state, static_kv, batch):
        """Keys and values `(batch * heads, src_len, head_dim)` and the padding, with what earlier steps cached."""
        cached = self._get_input_buffer(incremental_state) if incremental_state is not None else {}
        known = [cached[name].flatten(0, 1) for name in ("prev_key", "prev_value")] if "prev_key" in cached else None
        if known is not None and static_kv:
            keys, values = known
        else:
            if self.self_attention:
                key = value = query
            elif self.encoder_decoder_attention:
                value = key
            keys, values = self._split_heads(self.k_proj(key)), self._split_heads(self.v_proj(value))
            if known is not None:
                keys, values = torch.cat([known[0], keys], dim=1), torch.cat([known[1], values], dim=1)
        if incremental_state is not None:
            padding = self._append_prev_key_padding_mask(
                key_padding_mask=padding,
                prev_key_padding_mask=cached.get("prev_key_padding_mask"),
                batch_size=batch,
                src_len=keys.size(1),
                static_kv=static_kv,
            )
            shape = (batch, self.num_heads, -1, self.head_dim)
            buffer = {"prev_key": keys.reshape(shape), "prev_value": values.reshape(shape)}
            self._set_input_buffer(incremental_state, {**buffer, "prev_key_padding_mask": padding})
        return keys, values, padding

    def upgrade_state_dict_named(self, state_dict, name):
        """A model that learnt no alpha, such as one with softmax, can be the start for learning it."""
        super().upgrade_state_dict_named(state_dict, name)
        alpha = self.mapping.alpha
        if isinstance(alpha, LearnedAlpha):
            prefix = name + "." if name else ""
            state_dict.setdefault(prefix + "mapping.alpha.raw", alpha.raw.detach().clone())


def _bias(attn_mask: Optional[Tensor], padding: Optional[Tensor], dtype: torch.dtype) -> Optional[Tensor]:
    """What to add to scores `(batch, heads, tgt_len, src_len)`: -inf where one may not attend."""
    bias = None
    if attn_mask is not None:
        if attn_mask.is_floating_point():
            bias = attn_mask.to(dtype).masked_fill(attn_mask <= _EXCLUDED, float("-inf"))
        else:
            bias = _minus_infinity(attn_mask, dtype)
    if padding is not None:
        padding = _minus_infinity(padding, dtype)[:, None, None]
        bias = padding if bias is None else bias + padding
    return bias


def _minus_infinity(excluded: Tensor, dtype: torch.dtype) -> Tensor:
    zeros = torch.zeros(excluded.shape, dtype=dtype, device=excluded.device)
    return zeros.masked_fill_(excluded.bool(), float("-inf"))
