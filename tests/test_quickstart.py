"""The quickstart: its data step, its evaluation, and the whole script on made-up verb tables."""

import json
import random
import subprocess
import sys
import unicodedata

import pytest
import recipe_runs

sys.path.insert(0, str(recipe_runs.EXAMPLES))

import evaluate_inflection  # noqa: E402
import prepare_inflection  # noqa: E402

# A French model verb: only listed tenses are read, None and unlisted ones are left out.
FRENCH = {
    "Indicatif": {"Présent": [[0, "e"], [1, "es"], [2, "e"], [3, "ons"], [4, "ez"], [5, "ent"]]},
    "Imperatif": {"Imperatif Présent": [[0, "e"], [1, None], [2, "ez"]]},
    "Infinitif": {"Infinitif Présent": "er"},
    "Participe": {"Participe Passé": [[0, "é"], [1, "és"], [2, "ée"], [3, "ées"]], "Participe Présent": "ant"},
}
ENGLISH = {
    "indicative": {
        "indicative present": [[i, "s" if i == 2 else ""] for i in range(6)],
        "indicative past tense": [[i, "ed"] for i in range(6)],
        "indicative present continuous": [[i, "ing"] for i in range(6)],
    }
}


def made_up_lemmas(count, ending):
    rng = random.Random(1)
    return sorted({"".join(rng.choices("bcdfglmnprst", k=5)) + ending for _ in range(2 * count)})[:count]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A folder of verb tables with enough verbs for `--quick`."""
    folder = tmp_path_factory.mktemp("tables")
    for language, name, template, ending in (("fr", "aim:er", FRENCH, "er"), ("en", "deject:", ENGLISH, "")):
        verbs = {lemma: {"root": "", "template": name} for lemma in made_up_lemmas(100, ending)}
        (folder / f"verbs-{language}.json").write_text(json.dumps(verbs))
        (folder / f"conjugation-{language}.json").write_text(json.dumps({name: template}))
    return folder


def prepare(tables, out, *options):
    sizes = ["--train", "60", "--valid", "10", "--test", "10"]
    return prepare_inflection.main(
        ["--tables", str(tables), "--out", str(out), "--languages", "en", "fr", *sizes, *options]
    )


def read(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_case_72_spaces_are_reversible_and_tags_are_symbols_of_their_own():
    entry = prepare_inflection.Entry("a priori-l'eau", "IND PRS 3SG", "a posteriori")
    source = prepare_inflection.source_line("fr", entry).split(" ")
    assert source[:4] == ["<fr>", "IND", "PRS", "3SG"]
    assert prepare_inflection.spell(" ".join(source[4:])) == entry.lemma
    assert prepare_inflection.spell(prepare_inflection.target_line(entry)) == entry.form
    with pytest.raises(ValueError, match="U\\+2581"):
        prepare_inflection.symbols("a\u2581b")


@pytest.mark.parametrize(
    "text, language, expected",
    [
        ("e\u0301t\u00e9", "fr", "\u00e9t\u00e9"),
        ("\u015fi \u0163i", "ro", "\u0219i \u021bi"),
        ("\u015f", "fr", "\u015f"),
    ],
    ids=["composed", "comma below", "Romanian only"],
)
def test_case_72_normalisation_is_what_the_script_declares(text, language, expected):
    assert prepare_inflection.normalise(text, language) == expected
    assert unicodedata.is_normalized("NFC", expected)


def test_paradigms_hold_one_form_per_cell_and_no_empty_ones():
    cells = prepare_inflection.paradigm("danser", "aim:er", FRENCH, "fr")
    assert len({(cell.lemma, cell.tags) for cell in cells}) == len(cells) == 6 + 2 + 4 + 1
    assert ("danser", "IND PRS 3PL", "dansent") in cells
    assert not any(cell.tags == "IMP PRS 1PL" for cell in cells)


def test_roots_are_right_where_the_template_has_no_ending():
    cells = prepare_inflection.paradigm("walk", "deject:", ENGLISH, "en")
    assert [cell.form for cell in cells] == ["walks", "walked", "walking"]
    assert prepare_inflection.paradigm("walk", "prepar:e", ENGLISH, "en") == []


@pytest.mark.parametrize("junk", ["sawn/sawed", "Br)", "a;b", "-", "", "Americanise", "don''t", " a"])
def test_alternatives_and_remarks_are_no_words(junk):
    assert not prepare_inflection.is_word(junk)


def test_parts_share_no_lemma_and_are_the_same_every_time(tables, tmp_path):
    for out in ("first", "second"):
        assert prepare(tables, tmp_path / out) == 0
    lemmas = {}
    for part, size in (("train", 60), ("valid", 10), ("test", 10)):
        assert read(tmp_path / "first" / f"{part}.src") == read(tmp_path / "second" / f"{part}.src")
        lines = read(tmp_path / "first" / f"{part}.src")
        assert len(lines) == len(read(tmp_path / "first" / f"{part}.tgt")) == 2 * size
        lemmas[part] = {(line[:4], "".join(s for s in line.split() if len(s) == 1)) for line in lines}
        assert len(lemmas[part]) == 2 * size
    assert not lemmas["train"] & lemmas["test"] and not lemmas["train"] & lemmas["valid"]
    assert not lemmas["valid"] & lemmas["test"]


def test_case_68_missing_or_wrong_files_are_named_with_the_licence_page(tables, tmp_path, capsys):
    assert prepare(tables, tmp_path / "out", "--languages", "fr", "ro") == 1
    message = capsys.readouterr().err
    assert "conjugation-ro.json, verbs-ro.json" in message and "MIT" in message
    wheel = tmp_path / "mlconjug3.whl"
    for create, says in ((False, "no such file"), (True, "wanted mlconjug3 4.0.1 with SHA-256")):
        if create:
            wheel.write_bytes(b"something else")
        assert prepare_inflection.main(["--wheel", str(wheel), "--out", str(tmp_path / "out")]) == 1
        assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_asking_for_more_verbs_than_there_are_is_one_line(tables, tmp_path, capsys):
    assert prepare(tables, tmp_path / "out", "--train", "1000") == 1
    assert "wanted at most 100 together, got 1020" in capsys.readouterr().err


def decoded(folder, outputs, records=None):
    """A finished run with two test pairs and these output lines."""
    (folder / "data").mkdir()
    (folder / "data" / "test.src").write_text("<en> PST g o\n<fr> PRS a l l e r\n")
    (folder / "data" / "test.tgt").write_text("w e n t\nv a\n")
    (folder / "generate-test.txt").write_text("".join(outputs))
    records = [0, 1] if records is None else records
    certificate = {"certificate": "optimal", "reason": "", "mass": 0.5, "strings": 2, "decoder_rows": 3}
    lines = [json.dumps({"id": i, **certificate, "hypotheses": [{"support": [1, 3]}]}) + "\n" for i in records]
    (folder / "certificates.jsonl").write_text("".join(lines))
    return evaluate_inflection.main(["--out", str(folder)])


def test_case_73_outputs_come_back_in_the_order_of_the_input(tmp_path, capsys):
    assert decoded(tmp_path, ["D-1\t-0.1\tv a\n", "D-0\t-0.2\tg o e d\n", "D-0\t-0.9\tw e n t\n"], [1, 0]) == 0
    rows = [line.split("\t") for line in read(tmp_path / "predictions.tsv")]
    assert [row[1:3] for row in rows] == [["went", "goed"], ["va", "va"]]
    table = capsys.readouterr().out
    assert "all          2     50.00     2.000      0.00    100.00      0.00" in table
    assert "covered mass 0.5000, strings 2.0, decoder rows 3.0; support per step 2.00" in table


@pytest.mark.parametrize(
    "outputs, records, says",
    [
        (["D-1\t-0.1\tv a\n"], [0, 1], "wanted 2 outputs, one for each reference, got 1; missing [0]"),
        (["D-1\t0\tv a\n", "D-0\t0\ta\n", "D-2\t0\ta\n"], [0, 1], "got 3; missing []"),
        (["D-1\t0\tv a\n", "D-0\t0\ta\n"], [1], "wanted 2 records with ids from 0, got 1"),
    ],
    ids=["missing", "too many", "no certificate"],
)
def test_case_73_a_missing_sentence_stops_the_evaluation(outputs, records, says, tmp_path, capsys):
    assert decoded(tmp_path, outputs, records) == 1
    assert says in capsys.readouterr().err


def quickstart(*options):
    return recipe_runs.run("quickstart", *options)


@pytest.mark.parametrize(
    "options, says",
    [
        (["--fast"], "unknown option --fast"),
        (["--out"], "--out: wanted a value, got none"),
        (["--out", ""], "--out: wanted a value, got none"),
        (["--out", "--quick"], "--out: wanted a value, got --quick"),
        (["--out", "a:b"], "--out a:b: wanted a path without : and ,"),
        (["--out", "/dev/null/run"], "--out /dev/null/run: cannot make this folder"),
        (["--wheel", "nowhere.whl"], "--wheel nowhere.whl: no such file"),
        (["--wheel", "w.whl", "--tables", "."], "--wheel, --tables: wanted one of them, got both"),
    ],
    ids=["unknown", "no value", "empty value", "option as value", "colon", "no folder", "no file", "two sources"],
)
def test_mistakes_are_one_line(options, says):
    assert recipe_runs.refuses(says, quickstart(*options))


def test_help_changes_nothing():
    done = quickstart("--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: bash user_dir_examples/quickstart.sh")


def test_quickstart_runs_through_and_a_second_run_reuses_everything(tables, tmp_path):
    options = ["--quick", "--tables", str(tables), "--out", str(tmp_path / "a run")]
    first = quickstart(*options)
    assert first.returncode == 0, first.stdout + first.stderr
    for word in ("valid on 'valid' subset", "Certificates: 20 sentences", "word accuracy", "accuracy%", "finished"):
        assert word in first.stdout
    assert len(read(tmp_path / "a run" / "predictions.tsv")) == 20
    # An interrupted training continues from its last checkpoint; what came before it is not run again.
    (tmp_path / "a run" / ".training.done").unlink()
    second = quickstart(*options)
    assert second.returncode == 0, second.stdout + second.stderr
    assert second.stdout.count("done before") == 4
    assert "Loaded checkpoint" in (tmp_path / "a run" / "train.log").read_text()
    # What is there was made by another model.
    third = quickstart(*options, "--softmax")
    assert third.returncode == 1 and "; take another --out" in third.stderr


def test_a_step_that_fails_is_not_done(tmp_path):
    """Decoding that stops after it has opened its results file: the next run must decode again."""
    folder = recipe_runs.EXAMPLES
    script = (folder / "quickstart.sh").read_text().replace('$(dirname "${BASH_SOURCE[0]}")', str(folder))
    body, last = script.rstrip().rsplit("\n", 1)
    assert last == 'main "$@"'
    body += """
fairseq-generate() { echo half >"$out/generate-test.txt"; return 3; }
out=$1 device=(--cpu) user_dir=none
step decoding generate
"""
    (tmp_path / "script.sh").write_text(body)
    done = subprocess.run(["bash", tmp_path / "script.sh", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1 and "error: decoding failed; running the script again continues here" in done.stderr
    assert not (tmp_path / ".decoding.done").exists()
