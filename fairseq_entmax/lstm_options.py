"""Options of `lstm_entmax`: their defaults, the combinations that are refused, and the embeddings they ask for."""

import os
from dataclasses import dataclass, field, fields
from typing import Optional

from fairseq import utils
from fairseq.dataclass import FairseqDataclass
from torch import nn

from .attention import MAPPINGS, build_mapping


def _option(text, **metadata):
    # None until the architecture fills it: Hydra takes a default here for the user's choice, over any architecture.
    return field(default=None, metadata={"help": text, **metadata})


@dataclass
class LSTMEntmaxConfig(FairseqDataclass):
    dropout: Optional[float] = _option("dropout probability, for the five below (default 0.1)")
    encoder_dropout_in: Optional[float] = _option("dropout probability of source embeddings")
    encoder_dropout_out: Optional[float] = _option("dropout probability of encoder states between layers")
    encoder_memory_dropout: Optional[float] = _option(
        "dropout probability of the encoder states that attention reads (default --encoder-dropout-out)"
    )
    decoder_dropout_in: Optional[float] = _option("dropout probability of target embeddings")
    decoder_dropout_out: Optional[float] = _option("dropout probability of decoder states, between layers too")
    encoder_embed_dim: Optional[int] = _option("size of source embeddings (default 512)")
    encoder_embed_path: Optional[str] = _option("text file of pre-trained source embeddings")
    encoder_freeze_embed: bool = field(default=False, metadata={"help": "do not train source embeddings"})
    encoder_hidden_size: Optional[int] = _option(
        "encoder units of each direction (default --encoder-embed-dim; half of it in the presets)"
    )
    encoder_layers: Optional[int] = _option("number of encoder layers (default 1)")
    encoder_bidirectional: Optional[str] = _option(
        "whether the encoder reads in both directions: true (the default) or false", argparse_const="true"
    )
    decoder_embed_dim: Optional[int] = _option("size of target embeddings (default 512)")
    decoder_embed_path: Optional[str] = _option("text file of pre-trained target embeddings")
    decoder_freeze_embed: bool = field(default=False, metadata={"help": "do not train target embeddings"})
    decoder_hidden_size: Optional[int] = _option("decoder units (default --decoder-embed-dim)")
    decoder_layers: Optional[int] = _option("number of decoder layers (default 1)")
    decoder_out_embed_dim: Optional[int] = _option(
        "size of what the output layer sees (default --decoder-hidden-size; --decoder-embed-dim if that is shared)"
    )
    share_decoder_input_output_embed: bool = field(
        default=False, metadata={"help": "use target embeddings as output weights"}
    )
    share_all_embeddings: bool = field(
        default=False,
        metadata={"help": "use one matrix for source embeddings, target embeddings and output weights"},
    )
    attention_mapping: Optional[str] = _option(
        f"mapping from attention scores to weights: {', '.join(MAPPINGS)} "
        "(default entmax15, or entmax if --attention-alpha or --learn-attention-alpha is given)"
    )
    attention_alpha: Optional[float] = _option(
        "alpha of --attention-mapping entmax, at least 1: 1 is softmax, 2 is sparsemax (default 1.5)"
    )
    learn_attention_alpha: bool = field(
        default=False,
        metadata={"help": "learn one alpha for the attention of --attention-mapping entmax, from --attention-alpha on; "
                          "it stays between 1.01 and 2 and is logged as attention_alpha"},
    )  # fmt: skip
    attention_strength: Optional[float] = _option(
        "strength of the fusion in --attention-mapping fusedmax and oscarmax, at least 0: 0 is sparsemax; where it is "
        "too large (fusedmax about 1, oscarmax 0.1 for a dozen words) all weights are equal and nothing is learnt "
        "(default 0.1 for fusedmax, 0.01 for oscarmax)"
    )
    attention_gamma: Optional[float] = _option(
        "scale of the regulariser of --attention-mapping fusedmax, oscarmax and pnormmax, above 0: the larger, the "
        "denser (default 1)"
    )
    attention_p: Optional[float] = _option(
        "norm of --attention-mapping pnormmax, in (1, 2]: 2 is sparsemax (default 1.5)"
    )


def fill(args, **defaults):
    """Sets what the user left open."""
    for name, value in defaults.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)


def complete(args):
    """Sets all that the user and the architecture left open."""
    fill(args, dropout=0.1, encoder_embed_dim=512, decoder_embed_dim=512, encoder_layers=1, decoder_layers=1)
    fill(
        args,
        encoder_dropout_in=args.dropout,
        encoder_dropout_out=args.dropout,
        decoder_dropout_in=args.dropout,
        decoder_dropout_out=args.dropout,
        encoder_hidden_size=args.encoder_embed_dim,
        decoder_hidden_size=args.decoder_embed_dim,
        encoder_bidirectional="true",
        share_decoder_input_output_embed=False,
        share_all_embeddings=False,
        learn_attention_alpha=False,
    )
    fill(args, encoder_memory_dropout=args.encoder_dropout_out)
    general = args.learn_attention_alpha or getattr(args, "attention_alpha", None) is not None
    fill(args, attention_mapping="entmax" if general else "entmax15")
    shared = args.share_decoder_input_output_embed or args.share_all_embeddings
    fill(args, decoder_out_embed_dim=args.decoder_embed_dim if shared else args.decoder_hidden_size)


class Settings(LSTMEntmaxConfig):
    """Options that are complete and go together."""

    @property
    def encoder_output_size(self) -> int:
        return self.encoder_hidden_size * (2 if self.encoder_bidirectional else 1)


def mapping_from(settings):
    """The attention mapping that options of the names of `LSTMEntmaxConfig` ask for."""
    return build_mapping(
        settings.attention_mapping,
        alpha=settings.attention_alpha,
        strength=settings.attention_strength,
        gamma=settings.attention_gamma,
        p=settings.attention_p,
        learn_alpha=settings.learn_attention_alpha,
    )


def settings_from(cfg) -> Settings:
    """Checked settings from options of any kind, also from a checkpoint that is older than some option."""
    settings = Settings()
    for option in fields(LSTMEntmaxConfig):
        value = getattr(cfg, option.name, None)
        if value is not None:
            setattr(settings, option.name, value)
    complete(settings)
    settings.encoder_bidirectional = is_bidirectional(settings)
    settings.share_decoder_input_output_embed |= settings.share_all_embeddings
    _check(settings)
    return settings


def is_bidirectional(args) -> bool:
    """Whether the option, given as a word or a number, asks for both directions."""
    text = str(args.encoder_bidirectional).lower()
    if text not in ("true", "false", "1", "0"):
        raise ValueError(f"--encoder-bidirectional: wanted true or false, got {args.encoder_bidirectional}")
    return text in ("true", "1")


def _flag(name):
    return "--" + name.replace("_", "-")


def _check(settings):
    for option in fields(LSTMEntmaxConfig):
        value = getattr(settings, option.name)
        if option.name.endswith(("_dim", "_size", "_layers")) and value < 1:
            raise ValueError(f"{_flag(option.name)}: wanted a number >= 1, got {value}")
        if "dropout" in option.name and not 0 <= value < 1:
            raise ValueError(f"{_flag(option.name)}: wanted a probability in [0, 1), got {value}")
    mapping_from(settings)  # refuses what does not go together
    if settings.share_decoder_input_output_embed and settings.decoder_embed_dim != settings.decoder_out_embed_dim:
        name = "share_all_embeddings" if settings.share_all_embeddings else "share_decoder_input_output_embed"
        raise ValueError(
            f"{_flag(name)} needs --decoder-out-embed-dim equal to --decoder-embed-dim, got "
            f"{settings.decoder_out_embed_dim} and {settings.decoder_embed_dim}"
        )
    if settings.share_all_embeddings:
        if settings.encoder_embed_dim != settings.decoder_embed_dim:
            raise ValueError(
                "--share-all-embeddings needs --encoder-embed-dim equal to --decoder-embed-dim, got "
                f"{settings.encoder_embed_dim} and {settings.decoder_embed_dim}"
            )
        if settings.decoder_embed_path not in (None, settings.encoder_embed_path):
            raise ValueError(
                "--share-all-embeddings takes its one matrix from --encoder-embed-path; leave out "
                f"--decoder-embed-path {settings.decoder_embed_path}"
            )


def build_embeddings(settings, source_dictionary, target_dictionary):
    """Source and target embeddings, one and the same module with `--share-all-embeddings`."""
    source = _embedding(settings, "encoder", source_dictionary)
    if settings.share_all_embeddings:
        if source_dictionary != target_dictionary:
            raise ValueError(
                "--share-all-embeddings needs one dictionary for both languages, got two of "
                f"{len(source_dictionary)} and {len(target_dictionary)} symbols: "
                "preprocess with --joined-dictionary"
            )
        target = source
    else:
        target = _embedding(settings, "decoder", target_dictionary)
    source.weight.requires_grad = not settings.encoder_freeze_embed
    if settings.decoder_freeze_embed:
        target.weight.requires_grad = False
    return source, target


def _embedding(settings, side, dictionary):
    dim = getattr(settings, f"{side}_embed_dim")
    path = getattr(settings, f"{side}_embed_path")
    embedding = nn.Embedding(len(dictionary), dim, padding_idx=dictionary.pad())
    nn.init.uniform_(embedding.weight, -0.1, 0.1)
    nn.init.zeros_(embedding.weight[dictionary.pad()])
    if path is None:
        return embedding
    if not os.path.isfile(path):
        raise ValueError(f"--{side}-embed-path: no such file: {path}")
    vectors = utils.parse_embedding(path)
    sizes = {len(vector) for vector in vectors.values()}
    if sizes != {dim}:
        raise ValueError(
            f"--{side}-embed-path {path} has vectors of size {sorted(sizes)}, but --{side}-embed-dim is {dim}"
        )
    utils.print_embed_overlap(vectors, dictionary)
    return utils.load_embedding(vectors, dictionary, embedding)
