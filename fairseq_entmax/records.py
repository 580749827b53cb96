"""Certificate records: one JSON object a sentence, and the summary of a decoded set."""

import json
import math
import os
from collections import Counter
from typing import Any, Callable, Dict, List, Optional, Sequence

from .certificate import COMPLETE, NONE, OPTIMAL

Hypothesis = Dict[str, Any]


def finite(value: float) -> Optional[float]:
    """JSON has no infinity: a score of -inf (probability zero) is written as null."""
    value = float(value)
    return value if math.isfinite(value) else None


def above_zero(weights: Sequence[float]) -> List[List]:
    """`[position, weight]` of each weight above zero, to six digits however small it is: only equal ones look so."""
    return [[i, float(f"{weight:.6g}")] for i, weight in enumerate(weights) if weight > 0]


class CertificateRecorder:
    """Writes certificate records and keeps the figures for the summary.

    Scores are in nats (fairseq's own H- lines are in base 2). `text` and `source` are as fairseq prints them, after
    `--post-process`, `--bpe` and `--tokenizer`.

    Args:
        src_dict, tgt_dict: dictionaries.
        path: file for the records, or None; it is emptied at once, so that a bad path fails before decoding.
        post_process: fairseq's ``--post-process`` symbol.
        detokenize: undoes ``--bpe`` and ``--tokenizer``.
        attention: add the source's tokens, and each step's attention as a list of [source position, weight].
    """

    def __init__(
        self,
        src_dict,
        tgt_dict,
        path: Optional[str] = None,
        post_process: Optional[str] = None,
        detokenize: Callable[[str], str] = str,
        attention: bool = False,
    ):
        self.src_dict, self.tgt_dict = src_dict, tgt_dict
        self.post_process, self.detokenize, self.attention = post_process, detokenize, attention
        self.file = None
        if path is not None:
            folder = os.path.dirname(os.path.abspath(path))
            if not path or os.path.isdir(path):
                raise ValueError(f"--certificate-file: wanted a file, got {path or 'nothing'}")
            if not os.path.isdir(folder):
                raise ValueError(f"--certificate-file {path}: the folder {folder} does not exist")
            self.file = open(path, "w", encoding="utf-8")
        self.counts: Counter = Counter()
        self.reasons: Counter = Counter()
        self.mass = self.strings = self.rows = self.support = self.steps = 0.0

    @property
    def sentences(self) -> int:
        return self.counts[COMPLETE] + self.counts[OPTIMAL] + self.counts[NONE]

    def add(self, ids: List[int], src_tokens, hypotheses: List[List[Hypothesis]]) -> None:
        """Record one batch: `ids` and `src_tokens` `(batch, src_len)` belong to `hypotheses` in order."""
        for sentence, source, hypos in zip(ids, src_tokens, hypotheses):
            certificate, best = hypos[0]["certificate"], hypos[0]
            self.counts[certificate.certificate] += 1
            if certificate.certificate == NONE:
                self.reasons[certificate.reason] += 1
            self.counts["truncated"] += best["truncated"]
            self.mass += certificate.mass
            self.strings += certificate.strings
            self.rows += certificate.decoder_rows
            self.support += sum(best["support"])
            self.steps += len(best["support"])
            if self.file is not None:
                source = source[source.ne(self.src_dict.pad())]
                record = {"id": sentence, "source": self._text(source, self.src_dict)}
                if self.attention:
                    record["source_tokens"] = [self.src_dict[t] for t in source.tolist()]
                record.update(vars(certificate))
                record["margin"] = None if certificate.margin is None else finite(certificate.margin)
                record["hypotheses"] = [self._hypothesis(h) for h in hypos]
                self.file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
        if self.file is not None:
            self.file.flush()

    def _text(self, tokens, dictionary) -> str:
        return self.detokenize(dictionary.string(tokens, self.post_process))

    def _hypothesis(self, hypothesis: Hypothesis) -> Dict[str, Any]:
        tokens = hypothesis["tokens"].tolist()
        record = {
            "tokens": [self.tgt_dict[t] for t in tokens],
            "text": self._text(hypothesis["tokens"], self.tgt_dict),
            "logprob": finite(hypothesis["logprob"]),
            "score": finite(hypothesis["score"]),
            "support": hypothesis["support"],
        }
        attention = hypothesis["attention"]
        if self.attention and attention is not None and attention.numel() > 0:
            record["attention"] = [above_zero(column) for column in attention.t().tolist()]
        if "candidates" in hypothesis:
            record["candidates"] = [
                sorted(([self.tgt_dict[t], round(p, 9)] for t, p in step.items()), key=lambda item: -item[1])
                for step in hypothesis["candidates"]
            ]
        return record

    def summary(self) -> str:
        """One line for the whole set."""
        n = max(self.sentences, 1)

        def share(count: int) -> str:
            return f"{100 * count / n:.2f} %"

        none = ", ".join(f"{reason} {count}" for reason, count in self.reasons.most_common())
        line = (
            f"{self.sentences} sentences, complete {share(self.counts[COMPLETE])}, "
            f"optimal {share(self.counts[OPTIMAL])}, none {share(self.counts[NONE])}{f' ({none})' if none else ''}; "
            f"mean covered mass {self.mass / n:.4f}, mean strings {self.strings / n:.2f}, "
            f"mean support {self.support / max(self.steps, 1):.3f}, mean decoder rows {self.rows / n:.1f}"
        )
        if self.counts["truncated"]:
            line += f"; {self.counts['truncated']} without any output within the limits"
        return line

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None
