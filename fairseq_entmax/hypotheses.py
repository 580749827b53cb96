"""Hypotheses as fairseq expects them, read from the trace of a search."""

import math
from typing import Any, Dict

import torch
from torch import Tensor

from .search_state import Finished

Hypothesis = Dict[str, Any]


def read_hypothesis(item: Finished, source: Tensor, eos: int) -> Hypothesis:
    """Walk the trace back from the last row of an output.

    Args:
        item: the finished output.
        source: `(src_len,)`, without padding.
        eos: its last token.
    """
    tokens, increments, support, attention, candidates = [eos], [item.increment], [], [], []
    row = item.row
    for step in range(item.step, -1, -1):
        trace = item.trace[step]
        support.append(trace.support[row])
        if trace.attention is not None:
            attention.append(trace.attention[row, : source.numel()])
        if trace.candidates is not None:
            candidates.append(trace.candidates[row])
        if step > 0:
            tokens.append(trace.token[row])
            increments.append(trace.increment[row])
            row = trace.parent[row]
    hypothesis = {
        "tokens": torch.tensor(tokens[::-1], dtype=torch.long, device=source.device),
        "score": torch.tensor(item.score, device=source.device),
        "attention": torch.stack(attention[::-1], dim=1) if attention else torch.empty(0),
        "positional_scores": torch.tensor(increments[::-1], device=source.device),
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
