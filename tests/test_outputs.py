"""Enumeration and next-word suggestion from Python and from the command line."""

import math
import subprocess
import sys

import commands
import pytest
import torch
from helpers import EOS, FIRST, Automaton, letters, script_model, script_sample
from test_generator import HALVES, TWO_STRINGS

import fairseq_entmax
from fairseq_entmax.outputs import decoding_task

pytestmark = pytest.mark.usefixtures("columns")


def model_of(*tables):
    dictionary = letters(3)
    return script_model(dictionary, [Automaton.of_strings(t, len(dictionary)) for t in tables])


def test_enumerate_outputs():
    two, halves = fairseq_entmax.enumerate_outputs(model_of(TWO_STRINGS, HALVES), script_sample([0, 1]))
    assert [(o.text, o.probability) for o in two.outputs] == [("a", pytest.approx(0.7)), ("b", pytest.approx(0.3))]
    assert two.certificate.certificate == halves.certificate.certificate == "complete"
    assert sum(o.probability for o in halves.outputs) == pytest.approx(1) and len(halves.outputs) == 4
    assert two.outputs[0].tokens.tolist() == [FIRST, EOS] and two.outputs[0].logprob == pytest.approx(math.log(0.7))
    (half,) = fairseq_entmax.enumerate_outputs([model_of(TWO_STRINGS)], script_sample([0]), mass=0.5)
    assert [o.text for o in half.outputs] == ["a"] and half.certificate.certificate == "optimal"


@pytest.mark.parametrize("kwargs, match", [({"mass": 0}, "mass"), ({"mass": 1.1}, "mass"), ({"budget": 0}, "budget")])
def test_enumerate_outputs_names_mistakes(kwargs, match):
    with pytest.raises(ValueError, match=match):
        fairseq_entmax.enumerate_outputs(model_of(TWO_STRINGS), script_sample([0]), **kwargs)


@pytest.fixture(scope="module")
def loaded(corpus, trained):
    from fairseq import checkpoint_utils

    task = decoding_task(corpus)
    models, _ = checkpoint_utils.load_model_ensemble([str(trained)], task=task)
    return models, task


def test_suggest_gives_the_support(loaded):
    models, task = loaded
    source = task.source_dictionary.encode_line("a b c", add_if_not_exist=False).long()
    sample = {"net_input": {"src_tokens": source.unsqueeze(0), "src_lengths": torch.tensor([source.numel()])}}
    (known,) = fairseq_entmax.enumerate_outputs(models, sample, mass=0.9)
    first, second, *_ = [*known.outputs[0].text.split(), "</s>"]  # whatever the model has learnt to say
    found = fairseq_entmax.suggest(models, "a b c", first)
    assert sum(c.probability for c in found) == pytest.approx(1, abs=1e-5)
    assert all(c.probability > 0 and task.target_dictionary[c.index] == c.symbol for c in found)
    assert second in [c.symbol for c in found] and len(found) < len(task.target_dictionary)
    assert [c.probability for c in found] == sorted((c.probability for c in found), reverse=True)
    ended = fairseq_entmax.suggest(models[0], source, known.outputs[0].text)
    assert "</s>" in [c.symbol for c in ended]
    words = known.outputs[0].text.split()
    prefixes = [words[:n] for n in range(len(words) + 1)]
    offers = [{c.symbol for c in fairseq_entmax.suggest(models, source, " ".join(prefix))} for prefix in prefixes]
    prefix, letter = next((p, x) for p, offer in zip(prefixes, offers) for x in "abcde" if x not in offer)
    with pytest.raises(ValueError, match=f"prefix: '{letter}' has probability zero after '{' '.join(prefix)}'"):
        fairseq_entmax.suggest(models, source, " ".join([*prefix, letter, "b"]))


def test_models_come_in_any_wrapping_and_nothing_follows_the_end(corpus, trained):
    model = fairseq_entmax.load(trained, data=corpus)
    expected = fairseq_entmax.suggest(list(model.models), "a b")
    assert fairseq_entmax.suggest(model, "a b") == fairseq_entmax.suggest(model.models, "a b") == expected
    with pytest.raises(ValueError, match="wanted at least one, got none"):
        fairseq_entmax.suggest([], "a b")
    text = model.translate("a b")
    with pytest.raises(ValueError, match="nothing follows the end"):
        fairseq_entmax.suggest(model, "a b", f"{text} </s>")


def test_enumeration_of_a_trained_model_agrees_with_suggest(loaded):
    """The probability of an output is the product of the suggested ones."""
    models, task = loaded
    source = task.source_dictionary.encode_line("d e", add_if_not_exist=False).long()
    sample = {"net_input": {"src_tokens": source.unsqueeze(0), "src_lengths": torch.tensor([source.numel()])}}
    (found,) = fairseq_entmax.enumerate_outputs(models, sample, mass=0.9)
    best, product, prefix = found.outputs[0], 1.0, []
    for symbol in [*best.text.split(), "</s>"]:
        product *= {c.symbol: c.probability for c in fairseq_entmax.suggest(models, source, " ".join(prefix))}[symbol]
        prefix.append(symbol)
    assert product == pytest.approx(best.probability, rel=1e-4)


def command(*argv, text=""):
    line = [sys.executable, "-m", "fairseq_entmax", *map(str, argv)]
    return subprocess.run(line, input=text, capture_output=True, text=True, timeout=120)


def test_suggest_on_the_command_line(corpus, trained, tmp_path):
    done = command("suggest", trained, corpus, text="a b c\na\n\nd e\n")
    assert done.returncode == 0, done.stderr
    prompts = done.stdout.count("source> ")
    assert prompts == 2 and "  b\n" in done.stdout and "</s>" not in done.stdout.split("prefix> ")[0]
    missing = command("suggest", tmp_path / "none.pt", corpus)
    assert missing.returncode != 0 and missing.stderr.strip().endswith("none.pt") and "MODEL" in missing.stderr


def test_user_dir_of_the_commands_is_this_package():
    assert commands.USER_DIR == command("user-dir").stdout.strip()
