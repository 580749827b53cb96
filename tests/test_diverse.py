"""Diverse beam search against fairseq's own, a plain version of itself, the ordinary beam, and brute force."""

import inspect
import math
from argparse import Namespace
from collections import Counter

import numpy as np
import pytest
import torch
from fairseq.search import BeamSearch, DiverseBeamSearch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.token_generation_constraints import pack_constraints
from helpers import EOS, FIRST, Automaton, letters, normalized, script_model, script_sample
from test_generator_parity import LM, dense

from fairseq_entmax.generator import SparseGenerator
from fairseq_entmax.task import TranslationEntmaxConfig, TranslationEntmaxTask

pytestmark = pytest.mark.usefixtures("columns")

A, B = FIRST, FIRST + 1
MAX_LEN = 5
TWO_STRINGS = {"": {"a": 0.6, "b": 0.4}, "a": {".": 1.0}, "b": {".": 1.0}}


def decode(automata, groups, strength=0.5, prefix=None, packed=None, n_letters=3, **options):
    dictionary = letters(n_letters)
    automata = [a if isinstance(a, Automaton) else Automaton.of_strings(a, len(dictionary)) for a in automata]
    options = {"max_len_b": MAX_LEN, "min_len": 0, **options}
    generator = SparseGenerator(
        [script_model(dictionary, automata)],
        dictionary,
        diverse_beam_groups=groups,
        diverse_beam_strength=strength,
        **options,
    )
    sample = script_sample(list(range(len(automata))))
    return generator.generate(None, sample, prefix_tokens=prefix, constraints=packed)


def found(hypotheses):
    """Outputs with their scores, best first."""
    return {tuple(h["tokens"].tolist()): h["score"].item() for h in hypotheses if not h["truncated"]}


def automata(n, seed=0, states=5):
    return [Automaton.random(seed + i, states, FIRST + 3) for i in range(n)]


# ---------------------------------------------------------------------------- what it finds


def test_two_groups_by_hand():
    """The second group leaves a to the first when that costs less than the penalty; both pay for the same end."""
    (apart,) = decode([TWO_STRINGS], groups=2, strength=0.5, beam_size=2, normalize_scores=False)
    assert found(apart) == pytest.approx({(A, EOS): math.log(0.6), (B, EOS): math.log(0.4) - 0.5})
    assert [h["logprob"] for h in apart] == pytest.approx([math.log(0.6), math.log(0.4)])
    (together,) = decode([TWO_STRINGS], groups=2, strength=0.3, beam_size=2, normalize_scores=False)
    assert found(together) == pytest.approx({(A, EOS): math.log(0.6)})


def fixed_length(seed, n_letters=6, length=4):
    """An automaton whose outputs all have `length` symbols, of `n_letters` possible ones at each step."""
    rng = np.random.default_rng(seed)
    probs, vocab = np.zeros((length * n_letters + 2, FIRST + n_letters)), FIRST + n_letters
    follow = np.zeros(probs.shape, dtype=int)
    for state in range(length * n_letters + 1):  # one for each place and symbol before it; 0 is the start
        place = 0 if state == 0 else (state - 1) // n_letters + 1
        if place == length:
            probs[state, EOS] = 1.0
            continue
        probs[state, FIRST:] = rng.dirichlet(np.ones(n_letters))
        follow[state, FIRST:] = 1 + place * n_letters + np.arange(n_letters)
    assert vocab == probs.shape[1]
    return Automaton(probs, follow)


class Narrow(BeamSearch):
    """As many candidates as the beam is wide, as newer versions of fairseq have them in a group."""

    def step(self, step, lprobs, *args, **kwargs):
        return tuple(x[:, : lprobs.size(1)] for x in super().step(step, lprobs, *args, **kwargs))


def stock_strategy(dictionary, groups, strength):
    """fairseq's diverse beam search with the penalty of the paper: once for each time a token was chosen."""
    if "diversity_discount" in inspect.signature(DiverseBeamSearch.__init__).parameters:
        return DiverseBeamSearch(dictionary, groups, strength, diversity_discount=0.0, candidate_multiple=1)
    strategy = DiverseBeamSearch(dictionary, groups, strength)
    strategy.beam = Narrow(dictionary)  # fairseq 0.12.2 also counts as many candidates that no group has chosen
    return strategy


@pytest.mark.parametrize("beam, groups", [(2, 2), (4, 2), (6, 3), (4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("strength, lenpen", [(0.5, 1.0), (2.0, 0.5), (0.0, 1.0)])
def test_equal_to_fairseqs_on_dense_outputs(beam, groups, strength, lenpen):
    """All outputs end at the same step here: fairseq lets an output that ends keep its place in the beam and then moves
    rows from one group to another, where ours go on. Its list repeats what several groups find."""
    dictionary, scripts = letters(6), [fixed_length(seed) for seed in range(8)]
    model = dense(script_model(dictionary, scripts))
    stock = SequenceGenerator(
        [model],
        dictionary,
        beam_size=beam,
        max_len_b=8,
        len_penalty=lenpen,
        search_strategy=stock_strategy(dictionary, groups, strength),
    )
    wanted = stock.generate([model], script_sample(list(range(len(scripts)))))
    options = {"beam_size": beam, "nbest": beam, "len_penalty": lenpen, "n_letters": 6}
    results = decode(scripts, groups, strength, **options)
    for want, got in zip(wanted, results):
        best = {}
        for h in want:
            best.setdefault(tuple(h["tokens"].tolist()), h["score"].item())
        assert found(got) == pytest.approx(best, abs=1e-5)
        assert list(found(got)) == list(best)
    repeated = sum(len(want) - len(got) for want, got in zip(wanted, results))
    assert groups == 1 or strength > 0 or repeated > 0


def plain_groups(automaton, beam, groups, strength, objective, min_len):
    """Diverse beam search of one sentence with Python lists; every output of every group, with its best score."""
    width, best = beam // groups, {}
    live = [[(0.0, (), 0)] for _ in range(groups)]
    for step in range(MAX_LEN + 1):
        taken = Counter()
        for g in range(groups):
            going, ends = [], []
            for score, tokens, state in live[g]:
                for symbol in np.nonzero(automaton.probs[state])[0].tolist():
                    after = score + math.log(automaton.probs[state, symbol]) - strength * taken[symbol]
                    if symbol == EOS and step >= min_len:
                        ends.append((after, tokens + (EOS,), None))
                    elif symbol != EOS and step < MAX_LEN:
                        going.append((after, tokens + (symbol,), automaton.follow[state, symbol]))
            live[g] = sorted(going, reverse=True)[:width]
            ranked = sorted(live[g] + ends, reverse=True)
            for score, tokens, _ in ranked:
                if tokens[-1] == EOS:
                    best.setdefault(tokens, objective(score, len(tokens)))
            taken.update(t[-1] for i, (_, t, _) in enumerate(ranked) if t[-1] != EOS or i < width)
    return best


@pytest.mark.parametrize("beam, groups, min_len", [(2, 2, 0), (4, 2, 1), (6, 3, 0), (3, 3, 2)])
@pytest.mark.parametrize("strength", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("lenpen", [0.0, 1.0])
def test_equal_to_the_plain_search(beam, groups, min_len, strength, lenpen):
    """Outputs of all lengths; without bounding, and with room for everything, the lists are the same."""
    scripts = automata(30, seed=100, states=60)  # so many that no two outputs have equal scores
    options = {"beam_size": beam, "min_len": min_len, "len_penalty": lenpen, "nbest": 200, "bounding": False}
    for automaton, hypotheses in zip(scripts, decode(scripts, groups, strength, **options)):
        wanted = plain_groups(automaton, beam, groups, strength, lambda s, n: s / n**lenpen, min_len)
        assert found(hypotheses) == pytest.approx(wanted, abs=1e-5)


def test_a_token_may_be_penalised_beyond_the_smallest_number():
    (hypotheses,) = decode([{"": {"a": 1.0}, "a": {".": 1.0}}], groups=3, strength=1e6, beam_size=3)
    assert found(hypotheses) == {(A, EOS): 0.0} and hypotheses[0]["certificate"].decoder_rows == 6


# ---------------------------------------------------------------------------- the first group


OPTIONS = {
    "plain": {},
    "raw": {"normalize_scores": False},
    "min length": {"min_len": 2},
    "prefix": {"prefix": torch.tensor([[A, B]] * 40)},
    "constraints": {"constraints": "unordered"},
    "language model": LM,
    "unknown words": {"unk_penalty": 1.0},
    "n-grams": {"no_repeat_ngram_size": 2},
    "allowed tokens": {"prefix_allowed_tokens_fn": lambda sentence, tokens: [A, B, EOS]},
    "temperature": {"temperature": 1.5},
    "source length": {"match_source_len": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_first_group_is_the_ordinary_beam(name):
    """So its outputs are listed with the same scores, whatever the options, and with strength 0 nothing else is."""
    scripts, options = automata(40, seed=200), {"min_len": 0, **OPTIONS[name]}
    packed = (
        pack_constraints([[torch.tensor([FIRST + i % 3])] for i in range(40)]) if "constraints" in options else None
    )
    prefix = options.get("prefix")
    results = [
        decode(scripts, groups, strength, packed=packed, **{**options, "beam_size": beam, "nbest": beam})
        for groups, beam, strength in ((-1, 2, 0.5), (3, 6, 0.7), (3, 6, 0.0))
    ]
    more = 0
    for i, (plain, diverse, equal) in enumerate(zip(*results)):
        ordinary = found(plain)
        assert {t: s for t, s in found(diverse).items() if t in ordinary} == pytest.approx(ordinary, abs=1e-6)
        assert found(equal) == pytest.approx(ordinary, abs=1e-6)
        claims = [h[0]["certificate"] for h in (plain, equal)]
        assert claims[0].certificate == claims[1].certificate and claims[0].reason == claims[1].reason
        assert claims[1].decoder_rows == 3 * claims[0].decoder_rows
        more += len(found(diverse)) > len(ordinary)
        for h in diverse:
            tokens = h["tokens"].tolist()
            assert h["positional_scores"].sum().item() <= h["logprob"] + 1e-5 or name == "unknown words"
            assert tokens[-1] == EOS and (prefix is None or h["truncated"] or tokens[:2] == [A, B])
            assert packed is None or h["truncated"] or FIRST + i % 3 in tokens
    assert more > 3


def test_batch_mates_change_nothing():
    scripts = automata(10, seed=300)
    together = decode(scripts, 2, beam_size=4, nbest=4)
    alone = [decode([script], 2, beam_size=4, nbest=4)[0] for script in scripts]
    assert [found(h) for h in together] == [found(h) for h in alone]


# ---------------------------------------------------------------------------- claims


@pytest.mark.parametrize("normalize, lenpen", [(False, 1.0), (True, 1.0), (True, -1.0)])
@pytest.mark.parametrize("beam, groups, nbest", [(2, 2, 1), (4, 2, 4), (6, 3, 2), (2, 2, 7)])
def test_claims_against_brute_force(normalize, lenpen, beam, groups, nbest):
    scripts = automata(150, seed=1000)
    options = {"beam_size": beam, "nbest": nbest, "normalize_scores": normalize, "len_penalty": lenpen}
    kinds: Counter = Counter()
    for automaton, hypotheses in zip(scripts, decode(scripts, groups, **options)):
        strings = automaton.strings(MAX_LEN)
        scores = normalized(strings, lenpen) if normalize else strings
        claim = hypotheses[0]["certificate"]
        kinds[claim.certificate] += 1
        got = list(found(hypotheses))
        assert len(set(got)) == len(got) == len([h for h in hypotheses if not h["truncated"]])
        ranked = list(found(hypotheses).values())
        assert all(a >= b for a, b in zip(ranked, ranked[1:]))
        for tokens, score in found(hypotheses).items():
            assert score <= scores[tokens] + 1e-6
        assert sum(math.exp(strings[t]) for t in got) - 1e-6 <= claim.mass <= 1 and claim.strings >= len(got)
        if claim.certificate != "none":
            assert ranked[0] >= max(scores.values()) - 1e-6
        if claim.certificate == "complete":
            assert claim.strings == len(strings) and claim.mass == pytest.approx(1.0, abs=1e-9)
        if claim.safe_length is not None:
            short = [s for t, s in scores.items() if len(t) <= claim.safe_length]
            assert not short or ranked[0] >= max(short) - 1e-6
        assert "do not add up" not in claim.reason
    assert kinds["optimal"] > 10 and kinds["none"] > 0


# ---------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    "options, match",
    [
        ({"beam_size": 5}, "--beam must be divisible by --diverse-beam-groups 2, got --beam 5"),
        ({"strength": -0.5}, "--diverse-beam-strength must be finite and at least 0, got -0.5"),
        ({"strength": math.nan}, "--diverse-beam-strength must be finite and at least 0, got nan"),
        ({"sampling": True}, "--diverse-beam-groups 2 does not go with --sampling"),
        ({"diversity_rate": 0.5}, "--diverse-beam-groups 2 does not go with --diversity-rate 0.5"),
        ({"exact_search": True}, "--diverse-beam-groups 2 does not go with --exact-search"),
        (
            {"enumerate_mass": 0.5, "normalize_scores": False},
            "--diverse-beam-groups 2 does not go with --enumerate-mass 0.5",
        ),
    ],
)
def test_what_does_not_go_with_groups_is_named(options, match):
    with pytest.raises(ValueError, match=match):
        decode([TWO_STRINGS], **{"groups": 2, "beam_size": 4, **options})


def test_options_reach_the_search_through_the_task(tmp_path):
    """As fairseq-generate gives them, with alignments, and into the certificate file."""
    dictionary = letters(3)
    model = script_model(dictionary, [Automaton.of_strings(TWO_STRINGS, len(dictionary))])
    config = TranslationEntmaxConfig(certificate_file=str(tmp_path / "c.jsonl"))
    task = TranslationEntmaxTask(config, dictionary, dictionary)
    args = Namespace(
        beam=2, nbest=2, diverse_beam_groups=2, diverse_beam_strength=0.7, print_alignment="hard", unnormalized=True
    )
    (hypotheses,) = task.build_generator([model], args).generate([model], script_sample([0]))
    assert list(found(hypotheses).values()) == pytest.approx([math.log(0.6), math.log(0.4) - 0.7])
    assert all(h["alignment"] == [(0, 0)] for h in hypotheses)
    task.recorder.close()
    record = (tmp_path / "c.jsonl").read_text()
    assert '"certificate": "complete"' in record or '"certificate": "optimal"' in record
    assert '"text": "b"' in record and '"decoder_rows": 4' in record
