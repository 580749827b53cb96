"""The `word_accuracy` scorer: exact match, edit distance, and what counts as one character."""

import random
from types import SimpleNamespace
from unittest import mock

import pytest
import toy
from fairseq.logging import metrics
from fairseq.scoring import SCORER_REGISTRY
from fairseq.tasks.translation import TranslationTask

import fairseq_entmax  # noqa: F401
from fairseq_entmax.scoring import WordAccuracyConfig, WordAccuracyScorer, edit_distance, spelling, unit_of
from fairseq_entmax.task import TranslationEntmaxConfig, TranslationEntmaxTask


def scorer(pairs, unit="auto"):
    result = WordAccuracyScorer(WordAccuracyConfig(word_accuracy_unit=unit))
    for reference, output in pairs:
        result.add_string(reference, output)
    return result


def slow_distance(first, second):
    """The definition by recursion: a second, independent algorithm."""
    if not first or not second:
        return len(first) + len(second)
    return min(
        slow_distance(first[1:], second) + 1,
        slow_distance(first, second[1:]) + 1,
        slow_distance(first[1:], second[1:]) + (first[0] != second[0]),
    )


@pytest.mark.parametrize(
    "first, second, distance",
    [("", "", 0), ("a", "", 1), ("", "abc", 3), ("kitten", "sitting", 3), ("abc", "abc", 0), ("ab", "ba", 2)],
)
def test_edit_distance_of_known_pairs(first, second, distance):
    assert edit_distance(first, second) == distance
    assert edit_distance(second, first) == distance


def test_edit_distance_equals_its_definition():
    rng = random.Random(0)
    for _ in range(300):
        first, second = ("".join(rng.choices("ab", k=rng.randrange(6))) for _ in range(2))
        assert edit_distance(first, second) == slow_distance(first, second), (first, second)


def test_is_registered_under_the_name_that_users_type():
    assert SCORER_REGISTRY["word_accuracy"] is WordAccuracyScorer


def test_case_72_spaces_between_characters_are_no_characters():
    pairs = [("a b c d", "a b d"), ("a \u2581 b", "a \u2581 b"), ("x", "y"), ("e f", "")]
    assert scorer(pairs).distances() == [1, 0, 1, 2]
    # The space of the form itself is a symbol: leaving it out is one edit.
    assert scorer([("a \u2581 b", "a b")]).distances() == [1]


def test_case_72_agrees_with_the_official_measure_on_a_fixture():
    """The shared tasks compare the joined forms, one edit per character of the form (worked out by hand)."""
    forms = [("habl\u00e1ramos", "hablaramos", 1), ("a priori", "apriori", 1), ("went", "goed", 4), ("ging", "ging", 0)]
    encode = lambda form: " ".join("\u2581" if char == " " else char for char in form)  # noqa: E731
    result = scorer([(encode(reference), encode(output)) for reference, output, _ in forms])
    assert result.distances() == [distance for _, _, distance in forms]
    assert result.score() == 25.0
    assert result.result_string() == "word accuracy 25.00 % (1 of 4), mean edit distance 1.500"


def test_words_are_compared_by_character_and_sentences_keep_their_spaces():
    assert scorer([("hablar", "hablamos")]).distances() == [3]
    assert scorer([("a cat", "acat")]).distances() == [1]


def test_unknown_symbols_of_a_reference_count_as_one_and_never_match():
    # fairseq writes them differently on the two sides, so that they cannot match by chance.
    result = scorer([("a <<unk>> c", "a <unk> c")])
    assert (result.distances(), result.score()) == ([1], 0.0)


@pytest.mark.parametrize("unit, distance", [("symbols", 2), ("characters", 5)])
def test_the_unit_can_be_forced(unit, distance):
    assert scorer([("a bc d", "a")], unit).distances() == [distance]


@pytest.mark.parametrize(
    "references, expected",
    [
        (["a b", "c"], True),
        (["ab", "c d"], False),
        (["a", "b"], False),
        ([""], False),
        ([], False),
        (["a <<unk>>"], True),
        (["a UNKNOWNTOKENINREF", "b"], True),
    ],
)
def test_when_references_are_taken_for_spelled_out(references, expected):
    assert (unit_of(*spelling(references)) == "symbols") is expected


def test_an_unknown_symbol_is_one_edit_whatever_the_unit():
    assert scorer([("ab<<unk>>", "ab<unk>")]).distances() == [1]


def validated(batches):
    """Mean edit distance that validation logs for batches of (reference, output) pairs of symbols."""
    symbols = toy.dictionary()
    task = TranslationEntmaxTask(TranslationEntmaxConfig(eval_accuracy=True), symbols, symbols)
    task.tokenizer, task.sequence_generator = None, SimpleNamespace(models=[])
    certificate = SimpleNamespace(certificate="none")
    logs = []
    for pairs in batches:
        references, outputs = (
            [symbols.encode_line(text, add_if_not_exist=False).long() for text in texts] for texts in zip(*pairs)
        )
        found = [[{"tokens": tokens, "certificate": certificate}] for tokens in outputs]
        with mock.patch.object(task, "inference_step", lambda *args, found=found, **kwargs: found):
            logs.append(task._decode_and_compare({"target": references}, None))
    with metrics.aggregate(new_root=True) as logged, mock.patch.object(TranslationTask, "reduce_metrics"):
        task.reduce_metrics(logs, None)
    return logged["edit_distance"].avg


def test_validation_counts_edits_as_generation_does():
    pairs = [("a b c", "a c"), ("a ? c", "a b c"), ("d", "e"), ("a b", "a ?")]
    whole = [(reference.replace("?", "<<unk>>"), output.replace("?", "<unk>")) for reference, output in pairs]
    assert scorer(whole).distances() == [1, 1, 1, 1]
    for batches in ([pairs], [pairs[:2], pairs[2:]], [[pair] for pair in pairs]):
        assert validated(batches) == 1, "the unit is that of the whole set, not of a batch"


def test_without_outputs_the_score_is_zero_and_nothing_divides_by_it():
    assert scorer([]).score() == 0.0
    assert scorer([]).result_string() == "word accuracy: no outputs"
