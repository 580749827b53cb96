"""Scripted models whose output distribution is known exactly, and brute-force searches over them."""

import math
import zlib
from types import SimpleNamespace
from typing import Dict, List, Tuple

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqDecoder, FairseqEncoder, FairseqEncoderDecoderModel, FairseqIncrementalDecoder

from fairseq_entmax.output import set_output_alpha

EOS = 2
FIRST = 4  # index of the first ordinary symbol


def letters(n: int, padding_factor: int = 1) -> Dictionary:
    """Dictionary of the symbols a, b, c, ... (indices 4, 5, 6, ...)."""
    dictionary = Dictionary()
    for i in range(n):
        dictionary.add_symbol(chr(ord("a") + i), n=n - i)
    dictionary.finalize(padding_factor=padding_factor)
    return dictionary


def entmax15_logits(probs: np.ndarray) -> np.ndarray:
    """Logits whose 1.5-entmax is `probs`: with tau = 0, p = max(z / 2, 0) ** 2."""
    return np.where(probs > 0, 2 * np.sqrt(probs), -1.0)


class Automaton:
    """Next-symbol distributions by state; `probs` `(states, vocab)`, `follow` `(states, vocab)`."""

    def __init__(self, probs: np.ndarray, follow: np.ndarray):
        self.probs, self.follow = probs, follow

    @classmethod
    def random(
        cls, seed: int, n_states: int, vocab: int, first: int = FIRST, max_support: int = 3, ties: bool = False
    ) -> "Automaton":
        rng = np.random.default_rng(seed)
        probs = np.zeros((n_states, vocab))
        for state in range(n_states):
            size = rng.integers(1, max_support + 1)
            allowed = np.concatenate([[EOS], np.arange(first, vocab)])
            support = rng.choice(allowed, size=min(size, len(allowed)), replace=False)
            weights = rng.integers(1, 5, size=len(support)) if ties else rng.uniform(0.1, 1, size=len(support))
            probs[state, support] = weights / weights.sum()
        follow = rng.integers(0, n_states, size=(n_states, vocab))
        return cls(probs, follow)

    @classmethod
    def of_strings(cls, table: Dict[str, Dict[str, float]], vocab: int) -> "Automaton":
        """From prefix -> {symbol: probability}, "." for end of sentence; prefixes are strings of letters."""
        prefixes = sorted(table)
        probs, follow = np.zeros((len(prefixes), vocab)), np.zeros((len(prefixes), vocab), dtype=int)
        start = prefixes.index("")
        order = [start] + [i for i in range(len(prefixes)) if i != start]
        state = {prefixes[i]: n for n, i in enumerate(order)}
        for prefix, nexts in table.items():
            for symbol, p in nexts.items():
                index = EOS if symbol == "." else FIRST + ord(symbol) - ord("a")
                probs[state[prefix], index] = p
                if symbol != ".":
                    follow[state[prefix], index] = state.get(prefix + symbol, state.get("*", 0))
        return cls(probs, follow)

    def strings(self, max_len: int, probs: np.ndarray = None) -> Dict[Tuple[int, ...], float]:
        """Log probability of every output of at most `max_len` symbols and end of sentence, by brute force."""
        probs = self.probs if probs is None else probs
        found: Dict[Tuple[int, ...], float] = {}

        def walk(prefix, state, logprob):
            for symbol in np.nonzero(probs[state])[0]:
                score = logprob + math.log(probs[state, symbol])
                if symbol == EOS:
                    found[prefix + (EOS,)] = score
                elif len(prefix) < max_len:
                    walk(prefix + (int(symbol),), self.follow[state, symbol], score)

        walk((), 0, 0.0)
        return found


class ScriptEncoder(FairseqEncoder):
    """The first source token, less FIRST, is the number of the automaton."""

    def forward(self, src_tokens, src_lengths=None, **kwargs):
        content = src_tokens.masked_fill(src_tokens.eq(self.dictionary.pad()), -1)
        automaton = torch.where(content >= FIRST, content - FIRST, torch.full_like(content, -1)).max(dim=1).values
        return {"encoder_out": [automaton], "tokens": [src_tokens]}

    def forward_torchscript(self, net_input):
        return self.forward(net_input["src_tokens"])

    def reorder_encoder_out(self, encoder_out, new_order):
        return {k: [v[0].index_select(0, new_order)] for k, v in encoder_out.items()}


class _Script:
    def tables(self, automata: List[Automaton]):
        size = max(len(a.probs) for a in automata)

        def pad(x):
            return np.pad(x, ((0, size - len(x)), (0, 0)))

        self.probs = torch.tensor(np.stack([pad(a.probs) for a in automata]), dtype=torch.float64)
        self.logits = torch.tensor(np.stack([entmax15_logits(pad(a.probs)) for a in automata]), dtype=torch.float64)
        self.follow = torch.tensor(np.stack([pad(a.follow) for a in automata]))
        self.rows_seen = 0

    def max_positions(self):
        return 1000

    def output(self, automaton, state):
        self.rows_seen += automaton.numel()
        return self.logits[automaton, state].unsqueeze(1)


class ScriptDecoder(_Script, FairseqIncrementalDecoder):
    """Keeps its state in the incremental state, so that a wrong reordering shows; attention is on the first token."""

    def __init__(self, dictionary, automata, dtype=torch.float64):
        super().__init__(dictionary)
        self.tables(automata)
        self.dtype = dtype

    def forward(self, prev_output_tokens, encoder_out=None, incremental_state=None, **kwargs):
        automaton = encoder_out["encoder_out"][0]
        cached = self.get_incremental_state(incremental_state, "script")
        if cached is None:
            state = torch.zeros_like(automaton)
        else:
            assert torch.equal(cached["automaton"], automaton), "rows of the decoder and of the encoder went apart"
            state = self.follow[automaton, cached["state"], prev_output_tokens[:, -1]]
        self.set_incremental_state(incremental_state, "script", {"state": state, "automaton": automaton})
        tokens = encoder_out["tokens"][0]
        attention = torch.zeros(tokens.size(0), 1, tokens.size(1))
        attention[:, 0] = tokens.eq(automaton.unsqueeze(1) + FIRST).float()
        return self.output(automaton, state).to(self.dtype), {"attn": [attention]}

    def reorder_incremental_state(self, incremental_state, new_order):
        cached = self.get_incremental_state(incremental_state, "script")
        if cached is not None:
            cached = {k: v.index_select(0, new_order) for k, v in cached.items()}
            self.set_incremental_state(incremental_state, "script", cached)


class PlainScriptDecoder(_Script, FairseqDecoder):
    """The same without incremental state: walks the whole prefix every time."""

    def __init__(self, dictionary, automata, dtype=torch.float64):
        super().__init__(dictionary)
        self.tables(automata)

    def forward(self, prev_output_tokens, encoder_out=None, **kwargs):
        automaton = encoder_out["encoder_out"][0]
        state = torch.zeros_like(automaton)
        for step in range(1, prev_output_tokens.size(1)):
            state = self.follow[automaton, state, prev_output_tokens[:, step]]
        return self.output(automaton, state), {"attn": [None]}


class ScriptModel(FairseqEncoderDecoderModel):
    def max_decoder_positions(self):
        return 1000


def script_model(dictionary, automata, alpha=1.5, decoder=ScriptDecoder, dtype=torch.float64) -> ScriptModel:
    """A model whose 1.5-entmax output follows the automata, one automaton for each source symbol."""
    model = ScriptModel(ScriptEncoder(dictionary), decoder(dictionary, automata, dtype)).eval()
    set_output_alpha(model, alpha)
    return model


def script_sample(numbers: List[int], width: int = 0, left_pad: bool = True) -> dict:
    """Batch whose sentence i runs automaton ``numbers[i]``; padded to `width` when that is more than 2."""
    rows = []
    for n in numbers:
        row = [FIRST + n, EOS]
        pad = [1] * max(0, width - len(row))
        rows.append(pad + row if left_pad else row + pad)
    tokens = torch.tensor(rows)
    lengths = torch.full((len(numbers),), 2)
    return {"id": torch.arange(len(numbers)), "net_input": {"src_tokens": tokens, "src_lengths": lengths}}


def normalized(strings: Dict[Tuple[int, ...], float], lenpen: float) -> Dict[Tuple[int, ...], float]:
    return {tokens: score / len(tokens) ** lenpen for tokens, score in strings.items()}


def plain_beam(
    automaton: Automaton, beam: int, nbest: int, max_len: int, min_len: int, normalize: bool, lenpen: float
) -> List[Tuple[Tuple[int, ...], float]]:
    """The search of `SparseGenerator` without its economies: one sentence, Python lists, nothing dropped by bounds.

    Returns the `nbest` best (tokens, score).
    """
    live: List[Tuple[float, Tuple[int, ...], int]] = [(0.0, (), 0)]
    finished: List[Tuple[float, Tuple[int, ...]]] = []
    score_of = (lambda s, n: s / n**lenpen) if normalize and lenpen != 0 else (lambda s, n: s)
    for step in range(max_len + 1):
        candidates = []
        for logprob, prefix, state in live:
            for symbol in np.nonzero(automaton.probs[state])[0]:
                score = logprob + math.log(automaton.probs[state, symbol])
                if symbol == EOS:
                    if step >= min_len:
                        finished.append((score_of(score, step + 1), prefix + (EOS,)))
                elif step < max_len:
                    candidates.append((score, prefix + (int(symbol),), automaton.follow[state, symbol]))
        finished.sort(key=lambda f: -f[0])
        live = sorted(candidates, key=lambda c: -c[0])[:beam]
        if normalize and lenpen != 0 and len(finished) >= max(beam, nbest):
            if all(score_of(s, step + 1) <= finished[nbest - 1][0] for s, _, _ in live):
                break
    return [(tokens, score) for score, tokens in finished[:nbest]]


def text_hash(text: str) -> int:
    """A seed from a text that does not change from run to run."""
    return zlib.crc32(text.encode())


def gen_args(**kwargs) -> SimpleNamespace:
    return SimpleNamespace(**kwargs)
