"""Scripted decoders with answers worked out by hand, which fairseq's own generator, ours for a dense model and ours for
a sparse one must all give; then, whatever the options, dense models get fairseq's answers through our task."""

import copy
import math
from argparse import Namespace

import pytest
import torch
from fairseq.search import DiverseBeamSearch
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from helpers import EOS, FIRST, Automaton, letters, script_model, script_sample
from test_stock import batch, build
from torch import nn

from fairseq_entmax.output import set_output_alpha
from fairseq_entmax.task import TranslationEntmaxConfig, TranslationEntmaxTask

pytestmark = pytest.mark.usefixtures("columns")

A, B = FIRST, FIRST + 1
# Products: a. 0.54, ab. 0.324, ba. 0.063, b. 0.03, aba. 0.036, baa. 0.007
TABLE = {"": {"a": 0.9, "b": 0.1}, "a": {".": 0.6, "b": 0.4}, "b": {".": 0.3, "a": 0.7}, "*": {".": 0.9, "a": 0.1},
         "ab": {".": 0.9, "a": 0.1}, "ba": {".": 0.9, "a": 0.1}}  # fmt: skip
# A second sentence in the batch, which ends at another step. Products: b. 0.72, bb. 0.048, a. 0.02
OTHER = {"": {"b": 0.8, "a": 0.2}, "b": {".": 0.9, "b": 0.1}, "bb": {".": 0.6, "b": 0.4}, "a": {".": 0.1, "a": 0.9},
         "*": {".": 0.5, "a": 0.5}}  # fmt: skip


class Unigrams(nn.Module):
    """A language model that does not look at what came before: b is four times as probable as a."""

    probs = {A: 0.1, B: 0.4, EOS: 0.5}

    def forward(self, tokens):
        row = torch.full((len(letters(3)),), -math.inf)
        for token, p in self.probs.items():
            row[token] = math.log(p)
        return (row.expand(*tokens.shape, -1),)

    def get_normalized_probs(self, net_output, log_probs, sample=None):
        return net_output[0].log_softmax(dim=-1)


def dense(model):
    """The same distributions as softmax, whose zeros are logits of -inf."""
    model = copy.deepcopy(model)
    model.decoder.logits = model.decoder.probs.log()
    set_output_alpha(model, 1.0)
    return model


def make_task(ours: bool, dictionary):
    if ours:
        return TranslationEntmaxTask(TranslationEntmaxConfig(), dictionary, dictionary)
    return TranslationTask(TranslationConfig(), dictionary, dictionary)


def decode(kind, tables, args, extra=None, allowed=None, **inputs):
    dictionary = letters(3)
    model = script_model(dictionary, [Automaton.of_strings(t, len(dictionary)) for t in tables])
    model = model if kind == "sparse" else dense(model)
    args = Namespace(**{"beam": 2, "nbest": 2, "max_len_b": 8, **args})
    generator = make_task(kind != "stock", dictionary).build_generator(
        [model], args, extra_gen_cls_kwargs=dict(extra or {}), prefix_allowed_tokens_fn=allowed
    )
    return generator.generate([model], script_sample(list(range(len(tables)))), **inputs)


def text(hypothesis):
    return "".join("." if t == EOS else chr(ord("a") + t - FIRST) for t in hypothesis["tokens"].tolist())


def log_mean(product, length):
    return math.log(product) / length


LM = {"lm_model": Unigrams(), "lm_weight": 0.5}
# What the sparse search finds beyond: it goes on while something better can come.
BEYOND = {
    "lenpen above 1": {"ab.": math.log(0.324) / 3**5, "ba.": math.log(0.063) / 3**5},
    "minlen": {"ab.": log_mean(0.324, 3), "aba.": log_mean(0.0324, 4)},
    "prefix": {"ba.": log_mean(0.063, 3), "baa.": log_mean(0.0063, 4)},
}
# options -> outputs of the first sentence with their scores
SCRIPTS = {
    "plain": ({}, {"a.": log_mean(0.54, 2), "ab.": log_mean(0.324, 3)}),
    "without normalisation": ({"unnormalized": True}, {"a.": math.log(0.54), "ab.": math.log(0.324)}),
    "lenpen below 1": ({"lenpen": 0.6}, {"a.": math.log(0.54) / 2**0.6, "ab.": math.log(0.324) / 3**0.6}),
    "lenpen above 1": ({"lenpen": 5.0, "max_len_b": 2}, {"ab.": math.log(0.324) / 3**5, "a.": math.log(0.54) / 2**5}),
    "maxlen": ({"max_len_b": 1}, {"a.": log_mean(0.54, 2), "b.": log_mean(0.03, 2)}),
    "minlen": ({"min_len": 2}, {"ab.": log_mean(0.324, 3), "ba.": log_mean(0.063, 3)}),
    "temperature 1": ({"temperature": 1.0}, {"a.": log_mean(0.54, 2), "ab.": log_mean(0.324, 3)}),
    "greedy": ({"beam": 1, "nbest": 1}, {"a.": log_mean(0.54, 2)}),
    "prefix": (
        {"prefix_tokens": torch.tensor([[B], [B]])},
        {"ba.": log_mean(0.063, 3), "b.": log_mean(0.03, 2)},
    ),
    "prefixes of different lengths": (
        {"prefix_tokens": torch.tensor([[B, A], [B, 1]])},
        {"ba.": log_mean(0.063, 3)},
    ),
    "n-gram blocking": (  # of single symbols: aba and baa are out
        {"no_repeat_ngram_size": 1, "min_len": 2},
        {"ab.": log_mean(0.324, 3), "ba.": log_mean(0.063, 3)},
    ),
    "allowed tokens": ({"allowed": lambda sentence, tokens: [A, EOS]}, {"a.": log_mean(0.54, 2)}),
    "language model": (  # a 0.9 sqrt(0.1), b 0.1 sqrt(0.4), end sqrt(0.5)
        {"extra": LM, "unnormalized": True},
        {
            "a.": math.log(0.54 * math.sqrt(0.1 * 0.5)),
            "ab.": math.log(0.324 * math.sqrt(0.1 * 0.4 * 0.5)),
        },
    ),
    "alignment, nbest below the beam": ({"print_alignment": "hard", "nbest": 1}, {"a.": log_mean(0.54, 2)}),
}


@pytest.mark.parametrize("kind", ["stock", "dense", "sparse"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_worked_examples(name, kind):
    options, expected = SCRIPTS[name]
    if kind == "sparse":
        expected = BEYOND.get(name, expected)
    args = {k: v for k, v in options.items() if k not in ("prefix_tokens", "extra", "allowed")}
    inputs = {k: options[k] for k in ("prefix_tokens", "extra", "allowed") if k in options}
    if kind == "stock" and "print_alignment" in args:
        del args["print_alignment"]  # its class with alignments needs `beam` hypotheses of every sentence
    if kind != "sparse" and name == "prefixes of different lengths":
        args["beam"] = 1  # fairseq's beam runs dry: ba has two continuations only, of which one repeats
    hypotheses, other = decode(kind, [TABLE, OTHER], args, **inputs)
    got = {text(h): h["score"].item() for h in hypotheses if h["score"] > -math.inf}
    assert {t: got[t] for t in list(got)[: len(expected)]} == pytest.approx(expected, abs=1e-6)
    assert list(got)[: len(expected)] == list(expected)
    for h in hypotheses:
        raw = h["positional_scores"].sum().item()
        power = 0 if args.get("unnormalized") else args.get("lenpen", 1.0)
        assert h["score"].item() == pytest.approx(raw / len(h["tokens"]) ** power, abs=1e-6)
    assert other[0]["tokens"][-1] == EOS
    if "print_alignment" in args:
        assert all(h["alignment"] == [(0, step) for step in range(len(h["tokens"]) - 1)] for h in hypotheses)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_nothing_is_possible(kind):
    """Every way is blocked: one hypothesis that ends, with score -inf where the answer is ours; the other is unhurt."""
    prefix = torch.tensor([[FIRST + 2], [B]])  # c never occurs
    if kind == "dense":
        with pytest.raises((AssertionError, ValueError)):  # fairseq's own generator, unchanged
            decode(kind, [TABLE, TABLE], {}, prefix_tokens=prefix)
        return
    impossible, fine = decode(kind, [TABLE, TABLE], {}, prefix_tokens=prefix)
    assert [h["score"] for h in impossible] == [-math.inf] and impossible[0]["tokens"][-1] == EOS
    assert text(fine[0]) == "ba."


OPTIONS = {
    "sampling": {"sampling": True, "sampling_topk": 3},
    "siblings": {"diversity_rate": 0.5},
    "constraints": {"constraints": "unordered"},
    "temperature": {"temperature": 2.5},
    "n-grams": {"no_repeat_ngram_size": 2, "max_len_b": 12},
    "unk": {"unkpen": 3.0, "lenpen": 2.0},
    "source length": {"max_len_a": 1.2, "max_len_b": 1},
    "match source": {"match_source_len": True},
}


@pytest.mark.parametrize("arch", ["lstm", "transformer"])
@pytest.mark.parametrize("name", OPTIONS)
def test_dense_models_get_fairseqs_answers_through_the_task(name, arch):
    """Token for token and score for score."""
    from fairseq.token_generation_constraints import pack_constraints

    dictionary = letters(8)
    model = build(arch, dictionary, scale=3.0)
    sample = batch([7, 5, 3, 2], len(dictionary))
    args = Namespace(**{"beam": 3, "max_len_b": 9, **OPTIONS[name]})
    inputs = {}
    if name == "constraints":
        inputs["constraints"] = pack_constraints([[torch.tensor([FIRST + i])] for i in range(4)])
    results = []
    for ours in (False, True):
        torch.manual_seed(0)
        generator = make_task(ours, dictionary).build_generator([model], args)
        results.append(generator.generate([model], copy.deepcopy(sample), **inputs))
    for want, got in zip(*results):
        assert [h["tokens"].tolist() for h in got] == [h["tokens"].tolist() for h in want]
        assert [h["score"].item() for h in got] == [h["score"].item() for h in want]
        assert all(torch.equal(g["positional_scores"], w["positional_scores"]) for g, w in zip(got, want))
    if name in ("sampling", "siblings", "constraints", "match source"):
        assert all(h[0]["certificate"].certificate == "none" for h in results[1])


def test_diverse_beam_groups_are_broken_in_some_builds_of_fairseq_and_work_for_sparse_models():
    """ve-fairseq looks overlaps up by sentence ids, in a table of the first batch, and forgets who has finished."""
    dictionary = letters(8)
    model = build("lstm", dictionary, scale=3.0)
    sample = batch([7, 5, 3, 2], len(dictionary))
    sample["id"] = sample["id"] + 100  # any batch but the first
    args = Namespace(beam=4, nbest=4, max_len_b=9, diverse_beam_groups=2)
    if hasattr(DiverseBeamSearch(dictionary, 2, 0.5), "group_overlap"):  # not in fairseq 0.12.2
        generator = make_task(False, dictionary).build_generator([model], args)
        with pytest.raises((IndexError, RuntimeError)):
            generator.generate([model], sample)
    set_output_alpha(model, 1.5)
    for hypotheses in make_task(True, dictionary).build_generator([model], args).generate([model], sample):
        assert 1 <= len(hypotheses) <= 4 and all(h["tokens"][-1] == EOS for h in hypotheses)
