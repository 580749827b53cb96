"""Lexical constraints and sibling diversity against brute force."""

import itertools
import math
import random

import numpy as np
import pytest
import torch
from fairseq.token_generation_constraints import OrderedConstraintState, UnorderedConstraintState, pack_constraints
from helpers import EOS, FIRST, Automaton, letters, script_model, script_sample

from fairseq_entmax.constraints import Constraints, read_constraints
from fairseq_entmax.generator import SparseGenerator

pytestmark = pytest.mark.usefixtures("columns")

MAX_LEN = 5
A, B, C = FIRST, FIRST + 1, FIRST + 2
TWO_STRINGS = {"": {"a": 0.7, "b": 0.3}, "a": {".": 1.0}, "b": {".": 1.0}}


def contains(tokens, phrases, ordered) -> bool:
    """Whether the phrases stand in `tokens` without overlap, by trying every placement."""
    if not phrases:
        return True
    for choice in [0] if ordered else range(len(phrases)):
        phrase, others = phrases[choice], phrases[:choice] + phrases[choice + 1 :]
        n = len(phrase)
        for i in range(len(tokens) - n + 1):
            if tuple(tokens[i : i + n]) != tuple(phrase):
                continue
            left = tokens[i + n :] if ordered else tokens[:i] + (None,) + tokens[i + n :]
            if contains(left, others, ordered):
                return True
    return False


def random_phrases(rng, most=3):
    return [tuple(rng.choices((A, B, C), k=rng.randint(1, 3))) for _ in range(rng.randint(0, most))]


def read(constraints, tokens):
    state = constraints.start
    for token in tokens:
        state = constraints.advance(state, token)
    return state


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_automaton_accepts_what_contains_the_phrases(ordered):
    rng = random.Random(0)
    met = 0
    for _ in range(1500):
        phrases = random_phrases(rng)
        tokens = tuple(rng.choices((A, B, C), k=rng.randint(0, 8)))
        constraints = Constraints(phrases, ordered)
        state = read(constraints, tokens)
        assert constraints.is_met(state) == contains(tokens, phrases, ordered), (phrases, tokens)
        assert constraints.is_met(state) == (constraints.progress(state) == sum(map(len, phrases)))
        met += constraints.is_met(state) and bool(phrases)
        useful = constraints.next_tokens(state)
        grows = {
            t for t in (A, B, C) if constraints.progress(constraints.advance(state, t)) > constraints.progress(state)
        }
        assert grows <= useful <= {A, B, C}
    assert met > 150


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_whatever_fairseq_accepts_is_accepted(ordered):
    """The reverse does not hold: fairseq follows one reading and loses sight of phrases that begin inside another."""
    rng, kind, met = random.Random(1), OrderedConstraintState if ordered else UnorderedConstraintState, 0
    for _ in range(600):
        phrases = random_phrases(rng) or [(A,)]
        theirs = kind.create(pack_constraints([[torch.tensor(p) for p in phrases]])[0])
        tokens = tuple(rng.choices((A, B, C), k=rng.randint(1, 8)))
        for token in tokens:
            theirs = theirs.advance(token)
        if theirs.finished:
            met += 1
            ours = Constraints(phrases, ordered)
            assert ours.is_met(read(ours, tokens)), (phrases, tokens)
    assert met > 60


def pack(phrases_of_sentences):
    return pack_constraints([[torch.tensor(p) for p in phrases] for phrases in phrases_of_sentences])


def decode(automata, phrases=None, **options):
    dictionary = letters(3)
    automata = [a if isinstance(a, Automaton) else Automaton.of_strings(a, len(dictionary)) for a in automata]
    options = {"max_len_b": MAX_LEN, "min_len": 0, **options}
    generator = SparseGenerator([script_model(dictionary, automata)], dictionary, **options)
    sample = script_sample(list(range(len(automata))), width=4)
    return generator.generate(None, sample, constraints=None if phrases is None else pack(phrases))


@pytest.mark.parametrize("normalize", [False, True], ids=["raw", "normalised"])
@pytest.mark.parametrize("kind", ["ordered", "unordered"])
@pytest.mark.parametrize("beam, exact", [(1, False), (4, False), (2, True)])
def test_best_output_with_the_constraints__case_32(kind, normalize, beam, exact):
    """Every output contains its phrases, no claim is wrong; exact search finds the best, or that there is none."""
    rng = random.Random(2)
    automata = [Automaton.random(seed, 5, FIRST + 3) for seed in range(60)]
    phrases = [random_phrases(rng, most=2) for _ in automata]
    options = {"beam_size": beam, "nbest": 2, "exact_search": exact, "normalize_scores": normalize}
    found = proved = impossible = 0
    for automaton, wanted, hypotheses in zip(automata, phrases, decode(automata, phrases, constraints=kind, **options)):
        strings = {t: s for t, s in automaton.strings(MAX_LEN).items() if contains(t[:-1], wanted, kind == "ordered")}
        scores = {t: s / len(t) if normalize else s for t, s in strings.items()}
        certificate = hypotheses[0]["certificate"]
        if hypotheses[0]["truncated"]:
            assert certificate.certificate == "none" and (not exact or not strings)
            impossible += not strings and certificate.reason == "constraints"
            continue
        found += 1
        for h in hypotheses:
            assert h["score"].item() == pytest.approx(scores[tuple(h["tokens"].tolist())], abs=1e-5)
        if certificate.certificate != "none":
            proved += 1
            assert hypotheses[0]["score"].item() >= max(scores.values()) - 1e-6
    assert found > 15 and proved > 4 and impossible > 3


def test_beam_keeps_room_for_prefixes_with_progress():
    # "c" is improbable at first: without turns a beam of 2 would hold only prefixes of a and b
    start = {"a": 0.49, "b": 0.49, "c": 0.02}
    table = {"": start, "a": {"a": 0.5, "b": 0.5}, "b": {"a": 0.5, "b": 0.5}, "c": {".": 1.0}, "*": {".": 1.0}}
    (hypotheses,) = decode([table], [[(C,)]], constraints="unordered", beam_size=2)
    assert hypotheses[0]["tokens"].tolist() == [C, EOS]


def test_constraints_that_no_output_meets():
    impossible, fine, free = decode([TWO_STRINGS] * 3, [[(A, B)], [(B,)], []], constraints="ordered", exact_search=True)
    assert impossible[0]["truncated"] and impossible[0]["score"] == -math.inf
    assert (impossible[0]["certificate"].certificate, impossible[0]["certificate"].reason) == ("none", "constraints")
    assert fine[0]["tokens"].tolist() == [B, EOS] and fine[0]["certificate"].reason == "subject to constraints"
    assert free[0]["tokens"].tolist() == [A, EOS] and free[0]["certificate"].certificate == "complete"


def test_enumeration_with_constraints():
    (hypotheses,) = decode([TWO_STRINGS], [[(B,)]], constraints="ordered", enumerate_mass=1.0, normalize_scores=False)
    assert [h["tokens"].tolist() for h in hypotheses] == [[B, EOS]]
    assert hypotheses[0]["certificate"].mass == pytest.approx(0.3)


@pytest.mark.parametrize(
    "options, phrases, match",
    [
        ({"constraints": "ordered"}, None, "--constraints ordered: no constraints came"),
        ({}, [[(A,)]], "without --constraints"),
        ({"constraints": "some"}, None, "--constraints must be one of ordered, unordered, got some"),
        ({"constraints": "ordered", "sampling": True}, None, "--constraints does not go with --sampling"),
        ({"diversity_rate": -0.5}, None, "--diversity-rate must be .*at least 0 .*got -0.5"),
    ],
)
def test_mistakes_are_named(options, phrases, match):
    with pytest.raises(ValueError, match=match):
        decode([TWO_STRINGS], phrases, **options)


def test_rows_of_constraints_must_match_the_batch():
    with pytest.raises(ValueError, match="one row for each of 3"):
        read_constraints(pack([[(A,)]]), "ordered", 3)


# ---------------------------------------------------------------------------- sibling diversity


def diverse_strings(automaton, rate):
    """Scores of all outputs when each token after the first costs `rate` for its place among its siblings."""
    found = {}
    for tokens in automaton.strings(MAX_LEN):
        state, score = 0, 0.0
        for step, token in enumerate(tokens):
            p = automaton.probs[state]
            better = int((p > p[token]).sum()) if step < MAX_LEN else 0  # at the limit the end has no siblings
            place = 1 + better if step > 0 else 0
            score += np.log(p[token]) - rate * place
            state = automaton.follow[state, token]
        found[tokens] = score
    return found


@pytest.mark.parametrize("rate", [0.2, 1.5])
def test_sibling_diversity_is_a_score_of_its_own(rate):
    automata, proved = [Automaton.random(seed, 5, FIRST + 3) for seed in range(60)], 0
    for automaton, hypotheses in zip(automata, decode(automata, diversity_rate=rate, normalize_scores=False, nbest=3)):
        scores, strings = diverse_strings(automaton, rate), automaton.strings(MAX_LEN)
        if hypotheses[0]["truncated"]:
            continue
        for h in hypotheses:
            tokens = tuple(h["tokens"].tolist())
            assert h["score"].item() == pytest.approx(scores[tokens], abs=1e-5)
            assert h["logprob"] == pytest.approx(strings[tokens], abs=1e-6)
        certificate = hypotheses[0]["certificate"]
        assert certificate.certificate != "complete" or certificate.mass == pytest.approx(1)
        if certificate.certificate != "none":
            proved += 1
            assert f"for scores modified by --diversity-rate {rate:g}" in certificate.reason
            assert hypotheses[0]["score"].item() >= max(scores.values()) - 1e-6
    assert proved > 30


def test_sibling_diversity_spreads_the_beam():
    """A high rate makes the second child of the best prefix give way to the first child of the second best."""
    child = {"a": 0.55, "b": 0.45}
    table = {"": {"a": 0.6, "b": 0.4}, "a": child, "b": {"c": 1.0}, **{x: {".": 1.0} for x in ("aa", "ab", "bc")}}
    table["b"] = {"c": 0.6, "a": 0.4}
    table["ba"] = {".": 1.0}
    plain = {tuple(h["tokens"].tolist()) for h in decode([table], beam_size=2, nbest=2, normalize_scores=False)[0]}
    (found,) = decode([table], beam_size=2, nbest=2, normalize_scores=False, diversity_rate=2.0)
    assert plain == {(A, A, EOS), (A, B, EOS)}
    assert {tuple(h["tokens"].tolist()) for h in found} == {(A, A, EOS), (B, C, EOS)}


def test_phrases_in_every_order():
    for order in itertools.permutations([(A,), (B,), (C,)]):
        constraints = Constraints(order, ordered=False)
        assert constraints.is_met(read(constraints, (C, A, B)))
