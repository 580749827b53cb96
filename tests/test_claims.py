"""What a certificate may say at the edges: spent budgets, limits of length, penalties that underflow, rounding."""

import math

import numpy as np
import pytest
import torch
from helpers import EOS, FIRST, Automaton, letters, script_model, script_sample
from test_generator import TWO_STRINGS, all_strings, cached_automaton, certificate, decode, texts
from torch import nn

from fairseq_entmax import enumerate_outputs
from fairseq_entmax.ensemble import rounding_error
from fairseq_entmax.generator import SparseGenerator
from fairseq_entmax.search_state import TokenError
from fairseq_entmax.stock import StockGenerator

pytestmark = pytest.mark.usefixtures("columns")

RAW = {"normalize_scores": False, "min_len": 0}


def chain(table, prefix, steps, ends=True):
    """Adds `steps` certain tokens "a" after a prefix, and the end."""
    for _ in range(steps):
        table[prefix] = {"a": 1.0}
        prefix += "a"
    if ends:
        table[prefix] = {".": 1.0}
    return table


def outputs(table, **options):
    dictionary = letters(8)
    automaton = table if isinstance(table, Automaton) else Automaton.of_strings(table, len(dictionary))
    (found,) = enumerate_outputs(script_model(dictionary, [automaton]), script_sample([0]), **options)
    return [output.text.replace(" ", "") for output in found.outputs], found.certificate


# ---------------------------------------------------------------------------- enumeration


@pytest.mark.parametrize("budget", range(1, 16))
@pytest.mark.parametrize("seed", range(4))
def test_a_larger_budget_never_loses_what_was_found(seed, budget):
    """Every end on the way is below the first threshold, so the first pass keeps nothing that it is sure of."""
    table, prefix = {"": {"a": 1.0}}, "a"
    for end in np.random.default_rng(seed).uniform(0.05, 0.08, 5):
        table[prefix] = {".": end, "a": 1 - end}
        prefix += "a"
    table[prefix] = {letter: 0.125 for letter in "abcdefgh"}
    table["*"] = {".": 1.0}
    found, proof = outputs(table, mass=0.9, budget=budget)
    assert bool(found) == (budget > 1) and proof.strings == len(found)
    assert proof.certificate in ("none", "optimal") and proof.reason in ("budget", "tie within rounding")


def test_what_was_found_before_nan_comes_back():
    table = {
        "": {".": 0.06, "a": 0.35, "b": 0.54, "c": 0.05},
        "a": {".": 1.0},
        "b": {".": 0.1, "a": 0.9},
        "*": {".": 1.0},
    }
    dictionary = letters(8)
    automaton = Automaton.of_strings(table, len(dictionary))
    model = script_model(dictionary, [automaton])
    model.decoder.logits[0, automaton.follow[0, FIRST]] = math.nan
    (found,) = enumerate_outputs(model, script_sample([0]), mass=0.9)
    assert [output.text for output in found.outputs] == ["b a", "", "b"] and found.certificate.reason == "NaN"


def test_what_is_found_below_the_threshold_does_not_end_the_search():
    """The end (0.06) is found at once; the eight strings of 0.1175 are below the first threshold, and come first."""
    table = {"": {".": 0.06, "a": 0.94}, "a": {letter: 0.125 for letter in "abcdefgh"}, "*": {".": 1.0}}
    found, proof = outputs(table, mass=0.05)
    assert len(found) == 1 and found != [""] and proof.mass == pytest.approx(0.94 / 8)


@pytest.mark.parametrize(
    "table, options, listed, reason",
    [
        (chain({"": {".": 0.5, "b": 0.5}, "b": {".": 0.1, "a": 0.9}}, "ba", 6), {"budget": 3}, ["", "b"], "budget"),
        (chain({"": {"a": 0.5, "b": 0.4, "c": 0.1}, "a": {".": 1.0}, "c": {".": 1.0}}, "b", 3), {"max_len_b": 2},
         ["a", "c"], "length limit"),
        (chain({"": {"a": 0.5, "b": 0.4, "c": 0.1}, "a": {".": 1.0}, "c": {".": 1.0}}, "b", 3), {}, ["a", "baaa", "c"],
         ""),
    ],
    ids=["budget", "limit", "whole"],
)  # fmt: skip
def test_a_list_that_may_have_gaps_says_so(table, options, listed, reason):
    found, proof = outputs(table, mass=1.0, **options)
    assert found == listed and proof.reason == reason


def test_lists_without_a_reason_have_no_gaps():
    """Against all strings, for every budget: what is listed comes first, unless the reason says otherwise."""
    kinds = set()
    for seed in range(40):
        automaton = cached_automaton(seed, False)
        for budget in (2, 4, 7, 12, 25, 5000):
            strings = all_strings(automaton, 5)
            model = script_model(letters(3), [automaton])
            (found,) = enumerate_outputs(model, script_sample([0]), mass=0.95, budget=budget, max_len_b=5)
            kinds.add((found.certificate.certificate, found.certificate.reason))
            if not found.outputs or found.certificate.certificate == "none":
                continue
            best = sorted(strings.values(), reverse=True)
            assert found.outputs[0].logprob == pytest.approx(best[0])
            if found.certificate.reason == "":
                assert [o.logprob for o in found.outputs] == pytest.approx(best[: len(found.outputs)])
    assert {("optimal", ""), ("optimal", "budget"), ("complete", ""), ("none", "budget")} <= kinds


# ---------------------------------------------------------------------------- lengths


def test_proofs_of_normalised_scores_are_subject_to_the_limits():
    long = chain({"": {"a": 0.98, "b": 0.02}, "a": {".": 1.0}}, "b", 501)  # -0.0078 a token, where "a" has -0.0101
    (found,) = decode([long], beam=1, min_len=0, max_len_b=200)
    assert texts(found)[0] == "a." and certificate(found).certificate == "optimal"
    assert certificate(found).reason == "subject to length limit"
    (found,) = decode([long], beam=1, max_len_b=200, **RAW)
    assert certificate(found).certificate == "optimal" and certificate(found).reason == ""
    (found,) = decode([TWO_STRINGS])
    assert certificate(found).certificate == "complete" and certificate(found).reason == ""


@pytest.mark.parametrize("min_len, reason", [(1, ""), (3, "subject to min length")])
def test_with_a_negative_length_penalty_the_least_length_matters(min_len, reason):
    table = {"": {"a": 0.99, "b": 0.01}}
    chain(chain(table, "a", 3), "b", 3)
    (found,) = decode([table], beam=1, len_penalty=-1.0, min_len=min_len)
    assert certificate(found).certificate == "optimal" and certificate(found).reason == reason


def test_normalised_scores_of_the_length_of_the_source():
    table = {"": {"a": 0.99, "b": 0.01}, "*": {".": 1.0}}
    (found,) = decode([table], beam=1, match_source_len=True, nbest=1, len_penalty=-1.0)
    assert texts(found) == ["a."] and certificate(found).certificate == "optimal"
    assert certificate(found).reason == "subject to source length"


def test_the_bound_of_what_the_limit_cuts_counts_its_last_token():
    cut = 0.3
    rest = {letter: (0.98 - cut) / 6 for letter in "cdefgh"}
    table = {"": {".": 0.26, "b": 0.74}, "b": {".": 0.02, "a": cut, **rest}, "*": {".": 1.0}}
    dictionary = letters(8)
    model = script_model(dictionary, [Automaton.of_strings(table, len(dictionary))], dtype=torch.float16)
    generator = SparseGenerator([model], dictionary, beam_size=5, max_len_b=1, **RAW)
    (found,) = generator.generate([model], script_sample([0]))
    error, log = TokenError([1.5], 32 * torch.finfo(torch.float16).eps), math.log
    p = torch.tensor([0.26, 0.74, cut], dtype=torch.float64)
    low, high = log(0.26) - error.fall(p)[0], log(0.74 * cut) + (error.rise(p)[1] + error.rise(p)[2])
    assert certificate(found).margin == pytest.approx(float(low - high), abs=2e-3)


# ---------------------------------------------------------------------------- modified scores


@pytest.mark.parametrize("second", [0.3, 1e-7])
@pytest.mark.parametrize("rate", [1.0, 400.0, 5000.0])
def test_no_penalty_makes_an_output_impossible(rate, second):
    table = {"": {"a": 1.0}, "a": {"a": 1 - second, "b": second}, "*": {".": 1.0}}
    (found,) = decode([table], diversity_rate=rate, nbest=5, **RAW)
    assert texts(found) == ["aa.", "ab."] and certificate(found).certificate == "complete"
    assert all(h["score"] > -math.inf for h in found)
    (found,) = decode([{**table, "a": {"a": 1 - second, ".": second}}], diversity_rate=rate, nbest=5, **RAW)
    assert sorted(texts(found)) == ["a.", "aa."] and not any(h["truncated"] for h in found)
    (found,) = decode([table], diverse_beam_groups=2, diverse_beam_strength=rate, beam=4, nbest=5, **RAW)
    assert sorted(texts(found)) == ["aa.", "ab."]


def test_penalties_that_add_up_make_nothing_impossible():
    unk = letters(3).unk()
    table = Automaton(np.zeros((3, FIRST + 3)), np.ones((3, FIRST + 3), dtype=int))
    table.follow[1, :] = 2
    table.probs[0, unk], table.probs[1, [FIRST, FIRST + 1]], table.probs[2, EOS] = 1.0, (0.6, 0.4), 1.0
    (found,) = decode(
        [table], unk_penalty=1e4, diverse_beam_groups=2, diverse_beam_strength=1e4, beam=2, nbest=2, **RAW
    )
    assert len(found) == 2 and all(h["score"] > -math.inf for h in found)


class Forbids(nn.Module):
    """A language model that gives "a" probability zero."""

    def forward(self, tokens):
        return (torch.zeros(*tokens.shape, FIRST + 3).index_fill(-1, torch.tensor([FIRST]), -math.inf),)

    def get_normalized_probs(self, net_output, log_probs, sample):
        return net_output[0]


def test_a_language_model_of_weight_zero_changes_nothing():
    (found,) = decode([TWO_STRINGS], lm_model=Forbids(), lm_weight=0.0, nbest=5)
    assert texts(found) == ["a.", "b."] and certificate(found).certificate == "complete"
    (found,) = decode([TWO_STRINGS], lm_model=Forbids(), lm_weight=0.1, nbest=5)
    assert texts(found) == ["b."]


class Even(nn.Module):
    """A language model in half precision that prefers nothing."""

    def forward(self, tokens):
        return (torch.zeros(*tokens.shape, FIRST + 3, dtype=torch.float16),)

    def get_normalized_probs(self, net_output, log_probs, sample):
        return net_output[0]


def test_rounding_of_a_language_model_counts():
    (alone,), (fused,) = (decode([TWO_STRINGS], beam=1, lm_model=lm, lm_weight=2.0, **RAW) for lm in (None, Even()))
    error = 2 * 32 * torch.finfo(torch.float16).eps  # of each of the two tokens of "a.", and of the "b" that is dropped
    assert certificate(alone).margin - certificate(fused).margin == pytest.approx(3 * error, rel=1e-6)


def test_positional_scores_add_up_where_prefixes_were_deferred(monkeypatch):
    from fairseq_entmax import exact_search

    monkeypatch.setattr(exact_search.search_above, "__defaults__", (False, 1))
    unk, vocab = letters(3).unk(), FIRST + 3
    automaton = Automaton(np.zeros((3, vocab)), np.full((3, vocab), 2))
    automaton.follow[0, :] = 1
    automaton.probs[0, [unk, FIRST, FIRST + 1, FIRST + 2]] = 0.4, 0.2, 0.2, 0.2
    automaton.probs[1, [unk, FIRST, FIRST + 1]] = 0.5, 0.3, 0.2
    automaton.probs[2, [EOS, unk, FIRST]] = 0.5, 0.3, 0.2
    (found,) = decode([automaton], beam=1, nbest=3, unk_penalty=0.3, exact_search=True, max_len_b=5, **RAW)
    assert len(found) == 3
    for hypothesis in found:
        assert float(hypothesis["positional_scores"].sum()) == pytest.approx(float(hypothesis["score"]), abs=1e-5)


def test_mass_of_samples_is_given_the_prefix():
    table = {"": {"a": 0.1, "b": 0.9}, "a": {"a": 0.5, "b": 0.5}, "*": {".": 1.0}}
    torch.manual_seed(0)
    (found,) = decode([table], beam=20, sampling=True, prefix=torch.tensor([[FIRST]]), **RAW)
    assert certificate(found).mass == pytest.approx(1.0) and certificate(found).strings == 2


def test_samples_that_never_end_are_no_outputs():
    (found,) = decode([{"": {"a": 1.0}, "*": {"a": 1.0}}], beam=2, sampling=True, **RAW)
    assert found[0]["truncated"] and certificate(found).strings == 0 and certificate(found).mass == 0


def test_no_margin_where_no_proof_is_possible():
    table = {"": {"a": 0.7, "b": 0.3}, "*": {".": 1.0}}
    assert certificate(decode([table], beam=1, **RAW)[0]).margin > 0
    assert certificate(decode([table], beam=1, unk_penalty=-2.0, **RAW)[0]).margin is None


# ---------------------------------------------------------------------------- rounding


def test_a_sentence_of_nan_alone_is_told_as_in_a_batch():
    dictionary = letters(3)
    automaton = Automaton.of_strings(TWO_STRINGS, len(dictionary))
    model = script_model(dictionary, [automaton, automaton])
    model.decoder.logits[1] = math.nan
    generator = SparseGenerator([model], dictionary)
    (alone,) = generator.generate([model], script_sample([1]))
    _, beside = generator.generate([model], script_sample([0, 1]))
    assert certificate(alone).reason == certificate(beside).reason == "NaN"
    grouped = SparseGenerator([model], dictionary, beam_size=2, diverse_beam_groups=2)
    assert certificate(grouped.generate([model], script_sample([1]))[0]).reason == "NaN"
    with pytest.raises(ValueError, match="NaN for every sentence"):
        generator.generate([model], script_sample([1, 1]))


def test_low_temperatures_in_half_precision():
    dictionary = letters(3)
    model = script_model(dictionary, [Automaton.of_strings(TWO_STRINGS, len(dictionary))], dtype=torch.float16)
    generator = SparseGenerator([model], dictionary, temperature=1e-5)
    (found,) = generator.generate([model], script_sample([0]))
    assert texts(found)[0] == "a." and certificate(found).reason != "NaN"


def test_the_rounding_error_grows_with_the_numbers():
    eps = 32 * torch.finfo(torch.float32).eps
    assert rounding_error(torch.tensor([1.0, -3.0])) == eps
    assert rounding_error(torch.tensor([1.0, -80.0, -math.inf])) == pytest.approx(10 * eps)
    assert rounding_error(torch.tensor([math.nan, 16.0])) == pytest.approx(2 * eps)
    assert rounding_error(torch.tensor([-math.inf])) == eps


@pytest.mark.parametrize("alphas", [[3.0], [3.0, 3.0], [2.5, 1.5], [1.5, 1.2], [2.0, 1.0], [1.0]])
def test_the_bound_on_a_token_holds_of_averages(alphas):
    """Each member's `p ** (alpha - 1)` moved by as much as it may; the average must stay within the bound."""
    generator, error = torch.Generator().manual_seed(0), 0.01
    probs = torch.rand(len(alphas), 2000, generator=generator, dtype=torch.float64) ** 6
    exponents = torch.tensor(alphas, dtype=torch.float64).unsqueeze(1) - 1

    def moved(sign):
        power = (probs.pow(exponents) + sign * exponents * error).clamp(min=0)
        return torch.where(exponents > 0, power.pow(1 / exponents), probs * math.exp(sign * error)).mean(dim=0)

    average, bound = probs.mean(dim=0), TokenError(alphas, error)
    assert ((moved(1) / average).log() <= bound.rise(average) + 1e-9).all()
    assert ((average / moved(-1)).log() <= bound.fall(average) + 1e-9).all()
    bound.add(0.5)
    assert torch.allclose(bound.rise(average), TokenError(alphas, error).rise(average) + 0.5)


def test_the_bound_for_dense_models_follows_logits_and_temperature():
    from fairseq.sequence_generator import SequenceGenerator

    dictionary = letters(3)
    model = script_model(
        dictionary, [Automaton.of_strings(TWO_STRINGS, len(dictionary))], alpha=1.0, dtype=torch.float32
    )
    errors = []
    for scale, temperature in ((1.0, 1.0), (40.0, 1.0), (1.0, 0.5)):
        model.decoder.logits = torch.linspace(-1, 1, len(dictionary)).expand_as(model.decoder.logits) * scale
        stock = StockGenerator([model], SequenceGenerator([model], dictionary, max_len_b=3, temperature=temperature))
        stock.generate([model], script_sample([0]))
        errors.append(stock.generator.search.token_error)
    assert errors[0] == 32 * torch.finfo(torch.float32).eps
    assert errors[1] > 5 * errors[0] and errors[2] == pytest.approx(2 * errors[0])
