"""Model `transformer_entmax`: fairseq's transformer with a sparse mapping in each kind of attention."""

from argparse import Namespace

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.logging import metrics
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase, TransformerModelBase
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from torch import nn

from . import output
from .attention import attention_alphas
from .lstm_options import fill
from .transformer_attention import SparseMultiheadAttention
from .transformer_options import TransformerEntmaxConfig, complete, settings_from


@register_model("transformer_entmax", dataclass=TransformerEntmaxConfig)
class TransformerEntmaxModel(TransformerModelBase):
    """fairseq's transformer, of the same parameters, with a mapping of its own in the encoder's self-attention, the
    decoder's self-attention and its attention to the source. Where softmax is asked for, fairseq's module stays."""

    @classmethod
    def add_args(cls, parser):
        """Ours in the place of fairseq's, which the base class would add."""
        gen_parser_from_dataclass(parser, TransformerEntmaxConfig(), delete_default=True)

    @classmethod
    def build_model(cls, cfg, task):
        settings = settings_from(cfg)
        _refuse_sharding(cfg)
        config = settings.transformer_config()
        config.attention_settings = settings  # for the layers, which get nothing else
        model = super().build_model(config, task)
        # Tasks other than ours tag no model. Without this, Python code under one of them would see a softmax.
        alpha = output.checkpoint_output_alpha(None, cfg)
        if output.is_sparse(alpha):
            output.set_output_alpha(model, alpha)
        return model

    @classmethod
    def build_encoder(cls, cfg, src_dict, embed_tokens):
        return TransformerEntmaxEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg, tgt_dict, embed_tokens):
        return TransformerEntmaxDecoder(cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention)

    def set_num_updates(self, num_updates):
        """Called by the task before each training step, which is when alpha can be logged."""
        super().set_num_updates(num_updates)
        for name, alpha in attention_alphas(self).items():
            metrics.log_scalar(f"alpha_{_short(name)}", alpha.mean(), round=4)

    def prepare_for_inference_(self, cfg):
        output.refuse_stock_inference(self, cfg)
        super().prepare_for_inference_(cfg)


class TransformerEntmaxEncoder(TransformerEncoderBase):
    def build_encoder_layer(self, cfg):
        return _checkpointed(TransformerEntmaxEncoderLayer(cfg, return_fc=self.return_fc), cfg)


class TransformerEntmaxDecoder(TransformerDecoderBase):
    def build_decoder_layer(self, cfg, no_encoder_attn=False):
        return _checkpointed(TransformerEntmaxDecoderLayer(cfg, no_encoder_attn), cfg)


# fairseq 0.12.2 keeps second copies of a layer's weights for the fused path of torch, which stays off here. They never
# get a gradient, which DistributedDataParallel takes for an error, and other releases cannot load them.
_COPIES = [f"{layer}_{kind}" for layer in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias")]


class TransformerEntmaxEncoderLayer(TransformerEncoderLayerBase):
    def __init__(self, cfg, return_fc=False):
        super().__init__(cfg, return_fc)
        for name in _COPIES:
            self._parameters.pop(name, None)

    def _load_from_state_dict(self, state_dict, prefix, *args):
        for name in _COPIES:
            state_dict.pop(prefix + name, None)
        nn.Module._load_from_state_dict(self, state_dict, prefix, *args)

    def build_self_attention(self, embed_dim, cfg):
        if cfg.attention_settings.uses_softmax("encoder"):
            return super().build_self_attention(embed_dim, cfg)
        return _attention(self, "encoder", cfg, embed_dim, cfg.encoder.attention_heads, self_attention=True)


class TransformerEntmaxDecoderLayer(TransformerDecoderLayerBase):
    def build_self_attention(self, embed_dim, cfg, add_bias_kv=False, add_zero_attn=False):
        if cfg.attention_settings.uses_softmax("decoder"):
            return super().build_self_attention(embed_dim, cfg, add_bias_kv, add_zero_attn)
        options = {"add_bias_kv": add_bias_kv, "add_zero_attn": add_zero_attn}
        heads, alone = cfg.decoder.attention_heads, not cfg.cross_self_attention
        return _attention(self, "decoder", cfg, embed_dim, heads, self_attention=alone, **options)

    def build_encoder_attention(self, embed_dim, cfg):
        if cfg.attention_settings.uses_softmax("cross"):
            return super().build_encoder_attention(embed_dim, cfg)
        options = {"kdim": cfg.encoder.embed_dim, "vdim": cfg.encoder.embed_dim, "encoder_decoder_attention": True}
        return _attention(self, "cross", cfg, embed_dim, cfg.decoder.attention_heads, **options)


def _attention(layer, place, cfg, embed_dim, heads, **options):
    return SparseMultiheadAttention(
        cfg.attention_settings.build_mapping(place, heads),
        embed_dim,
        heads,
        dropout=cfg.attention_dropout,
        q_noise=layer.quant_noise,
        qn_block_size=layer.quant_noise_block_size,
        **options,
    )


def _checkpointed(layer, cfg):
    return checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations) if cfg.checkpoint_activations else layer


def _refuse_sharding(cfg):
    if isinstance(cfg, Namespace):
        backend = getattr(cfg, "ddp_backend", None)
    else:
        parent = cfg._get_parent() if hasattr(cfg, "_get_parent") else None
        backend = getattr(getattr(parent, "distributed_training", None), "ddp_backend", None)
    if backend == "fully_sharded":
        raise ValueError(f"--ddp-backend {backend} is not available with transformer_entmax: wanted pytorch_ddp")


def _short(name):
    """`encoder.layers.0.self_attn` to `encoder_0`, `decoder.layers.0.encoder_attn` to `cross_0`."""
    side, _, layer, kind = name.split(".")[:4]
    return f"{'cross' if kind == 'encoder_attn' else side}_{layer}"


@register_model_architecture("transformer_entmax", "transformer_entmax_iwslt_de_en")
def transformer_entmax_iwslt_de_en(args):
    """The sizes of fairseq's `transformer_iwslt_de_en`, for corpora of some 100,000 sentences."""
    fill(args, encoder_embed_dim=512, encoder_ffn_embed_dim=1024, encoder_attention_heads=4)
    fill(args, decoder_embed_dim=512, decoder_ffn_embed_dim=1024, decoder_attention_heads=4)
    complete(args)
