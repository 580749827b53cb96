"""What a model can say, from Python: its outputs with their probabilities, and its next words after a prefix."""

from typing import List, NamedTuple, Optional, Sequence, Union

import torch
from torch import Tensor, nn

from .certificate import Certificate
from .generator import EXACT_BUDGET, SparseGenerator
from .output import forbidden_symbols

Text = Union[str, Tensor]


class Output(NamedTuple):
    """One output. `tokens` `(length,)` ends with end of sentence; `text` has the symbols, joined by spaces."""

    text: str
    probability: float
    logprob: float
    tokens: Tensor


class Enumeration(NamedTuple):
    """The most probable outputs of one sentence, best first, and what was proved about them.

    ``certificate.mass`` is the probability they cover together. With certificate ``complete`` they are the model's
    whole output distribution. Unless the reason names ``budget`` or ``length limit``, no missing output is more
    probable than the last one.
    """

    outputs: List[Output]
    certificate: Certificate


class Candidate(NamedTuple):
    """A possible next symbol; `symbol` is `</s>` for the end of the output."""

    symbol: str
    probability: float
    index: int


@torch.no_grad()
def enumerate_outputs(
    models: Union[nn.Module, Sequence[nn.Module]],
    sample: dict,
    mass: float = 1.0,
    budget: int = EXACT_BUDGET,
    max_len_a: float = 0,
    max_len_b: int = 200,
    min_len: int = 0,
    temperature: float = 1.0,
) -> List[Enumeration]:
    """List the most probable outputs of each sentence until they cover a probability.

    Args:
        models: a fairseq encoder-decoder model, an ensemble of them, as loaded under the task `translation_entmax`, or
            what `fairseq_entmax.load` returns.
        sample: a batch with ``net_input`` (``src_tokens`` `(batch, src_len)` and ``src_lengths``), as the task's
            datasets make it.
        mass: probability to cover, in (0, 1].
        budget: decoder rows a sentence.
        max_len_a, max_len_b: outputs have at most ``a * src_len + b`` tokens before end of sentence.
        min_len: fewest tokens before end of sentence.
        temperature: divides the logits.

    Returns:
        One `Enumeration` a sentence; `outputs` is empty when no output is reachable within the limits.

    Raises:
        ValueError: `mass` or `budget` out of range, or a model that gives NaN.
    """
    if not 0 < mass <= 1:
        raise ValueError(f"mass must be in (0, 1], got {mass}")
    models = _as_list(models)
    generator = SparseGenerator(
        models,
        models[0].decoder.dictionary,
        max_len_a=max_len_a,
        max_len_b=max_len_b,
        min_len=min_len,
        temperature=temperature,
        normalize_scores=False,
        enumerate_mass=mass,
        exact_budget=budget,
    )
    results = []
    for hypotheses in generator.generate(models, sample):
        found = [h for h in hypotheses if not h["truncated"]]
        outputs = [
            Output(
                generator.tgt_dict.string(h["tokens"]),
                float(torch.tensor(h["logprob"], dtype=torch.float64).exp()),
                h["logprob"],
                h["tokens"],
            )
            for h in found
        ]
        results.append(Enumeration(outputs, hypotheses[0]["certificate"]))
    return results


@torch.no_grad()
def suggest(
    models: Union[nn.Module, Sequence[nn.Module]], source: Text, prefix: Text = "", temperature: float = 1.0
) -> List[Candidate]:
    """The next symbols that are possible after a prefix of the output, most probable first.

    With a sparse output these are few, so that a person can choose among them while translating.

    Args:
        models: a fairseq encoder-decoder model, an ensemble of them, as loaded under the task `translation_entmax`, or
            what `fairseq_entmax.load` returns.
        source: source symbols separated by spaces, or their indices `(src_len,)` with end of sentence.
        prefix: the output so far, symbols separated by spaces, or their indices `(length,)`.
        temperature: divides the logits.

    Returns:
        The support with its probabilities; symbols that no output may contain (padding and the like) are left out.

    Raises:
        ValueError: the prefix has probability zero.
    """
    models = _as_list(models)
    target, device = models[0].decoder.dictionary, next(models[0].parameters()).device
    src_tokens = _encode(source, models[0].encoder.dictionary, append_eos=True).unsqueeze(0).to(device)
    tokens = _encode(prefix, target, append_eos=False).tolist()
    generator = SparseGenerator(models, target, temperature=temperature)
    state = generator.ensemble.eval().start({"src_tokens": src_tokens, "src_lengths": _length(src_tokens)})
    so_far = [target.eos()]
    for token in [*tokens, None]:
        probs = state.step(torch.tensor([so_far], device=device), temperature).probs[0]
        if torch.isnan(probs).any():
            raise ValueError("the model gives NaN: the checkpoint is broken")
        if len(so_far) > 1 and so_far[-1] == target.eos():
            raise ValueError(f"prefix: nothing follows the end of the output, {target[target.eos()]!r}")
        if token is not None and probs[token] == 0:
            said = target.string(torch.tensor(so_far[1:], dtype=torch.long))
            raise ValueError(f"prefix: {target[token]!r} has probability zero after {said!r}")
        so_far.append(token)
    probs[forbidden_symbols(target)] = 0.0
    order = probs.argsort(descending=True)[: int((probs > 0).sum())].tolist()
    return [Candidate(target[i], probs[i].item(), i) for i in order]


def _as_list(models) -> List[nn.Module]:
    """One model, several, or what `load` returns."""
    models = getattr(models, "models", models)
    single = isinstance(models, nn.Module) and not isinstance(models, nn.ModuleList)
    models = [models] if single else list(models)
    if not models:
        raise ValueError("models: wanted at least one, got none")
    return models


def _length(src_tokens: Tensor) -> Tensor:
    return torch.tensor([src_tokens.size(1)], device=src_tokens.device)


def _encode(text: Text, dictionary, append_eos: bool) -> Tensor:
    if isinstance(text, Tensor):
        return text.long()
    return dictionary.encode_line(text, append_eos=append_eos, add_if_not_exist=False).long()


def decoding_task(data: str):
    """The task `translation_entmax` for a folder that fairseq-preprocess wrote, to load models under."""
    from fairseq import tasks
    from omegaconf import OmegaConf

    return tasks.setup_task(OmegaConf.create({"_name": "translation_entmax", "data": data}))


def interactive_suggest(path: str, data: str) -> int:
    """`python -m fairseq_entmax suggest MODEL DATA`: asks for a source, then shows candidates after each prefix."""
    from fairseq import checkpoint_utils

    models, _ = checkpoint_utils.load_model_ensemble(path.split(":"), task=decoding_task(data))
    print("Type a source line, then the output so far, again and again; an empty line starts a new source.", flush=True)
    source: Optional[str] = None
    while True:
        try:
            line = input("source> " if source is None else "prefix> ").strip()
        except EOFError:
            print()
            return 0
        if source is None:
            source = line or None
            prefix = ""
        elif not line:
            source = None
            continue
        else:
            prefix = line
        if source is not None:
            _show(models, source, prefix)


def _show(models: List[nn.Module], source: str, prefix: str) -> None:
    try:
        for candidate in suggest(models, source, prefix):
            print(f"{candidate.probability:8.4f}  {candidate.symbol}")
    except ValueError as error:
        print(error)
