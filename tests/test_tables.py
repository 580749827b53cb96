"""The tables of the recipes after the 2017 paper and of those about words, from results made up here."""

import json
import sys
from pathlib import Path

import pytest

from fairseq_entmax.records import above_zero

EXAMPLES = Path(__file__).resolve().parent.parent / "user_dir_examples"
sys.path.insert(0, str(EXAMPLES))

import collect  # noqa: E402
import results  # noqa: E402
import score_attention  # noqa: E402
import tables_2017  # noqa: E402
import tables_words  # noqa: E402

COMMON = {"seed": 1, "versions": {"python": "3.11"}, "command": "bash x.sh", "seconds": 120.0, "date": "2026-01-01"}


def result(recipe, name, settings, scores, **more):
    return {"recipe": recipe, "name": name, "settings": settings, "scores": scores, **COMMON, "machine": "CPU", **more}


def translation(mapping, bleu, **settings):
    spread = {"attended": 3.25, "segments": 1.5, "equal_neighbours": 0.5, "fused": 0.25, "tied": 0.75, "words": 14.0}
    training = {"curve": [{"token_accuracy": 60.0}, {"token_accuracy": 61.5}]}
    scores = {"bleu": bleu, "bleu_interval": 0.5, "training": training, "spread": {**spread, "level": 0, "end": 0.1}}
    settings = {"pair": "de-en", "mapping": mapping, "model": "m", "training": "t", **settings}
    return result("structured-attention", mapping, settings, scores)


def test_translation_times_are_those_of_the_same_batches():
    speed = {"softmax": {"time": 1}, "fusedmax 0.1": {"time": 1.5}}
    times = result("structured-attention", "s", {"pair": "de-en", "model": "m", "speed": 1}, {"speed": speed})
    text = tables_2017.section([translation("fusedmax", 35.5, strength=0.1), times, translation("softmax", 36.0)])
    lines = text.splitlines()
    first = "| softmax | 36.00 ± 0.50 |  | 1.00 | 61.50 | 3.25 | 14.00 | 1.50 | 25.0 | 75.0 | 0.0 | 10.0 | 2 |"
    assert lines[lines.index(first) + 1].startswith("| fusedmax 0.1 | 35.50 ± 0.50 |  | 1.50 |")
    assert "The first row: `bash x.sh`." in text
    assert "| softmax | 36.00 ± 0.50 |  |  | 61.50 |" in tables_2017.section([translation("softmax", 36.0)])
    other = tables_2017.section([times, {**translation("softmax", 36.0), "seed": 2}])
    assert "| softmax | 36.00 ± 0.50 |  |  | 61.50 |" in other, "the models of another seed were timed"


def test_summarisation_has_a_table_for_each_test_set():
    names = [f"{kind}_{m}" for kind in ("rouge1", "rouge2", "rougeL") for m in ("recall", "f1")]
    cuts = {
        length: {"average": {name: value for name in names}} for length, value in (("whole", 30.0), ("75 bytes", 25.0))
    }
    scores = {"Giga": {**cuts, "words": 8.0}, "DUC2004": {**cuts, "words": 9.5}}
    settings = {"mapping": "sparsemax", "output_alpha": 1, "limit": None, "words": 500, "model": "m", "training": "t"}
    text = tables_2017.section([result("summarisation", "s", settings, scores)])
    assert "#### Giga, output alpha 1, 500 words a side\n" in text and "#### DUC2004, output alpha 1" in text
    assert "| sparsemax | 30.00 | 30.00 | 30.00 | 25.00 | 25.00 | 25.00 | 9.5 | 2 |" in text


@pytest.mark.parametrize("other", [{"words": 50}, {"limit": 9}, {"model": "tiny"}, {"training": "short"}])
def test_summaries_of_models_made_otherwise_have_tables_of_their_own(other):
    figures = {f"{kind}_{m}": 1.0 for kind in ("rouge1", "rouge2", "rougeL") for m in ("recall", "f1")}
    scores = {"Giga": {"whole": {"average": figures}, "75 bytes": {"average": figures}, "words": 8.0}}
    settings = {"mapping": "sparsemax", "output_alpha": 1, "limit": None, "words": 500, "model": "m", "training": "t"}
    found = [result("summarisation", str(i), {**settings, **more}, scores) for i, more in enumerate(({}, other))]
    text = tables_2017.section(found)
    assert text.count("#### Giga") == 2 and ("the first 9 training pairs" in text) == ("limit" in other)


def test_entailment():
    scores = {"accuracy": 80.0, "attended": 2.0, "segments": 1.25, "equal_neighbours": 0.5, "words": 14.0}
    settings = {"mapping": "oscarmax", "model": "m", "limit": 1000, "training": "t"}
    text = tables_2017.section([result("snli", "s", settings, scores)])
    assert (
        "#### The first 1000 training pairs" in text and "| oscarmax | 80.00 | 2.00 | 1.25 | 50.0 | 14.00 | 2 |" in text
    )


def test_words():
    rates = {"words": 10, "word_error_rate": 40.0, "phoneme_error_rate": 10.0, "dictionary_mass": 0.5}
    rates.update(impossible_variants=5.0, strings=7.0)
    calibration = {name: {"error": 0.05} for name in ("best", "best, several", "listed")}
    lists = {
        "best": {"strings": 1.0, "precision": 60.0, "recall": 30.0},
        "0.95": {"strings": 9.0, "precision": 9.0, "recall": 80.0},
    }
    scores = {"groups": {name: rates for name in ("all", "one", "several")}, "calibration": calibration, "lists": lists}
    text = tables_words.pronunciation([result("g2p", "g2p", {}, scores)])
    assert "| g2p, all | 10 | 40.00 | 10.00 | 0.500 | 5.0 | 7.0 | 0.050 |" in text
    assert "| g2p, probability 0.95 | 9.00 | 9.0 | 80.0 |" in text
    settings = {"language": "eng", "architecture": "lstm", "units": "characters to 500", "criterion": "entmax15"}
    scores = {"all": {"f1": 90.0, "precision": 91.0, "recall": 89.0, "distance": 0.5}}
    kinds = [{"smoothing": 0, "limit": None}, {"smoothing": 0.1, "limit": 50}]
    text = tables_words.segmentation([result("segmentation", str(k), {**settings, **k}, scores) for k in kinds])
    assert "| eng, lstm, characters to 500, entmax15 | 0 | 90.00 |  | 91.00 | 89.00 | 0.50 | 2 |" in text
    assert "| eng, lstm, characters to 500, entmax15, the first 50 words | 0.1 |" in text


def test_published_figures_are_those_of_the_same_kind_of_system():
    """The systems were one a kind: LSTMs on characters, a transformer on pieces, all words, nine languages."""
    system = {"language": "ces", "architecture": "lstm", "criterion": "entmax15", "units": "characters to characters"}
    changes = {
        "": "93.88",
        "softmax": "93.42",
        "transformer": "",
        "100 to 100": "",
        "transformer, 100 to 100": "93.84",
        "xyz": "",
        "50": "",
    }
    names = {"softmax": "criterion", "transformer": "architecture", "100 to 100": "units", "xyz": "language"}
    for change, figure in changes.items():
        settings = {**system, "limit": 50 if change == "50" else None}
        settings.update({names[value]: value for value in change.split(", ") if value in names})
        assert tables_words.published(settings) == figure, change
    means = [sum(column) / 9 for column in zip(*tables_words.PUBLISHED.values())]
    assert [round(mean, 2) for mean in means] == [96.32, 97.15, 97.29]  # as the paper has them


@pytest.mark.parametrize("section", [tables_2017.section, tables_words.pronunciation, tables_words.segmentation])
def test_without_results_there_is_nothing_and_the_page_has_every_part(section):
    assert section([]) == "" and section in collect.SECTIONS


def test_spread_of_attention_by_hand(tmp_path):
    steps = [[[0, 0.25], [1, 0.25], [3, 0.5]], [[2, 1.0]]]
    third = pytest.approx(1 / 3)
    wanted = {"attended": 2.0, "segments": 1.5, "equal_neighbours": third, "fused": 0.25, "tied": third}
    assert score_attention.spread(steps) == wanted
    assert score_attention.spread([[[5, 0.5], [6, 0.5]]])["equal_neighbours"] == 1
    apart = score_attention.spread([[[5, 0.4], [7, 0.4], [8, 0.2]]])  # a group of oscarmax need not be a segment
    assert (apart["fused"], apart["tied"]) == (0, pytest.approx(2 / 3))
    runs = score_attention.spread([[[0, 0.1], [1, 0.1], [2, 0.2], [3, 0.2], [4, 0.4]]])
    assert runs["fused"] == pytest.approx(0.6)


def test_the_ends_of_source_and_output_are_no_words(tmp_path):
    """Three pieces and the end; the second step is level on the pieces, the last one writes the end of the output."""
    rows = [[[0, 0.5], [3, 0.5]], [[0, 0.25], [1, 0.25], [2, 0.25], [3, 0.25]], [[3, 1.0]]]
    record = {"source_tokens": ["a", "b", "c", "</s>"], "hypotheses": [{"attention": rows}]}
    path = tmp_path / "certificates.jsonl"
    path.write_text(json.dumps(record) + "\n")
    found = score_attention.translation_spread(score_attention.best_steps(path))
    assert (found["attended"], found["words"], found["end"], found["level"]) == (2.0, 3.0, 0.375, 0.5)
    assert found["fused"] == pytest.approx(0.75 / 2)


def test_small_weights_that_differ_stay_apart_in_records():
    weights = [0.75, 0.25 - 6e-7, 1e-7, 2e-7, 3e-7, 0.0]
    recorded = above_zero(weights)
    assert recorded == [[0, 0.75], [1, 0.249999], [2, 1e-7], [3, 2e-7], [4, 3e-7]]
    assert score_attention.spread([recorded])["equal_neighbours"] == 0


def test_options_keep_values_of_several_words_and_of_minus():
    written = "--adam-betas (0.9, 0.98) --x -1 --lr 0.1 --flag --lr 0.2"
    assert results.in_force(written) == {"--adam-betas": "(0.9, 0.98)", "--x": "-1", "--lr": "0.2", "--flag": ""}
    assert results.same_options("") == ""
