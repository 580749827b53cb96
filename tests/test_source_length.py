"""`--match-source-len`: outputs of the source's length, against brute force and fairseq's own search."""

import math
from argparse import Namespace

import pytest
import torch
from fairseq.search import LengthConstrainedBeamSearch
from fairseq.sequence_generator import SequenceGenerator
from helpers import EOS, FIRST, Automaton, letters, normalized, script_model
from test_generator_parity import dense, make_task

from fairseq_entmax.certificate import Objective
from fairseq_entmax.generator import SparseGenerator

pytestmark = pytest.mark.usefixtures("columns")

LENGTHS = [2, 3, 4, 5]  # of the sources, without end of sentence
# Outputs of 0 to 3 letters. "aa" may end, with probability 0.5; products: . 0.1, a. 0.18, aa. 0.36, aaa. 0.36
REPEATS = {"": {"a": 0.9, ".": 0.1}, "a": {"a": 0.8, ".": 0.2}, "aa": {"a": 0.5, ".": 0.5}, "aaa": {".": 1.0}}


def batch(lengths):
    """Sources of these lengths, padded on the left; sentence i runs automaton i."""
    rows = [
        [1] * (max(lengths) - n) + [FIRST] * (n - 1) + [FIRST + i] * min(n, 1) + [EOS] for i, n in enumerate(lengths)
    ]
    return {"id": torch.arange(len(lengths)), "net_input": {"src_tokens": torch.tensor(rows)}}


def decode(automata, lengths, **options):
    dictionary = letters(3)
    automata = [a if isinstance(a, Automaton) else Automaton.of_strings(a, len(dictionary)) for a in automata]
    generator = SparseGenerator([script_model(dictionary, automata)], dictionary, match_source_len=True, **options)
    return generator.generate(None, batch(lengths))


def random_batch(seed):
    return [Automaton.random(seed + i, 5, FIRST + 3) for i in range(60)], [LENGTHS[i % 4] for i in range(60)]


@pytest.mark.parametrize(
    "search", [{}, {"exact_search": True}, {"diverse_beam_groups": 2}], ids=["beam", "exact", "diverse"]
)
@pytest.mark.parametrize("normalize, lenpen", [(False, 1.0), (True, 1.0), (True, -1.0)])
@pytest.mark.parametrize("beam, nbest", [(2, 1), (4, 6)])
def test_claims_against_brute_force(search, normalize, lenpen, beam, nbest):
    """Only outputs of the right length, and the best of these where that is claimed; with exact search, always."""
    automata, lengths = random_batch(0)
    options = {"beam_size": beam, "nbest": nbest, "normalize_scores": normalize, "len_penalty": lenpen, **search}
    proved = 0
    for automaton, length, hypotheses in zip(automata, lengths, decode(automata, lengths, **options)):
        strings = {t: s for t, s in automaton.strings(length).items() if len(t) == length + 1}
        scores = normalized(strings, lenpen) if normalize else strings
        claim, got = hypotheses[0]["certificate"], {}
        if hypotheses[0]["truncated"]:
            assert claim.certificate == "none"
            assert not strings or claim.reason == "beam"
            continue
        for h in hypotheses:
            got[tuple(h["tokens"].tolist())] = h["score"].item()
            assert h["score"].item() <= scores[tuple(h["tokens"].tolist())] + 1e-5
        if claim.certificate != "none":
            proved += 1
            assert max(got.values()) >= max(scores.values()) - 1e-5
            if len(automaton.strings(length + 1)) > len(strings):
                assert claim.certificate == "optimal" and "subject to source length" in claim.reason
        else:
            assert not search.get("exact_search") and claim.reason in ("beam", "tie within rounding")
    assert proved > (3 if "diverse_beam_groups" in search else 15)  # groups of a single prefix prove little


def test_bound_takes_the_shortest_length_of_each_sentence():
    logprob, longest, shortest = torch.tensor([-1.0, -1.0]), torch.tensor([5, 5]), torch.tensor([1, 4])
    assert Objective(True, -1.0).bound(logprob, 1, longest, shortest).tolist() == [-2.0, -5.0]


@pytest.mark.parametrize("exact", [False, True], ids=["beam", "exact"])
@pytest.mark.parametrize("lenpen", [1.0, -1.0])
def test_normalisation_changes_no_claim_and_no_search(lenpen, exact):
    """All outputs are equally long, and the bounds know it."""
    automata, lengths = random_batch(700)
    options = {"beam_size": 1, "exact_search": exact}
    raw = decode(automata, lengths, normalize_scores=False, **options)
    for plain, scaled in zip(raw, decode(automata, lengths, len_penalty=lenpen, **options)):
        first, second = plain[0]["certificate"], scaled[0]["certificate"]
        assert (first.certificate, first.reason) == (second.certificate, second.reason)
        assert first.decoder_rows == second.decoder_rows


def test_enumeration_lists_exactly_the_outputs_of_that_length():
    automata, lengths = random_batch(500)
    options = {"enumerate_mass": 1.0, "normalize_scores": False, "exact_budget": 10**6}
    for automaton, length, hypotheses in zip(automata, lengths, decode(automata, lengths, **options)):
        strings = {t: s for t, s in automaton.strings(length).items() if len(t) == length + 1}
        listed = {tuple(h["tokens"].tolist()): h["logprob"] for h in hypotheses if not h["truncated"]}
        assert listed == pytest.approx(strings, abs=1e-6)
        mass = sum(math.exp(s) for s in strings.values())
        assert hypotheses[0]["certificate"].mass == pytest.approx(mass, abs=1e-9)


def test_what_counts_as_the_length_by_hand():
    """A source of two letters and its end asks for two letters and an end, which costs what the model says."""
    (two, three) = decode([REPEATS, REPEATS], [2, 3], normalize_scores=False)
    assert [h["tokens"].tolist() for h in two] == [[FIRST, FIRST, EOS]]
    assert two[0]["score"].item() == pytest.approx(math.log(0.36), abs=1e-6)
    assert [h["tokens"].tolist() for h in three] == [[FIRST, FIRST, FIRST, EOS]]
    claim = two[0]["certificate"]
    assert (claim.certificate, claim.reason) == ("optimal", "subject to source length")
    assert claim.mass == pytest.approx(0.36) and claim.strings == 1


def test_no_output_of_that_length():
    (hypotheses,) = decode([REPEATS], [4])
    assert len(hypotheses) == 1 and hypotheses[0]["truncated"]
    assert (hypotheses[0]["certificate"].certificate, hypotheses[0]["certificate"].reason) == ("none", "source length")


def test_empty_source():
    (hypotheses, other) = decode([REPEATS, REPEATS], [0, 2])
    assert hypotheses[0]["tokens"].tolist() == [EOS] and len(other[0]["tokens"]) == 3


def test_sampling_draws_only_that_length():
    torch.manual_seed(0)
    for hypotheses in decode([REPEATS] * 3, [2, 3, 2], sampling=True, beam_size=8):
        assert {len(h["tokens"]) for h in hypotheses if not h["truncated"]} == {len(hypotheses[0]["tokens"])}
        assert not hypotheses[0]["truncated"]


def test_shorter_than_min_len_is_named():
    with pytest.raises(ValueError, match="--match-source-len: a source of 2 tokens .* --min-len 3"):
        decode([REPEATS], [2], min_len=3)


@pytest.mark.parametrize("beam", [1, 2, 4])
def test_same_outputs_as_fairseqs(beam):
    """fairseq takes an end at the right length for certain, so its scores lack what the end costs: nothing here.

    ve-fairseq counts the source's end as well where a batch comes with `src_lengths`; fairseq 0.12.2 never does.
    """
    dictionary = letters(3)
    table = {"": {"a": 0.5, "b": 0.3, "c": 0.2}, "a": {"a": 0.2, "b": 0.45, "c": 0.35},
             "b": {"a": 0.6, "b": 0.3, "c": 0.1}, "c": {"a": 0.7, "b": 0.1, "c": 0.2}}  # fmt: skip
    table.update({x + y: {".": 1.0} for x in "abc" for y in "abc"})
    automaton = Automaton.of_strings(table, len(dictionary))
    model = dense(script_model(dictionary, [automaton, automaton]))
    stock = SequenceGenerator(
        [model],
        dictionary,
        beam_size=beam,
        match_source_len=True,
        search_strategy=LengthConstrainedBeamSearch(dictionary, 1, 0, 1, 0),
    )
    wanted = stock.generate([model], batch([2, 2]))
    for want, got in zip(wanted, decode([automaton, automaton], [2, 2], beam_size=beam, nbest=beam)):
        assert [h["tokens"].tolist() for h in got[:beam]] == [h["tokens"].tolist() for h in want]
        assert [h["score"].item() for h in got[:beam]] == pytest.approx([h["score"].item() for h in want], abs=1e-6)


def test_option_reaches_the_search_through_the_task():
    dictionary = letters(3)
    model = script_model(dictionary, [Automaton.of_strings(REPEATS, len(dictionary))] * 2)
    args = Namespace(beam=2, match_source_len=True, print_alignment="hard")
    results = make_task(True, dictionary).build_generator([model], args).generate([model], batch([2, 3]))
    assert [len(h[0]["tokens"]) for h in results] == [3, 4]
    assert [len(h[0]["alignment"]) for h in results] == [2, 3]
