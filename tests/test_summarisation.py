"""The summarisation recipe: its data step, ROUGE on summaries scored by hand, and the whole script."""

import gzip
import json
import random
import sys

import pytest
import recipe_runs

sys.path.insert(0, str(recipe_runs.EXAMPLES))

import prepare_summaries  # noqa: E402
import score_rouge  # noqa: E402

WORDS = "police say the storm hit north coast late on monday after a long dry summer in town".split()


def sumdata(folder, train=80, test=6):
    """A made-up set in the layout of the real ones: the headline is the first three words of the article."""
    rng = random.Random(1)

    def articles(count):
        return [" ".join(rng.choices(WORDS, k=rng.randint(5, 9))) for _ in range(count)]

    def write(name, lines):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(line + "\n" for line in lines))

    def title(article):
        return " ".join(article.split()[:3])

    lines = articles(train)
    write("train/train.article.txt", lines)
    write("train/train.title.txt", map(title, lines))
    lines = articles(10)
    write("train/valid.article.filter.txt", [*lines, "no headline"])
    write("train/valid.title.filter.txt", [*map(title, lines), ""])
    for name, references in (("Giga", 1), ("DUC2004", 2)):
        lines = articles(test)
        write(f"{name}/input.txt", [line.upper() for line in lines])
        for number in range(references):
            write(f"{name}/task1_ref{number}.txt", [" ".join(line.split()[number : number + 3]) for line in lines])
    return folder


def prepare(data, out, *options):
    return prepare_summaries.main(["--data", str(data), "--out", str(out), *options])


def read(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_data_step(tmp_path):
    data, out = sumdata(tmp_path / "data"), tmp_path / "out"
    plain = data / "train" / "train.title.txt"
    plain.with_suffix(".txt.gz").write_bytes(gzip.compress(plain.read_bytes()))
    titles = read(plain)
    plain.unlink()
    assert prepare(data, out, "--limit", "20") == 0
    assert read(out / "train.title") == titles[:20] and len(read(out / "train.article")) == 20
    assert len(read(out / "valid.article")) == len(read(out / "valid.title")) == 10  # one had no headline
    assert read(out / "tests") == ["Giga", "DUC2004"]
    assert read(out / "DUC2004.article") == [line.lower() for line in read(data / "DUC2004" / "input.txt")]
    references = json.loads((out / "DUC2004.references.json").read_text())
    assert [reference[1] for reference in references] == read(data / "DUC2004" / "task1_ref1.txt")
    assert [reference[0] for reference in references] == read(out / "DUC2004.title")


def test_numbers_are_hidden_from_the_model_and_come_back(tmp_path):
    """The training pairs have `#` for digits, the inputs and references of DUC their digits."""
    data, out = sumdata(tmp_path / "data"), tmp_path / "out"
    lines = {"input": "On 12 May 1999 , 25 of 100.5 fled", "task1_ref0": "25 fled in 1999", "task1_ref1": "12 may"}
    for name, line in lines.items():
        (data / "DUC2004" / f"{name}.txt").write_text(line + "\n")
    assert prepare(data, out) == 0
    assert read(out / "DUC2004.article") == ["on ## may #### , ## of ###.# fled"]
    assert read(out / "DUC2004.title") == ["## fled in ####"]
    assert json.loads((out / "DUC2004.references.json").read_text()) == [["25 fled in 1999", "12 may"]]
    (inputs,) = read(out / "DUC2004.input")
    assert score_rouge.with_numbers("## ## ## fled ### in ####", inputs) == "12 25 25 fled ### in 1999"
    pytest.importorskip("rouge_score")
    (out / "tests").write_text("DUC2004\n")
    (tmp_path / "generate-test.txt").write_text("D-0\t-1\t## fled in ####\n")
    assert score_rouge.main(["--data", str(out), "--run", str(tmp_path)]) == 0
    assert read(tmp_path / "DUC2004.outputs.txt") == ["12 fled in 1999"]


@pytest.mark.parametrize(
    "spoil, says",
    [
        (lambda data: (data / "train" / "train.title.txt").unlink(), "missing in train/: train.title.txt"),
        (lambda data: (data / "Giga" / "task1_ref0.txt").unlink(), "wanted task1_ref0.txt beside input.txt"),
        (lambda data: (data / "Giga" / "task1_ref0.txt").write_text("a\n"), "input.txt 6, task1_ref0.txt 1"),
        (lambda data: (data / "Giga" / "input.txt").write_text("a\n\nb\nc\nd\ne\n"), "input.txt, line 2: wanted"),
    ],
    ids=["missing", "no reference", "lengths", "empty input"],
)
def test_bad_data_is_named(spoil, says, tmp_path, capsys):
    spoil(sumdata(tmp_path / "data"))
    assert prepare(tmp_path / "data", tmp_path / "out") == 1
    message = capsys.readouterr().err
    assert says in message and message.count("\n") == 1


def test_a_cut_is_in_bytes_and_splits_no_character():
    assert score_rouge.cut_bytes("abc", 75) == "abc" and score_rouge.cut_bytes("abcdef", 4) == "abcd"
    assert score_rouge.cut_bytes("aäöü", 4) == "aä"


def test_rouge_by_hand():
    pytest.importorskip("rouge_score")
    # Summary: 4 words; 3 of the first reference's 3, in order; 1 of the second one's 2. Matches and sizes are added up.
    scores = score_rouge.score(["police say storm hit"], [["police say storm", "coast hit"]])
    average, best = scores["average"], scores["best"]
    assert average["rouge1_recall"] == pytest.approx(100 * (3 + 1) / (3 + 2)) and best["rouge1_recall"] == 100
    assert average["rouge1_precision"] == pytest.approx(100 * (3 + 1) / (4 + 4))
    assert average["rouge2_recall"] == pytest.approx(100 * (2 + 0) / (2 + 1))
    assert average["rougeL_f1"] == pytest.approx(100 * 2 * 0.8 * 0.5 / (0.8 + 0.5))
    # The best reference is that of the highest recall, also where another one has the higher F1.
    best = score_rouge.score(["police say"], [["police", "police say storm"]])["best"]
    assert best["rouge1_recall"] == 100 and best["rouge1_precision"] == 50 and best["rouge2_precision"] == 100
    assert score_rouge.score(["cities"], [["city"]])["best"]["rouge1_f1"] == 100  # stemmed
    whole = score_rouge.figures(["x" * 74 + " city"], [["city", ""]])
    assert whole["whole"]["best"]["rouge1_recall"] == 100 and whole["75 bytes"]["best"]["rouge1_recall"] == 0
    whole = score_rouge.figures(["city"], [["city " + "x" * 70 + " coast"]])  # references are cut as well
    assert whole["whole"]["best"]["rouge1_recall"] == pytest.approx(100 / 3)
    assert whole["75 bytes"]["best"]["rouge1_recall"] == 50
    with pytest.raises(ValueError, match="wanted a summary for each of 2 inputs, got 1"):
        score_rouge.score(["a"], [["a"], ["b"]])
    with pytest.raises(ValueError, match="input 0 has no reference"):
        score_rouge.score(["a"], [[""]])


def test_a_missing_summary_stops_the_scoring(tmp_path, capsys):
    prepare(sumdata(tmp_path / "data"), tmp_path / "out")
    (tmp_path / "generate-test.txt").write_text("D-0\t-1\tpolice say\n")
    assert score_rouge.main(["--data", str(tmp_path / "out"), "--run", str(tmp_path)]) == 1
    assert "wanted 6 outputs, one for each input, got 1" in capsys.readouterr().err


def recipe(*options):
    return recipe_runs.run("summarisation", *options)


@pytest.mark.parametrize(
    "options, says",
    [
        ([], "--data: wanted the folder of the summarisation sets, got nothing"),
        (["--data", "."] + ["--output-alpha", "3"], "--output-alpha: wanted 1, 1.5 or 2, got 3"),
        (["--mappings"], "--mappings: wanted values, got none"),
        (["--data", ".", "--mappings", "fused"], "--mappings: wanted one of softmax entmax15 sparsemax"),
        (["--data", ".", "--words", "0"], "--words: wanted a whole number of 1 or more, got 0"),
        (["--data", ".", "--limit", "abc"], "--limit: wanted a whole number of 1 or more, got abc"),
    ],
    ids=["data", "alpha", "no mappings", "mapping", "words", "limit"],
)
def test_mistakes_are_one_line(options, says):
    assert recipe_runs.refuses(says, recipe(*options))


@pytest.mark.usefixtures("warm_recipes")
def test_the_recipe_runs_through_and_a_second_run_reuses_everything(tmp_path):
    pytest.importorskip("rouge_score")
    options = ["--quick", "--data", str(sumdata(tmp_path / "data")), "--out", str(tmp_path / "a run")]
    options += ["--mappings", "fusedmax", "--output-alpha", "1.5"]
    first = recipe(*options)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "DUC2004: 6 sentences, 2 reference(s)" in first.stdout and "75 bytes, average" in first.stdout
    result = json.loads((tmp_path / "a run" / "results" / "summarisation-quick-fusedmax-output1.5.json").read_text())
    assert set(result["scores"]) == {"Giga", "DUC2004"} and str(tmp_path) not in json.dumps(result)
    second = recipe(*options)
    assert second.returncode == 0 and second.stdout.count("done before") == 6, second.stdout + second.stderr
    third = recipe(*options, "--limit", "20")
    assert third.returncode == 1 and "; take another --out" in third.stderr
