"""Exact search and enumeration against brute force: nothing above the threshold is missed, no claim is wrong."""

import math

import pytest
import torch
from helpers import EOS, FIRST, Automaton, letters, script_model, script_sample
from test_generator import ENDLESS, HALVES, TWO_STRINGS, all_strings, brute_force, cached_automaton, certificate, decode
from test_generator import texts as texts_of

from fairseq_entmax import exact_search
from fairseq_entmax.generator import SparseGenerator

pytestmark = pytest.mark.usefixtures("columns")

MAX_LEN = 5
# greedy takes "a" (0.6), whose strings are worth 0.2 each; the best is "b." (0.4)
GARDEN_PATH = {"": {"a": 0.6, "b": 0.4}, "a": {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, "*": {".": 1.0}, "b": {".": 1.0}}


def run(automata, dtype=torch.float64, sample=None, prefix=None, **options):
    dictionary = letters(3)
    models = [script_model(dictionary, automata, dtype=dtype)]
    generator = SparseGenerator(models, dictionary, **{"max_len_b": MAX_LEN, "min_len": 0, **options})
    sample = sample or script_sample(list(range(len(automata))), width=4)
    return generator.generate(models, sample, prefix_tokens=prefix)


def test_beam_is_corrected():
    (plain,) = decode([GARDEN_PATH], beam=1, normalize_scores=False)
    assert certificate(plain).certificate == "none" and certificate(plain).reason == "beam"
    (exact,) = decode([GARDEN_PATH], beam=1, normalize_scores=False, exact_search=True)
    assert texts_of(exact)[0] == "b." and certificate(exact).certificate == "optimal"
    assert certificate(exact).decoder_rows > certificate(plain).decoder_rows


def test_budget_is_named_and_the_best_found_comes_back():
    (found,) = decode([GARDEN_PATH], beam=1, normalize_scores=False, exact_search=True, exact_budget=4)
    assert (certificate(found).certificate, certificate(found).reason) == ("none", "budget")
    assert not found[0]["truncated"] and certificate(found).decoder_rows <= 4


def test_a_budget_that_the_beam_has_spent_leaves_its_answer_alone():
    (plain,) = decode([GARDEN_PATH], beam=1, normalize_scores=False)
    (found,) = decode([GARDEN_PATH], beam=1, normalize_scores=False, exact_search=True, exact_budget=1)
    assert (certificate(found).certificate, certificate(found).reason) == ("none", "budget")
    for name in ("mass", "strings", "decoder_rows"):
        assert getattr(certificate(found), name) == getattr(certificate(plain), name)


def test_as_many_outputs_as_asked_for_come_back():
    (found,) = decode([GARDEN_PATH], beam=1, nbest=4, exact_search=True)
    assert certificate(found).certificate == "complete" and sorted(texts_of(found)) == ["aa.", "ab.", "ac.", "b."]


def test_mass_and_strings_are_those_of_what_was_found():
    """Also where the budget ends after some of what the beam had found was not found again."""
    kinds = set()
    automata = [cached_automaton(seed, False) for seed in range(60)]
    for budget in (3, 8, 11, 14, 5000):
        options = {"beam_size": 2, "nbest": 1000, "exact_search": True, "exact_budget": budget}
        for hypotheses in run(automata, **options):
            found = certificate(hypotheses)
            listed = [h for h in hypotheses if not h["truncated"]]
            assert found.strings == len(listed)
            assert found.mass == pytest.approx(sum(math.exp(h["logprob"]) for h in listed), abs=1e-9)
            assert "add up" not in found.reason
            kinds.add(found.reason if found.certificate == "none" else found.certificate)
    assert {"budget", "optimal"} <= kinds


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("normalize, lenpen", [(False, 1.0), (True, 1.0), (True, -1.0), (True, 0.5)])
@pytest.mark.parametrize("budget", [9, 5000])
def test_exact_search_against_brute_force(normalize, lenpen, budget, dtype):
    automata = [cached_automaton(seed, False) for seed in range(80)]
    options = {"normalize_scores": normalize, "len_penalty": lenpen, "exact_search": True, "exact_budget": budget}
    proved = 0
    for automaton, hypotheses in zip(automata, run(automata, dtype, beam_size=2, **options)):
        strings, scores = brute_force(automaton, MAX_LEN, 0, normalize, lenpen)
        found = certificate(hypotheses)
        beam_rows = 2 * (MAX_LEN + 1)
        assert found.decoder_rows <= max(budget, beam_rows)
        if not hypotheses[0]["truncated"]:
            assert hypotheses[0]["score"].item() == pytest.approx(
                scores[tuple(hypotheses[0]["tokens"].tolist())], abs=1e-5
            )
            assert hypotheses[0]["positional_scores"].sum().item() == pytest.approx(hypotheses[0]["logprob"], abs=1e-5)
        if found.certificate != "none":
            proved += 1
            assert hypotheses[0]["score"].item() >= max(scores.values()) - 1e-5
        elif budget == 5000:
            assert found.reason in ("length limit", "tie within rounding")
    assert proved > (10 if budget == 9 else 40)


def test_outputs_are_distinct_and_ranked():
    for hypotheses in run([cached_automaton(s, False) for s in range(40)], beam_size=3, nbest=3, exact_search=True):
        tokens = [tuple(h["tokens"].tolist()) for h in hypotheses]
        scores = [h["score"].item() for h in hypotheses]
        assert len(set(tokens)) == len(tokens) and scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("mass", [0.3, 0.9, 1.0])
@pytest.mark.parametrize("max_rows", [512, 7])
def test_enumeration_lists_the_most_probable(monkeypatch, mass, max_rows):
    """The list is the shortest head of all outputs, by probability, that covers the mass; deferring changes nothing."""
    monkeypatch.setattr(exact_search, "MAX_ROWS", max_rows)
    automata = [cached_automaton(seed, False) for seed in range(25)]
    results = run(automata, normalize_scores=False, enumerate_mass=mass, exact_budget=100_000)
    for automaton, hypotheses in zip(automata, results):
        expected = sorted(all_strings(automaton, MAX_LEN).items(), key=lambda item: -item[1])
        total, head = 0.0, []
        for tokens, logprob in expected:
            if total >= mass - 1e-12:
                break
            head.append((tokens, logprob))
            total += math.exp(logprob)
        found = certificate(hypotheses)
        if not expected:
            assert hypotheses[0]["truncated"]
            continue
        assert [h["logprob"] for h in hypotheses] == pytest.approx([logprob for _, logprob in head], abs=1e-9)
        assert len({tuple(h["tokens"].tolist()) for h in hypotheses}) == len(head) == found.strings
        assert found.mass == pytest.approx(total, abs=1e-9)
        if found.certificate == "complete":
            assert len(head) == len(expected) and found.mass == pytest.approx(1.0)


def test_the_whole_distribution_is_complete():
    (hypotheses,) = decode([HALVES], min_len=0, normalize_scores=False, enumerate_mass=1.0)
    assert texts_of(hypotheses)[:2] == [".", "a."] and sorted(texts_of(hypotheses)) == [".", "a.", "aa.", "aaa."]
    assert certificate(hypotheses).certificate == "complete" and certificate(hypotheses).mass == pytest.approx(1.0)


def test_enumeration_spends_no_more_than_its_budget():
    # every string of a and b, no end in sight: only the budget stops it
    both = {"a": 0.45, "b": 0.45, ".": 0.1}
    table = {"": both, "a": both, "b": both, "*": both}
    automaton = Automaton.of_strings(table, FIRST + 3)
    automaton.follow[:] = 0
    (hypotheses,) = run([automaton], normalize_scores=False, enumerate_mass=1.0, exact_budget=50, max_len_b=100)
    found = certificate(hypotheses)
    assert found.decoder_rows <= 50 and (found.certificate, found.reason) == ("none", "budget") or found.margin > 0
    assert 0.1 < found.mass < 1 and len(hypotheses) == found.strings


def test_enumeration_after_a_forced_prefix():
    (hypotheses,) = decode(
        [{"": {"a": 0.02, "b": 0.98}, "a": {"a": 0.7, ".": 0.3}, "*": {".": 1.0}}],
        normalize_scores=False,
        enumerate_mass=1.0,
        prefix=torch.tensor([[FIRST]]),
    )
    assert texts_of(hypotheses) == ["aa.", "a."]
    assert certificate(hypotheses).certificate == "complete" and certificate(hypotheses).mass == pytest.approx(1.0)


def test_enumeration_of_next_to_nothing_lists_the_best():
    (found,) = decode([GARDEN_PATH], normalize_scores=False, enumerate_mass=1e-13)
    assert texts_of(found) == ["b."]


def test_sentences_without_any_output():
    endless, fine = run(
        [Automaton.of_strings(t, FIRST + 3) for t in (ENDLESS, TWO_STRINGS)], exact_search=True, normalize_scores=False
    )
    assert endless[0]["truncated"] and certificate(endless).reason == "length limit"
    assert certificate(fine).certificate in ("complete", "optimal")


@pytest.mark.parametrize(
    "options, match",
    [
        ({"exact_budget": 0}, "--exact-budget must be at least 1, got 0"),
        ({"enumerate_mass": 1.5, "normalize_scores": False}, r"--enumerate-mass must be in \[0, 1\], got 1.5"),
        ({"enumerate_mass": 0.5}, "--enumerate-mass 0.5 .* --unnormalized"),
        ({"exact_search": True, "sampling": True}, "--exact-search does not go with --sampling"),
        ({"exact_search": True, "enumerate_mass": 0.5, "normalize_scores": False}, "--exact-search does not go with"),
    ],
)
def test_impossible_options_are_named(options, match):
    with pytest.raises(ValueError, match=match):
        decode([TWO_STRINGS], **options)


def test_first_token_is_the_start_symbol():
    assert EOS == letters(1).eos()
