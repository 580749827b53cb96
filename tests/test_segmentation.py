"""The segmentation recipe: its data step, the shared task's scores by hand, and the whole script."""

import json
import random
import sys

import pytest
import recipe_runs

sys.path.insert(0, str(recipe_runs.EXAMPLES))

import evaluate_segmentation  # noqa: E402
import prepare_segmentation  # noqa: E402
from prepare_segmentation import from_units, in_characters, morphemes, read_segmented, write_segmented  # noqa: E402

from fairseq_entmax.scoring import edit_distance, edit_units, spelling, unit_of  # noqa: E402


def shared_task(folder, train=120, test=15):
    """Made-up words of a stem and suffixes, in the files of the shared task."""
    rng = random.Random(1)
    (folder / "data").mkdir(parents=True)
    stems = ["".join(rng.choices("bdgk", k=2)) + vowel for vowel in "aeio" for _ in range(6)]
    for part, count in (("train", train), ("dev", 10), ("test.gold", test)):
        lines = []
        for _ in range(count):
            morphemes = [rng.choice(stems), *rng.sample(["ner", "tum", "lis"], rng.randint(0, 2))]
            category = f"{int(len(morphemes) > 1)}00"
            lines.append(f"{''.join(morphemes)}\t{' @@'.join(morphemes)}\t{category}\n")
        (folder / "data" / f"xyz.word.{part}.tsv").write_text("".join(lines))
    return folder


def prepare(data, out, *options):
    return prepare_segmentation.main(["--data", str(data), "--language", "xyz", "--out", str(out), *options])


def read(path):
    return path.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    "text, segmented, parts",
    [
        ("abash @@ed", "abash|ed", ["abash", "ed"]),
        ("post office @@s", "post office|s", ["post", "office", "s"]),
        ("don't", "don't", ["don't"]),
        ("e\u0301 @@\u00e9", "e\u0301|\u00e9", ["e\u0301", "\u00e9"]),
    ],
    ids=["two", "space", "one", "not composed"],
)
def test_case_72_segmentations_are_read_and_come_back_from_characters(text, segmented, parts):
    assert read_segmented(text) == segmented and write_segmented(segmented) == text and morphemes(segmented) == parts
    assert from_units(in_characters(segmented), "characters") == segmented


def test_validation_counts_letters_and_boundaries_alike():
    """The edit distance of the training's log is that of the shared task: one for a lost boundary, or a lost letter."""
    wanted = in_characters(read_segmented("play @@ed"))
    assert unit_of(*spelling([wanted, in_characters("post office")])) == "symbols"
    for found in ("played", "pla|ed", "play ed"):
        assert edit_distance(edit_units(in_characters(found), "symbols"), edit_units(wanted, "symbols")) == 1


def test_outputs_that_are_none_of_a_segmentation_are_read_too():
    assert from_units("", "characters") == from_units("", "50") == ""
    assert morphemes(from_units("a |", "characters")) == ["a", ""]
    assert morphemes(from_units("a | | | b", "characters")) == ["a", "", "", "b"]
    assert morphemes(from_units("\u2581ab | \u2581 c", "50")) == ["ab", "", "c"]


@pytest.mark.parametrize("target", ["characters", "40"])
def test_both_units_are_reversible(target, tmp_path):
    data, out = shared_task(tmp_path / "task"), tmp_path / "out"
    assert prepare(data, out, "--source-units", "30", "--target-units", target, "--limit", "100") == 0
    gold = [read_segmented(line.split("\t")[1]) for line in read(data / "data" / "xyz.word.test.gold.tsv")]
    lines = read(out / "test.tgt")
    assert [from_units(line, target) for line in lines] == gold
    assert [line.split().count("|") for line in lines] == [text.count("|") for text in gold] and "|" in "".join(gold)
    assert [json.loads(line)["segmented"] for line in read(out / "test.jsonl")] == gold
    assert len(read(out / "train.src")) == len(read(out / "train.tgt")) == 100
    assert all(line.startswith("\u2581") for line in read(out / "train.src"))


@pytest.mark.parametrize(
    "spoil, says",
    [
        (lambda path: path.unlink(), "missing xyz.word.dev.tsv; they are in https"),
        (
            lambda path: path.write_text("word\n"),
            "line 1: wanted a word, a tab and its morphemes",
        ),
        (lambda path: path.write_text("word\ta @@\n"), "line 1: wanted a word, a tab and its morphemes"),
        (
            lambda path: path.write_text("a|b\ta|b\n"),
            "its morphemes, without |, got 'a|b",
        ),
    ],
    ids=["missing", "no morphemes", "empty morpheme", "the sign of a boundary"],
)
def test_bad_data_is_named(spoil, says, tmp_path, capsys):
    spoil(shared_task(tmp_path / "task") / "data" / "xyz.word.dev.tsv")
    assert prepare(tmp_path / "task", tmp_path / "out") == 1
    message = capsys.readouterr().err
    assert says in message and message.count("\n") == 1


def test_scores_by_hand(tmp_path, capsys):
    entries = [("unhappily", "un|happy|ly", "010"), ("dogs", "dog|s", "100")]
    records = [dict(zip(("word", "segmented", "category"), entry)) for entry in entries]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    # un|happily: one of 2 is right, of 3. ly out of order would not count. dog|s: both.
    (tmp_path / "generate-test.txt").write_text("D-1\t-1\td o g | s\nD-0\t-1\tu n | h a p p i l y\n")
    claim = {"certificate": "optimal", "mass": 0.5, "strings": 1, "decoder_rows": 2}
    (tmp_path / "certificates.jsonl").write_text("".join(json.dumps({"id": i, **claim}) + "\n" for i in (1, 0)))
    argv = ["--data", str(tmp_path), "--run", str(tmp_path), "--target-units", "characters"]
    assert evaluate_segmentation.main(argv) == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["all"]["precision"] == pytest.approx(100 * 3 / 4) and scores["all"]["recall"] == pytest.approx(60)
    assert scores["all"]["f1"] == pytest.approx(200 / 3) and scores["all"]["word_accuracy"] == 50
    assert scores["all"]["distance"] == 1.0  # un|happy|ly and un|happily: y to i, and the mark away
    assert scores["100"]["f1"] == 100 and scores["010"]["recall"] == pytest.approx(100 / 3)
    assert read(tmp_path / "predictions.tsv")[0] == "unhappily\tun @@happy @@ly\tun @@happily"
    assert evaluate_segmentation.common(["a", "b", "a"], ["b", "a", "a"]) == 2
    (tmp_path / "generate-test.txt").write_text("D-1\t-1\td o g | s\n")
    assert evaluate_segmentation.main(argv) == 1
    assert "wanted 2 outputs, one for each reference, got 1" in capsys.readouterr().err


def recipe(*options):
    return recipe_runs.run("segmentation", *options)


@pytest.mark.parametrize(
    "options, says",
    [
        ([], "--data: wanted a clone of https://github.com/sigmorphon/2022SegmentationST, got nothing"),
        (["--data", ".", "--architectures", "rnn"], "--architectures: wanted lstm or transformer, got rnn"),
        (["--data", ".", "--smoothing", "1"], "--smoothing: wanted a number in [0, 1), got 1"),
        (["--data", ".", "--units", "few"], "--units: wanted characters or a number of pieces, got few"),
        (["--data", ".", "--source-units", "0"], "--source-units: wanted characters or a number of pieces, got 0"),
        (["--data", ".", "--limit", "abc"], "--limit: wanted a whole number of 1 or more, got abc"),
    ],
    ids=["data", "architecture", "smoothing", "units", "source-units", "limit"],
)
def test_mistakes_are_one_line(options, says):
    assert recipe_runs.refuses(says, recipe(*options))


@pytest.mark.usefixtures("warm_recipes")
def test_the_recipe_runs_through_and_a_second_run_reuses_everything(tmp_path):
    options = ["--quick", "--data", str(shared_task(tmp_path / "task")), "--out", str(tmp_path / "a run")]
    options += ["--language", "xyz", "--smoothing", "0.1", "--target-units", "40"]
    first = recipe(*options, "--architectures", "lstm", "transformer")
    assert first.returncode == 0, first.stdout + first.stderr
    for architecture in ("lstm", "transformer"):
        name = f"xyz-characters-40-{architecture}-entmax15-smoothing0.1-quick"
        result = json.loads((tmp_path / "a run" / "results" / f"{name}.json").read_text())
        assert result["scores"]["all"]["words"] == 15 and result["settings"]["smoothing"] == 0.1
        assert str(tmp_path) not in json.dumps(result)
        log = tmp_path / "a run" / "xyz-characters-40" / f"{architecture}-entmax15-smoothing0.1" / "train.log"
        assert "best_edit_distance" in log.read_text()  # the figure that chooses the model, as in 2022
    second = recipe(*options, "--architectures", "lstm")
    assert second.returncode == 0 and second.stdout.count("done before") == 5, second.stdout + second.stderr
    third = recipe(*options, "--limit", "20")
    assert third.returncode == 1 and "; take another --out" in third.stderr
