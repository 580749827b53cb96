"""Computes the loss inside a model's forward pass, where its features and output weights meet.

So the logits of a batch never exist at once (`ops.linear_loss`). The loss has to be made inside `forward`: a
distributed wrapper would not see a projection that happens elsewhere, and the gradients of its workers would differ.
"""

from typing import Optional

from fairseq.models import FairseqEncoderDecoderModel
from fairseq.models.lstm import LSTMDecoder, LSTMModel
from fairseq.models.transformer import TransformerDecoderBase, TransformerModelBase
from torch import Tensor, nn

from .ops import TokenLoss
from .ops.linear_loss import token_linear_entmax_loss

# The classes whose forward pass returns what the decoder does.
_PLAIN_MODELS = (FairseqEncoderDecoderModel, LSTMModel, TransformerModelBase)


def output_weights(decoder) -> Optional[tuple[Tensor, Optional[Tensor]]]:
    """Weight `(vocab, dim)` and bias of a decoder whose `output_layer` is linear and ends its forward pass, or None.

    A decoder says so by a method `output_weights`, defined by the class that defines `forward` and `output_layer`: a
    subclass that overrides one of them is not taken for the original. fairseq's own LSTM and transformer are known.
    """
    owner = _owner(decoder, "output_layer")
    if owner is None or owner is not _owner(decoder, "forward") or "output_layer" in vars(decoder):
        return None
    if "output_weights" in vars(owner):
        return decoder.output_weights()
    if owner is LSTMDecoder and decoder.adaptive_softmax is None:
        if decoder.share_input_output_embed:
            return decoder.embed_tokens.weight, None
        return _linear_weights(decoder.fc_out)
    if owner is TransformerDecoderBase and decoder.adaptive_softmax is None:
        return _linear_weights(decoder.output_projection)
    return None


def _owner(instance, name):
    """The class that defines a method of `instance`."""
    return next((kind for kind in type(instance).__mro__ if name in vars(kind)), None)


def _linear_weights(layer):
    hooks = any(getattr(layer, f"_forward{kind}hooks", None) for kind in ("_", "_pre_"))
    return None if type(layer) is not nn.Linear or hooks else (layer.weight, layer.bias)


def token_loss_in_forward(model, net_input, target, **options) -> Optional[TokenLoss]:
    """Runs a model, perhaps inside a distributed wrapper, with the loss in place of its output layer.

    Args:
        options: those of `token_linear_entmax_loss`

    Returns:
        what `token_linear_entmax_loss` says, or None (and the model has not run) if the model cannot hand over its
        features and output weights
    """
    inner = model
    while isinstance(getattr(inner, "module", None), nn.Module):
        inner = inner.module
    decoder = getattr(inner, "decoder", None)
    if _owner(inner, "forward") not in _PLAIN_MODELS:
        return None
    if output_weights(decoder) is None:
        return None
    found = []

    def loss_layer(features):
        del decoder.output_layer
        weight, bias = output_weights(decoder)
        found.append(token_linear_entmax_loss(features, weight, target, bias, **options))
        return found[0].loss

    decoder.output_layer = loss_layer
    try:
        net_output = model(**net_input)
    finally:
        vars(decoder).pop("output_layer", None)
    assert len(found) == 1, "the output layer ends the forward pass"
    # A wrapper may have put a node of its own behind the loss; gradients must pass through it.
    return found[0]._replace(loss=net_output[0])
