"""The sparse beam against scripted models, the plain beam, and brute force over thousands of small automata."""

import functools
import math

import pytest
import torch
from fairseq.sequence_scorer import SequenceScorer
from helpers import (
    EOS,
    FIRST,
    Automaton,
    PlainScriptDecoder,
    letters,
    normalized,
    plain_beam,
    script_model,
    script_sample,
)

from fairseq_entmax.certificate import Objective
from fairseq_entmax.generator import SparseGenerator
from fairseq_entmax.search import repeating_tokens

pytestmark = pytest.mark.usefixtures("columns")

# a . 0.7, b . 0.3
TWO_STRINGS = {"": {"a": 0.7, "b": 0.3}, "a": {".": 1.0}, "b": {".": 1.0}}
# a forever
ENDLESS = {"": {"a": 1.0}, "a": {"a": 1.0}, "*": {"a": 1.0}}
# up to three times "a or end, 0.5 each", then end: ".", "a.", "aa.", "aaa."
HALVES = {"": {"a": 0.5, ".": 0.5}, "a": {"a": 0.5, ".": 0.5}, "aa": {"a": 0.5, ".": 0.5}, "aaa": {".": 1.0}}


def decode(
    tables, beam=5, numbers=None, decoder=None, models=None, sample=None, prefix=None, letters_used=3, **options
):
    """Decode with automata given as tables of strings (or automata); one sentence for each."""
    dictionary = letters(letters_used)
    automata = [t if isinstance(t, Automaton) else Automaton.of_strings(t, len(dictionary)) for t in tables]
    kwargs = {} if decoder is None else {"decoder": decoder}
    models = models or [script_model(dictionary, automata, **kwargs)]
    options.setdefault("max_len_b", 6)
    generator = SparseGenerator(models, dictionary, beam_size=beam, **options)
    sample = sample or script_sample(numbers or list(range(len(automata))))
    return generator.generate(models, sample, prefix_tokens=prefix)


def text(hypothesis):
    return "".join("." if t == EOS else chr(ord("a") + t - FIRST) for t in hypothesis["tokens"].tolist())


def texts(hypotheses):
    return [text(h) for h in hypotheses]


def certificate(hypotheses):
    return hypotheses[0]["certificate"]


def same(first, second):
    """Equal certificates, up to rounding of the mass and the margin."""
    return all(pytest.approx(a, abs=1e-9) == b for a, b in zip(vars(first).values(), vars(second).values()))


# ---------------------------------------------------------------------------- cases


@pytest.mark.parametrize("beam", [2, 3, 5, 10])
def test_fewer_strings_than_beam_is_complete__case_1(beam):
    (hypotheses,) = decode([TWO_STRINGS], beam=beam, nbest=beam)
    assert texts(hypotheses) == ["a.", "b."]
    assert [h["logprob"] for h in hypotheses] == pytest.approx([math.log(0.7), math.log(0.3)])
    found = certificate(hypotheses)
    assert (found.certificate, found.reason, found.strings) == ("complete", "", 2)
    assert found.mass == pytest.approx(1.0, abs=1e-12)
    assert found.decoder_rows == 3  # no step beyond the last live hypothesis


def test_one_string_language__case_1():
    (hypotheses,) = decode([{"": {"a": 1.0}, "a": {".": 1.0}}], beam=5)
    assert texts(hypotheses) == ["a."] and certificate(hypotheses).certificate == "complete"


@pytest.mark.parametrize("beam", [1, 2])
def test_no_end_of_sentence_within_the_limit__case_2(beam):
    endless, fine = decode([ENDLESS, TWO_STRINGS], beam=beam, normalize_scores=False)
    assert texts(endless) == ["aaaaaa."] and endless[0]["truncated"] and endless[0]["score"] == -math.inf
    assert (certificate(endless).certificate, certificate(endless).reason) == ("none", "length limit")
    assert not torch.isnan(endless[0]["positional_scores"]).any()
    assert text(fine[0]) == "a." and certificate(fine).certificate == ("optimal" if beam == 1 else "complete")


def test_live_beam_holds_only_what_is_possible__case_4():
    # two continuations a step: with beam 5 the beam is never full, so all 2 + 4 strings are found
    table = {"": {"a": 0.6, "b": 0.4}, "a": {"a": 0.5, "b": 0.5}, "b": {".": 1.0}, "aa": {".": 1.0}, "ab": {".": 1.0}}
    (hypotheses,) = decode([table], beam=5, nbest=5)
    assert sorted(texts(hypotheses)) == ["aa.", "ab.", "b."]
    assert certificate(hypotheses).certificate == "complete" and certificate(hypotheses).decoder_rows == 1 + 2 + 2


def test_beam_above_the_vocabulary__case_5():
    thirds = {x: 1 / 3 for x in "abc"}
    table = {"": thirds, "a": thirds, "b": thirds, "c": thirds, "*": {".": 1.0}}
    dictionary = letters(3)
    (hypotheses,) = decode([Automaton.of_strings(table, len(dictionary))], beam=20, nbest=20)
    assert len(set(texts(hypotheses))) == 9 and certificate(hypotheses).certificate == "complete"


def test_nan_is_told_apart_from_zero__case_13():
    dictionary = letters(3)
    model = script_model(dictionary, [Automaton.of_strings(TWO_STRINGS, len(dictionary))] * 2)
    model.decoder.logits[1, 1:] = math.nan  # second sentence: NaN after its first token
    good, bad = decode([TWO_STRINGS] * 2, models=[model], beam=2)
    assert certificate(good).certificate == "complete"
    assert (certificate(bad).certificate, certificate(bad).reason) == ("none", "NaN")
    model.decoder.logits[:] = math.nan
    with pytest.raises(ValueError, match="NaN for every sentence"):
        decode([TWO_STRINGS] * 2, models=[model], beam=2)


def test_ensemble_averages_probabilities__case_18():
    dictionary = letters(3)
    tables = [{"": {"a": 1.0}, "a": {".": 1.0}}, {"": {"b": 1.0}, "b": {".": 1.0}}]  # disjoint supports
    models = [script_model(dictionary, [Automaton.of_strings(t, len(dictionary))]) for t in tables]
    # each member is at state 0 when it meets a symbol it does not know, so allow both to end anywhere
    for model in models:
        model.decoder.probs[:, 1:], model.decoder.follow[:] = 0, 1
        model.decoder.logits[:, 1:] = torch.where(torch.arange(len(dictionary)) == EOS, 2.0, -1.0)
    (hypotheses,) = decode([tables[0]], models=models, nbest=2)
    assert sorted(texts(hypotheses)) == ["a.", "b."]
    assert [h["logprob"] for h in hypotheses] == pytest.approx([math.log(0.5)] * 2)
    assert certificate(hypotheses).certificate == "complete" and certificate(hypotheses).mass == pytest.approx(1)


def test_padding_and_batch_mates_change_nothing__case_25():
    automata = [Automaton.random(s, 4, FIRST + 3) for s in range(6)]
    together = decode(automata, sample=script_sample(list(range(6)), width=9), max_len_a=1.0, max_len_b=3)
    for i in range(6):
        alone = decode(automata, sample=script_sample([i]), max_len_a=1.0, max_len_b=3)[0]
        assert text(alone[0]) == text(together[i][0]) and same(certificate(alone), certificate(together[i]))
        assert [h["logprob"] for h in alone] == pytest.approx([h["logprob"] for h in together[i]])  # but for ties


def test_objective_is_named_and_decides_the_winner__case_26():
    (raw,) = decode([HALVES], beam=4, nbest=4, min_len=0, normalize_scores=False)
    assert texts(raw)[0] == "." and raw[0]["score"].item() == pytest.approx(math.log(0.5))
    assert certificate(raw).objective == "logprob" and certificate(raw).certificate in ("complete", "optimal")
    (scaled,) = decode([HALVES], beam=4, nbest=4, min_len=0)
    assert texts(scaled)[0] == "aaa." and scaled[0]["score"].item() == pytest.approx(math.log(0.125) / 4)
    assert certificate(scaled).objective == "normalized" and certificate(scaled).certificate in ("complete", "optimal")
    (negative,) = decode([HALVES], beam=4, nbest=4, min_len=0, len_penalty=-1.0)
    assert texts(negative)[0] == "." and certificate(negative).certificate in ("complete", "optimal")


def test_min_len_keeps_the_true_mass__case_27():
    table = {"": {".": 0.6, "a": 0.4}, "a": {".": 1.0}}
    (hypotheses,) = decode([table], beam=2)
    assert texts(hypotheses) == ["a."]
    found = certificate(hypotheses)
    assert found.mass == pytest.approx(0.4) and (found.certificate, found.reason) == (
        "optimal",
        "subject to min length",
    )


def test_min_len_without_a_way_out__case_27():
    (hypotheses,) = decode([{"": {".": 1.0}}], beam=2)
    assert hypotheses[0]["truncated"] and certificate(hypotheses).reason == "min length"


def test_prefix__case_28():
    a, c = FIRST, FIRST + 2
    prefix = torch.tensor([[a], [c], [1]])  # possible, impossible, none (padding)
    possible, impossible, free = decode([TWO_STRINGS] * 3, beam=2, nbest=2, prefix=prefix)
    assert texts(possible) == ["a."] and certificate(possible).certificate == "complete"
    assert certificate(possible).mass == pytest.approx(1.0)  # given the prefix
    assert possible[0]["logprob"] == pytest.approx(math.log(0.7))  # scores include it, as in fairseq
    assert texts(impossible) == ["c."] and impossible[0]["score"] == -math.inf
    assert certificate(impossible).reason == "prefix has zero probability"
    assert texts(free) == ["a.", "b."]
    (impossible,) = decode([TWO_STRINGS], beam=2, prefix=prefix[1:2], sampling=True)
    assert certificate(impossible).reason == "prefix has zero probability"


@pytest.mark.parametrize("lenpen", [-30.0, 30.0])
def test_the_steepest_length_penalties_are_still_right(lenpen):
    automata = [Automaton.of_strings(TWO_STRINGS, len(letters(3))), Automaton.of_strings(HALVES, len(letters(3)))]
    claims = 0
    for automaton, hypotheses in zip(automata, decode(automata, beam=3, len_penalty=lenpen, max_len_b=3, min_len=0)):
        strings, scores = brute_force(automaton, 3, 0, True, lenpen)
        best = max(scores, key=scores.get)
        if certificate(hypotheses).certificate != "none":
            claims += 1
            assert hypotheses[0]["score"].item() == pytest.approx(scores[best], rel=1e-4)
    assert claims > 0


def test_prefix_that_ends__case_28():
    (hypotheses,) = decode([TWO_STRINGS], beam=3, prefix=torch.tensor([[FIRST + 1, EOS, 1]]))
    assert texts(hypotheses) == ["b."] and certificate(hypotheses).certificate == "complete"


@pytest.mark.parametrize("topk, topp", [(-1, -1.0), (10, -1.0), (-1, 0.9), (1, -1.0)])
def test_sampling_draws_only_the_possible__case_30(topk, topp):
    torch.manual_seed(0)
    (hypotheses,) = decode([TWO_STRINGS], beam=10000, sampling=True, sampling_topk=topk, sampling_topp=topp)
    counts = {t: texts(hypotheses).count(t) for t in ("a.", "b.")}
    assert sum(counts.values()) == 10000 and certificate(hypotheses).reason == "sampling"
    if topk == 1:
        assert counts["b."] == 0
    else:
        assert counts["a."] == pytest.approx(7000, abs=250)
    assert certificate(hypotheses).strings == (1 if topk == 1 else 2)


def test_nucleus_is_the_smallest_set_that_exceeds_p__case_30():
    torch.manual_seed(0)
    table = {"": {"a": 0.5, "b": 0.3, "c": 0.2}, "*": {".": 1.0}, "a": {".": 1.0}, "b": {".": 1.0}, "c": {".": 1.0}}
    (hypotheses,) = decode([table], beam=2000, sampling=True, sampling_topp=0.6)
    assert set(texts(hypotheses)) == {"a.", "b."}
    assert texts(hypotheses).count("a.") == pytest.approx(2000 * 5 / 8, abs=120)


def test_sampling_with_ngram_blocking_and_no_way_out__case_30():
    torch.manual_seed(0)
    (hypotheses,) = decode([ENDLESS], beam=3, sampling=True, no_repeat_ngram_size=2)
    assert len(hypotheses) == 1 and hypotheses[0]["truncated"] and text(hypotheses[0]) == "aa."


def test_temperature_is_applied_before_the_mapping__case_31():
    dictionary = letters(3)
    automaton = Automaton.of_strings(TWO_STRINGS, len(dictionary))
    model = script_model(dictionary, [automaton])
    before = model.decoder.logits.clone()
    (hypotheses,) = decode([automaton], models=[model], beam=5, nbest=5, temperature=3.0)
    assert torch.equal(model.decoder.logits, before)
    expected = model.get_normalized_probs((before[0, :1] / 3.0, None), log_probs=False)[0]
    first = {t[0].item(): s for t, s in ((h["tokens"], h["positional_scores"][0].item()) for h in hypotheses)}
    for token, logprob in first.items():
        assert logprob == pytest.approx(math.log(expected[token].item()), rel=1e-6)
    assert hypotheses[0]["support"][0] > 2  # hotter: more than a and b is possible at first


def test_ngram_blocking_is_declared__case_32():
    (hypotheses,) = decode(
        [{"": {"a": 1.0}, "a": {"a": 0.8, ".": 0.2}, "*": {"a": 0.8, ".": 0.2}}], no_repeat_ngram_size=2
    )
    assert texts(hypotheses)[0] in ("aa.", "a.")
    assert not any("aaa" in t for t in texts(hypotheses))
    assert "subject to n-gram blocking" in certificate(hypotheses).reason


@pytest.mark.parametrize(
    "tokens, size, banned",
    [([4, 5, 4], 2, [5]), ([4, 5, 6], 2, []), ([4, 5], 1, [4, 5]), ([4, 4, 4], 3, [4]), ([], 2, []), ([4], 3, [])],
)
def test_repeating_tokens(tokens, size, banned):
    assert repeating_tokens(tokens, size) == banned


def test_score_equals_forced_scoring__case_33():
    dictionary = letters(3)
    automata = [Automaton.random(s, 4, len(dictionary)) for s in range(8)]
    model = script_model(dictionary, automata, decoder=PlainScriptDecoder)

    def full(prev_output_tokens, encoder_out=None, **kwargs):
        steps = [
            step_forward(prev_output_tokens[:, : i + 1], encoder_out)[0] for i in range(prev_output_tokens.size(1))
        ]
        return torch.cat(steps, dim=1), None

    results = decode(automata, models=[model], beam=3, nbest=3)
    step_forward, model.decoder.forward = model.decoder.forward, full
    checked = 0
    for i, hypotheses in enumerate(results):
        for h in hypotheses:
            sample = script_sample([i])
            sample["target"] = h["tokens"].unsqueeze(0)
            start = torch.tensor([[EOS]])
            sample["net_input"]["prev_output_tokens"] = torch.cat([start, h["tokens"][:-1].unsqueeze(0)], dim=1)
            (scored,) = SequenceScorer(dictionary).generate([model], sample)[0]
            assert torch.allclose(scored["positional_scores"].float(), h["positional_scores"], atol=1e-5)
            checked += 1
    assert checked > 8


def test_nbest_above_what_exists_and_above_the_beam__case_34():
    (hypotheses,) = decode([TWO_STRINGS], beam=5, nbest=5)
    assert len(hypotheses) == len(set(texts(hypotheses))) == 2
    (more,) = decode([HALVES], beam=1, nbest=4, min_len=0, normalize_scores=False)
    assert texts(more) == [".", "a.", "aa.", "aaa."]  # one live prefix is enough to list them


def test_decoder_without_incremental_state_gives_the_same():
    automata = [Automaton.random(s, 5, FIRST + 3) for s in range(30)]
    fast, slow = decode(automata, beam=3), decode(automata, beam=3, decoder=PlainScriptDecoder)
    for a, b in zip(fast, slow):
        assert texts(a) == texts(b) and same(certificate(a), certificate(b))


def test_attention_is_in_the_order_of_the_source_tokens__case_37():
    for left_pad in (True, False):
        sample = script_sample([0, 1], width=5, left_pad=left_pad)
        for hypotheses in decode([TWO_STRINGS] * 2, sample=sample, print_alignment="hard"):
            attention = hypotheses[0]["attention"]
            assert attention.shape == (2, 2) and torch.equal(attention, torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
            assert hypotheses[0]["alignment"] == [(0, 0)]


def test_madeup_pad_and_bos_never_come_out__case_71():
    dictionary = letters(3, padding_factor=8)
    assert len(dictionary) == 8 and dictionary[7].startswith("madeupword")
    automaton = Automaton.of_strings({"": {"a": 0.4, ".": 0.3}, "a": {".": 1.0}}, 8)
    automaton.probs[0, [0, 1, 7]] = 0.1  # bos, pad and the made-up symbol
    (hypotheses,) = SparseGenerator(
        [script_model(dictionary, [automaton])], dictionary, beam_size=8, nbest=8, min_len=0, max_len_b=3
    ).generate(None, script_sample([0]))
    assert sorted(texts(hypotheses)) == [".", "a."]
    found = certificate(hypotheses)
    assert found.mass == pytest.approx(0.7) and found.certificate == "optimal"
    assert found.reason == "subject to forbidden symbols"


def test_unknown_word_penalty():
    table = {"": {"a": 0.6, "b": 0.4}, "a": {".": 1.0}, "b": {".": 1.0}}
    dictionary = letters(3)
    automaton = Automaton.of_strings(table, len(dictionary))
    unk = dictionary.unk()
    automaton.probs[0, unk], automaton.probs[0, FIRST] = 0.6, 0.0
    automaton.follow[0, unk] = automaton.follow[0, FIRST]
    (plain,) = decode([automaton], normalize_scores=False)
    assert plain[0]["tokens"].tolist() == [unk, EOS]
    (penalised,) = decode([automaton], normalize_scores=False, unk_penalty=1.0, nbest=2)
    assert texts(penalised)[0] == "b." and penalised[1]["score"].item() == pytest.approx(math.log(0.6) - 1, rel=1e-5)
    assert penalised[1]["logprob"] == pytest.approx(math.log(0.6))
    assert certificate(penalised).reason == "for scores modified by --unkpen 1"
    (rewarded,) = decode([automaton], unk_penalty=-1.0)
    assert (certificate(rewarded).certificate, certificate(rewarded).reason) == (
        "none",
        "modified scores (--unkpen -1)",
    )


def test_allowed_tokens_function():
    (hypotheses,) = decode([TWO_STRINGS], prefix_allowed_tokens_fn=lambda sentence, tokens: [FIRST + 1, EOS])
    assert texts(hypotheses) == ["b."] and "subject to allowed tokens" in certificate(hypotheses).reason


def test_candidates_are_the_support():
    (hypotheses,) = decode([TWO_STRINGS], want_candidates=True)
    steps = hypotheses[0]["candidates"]
    assert steps == [{FIRST: pytest.approx(0.7), FIRST + 1: pytest.approx(0.3)}, {EOS: pytest.approx(1.0)}]
    assert hypotheses[0]["support"] == [2, 1]


@pytest.mark.parametrize(
    "options, match",
    [
        ({"beam": 0}, "--beam must be at least 1, got 0"),
        ({"nbest": 0}, "--nbest"),
        ({"temperature": 0.0}, "--temperature must be above 0 and finite, got 0.0"),
        ({"temperature": math.inf}, "--temperature must be above 0 and finite, got inf"),
        ({"len_penalty": math.nan}, "--lenpen"),
        ({"len_penalty": 31.0}, "--lenpen must be within 30 of 0, got 31"),
        ({"len_penalty": -31.0}, "--lenpen must be within 30 of 0, got -31"),
        ({"diverse_beam_strength": 0.9}, "--diverse-beam-strength 0.9 needs --diverse-beam-groups"),
        ({"print_alignment": "bogus"}, "--print-alignment must be hard or soft, got bogus"),
        ({"min_len": 9}, "--min-len 9 is above the longest output"),
        ({"sampling_topk": 3}, "--sampling-topk 3 needs --sampling"),
        ({"sampling": True, "sampling_topp": 1.5}, "--sampling-topp must be at most 1, got 1.5"),
    ],
)
def test_impossible_options_are_named(options, match):
    with pytest.raises(ValueError, match=match):
        decode([TWO_STRINGS], **options)


# ---------------------------------------------------------------------------- the oracle

OBJECTIVES = [
    ("raw", False, 1.0),
    ("lenpen 1", True, 1.0),
    ("lenpen 0.5", True, 0.5),
    ("lenpen -1", True, -1.0),
    ("lenpen 2", True, 2.0),
]


@functools.cache
def cached_automaton(seed, ties):
    return Automaton.random(seed, 5, FIRST + 3, ties=ties)


@functools.cache
def all_strings(automaton, max_len):
    return automaton.strings(max_len)


def brute_force(automaton, max_len, min_len, normalize, lenpen):
    strings = {t: s for t, s in all_strings(automaton, max_len).items() if len(t) - 1 >= min_len}
    return strings, normalized(strings, lenpen) if normalize else strings


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name, normalize, lenpen", OBJECTIVES, ids=[o[0] for o in OBJECTIVES])
@pytest.mark.parametrize("beam, nbest, min_len", [(1, 1, 0), (2, 1, 1), (3, 3, 0), (5, 1, 2), (5, 7, 0), (12, 2, 1)])
def test_thousands_of_automata__cases_4_5_26_29(beam, nbest, min_len, name, normalize, lenpen, dtype, ties):
    """Hypotheses are real, scores are right, no claim is wrong, and the list is as good as the plain beam's."""
    dictionary, max_len = letters(3), 5
    automata = [cached_automaton(1000 * OBJECTIVES.index((name, normalize, lenpen)) + i, ties) for i in range(40)]
    generator = SparseGenerator(
        [script_model(dictionary, automata, dtype=dtype)],
        dictionary,
        beam_size=beam,
        nbest=nbest,
        min_len=min_len,
        max_len_b=max_len,
        normalize_scores=normalize,
        len_penalty=lenpen,
    )
    results = generator.generate(None, script_sample(list(range(len(automata))), width=4))
    tolerance = 1e-9 if dtype == torch.float64 else 2e-6
    for automaton, hypotheses in zip(automata, results):
        strings, scores = brute_force(automaton, max_len, min_len, normalize, lenpen)
        found = certificate(hypotheses)
        assert 1 <= len(hypotheses) <= max(beam, nbest)
        if hypotheses[0]["truncated"]:
            assert len(hypotheses) == 1 and found.certificate == "none"
            if not ties:
                assert not plain_beam(automaton, beam, nbest, max_len, min_len, normalize, lenpen)
            continue
        got = [tuple(h["tokens"].tolist()) for h in hypotheses]
        assert len(set(got)) == len(got)
        for tokens, h in zip(got, hypotheses):
            assert h["score"].item() == pytest.approx(scores[tokens], abs=1e-5)
            assert h["logprob"] == pytest.approx(strings[tokens], abs=1e-5)
            assert h["positional_scores"].sum().item() == pytest.approx(strings[tokens], abs=1e-5)
        ranked = [scores[t] for t in got]
        assert all(a >= b - 1e-6 for a, b in zip(ranked, ranked[1:]))
        assert found.mass >= sum(math.exp(strings[t]) for t in got) - 1e-6 and found.mass <= 1
        if found.certificate != "none":
            assert ranked[0] >= max(scores.values()) - tolerance
        if found.safe_length is not None:
            short = [s for t, s in scores.items() if len(t) <= found.safe_length]
            assert not short or ranked[0] >= max(short) - tolerance
        if found.certificate == "complete":
            assert found.strings == len(strings) and found.mass == pytest.approx(1.0, abs=1e-9)
        if not ties:
            plain = [s for _, s in plain_beam(automaton, beam, nbest, max_len, min_len, normalize, lenpen)]
            if normalize:  # bounds can only delay the stopping rule of the plain beam
                assert len(ranked) >= min(nbest, len(plain)) and all(a >= b - 1e-5 for a, b in zip(ranked, plain))
            else:
                assert ranked[:nbest] == pytest.approx(plain, abs=1e-5)


def test_claims_are_made_often_enough():
    """A search that never claims anything would pass the test above."""
    automata = [Automaton.random(i, 5, FIRST + 3) for i in range(200)]
    kinds = [certificate(h).certificate for h in decode(automata, beam=5, normalize_scores=False, min_len=0)]
    assert kinds.count("complete") > 15 and kinds.count("optimal") > 80


def test_without_bounding_everything_that_fits_is_listed():
    automata = [Automaton.random(i, 4, FIRST + 3, max_support=2) for i in range(100)]
    complete = {True: 0, False: 0}
    for bounding in complete:
        for automaton, hypotheses in zip(automata, decode(automata, beam=30, nbest=30, min_len=0, bounding=bounding)):
            if certificate(hypotheses).certificate == "complete":
                complete[bounding] += 1
                assert certificate(hypotheses).strings == len(automaton.strings(6))
    assert complete[False] >= complete[True] > 0


def test_decoder_rows_follow_the_live_hypotheses():
    dictionary = letters(3)
    model = script_model(dictionary, [Automaton.of_strings(t, len(dictionary)) for t in (TWO_STRINGS, HALVES)])
    results = decode([TWO_STRINGS, HALVES], models=[model], beam=5)
    assert model.decoder.rows_seen == sum(certificate(h).decoder_rows for h in results) == 3 + 4


# ---------------------------------------------------------------------------- bounds


@pytest.mark.parametrize("lenpen", [-1.0, 0.0, 0.5, 1.0, 2.0])
def test_bound_is_never_below_a_continuation_and_never_rises(lenpen):
    generator = torch.Generator().manual_seed(0)
    objective = Objective(True, lenpen, min_len=2)
    for _ in range(300):
        max_len = int(torch.randint(3, 9, (), generator=generator))
        increments = -torch.rand(max_len + 1, generator=generator, dtype=torch.float64) * 3
        limit = torch.tensor(max_len)
        bounds = [objective.bound(increments[:t].sum(), t, limit).item() for t in range(1, max_len + 1)]
        assert all(a >= b - 1e-12 for a, b in zip(bounds, bounds[1:]))
        for t, bound in enumerate(bounds, start=1):
            for length in range(max(t + 1, 3), max_len + 2):
                assert objective.score(increments[:length].sum().item(), length) <= bound + 1e-12


@pytest.mark.parametrize("name, option", [
    ("unk_penalty", "--unkpen"), ("lm_weight", "--lm-weight"), ("max_len_a", "--max-len-a"),
    ("sampling_topp", "--sampling-topp"), ("len_penalty", "--lenpen"), ("temperature", "--temperature"),
])  # fmt: skip
def test_numbers_that_are_none_are_refused_by_name(name, option):
    with pytest.raises(ValueError, match=f"{option} must be .*got nan"):
        decode([TWO_STRINGS], **{name: math.nan})


def test_a_penalty_beyond_every_range_still_closes_the_ledger():
    dictionary = letters(3)
    automaton = Automaton.of_strings({"": {"a": 0.7}, "*": {".": 1.0}}, len(dictionary))
    automaton.probs[0, dictionary.unk()] = 0.3
    models = [script_model(dictionary, [automaton])]
    generator = SparseGenerator(models, dictionary, min_len=0, nbest=2, unk_penalty=math.inf)
    (hypotheses,) = generator.generate(models, script_sample([0]))
    assert texts(hypotheses)[0] == "a." and dictionary.unk() in hypotheses[1]["tokens"].tolist()
    assert "add up" not in certificate(hypotheses).reason and certificate(hypotheses).certificate != "none"


def test_a_prefix_that_does_not_fit_is_no_ground_for_a_claim():
    prefix = torch.tensor([[FIRST] * 5])
    dictionary = letters(3)
    models = [script_model(dictionary, [Automaton.of_strings(HALVES, len(dictionary))])]
    generator = SparseGenerator(models, dictionary, max_len_b=3, min_len=0)
    (hypotheses,) = generator.generate(models, script_sample([0]), prefix_tokens=prefix)
    assert texts(hypotheses) == ["aaa."]
    assert (certificate(hypotheses).certificate, certificate(hypotheses).reason) == ("none", "length limit")
