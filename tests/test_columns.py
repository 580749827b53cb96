"""Decoding over the possible tokens only, as with large vocabularies, says what decoding over all tokens says."""

import math
from collections import Counter

import pytest
import torch
from fairseq.token_generation_constraints import pack_constraints
from helpers import EOS, FIRST, Automaton, letters, script_model, script_sample
from torch import nn

from fairseq_entmax import ensemble, exact_search
from fairseq_entmax.generator import SparseGenerator
from fairseq_entmax.ops import entmax, support

LETTERS = 60


def automaton(seed):
    """Few of many letters possible in each state, and in most states an end."""
    found = Automaton.random(seed, 4, FIRST + LETTERS, max_support=4)
    found.probs[1:, EOS] += 0.4
    found.probs /= found.probs.sum(axis=1, keepdims=True)
    return found


AUTOMATA, OTHERS = [automaton(seed) for seed in range(12)], [automaton(100 + seed) for seed in range(12)]


class LateLetters(nn.Module):
    """A language model that does not look at what came before."""

    def forward(self, tokens):
        return (torch.arange(FIRST + LETTERS).float().div(20).expand(*tokens.shape, -1),)

    def get_normalized_probs(self, net_output, log_probs, sample=None):
        return net_output[0].log_softmax(dim=-1)


def possible(source):
    """The letters that an automaton may say first."""
    return [int(i) for i in source.probs[0].nonzero()[0] if i != EOS]


def decode(monkeypatch, listed, members=(AUTOMATA,), prefix=None, phrases=None, **options):
    """Hypotheses of all automata, and how many columns the steps had."""
    sizes = Counter()
    step = ensemble.EnsembleState.step

    def watched(*args, **kwargs):
        out = step(*args, **kwargs)
        sizes[out.probs.size(1)] += 1
        return out

    with monkeypatch.context() as patch:
        patch.setattr(ensemble.EnsembleState, "step", watched)
        if listed:
            patch.setattr(support, "LONG_ROW", 1)
            patch.setattr(support, "BLOCK", 8)
            patch.setattr(ensemble, "LISTED_SHARE", 1)
        dictionary = letters(LETTERS)
        models = [script_model(dictionary, automata) for automata in members]
        options = {"beam_size": 3, "nbest": 4, "max_len_b": 6, "min_len": 0, "want_candidates": True, **options}
        generator = SparseGenerator(models, dictionary, **options)
        packed = None if phrases is None else pack_constraints([[torch.tensor(p) for p in row] for row in phrases])
        torch.manual_seed(1)
        sample = script_sample(list(range(len(AUTOMATA))))
        return generator.generate(models, sample, prefix_tokens=prefix, constraints=packed), sizes


PUT_ASIDE = {"normalize_scores": False, "exact_budget": 150, "rows": 12}
OPTIONS = {
    "beam": {},
    "raw": {"normalize_scores": False},
    "wide beam without bounds": {"beam_size": 40, "nbest": 40, "bounding": False},
    "ensemble": {"members": (AUTOMATA, OTHERS)},
    "temperature": {"temperature": 0.9},
    "exact search": {"beam_size": 1, "exact_search": True},
    "exact search, prefixes put aside": {"beam_size": 1, "exact_search": True, **PUT_ASIDE},
    "enumeration": {"normalize_scores": False, "enumerate_mass": 0.9},
    "enumeration, prefixes put aside": {"enumerate_mass": 0.97, **PUT_ASIDE},
    "groups": {"beam_size": 4, "diverse_beam_groups": 2},
    "siblings": {"diversity_rate": 0.4},
    "unknown words": {"unk_penalty": 1.5},
    "n-grams": {"no_repeat_ngram_size": 1},
    "allowed tokens": {"prefix_allowed_tokens_fn": lambda sentence, tokens: [EOS, *range(FIRST + 10, FIRST + LETTERS)]},
    "language model": {"lm_model": LateLetters(), "lm_weight": 0.5},
    "shortest": {"min_len": 2},
    "prefix": {"prefix": torch.tensor([[possible(a)[0]] if possible(a) else [FIRST + 1] for a in AUTOMATA])},
    "impossible prefix": {"prefix": torch.tensor([[FIRST + i] for i in range(len(AUTOMATA))])},
    "constraints": {"constraints": "unordered", "phrases": [[possible(a)[-1:] or [FIRST]] for a in AUTOMATA]},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_same_answers(name, monkeypatch):
    options = dict(OPTIONS[name])
    rows = options.pop("rows", None)
    if rows is not None:
        monkeypatch.setattr(exact_search.search_above, "__defaults__", (False, rows))
    whole, sizes = decode(monkeypatch, False, **options)
    assert set(sizes) == {FIRST + LETTERS}
    listed, sizes = decode(monkeypatch, True, **options)
    assert max(sizes) < FIRST + LETTERS
    assert sum(not hypotheses[0]["truncated"] for hypotheses in whole) >= (1 if name == "impossible prefix" else 10)
    for pair in zip(whole, listed):
        first, second = pair
        assert [h["truncated"] for h in first] == [h["truncated"] for h in second]
        if first[0]["truncated"]:  # the best prefix without an output: any of equal ones
            continue
        # Equally probable outputs may change places.
        first, second = (sorted(x, key=lambda h: (-round(h["score"].item(), 9), h["tokens"].tolist())) for x in pair)
        assert [h["tokens"].tolist() for h in first] == [h["tokens"].tolist() for h in second]
        for a, b in zip(first, second):
            assert torch.allclose(a["positional_scores"], b["positional_scores"], atol=1e-6)
            assert (a["score"].item(), a["logprob"]) == pytest.approx((b["score"].item(), b["logprob"]), abs=1e-6)
            assert a["support"] == b["support"]
            for step, other in zip(a["candidates"], b["candidates"]):
                assert step == pytest.approx(other, abs=1e-9)
        same, other = vars(first[0]["certificate"]), vars(second[0]["certificate"])
        assert same.keys() == other.keys()
        for key, value in same.items():
            assert other[key] == (pytest.approx(value, abs=1e-6) if isinstance(value, float) else value), key


def test_sampling_draws_what_is_possible(monkeypatch):
    found, sizes = decode(monkeypatch, True, beam_size=200, nbest=200, sampling=True)
    assert max(sizes) < FIRST + LETTERS
    assert sum(not h["truncated"] for hypotheses in found for h in hypotheses) > 1000
    for source, hypotheses in zip(AUTOMATA, found):
        strings = source.strings(6)
        for h in hypotheses:
            if not h["truncated"]:
                assert h["logprob"] == pytest.approx(strings[tuple(h["tokens"].tolist())], abs=1e-6)


def test_a_wide_support_is_not_listed(monkeypatch):
    monkeypatch.setattr(support, "LONG_ROW", 1)
    monkeypatch.setattr(support, "BLOCK", 8)
    wide = Automaton.random(0, 1, FIRST + LETTERS, max_support=1)
    wide.probs[0] = 1 / (FIRST + LETTERS)
    steps = []
    for source in (wide, AUTOMATA[0]):
        state = ensemble.Ensemble([script_model(letters(LETTERS), [source])], 1).start(script_sample([0])["net_input"])
        steps.append(state.step(torch.tensor([[EOS]]), columns_for=torch.tensor([EOS])))
    assert steps[0].tokens is None and steps[0].probs.shape == (1, FIRST + LETTERS)
    assert steps[1].probs.size(1) == len(set(possible(AUTOMATA[0])) | {EOS})


def test_dense_members_and_short_vocabularies_have_all_columns(monkeypatch):
    models = [script_model(letters(LETTERS), AUTOMATA), script_model(letters(LETTERS), AUTOMATA, alpha=1.0)]
    monkeypatch.setattr(support, "LONG_ROW", 1)
    monkeypatch.setattr(support, "BLOCK", 8)
    net_input = script_sample([0])["net_input"]
    state = ensemble.Ensemble(models, 1).start(net_input)
    assert state.step(torch.tensor([[EOS]]), columns_for=torch.tensor([EOS])).tokens is None
    monkeypatch.setattr(support, "LONG_ROW", FIRST + LETTERS + 1)
    state = ensemble.Ensemble(models[:1], 1).start(net_input)
    assert state.step(torch.tensor([[EOS]]), columns_for=torch.tensor([EOS])).tokens is None


@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0, 2.5])
@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0])
def test_listed_support_is_the_support(alpha, scale):
    """Narrow and wide rows, rows of one value, and rows without a solution."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(9, 1500, generator=generator) * scale
    scores[1], scores[2, 5], scores[3] = -math.inf, math.nan, 0.5
    scores[4, 700:], scores[5, 7] = -math.inf, math.inf
    rows, columns, probs, _ = support.list_support(scores, alpha)
    found = torch.zeros(scores.shape, dtype=torch.float64).index_put((rows, columns), probs)
    solved = [0, 3, 4, 6, 7, 8]
    expected = entmax(scores[solved].double(), alpha)
    assert set(rows.tolist()) == set(solved)
    assert torch.allclose(found[solved], expected, atol=1e-7)
    # what rounds to zero in single precision may be left out
    assert torch.equal(found[solved].float() > 0, (expected.float() > 0) & (found[solved] > 0))
    assert expected[(found[solved] == 0)].max() < 1e-12
