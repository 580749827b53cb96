"""`--score-reference`: log probabilities of given outputs, where some may be impossible."""

import math
from typing import Any, Dict, List, Optional

from fairseq.sequence_scorer import SequenceScorer

from .ensemble import align, source_columns


class ReferenceScorer(SequenceScorer):
    """fairseq's scorer; alignments are in the order of the source tokens, and impossible references are counted.

    A token outside the support has log probability -inf, and so has its reference. `impossible` counts such references,
    `logprob_sum` and `possible` give the mean over the others.
    """

    def __init__(self, tgt_dict, print_alignment: Optional[str] = None):
        super().__init__(tgt_dict)
        self.print_alignment = print_alignment
        self.impossible = self.possible = 0
        self.logprob_sum = 0.0

    def generate(self, models, sample: Dict[str, Any], **kwargs) -> List[List[Dict[str, Any]]]:
        """Score the targets of a batch."""
        if sample.get("target") is None:
            raise ValueError("--score-reference needs target sentences, but this data set has none")
        results = super().generate(models, sample, **kwargs)
        src_tokens = sample["net_input"]["src_tokens"]
        columns = source_columns(models[0], src_tokens, self.pad)
        for i, (hypothesis,) in enumerate(results):
            logprob = hypothesis["positional_scores"].double().sum().item()
            if logprob == -math.inf:
                self.impossible += 1
            else:
                self.possible += 1
                self.logprob_sum += logprob
            hypothesis["logprob"], hypothesis["steps"] = logprob, len(hypothesis["tokens"])
            attention = hypothesis["attention"]
            if not self.print_alignment:
                continue
            hypothesis["alignment"] = []
            if attention is not None and attention.size(-1) == columns.size(1):
                source = src_tokens[i][src_tokens[i].ne(self.pad)]
                attention = attention[: len(hypothesis["tokens"])].index_select(1, columns[i])[:, : source.numel()]
                hypothesis["alignment"] = align(
                    self.print_alignment, attention.t(), source, hypothesis["tokens"], self.pad, self.eos
                )
        return results

    def summary(self) -> str:
        """One line for the whole set."""
        mean = f"{self.logprob_sum / self.possible:.4f}" if self.possible else "none"
        return (
            f"{self.impossible} of {self.impossible + self.possible} references have probability zero; mean log "
            f"probability of the others {mean} nats"
        )
