"""Options of `transformer_entmax`: fairseq's, each left open until an architecture fills it, and those of attention."""

from argparse import Namespace
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from enum import Enum
from typing import Optional, get_args

from fairseq import utils
from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from omegaconf import OmegaConf

from .attention import GOES_WITH, MAPPINGS, build_mapping
from .lstm_options import LSTMEntmaxConfig, fill

# Options of fairseq's transformer that do nothing here, so they are none of ours and are refused.
_ABSENT = (
    "encoder_layers_to_keep",
    "decoder_layers_to_keep",
    "encoder_xformers_att_config",
    "decoder_xformers_att_config",
    "base_layers",
    "base_sublayers",
    "base_shuffle",
    "char_inputs",
)
# Where attention happens, with the option that overrides --attention-mapping there.
PLACES = {
    "encoder": "encoder_attention_mapping",
    "decoder": "decoder_attention_mapping",
    "cross": "cross_attention_mapping",
}


def _left_open(name, option):
    """An option of fairseq as a field of ours: a default would look like the user's choice under Hydra."""
    if option.type is bool:
        return name, bool, field(default=False, metadata=dict(option.metadata))
    kinds = [kind for kind in (*get_args(option.type), option.type) if isinstance(kind, type)]
    kind = str if issubclass(kinds[0], Enum) else option.type  # checkpoints hold plain types only
    return name, Optional[kind], field(default=None, metadata=dict(option.metadata))


def _flat_options():
    for option in fields(TransformerConfig):
        if is_dataclass(option.type):
            yield from ((f"{option.name}_{inner.name}", inner) for inner in fields(option.type))
        else:
            yield option.name, option


def _mapping_option(place):
    return field(default=None, metadata={"help": f"mapping of {place} (default --attention-mapping)"})


_FROM_FAIRSEQ = [(name, option) for name, option in _flat_options() if name not in (*_ABSENT, "_name")]
_FROM_LSTM = [option for option in fields(LSTMEntmaxConfig) if "attention" in option.name]

_SharedConfig = make_dataclass(
    "_SharedConfig",
    [_left_open(name, option) for name, option in _FROM_FAIRSEQ]
    + [(o.name, o.type, field(default=o.default, metadata=dict(o.metadata))) for o in _FROM_LSTM],
    bases=(FairseqDataclass,),
)


@dataclass
class TransformerEntmaxConfig(_SharedConfig):
    learn_attention_alpha: bool = field(
        default=False,
        metadata={"help": "learn one alpha for each head of attention with mapping entmax or entmax15, from "
                          "--attention-alpha on; it stays between 1.01 and 2, and its mean in each layer is logged"},
    )  # fmt: skip
    encoder_attention_mapping: Optional[str] = _mapping_option("the encoder's self-attention")
    decoder_attention_mapping: Optional[str] = _mapping_option("the decoder's self-attention")
    cross_attention_mapping: Optional[str] = _mapping_option("the decoder's attention to the source")


def complete(args):
    """Sets all that the user and the architecture left open, as fairseq's `transformer` does."""
    fill(args, encoder_embed_dim=_default("encoder_embed_dim"), encoder_ffn_embed_dim=_default("encoder_ffn_embed_dim"))
    fill(args, decoder_embed_dim=args.encoder_embed_dim, decoder_ffn_embed_dim=args.encoder_ffn_embed_dim)
    fill(args, decoder_input_dim=args.decoder_embed_dim, decoder_output_dim=args.decoder_embed_dim)
    fill(args, **{name: _default(name) for name, _ in _FROM_FAIRSEQ})
    fill(args, learn_attention_alpha=False)
    general = args.learn_attention_alpha or getattr(args, "attention_alpha", None) is not None
    fill(args, attention_mapping="entmax" if general else "entmax15")
    fill(args, **{option: args.attention_mapping for option in PLACES.values()})


def _default(name):
    default = dict(_FROM_FAIRSEQ)[name].default
    return default.value if isinstance(default, Enum) else default


class Settings(TransformerEntmaxConfig):
    """Options that are complete and go together."""

    def uses_softmax(self, place: str) -> bool:
        return getattr(self, PLACES[place]) == "softmax"

    def build_mapping(self, place: str, heads: int):
        """The mapping of one attention module; options that mean nothing to it are left to the other places."""
        name = getattr(self, PLACES[place])
        options = {
            option[2:].replace("attention-", "").replace("-", "_"): value
            for option, value in self._mapping_options().items()
            if value is not None and name in GOES_WITH[option]
        }
        return build_mapping(name, heads=heads, **options)

    def _mapping_options(self):
        values = {option: getattr(self, option[2:].replace("-", "_")) for option in GOES_WITH}
        return {**values, "--learn-attention-alpha": self.learn_attention_alpha or None}

    def check(self):
        names = {place: getattr(self, option) for place, option in PLACES.items()}
        for place, name in names.items():
            if name not in MAPPINGS:
                raise ValueError(f"{_flag(PLACES[place])}: wanted one of {', '.join(MAPPINGS)}, got {name}")
        for option, value in self._mapping_options().items():
            if value is not None and not set(names.values()) & set(GOES_WITH[option]):
                raise ValueError(
                    f"{option} goes with --attention-mapping {' or '.join(GOES_WITH[option])}, got {value} with "
                    + ", ".join(f"{name} ({place})" for place, name in names.items())
                )
        for place in PLACES:
            self.build_mapping(place, heads=1)  # refuses numbers out of range
        for side in ("encoder", "decoder"):
            size, heads = getattr(self, f"{side}_embed_dim"), getattr(self, f"{side}_attention_heads")
            if heads < 1 or size % heads:
                raise ValueError(
                    f"--{side}-attention-heads: wanted a divisor of {size} (--{side}-embed-dim), got {heads}"
                )
        known = utils.get_available_activation_fns()
        if self.activation_fn not in known:
            raise ValueError(f"--activation-fn: wanted one of {', '.join(known)}, got {self.activation_fn}")

    def transformer_config(self) -> TransformerConfig:
        """What fairseq's own modules read."""
        values = {name: getattr(self, name) for name, _ in _FROM_FAIRSEQ}
        return TransformerConfig.from_namespace(Namespace(**values))


def settings_from(cfg) -> Settings:
    """Checked settings from options of any kind, also from a checkpoint that is older than some option."""
    names = [option.name for option in fields(TransformerEntmaxConfig)]
    for name in _ABSENT:
        if getattr(cfg, name, None):
            raise ValueError(f"{_flag(name)} is not available in transformer_entmax, got {getattr(cfg, name)}")
    if OmegaConf.is_config(cfg):  # a Namespace holds the options of everything else, too
        unknown = sorted(set(cfg) - set(names) - {"arch"})
        if unknown:
            raise ValueError(f"transformer_entmax has no option {', '.join(unknown)}")
    settings = Settings()
    for name in names:
        value = getattr(cfg, name, None)
        if value is not None:
            setattr(settings, name, value)
    complete(settings)
    settings.check()
    return settings


def _flag(name):
    return "--" + name.replace("_", "-")
