"""Hypotheses as fairseq expects them, read from the trace of a search."""

import math
from typing import Any, Dict, List

import torch
from torch import Tensor

from .search_state import Finished

Hypothesis = Dict[str, Any]


def read_hypotheses(items: List[List[Finished]], sources: List[Tensor], eos: int) -> List[List[Hypothesis]]:
    """Hypotheses of a batch of sentences, in the given order.

    Tensors are made once for the whole batch and then split: one by one they would cost more than a decoder step.

    Args:
        items: finished outputs of each sentence.
        sources: `(src_len,)` of each sentence, without padding.
        eos: last token of every output.
    """
    read = [[_read(item, source.numel(), eos) for item in found] for found, source in zip(items, sources)]
    flat, device = [h for found in read for h in found], sources[0].device
    lengths = [len(h["tokens"]) for h in flat]
    tokens = torch.tensor([t for h in flat for t in h["tokens"]], dtype=torch.long, device=device).split(lengths)
    increments = torch.tensor([x for h in flat for x in h["positional_scores"]], device=device).split(lengths)
    scores = torch.tensor([h["score"] for h in flat], device=device).unbind()
    for hypothesis, *columns in zip(flat, tokens, increments, scores):
        hypothesis["tokens"], hypothesis["positional_scores"], hypothesis["score"] = columns
    return read


def _read(item: Finished, src_len: int, eos: int) -> Hypothesis:
    """Walk the trace back from the last row of an output; tokens and scores are left as Python lists."""
    tokens, increments, support, attention, candidates = [eos], [item.increment], [], [], []
    row = item.row
    for step in range(item.step, -1, -1):
        trace = item.trace[step]
        support.append(trace.support[row])
        if trace.attention is not None:
            attention.append(trace.attention[row, :src_len])
        if trace.candidates is not None:
            candidates.append(trace.candidates[row])
        if step > 0:
            tokens.append(trace.token[row])
            increments.append(trace.increment[row])
            row = trace.parent[row]
    hypothesis = {
        "tokens": tokens[::-1],
        "score": item.score,
        "attention": torch.stack(attention[::-1], dim=1) if attention else torch.empty(0),
        "positional_scores": increments[::-1],
        "logprob": item.logprob,
        "support": support[::-1],
        "truncated": item.score == -math.inf,
        "steps": len(tokens),
    }
    if candidates:
        hypothesis["candidates"] = candidates[::-1]
    return hypothesis


def complete_prefix(hypothesis: Hypothesis, prefix: Tensor, pad: int, eos: int) -> None:
    """Give an output of probability zero the whole of its forced prefix."""
    tokens = [t for t in prefix.tolist() if t not in (pad, eos)] + [eos]
    scores = hypothesis["positional_scores"].tolist()[: len(tokens)]
    scores += [-math.inf] * (len(tokens) - len(scores))
    hypothesis["tokens"] = hypothesis["tokens"].new_tensor(tokens)
    hypothesis["positional_scores"] = hypothesis["positional_scores"].new_tensor(scores)
    hypothesis["attention"] = torch.empty(0)
    hypothesis["support"] = hypothesis["support"][: len(tokens)]
    hypothesis["steps"] = len(tokens)
