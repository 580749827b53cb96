"""The recipes of published results: the inflection data and its scores, result files, the page made from them."""

import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import recipe_runs

sys.path.insert(0, str(recipe_runs.EXAMPLES))

import collect  # noqa: E402
import prepare_sigmorphon  # noqa: E402
import results  # noqa: E402
import score_inflection  # noqa: E402
from prepare_inflection import spell, symbols  # noqa: E402

LINES = {
    "spanish": ["dar\tno des\tV;NEG;IMP;2;SG", "ver\tveía\tV;IND;PST;1;SG;IPFV"],
    "kurmanji": ["Vau\u00a0\tV a\tN; PL", "e\u0301\te\u0301n\tV;PL"],
}


def write_clone(folder, sizes=(2, 2, 2), setting="medium"):
    """The files of task 1 for two languages, the lines above repeated."""
    folder.mkdir(parents=True)
    for language, lines in LINES.items():
        for name, size in zip((f"train-{setting}", "dev", "test"), sizes):
            text = "".join(lines[i % 2] + "\n" for i in range(size))
            (folder / f"{language}-{name}").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clone")
    write_clone(folder / "task1" / "all", sizes=(40, 10, 10))
    return folder


def read(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def prepare(data, out, *options):
    return prepare_sigmorphon.main(["--data", str(data), "--out", str(out), *options])


def test_case_72_tags_are_symbols_of_their_own_and_text_comes_back(tmp_path):
    write_clone(tmp_path / "all")
    assert prepare(tmp_path / "all", tmp_path / "out", "--languages", "kurmanji", "spanish") == 0
    for part in ("train", "valid", "test"):
        sources, targets = (read(tmp_path / "out" / f"{part}.{side}") for side in ("src", "tgt"))
        assert sources[0] == "<kurmanji> <N> <\u2581PL> V a u <U+00A0>"
        assert sources[2] == "<spanish> <V> <NEG> <IMP> <2> <SG> d a r"
        assert [spell(target) for target in targets] == ["V a", "e\u0301n", "no des", "veía"]
        assert targets[1] == "e \u0301 n"  # not composed
        assert all(line == " ".join(line.split()) for line in sources + targets)  # as fairseq splits them


@pytest.mark.parametrize("text", ["a b", " a", "a\u00a0b", "a\u3000", "<a>", "e\u0301"], ids=ascii)
def test_case_72_every_text_is_spelled_back(text):
    assert spell(" ".join(symbols(text))) == text
    assert " ".join(symbols(text)).split() == symbols(text)


def test_case_68_missing_files_are_named_with_the_page_of_the_terms(tmp_path, capsys):
    folder = write_clone(tmp_path / "all")
    (folder / "spanish-dev").unlink()
    for data, options, says in (
        (folder, [], "missing spanish-dev;"),
        (folder, ["--languages", "kurmanji", "basque"], "missing basque-train-medium, basque-dev, basque-test;"),
        (folder, ["--setting", "high"], "missing *-train-high;"),
        (tmp_path / "nowhere", [], "no such folder"),
    ):
        assert prepare(data, tmp_path / "out", *options) == 1
        message = capsys.readouterr().err
        assert says in message and "github.com/sigmorphon/conll2018" in message and "unimorph" in message
    assert not (tmp_path / "out").exists()


def test_only_languages_with_files_of_the_setting_are_taken(clone, tmp_path, capsys):
    (tmp_path / "all").mkdir()
    for name in ("train-high", "dev", "test"):
        (tmp_path / "all" / f"spanish-{name}").write_text("a\tb\tV\n")
    (tmp_path / "all" / "cornish-train-medium").write_text("a\tb\tV\n")
    assert prepare(tmp_path / "all", tmp_path / "out", "--setting", "high") == 0
    assert read(tmp_path / "out" / "train.src") == ["<spanish> <V> a"]
    assert prepare(clone, tmp_path / "both") == 0
    assert "2 languages: train 80, valid 20, test 20 pairs" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line, says",
    [("a\tb", "wanted lemma, form and tags"), ("a\t\tV", "wanted lemma, form and tags"), ("\u2581\tb\tV", "U+2581")],
    ids=["two columns", "no form", "the sign for the space"],
)
def test_a_line_that_cannot_be_read_is_named(line, says, tmp_path, capsys):
    folder = write_clone(tmp_path / "all")
    (folder / "spanish-test").write_text(f"a\tb\tV\n{line}\n", encoding="utf-8")
    assert prepare(folder, tmp_path / "out") == 1
    message = capsys.readouterr().err
    assert "spanish-test, line 2" in message and says in message


# --- scores ---------------------------------------------------------------------------------------------------------


def task_scores(gold, guesses):
    """What the shared task's evaluation gives for one language, the slow way: accuracy in percent, mean distance."""

    def distance(a, b):
        if not a or not b:
            return len(a) + len(b)
        return min(distance(a[1:], b) + 1, distance(a, b[1:]) + 1, distance(a[1:], b[1:]) + (a[0] != b[0]))

    pairs = [(form, guesses.get(key, "")) for key, form in gold.items()]
    return (
        100 * sum(form == guess for form, guess in pairs) / len(pairs),
        sum(distance(form, guess) for form, guess in pairs) / len(pairs),
    )


def record(number, **changes):
    kind = {"certificate": "complete", "reason": "", "mass": 1.0, "strings": 1, "decoder_rows": 4}
    return {"id": number, **kind, "hypotheses": [{"support": [1, 3]}], **changes}


def write_run(folder, pairs, outputs, records=None, part="test"):
    """A decoded part: `pairs` of source and target lines, `outputs` number -> line."""
    (folder / "data").mkdir(exist_ok=True, parents=True)
    for side, suffix in enumerate(("src", "tgt")):
        text = "".join(pair[side] + "\n" for pair in pairs)
        (folder / "data" / f"{part}.{suffix}").write_text(text, encoding="utf-8")
    made = folder / "run" / part
    made.mkdir(parents=True)
    text = "".join(f"D-{number}\t-0.5\t{line}\n" for number, line in outputs.items())
    (made / f"generate-{part}.txt").write_text(text, encoding="utf-8")
    records = [record(number) for number in range(len(pairs))] if records is None else records
    (made / "certificates.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in records))
    (made / "seconds").write_text("30\n")


def test_case_72_scores_are_those_of_the_shared_task(tmp_path):
    rng = random.Random(3)
    gold, guesses, pairs, outputs = {}, {}, [], {}
    for language, size in (("finnish", 30), ("navajo", 10)):
        for number in range(size):
            lemma, form = ("".join(rng.choices("abc \u0301", k=rng.randint(1, 6))) for _ in range(2))
            tags = f"V;{number}"
            guess = form if rng.random() < 0.5 else "".join(rng.choices("abc ", k=rng.randint(0, 5)))
            gold.setdefault(language, {})[lemma, tags] = form
            guesses[lemma, tags] = guess
            outputs[len(pairs)] = " ".join(symbols(guess))
            pairs.append((" ".join([f"<{language}>", *symbols(lemma)]), " ".join(symbols(form))))
    shuffled = dict(sorted(outputs.items(), key=lambda item: rng.random()))
    write_run(tmp_path, pairs, shuffled)
    scores = score_inflection.score(tmp_path / "data", tmp_path / "run")["test"]
    expected = {language: task_scores(forms, guesses) for language, forms in gold.items()}
    for language, (accuracy, distance) in expected.items():
        found = scores["languages"][language]
        assert (found["accuracy"], found["distance"]) == pytest.approx((accuracy, distance))
    assert scores["accuracy"] == pytest.approx(sum(accuracy for accuracy, _ in expected.values()) / 2)
    assert scores["distance"] == pytest.approx(sum(distance for _, distance in expected.values()) / 2)


PAIRS = [("<a> x", "x \u2581 y"), ("<a> y", "y"), ("<b> z", "z")]


@pytest.mark.parametrize(
    "outputs, records, says",
    [
        ({0: "x", 2: "z"}, None, "wanted 3 outputs, one for each reference, got 2; missing [1]"),
        ({0: "x", 1: "y", 2: "z", 3: "z"}, None, "got 4; missing []"),
        ({0: "x", 1: "y", 2: "z"}, [record(0), record(2)], "wanted 3 records with ids from 0, got 2"),
    ],
    ids=["missing", "too many", "no certificate"],
)
def test_case_73_a_missing_sentence_stops_the_scoring(outputs, records, says, tmp_path, capsys):
    write_run(tmp_path, PAIRS, outputs, records)
    options = ["--data", tmp_path / "data", "--run", tmp_path / "run", "--out", tmp_path / "scores.json"]
    assert score_inflection.main([str(option) for option in options]) == 1
    assert says in capsys.readouterr().err
    assert not (tmp_path / "scores.json").exists()


def test_exactness_training_and_time_are_in_the_scores(tmp_path, capsys):
    outputs = {2: "z z", 1: "y", 0: "x \u2581 y"}
    forms = [(text, math.log(probability)) for text, probability in (("y \u2581", 0.5), ("x", 0.375), ("z", 0.125))]
    hypotheses = [{"support": [1, 3], "text": text, "logprob": logprob} for text, logprob in forms]
    several = record(1, strings=3, source="<a> <V> y", hypotheses=hypotheses)
    cut = record(2, certificate="optimal", strings=1)  # one string, but not all of the probability
    write_run(tmp_path, PAIRS, outputs, [record(0), cut, several], part="valid")
    write_run(tmp_path, PAIRS, outputs, [record(0), several, record(2, certificate="none")])
    line = "epoch {:03d} | valid on 'valid' subset | loss {} | support 2 | num_updates 9\n"
    line += "epoch {:03d} | loss 9.5 | support 2 | num_updates {} | lr 0.1 | train_wall 9 | wall {}\n"
    text = line.format(1, 0.5, 1, 10, 33) + line.format(2, 0.25, 2, 20, 70) + line.format(3, 0.375, 3, 30, 35)
    (tmp_path / "run" / "log.txt").write_text(text)
    options = ["--data", tmp_path / "data", "--run", tmp_path / "run", "--out", tmp_path / "scores.json"]
    assert score_inflection.main([str(option) for option in options]) == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["training"] == {"epochs": 3, "best_epoch": 2, "loss": 0.25, "updates": 30, "seconds": 70 + 35}
    # By language: of two in `a`, one has a single form and both are listed; the one in `b` is only proved.
    assert [scores["valid"][name] for name in ("single", "complete", "proved")] == [25, 50, 100]
    example = {
        "id": 1,
        "source": "<a> <V> y",
        "forms": [["y ", 0.5], ["x", pytest.approx(0.375)], ["z", pytest.approx(0.125)]],
    }
    assert scores["valid"]["example"] == example
    assert scores["test"]["accuracy"] == 50 and scores["test"]["distance"] == 0.5  # of language b: wrong by one letter
    assert scores["test"]["decoder_rows"] == 4 and scores["test"]["support"] == 2 and scores["test"]["seconds"] == 30
    assert [row.split("\t")[2] for row in read(tmp_path / "run" / "test" / "predictions.tsv")] == ["x y", "y", "zz"]
    assert "average accuracy  50.00 %  edit distance  0.500" in capsys.readouterr().out


# --- result files and the page --------------------------------------------------------------------------------------

SETTINGS = {"setting": "medium", "size": "small", "languages": ["finnish"], "alpha_output": 1.5, "alpha_attention": 2}


def write_result(folder, name="m-seed1", recipe="inflection", seed=1, scores=None, settings=SETTINGS, **changes):
    scores = {"test": {}} if scores is None else scores
    path, command = folder / recipe / f"{name}.json", changes.pop("command", "bash x.sh --data DATA --out OUT")
    results.write(path, recipe, name, settings, scores, seed, command, changes.pop("seconds", 90.04), **changes)
    return path


def test_result_files_hold_what_repeats_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("MACHINE_NOTE", "shared")
    result = json.loads(write_result(tmp_path).read_text(encoding="utf-8"))
    names = "recipe name settings scores seed versions command seconds machine date"
    assert set(result) == set(names.split())
    assert result["settings"] == SETTINGS and result["seed"] == 1 and result["seconds"] == 90.0
    assert {"python", "torch", "fairseq-entmax"} <= set(result["versions"])
    assert "cores" in result["machine"] and result["machine"].endswith(", shared")
    assert os.uname().nodename not in result["machine"]
    assert results.read(tmp_path) == [result]


def test_results_are_replaced_only_by_force_and_hold_no_path(tmp_path):
    path = write_result(tmp_path)
    write_result(tmp_path, seconds=1)  # killed before the recipe noted that it was done: the same result, which stays
    assert json.loads(path.read_text())["seconds"] == 90.0
    with pytest.raises(ValueError, match="--force"):
        write_result(tmp_path, seed=2)
    write_result(tmp_path, seed=2, force=True)
    assert json.loads(path.read_text())["seed"] == 2
    for command in ("bash x.sh /home/me/data", "cat ~/data/x", "--data=/data/x", r"C:\data\x"):
        with pytest.raises(ValueError, match="DATA and OUT"):
            write_result(tmp_path, name="other", command=command)
    with pytest.raises(ValueError, match="wanted that of the file"):
        results.write(tmp_path / "a.json", "inflection", "b", {}, {}, 1, "true", 1)
    assert len(results.read(tmp_path)) == 1


def test_results_from_the_shell_name_folders_instead_of_paths(tmp_path, capsys):
    (tmp_path / "scores.json").write_text('{"bleu": 30.5}')
    command = f"bash x.sh --data {tmp_path}/raw --out {tmp_path}/raw/out"
    options = ["--recipe", "r", "--name", "n", "--scores", tmp_path / "scores.json", "--seed", "[1, 2]", "--seconds", 5]
    options += ["--setting", "alpha=1.5", "--setting", "pair=de-en", "--command", command]
    options += ["--data", f"{tmp_path}/raw", "--out", f"{tmp_path}/raw/out"]
    options = [str(option) for option in [tmp_path / "n.json", *options]]
    assert results.main(options) == 0
    (result,) = [entry for entry in [json.loads((tmp_path / "n.json").read_text())]]
    assert result["command"] == "bash x.sh --data DATA --out OUT"
    assert result["settings"] == {"alpha": 1.5, "pair": "de-en"} and result["seed"] == [1, 2]
    (tmp_path / "scores.json").write_text('{"bleu": 30.6}')
    assert results.main(options) == 1
    assert "wanted --force" in capsys.readouterr().err


def test_a_file_that_is_no_result_is_named(tmp_path):
    for text, says in (("{}", "without recipe, name"), ("x", "no JSON")):
        (tmp_path / "odd.json").write_text(text)
        with pytest.raises(ValueError, match=rf"odd\.json.*{says}"):
            results.read(tmp_path)


def scores_of(accuracy, sparse=True, trained=True):
    languages = {"finnish": {"pairs": 2, "accuracy": accuracy, "distance": 0.25}}
    part = {"accuracy": accuracy, "distance": 0.25, "single": 60.04, "complete": 70.26, "proved": 99.5}
    part.update(decoder_rows=12.34, support=1.5, languages=languages, seconds=20)
    part["example"] = {"id": 3, "source": "<finnish> <N> <PL> t a \u2581 u", "forms": [["tat", 0.6], ["tau", 0.4]]}
    training = {"epochs": 14, "best_epoch": 12, "loss": 0.1, "updates": 100, "seconds": 600}
    return {"test": part, **({"valid": part} if sparse else {}), **({"training": training} if trained else {})}


def test_the_page_has_every_figure_from_the_files(tmp_path):
    write_result(tmp_path, "b", scores=scores_of(81.234), seconds=630)
    write_result(tmp_path, "c", scores=scores_of(85.5, trained=False), seed=[1, 2, 3], seconds=50)
    softmax = {**SETTINGS, "alpha_output": 1, "alpha_attention": 1}
    write_result(tmp_path, "a", scores=scores_of(77.0, sparse=False), settings=softmax)
    options = ["--results", str(tmp_path), "--page", str(tmp_path / "page.md")]
    assert collect.main([*options, "--check"]) == 1
    assert collect.main(options) == 0 and collect.main([*options, "--check"]) == 0
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith(("| softmax", "| 1.5-entmax"))]
    assert rows[0] == "| softmax | softmax | 1 | 77.00 | 0.250 | none | none | 99.5 | 12.3 | 12 of 14 | 2 |"
    assert rows[1].startswith(
        "| 1.5-entmax | sparsemax | 1 | 81.23 | 0.250 | 60.0 | 70.3 | 99.5 | 12.3 | 12 of 14 | 10"
    )
    assert rows[2].startswith("| 1.5-entmax | sparsemax | ensemble of 1, 2, 3 | 85.50 |")
    assert "| 1.5-entmax / sparsemax / 1 | 81.2, 0.25 |" in text and "bash x.sh --data DATA --out OUT" in text
    assert (
        "leaves for one source, as in the paper's figure 1: ta u (finnish, N;PL) gives tat (0.600), tau (0.400)."
        in text
    )
    for line in text.splitlines():
        assert len(line) <= 120 or line.startswith(("|", "Made with", "The first row", "Every form")), line


def test_tables_of_two_trainings_say_what_tells_them_apart(tmp_path):
    options = ["--results", str(tmp_path), "--page", str(tmp_path / "page.md")]
    for name, training in (("a", "--lr-patience 0 --lr 1"), ("b", "--lr-patience 0 --lr 1 --lr-patience 1 --bf16")):
        write_result(tmp_path, name, scores=scores_of(80.0), settings={**SETTINGS, "training": training})
        assert collect.main(options) == 0
        assert ("Trained with" in (tmp_path / "page.md").read_text(encoding="utf-8")) == (name == "b")
    lines = (tmp_path / "page.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("Trained with")] == [
        "Trained with `--bf16 --lr-patience 1`:",
        "Trained with `--lr-patience 0`:",
    ]
    same = {**SETTINGS, "training": "--bf16 --lr 2 --lr-patience 1 --lr 1", "alpha_output": 2}
    write_result(tmp_path, "c", scores=scores_of(75.0), settings=same)
    assert collect.main(options) == 0
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert text.count("Trained with") == 2 and "| 75.00 |" in text, "the options of b, written otherwise"


def test_the_page_of_the_documentation_is_up_to_date():
    assert collect.main(["--check"]) == 0


# --- the script -----------------------------------------------------------------------------------------------------

CASES = '*score_inflection.py*) cp "$CALLS.json" "${@: -1}" ;;'


@pytest.fixture
def recipe(tmp_path, clone):
    """Runs `inflection.sh` with fairseq's commands replaced by ones that only note their arguments."""
    noted = recipe_runs.noted(tmp_path, scores_of(80.0), CASES)

    def run(*options, data=clone):
        done, calls = noted("inflection", *options, data=data)
        return done, [line for line in calls if not line.startswith("fairseq-preprocess")]

    run.calls, run.out = noted.calls, noted.out
    return run


def words(line, *names):
    """The values of some options of a command line; of an option given twice, the last."""
    return [recipe_runs.value(line, name) for name in names]


def test_models_seeds_and_their_ensemble(recipe):
    done, calls = recipe("--seeds", 1, 2, "--alpha-attention", 2, "--small", "--languages", "spanish", "kurmanji")
    assert done.returncode == 0, done.stdout + done.stderr
    folder = recipe.out / "output1.5-attention2"
    kinds = [call.split()[0] for call in calls]
    assert kinds == ["fairseq-train", *["fairseq-generate"] * 2] * 2 + ["fairseq-generate"] * 2
    options = ("--criterion", "--attention-mapping", "--seed", "--lr", "--lr-scheduler", "--best-checkpoint-metric")
    assert words(calls[3], *options) == ["entmax15", "sparsemax", "2", "0.003", "plateau", "loss"]  # case 53
    assert words(calls[4], "--gen-subset", "--beam") == ["test", "5"] and "--unnormalized" in calls[4]
    assert "--nbest" not in calls[4] and words(calls[5], "--gen-subset", "--nbest") == ["valid", "25"]
    best = [str(folder / f"seed{seed}" / "checkpoints" / "checkpoint_best.pt") for seed in (1, 2)]
    assert words(calls[0 + 1], "--path") == best[:1] and words(calls[6], "--path") == [":".join(best)]

    found = {result["name"]: result for result in results.read(recipe.out / "results")}
    prefix = "medium-small-2languages-output1.5-attention2-"
    assert set(found) == {prefix + kind for kind in ("seed1", "seed2", "ensemble1-2")}
    result = found[prefix + "ensemble1-2"]
    wanted = {**SETTINGS, "languages": ["spanish", "kurmanji"]}
    assert wanted.items() <= result["settings"].items() and result["seed"] == [1, 2]
    assert "--lr-threshold 0.01" in result["settings"]["training"] and "--beam 5" in result["settings"]["decoding"]
    assert result["scores"] == scores_of(80.0) and result["seconds"] == 640
    assert result["command"] == (
        "bash user_dir_examples/inflection.sh --data DATA --out OUT --setting medium --languages spanish kurmanji "
        "--alpha-output 1.5 --alpha-attention 2 --seeds 1 2 --small"
    )


def test_it_goes_on_where_it_stopped_and_replaces_only_by_force(recipe):
    Path(f"{recipe.calls}.broken").touch()
    done, _ = recipe()
    assert done.returncode == 1 and "error: preprocessing failed" in done.stderr
    Path(f"{recipe.calls}.broken").unlink()
    done, calls = recipe()
    assert done.returncode == 0 and len(calls) == 3 and "data: done before" in done.stdout
    assert words(calls[0], "--lr-against", "--lr-threshold", "--lr-patience") == ["previous", "0", "0"]
    (path,) = (recipe.out / "results").iterdir()
    path.write_text(path.read_text().replace('"seed": 1', '"seed": 7'))
    done, calls = recipe()
    assert done.returncode == 0 and calls == [] and '"seed": 7' in path.read_text()
    done, calls = recipe("--force")
    assert done.returncode == 0 and len(calls) == 3 and '"seed": 1' in path.read_text()
    for options in (["--small"], ["--small", "--force"], ["--setting", "high"]):
        done, calls = recipe(*options)
        assert done.returncode == 1 and "take another --out" in done.stderr and calls == []
    assert path.exists()


def test_other_data_or_another_schedule_needs_another_folder(recipe, tmp_path):
    assert recipe()[0].returncode == 0
    other = tmp_path / "elsewhere"
    other.mkdir()
    done, calls = recipe(data=other)
    assert done.returncode == 1 and calls == []
    assert done.stderr.startswith(f"error: {other}: what is in {recipe.out} was made of ")
    settings = recipe.out / "settings"
    settings.write_text(settings.read_text().replace("--lr-against previous", "--lr-against best"))
    done, calls = recipe()
    assert done.returncode == 1 and "take another --out" in done.stderr and calls == []


def test_an_ensemble_follows_its_models(recipe):
    assert recipe("--seeds", 1, 2)[0].returncode == recipe("--seeds", 1, 3)[0].returncode == 0
    assert recipe("--seeds", 2, "--force")[0].returncode == 0
    names = [path.stem.rpartition("-attention1.5-")[2] for path in sorted((recipe.out / "results").iterdir())]
    assert names == ["ensemble1-3", "seed1", "seed2", "seed3"]
    done, calls = recipe("--seeds", 1, 2)
    assert done.returncode == 0, done.stderr
    assert [call.split()[0] for call in calls] == ["fairseq-generate"] * 2  # the ensemble, on test and valid


def test_seconds_of_a_step_count_what_was_interrupted(tmp_path):
    script = f"""set -euo pipefail; source {recipe_runs.EXAMPLES / "common.sh"}; out={tmp_path}
    work() {{ sleep "$1"; [[ $2 == good ]]; }}
    step training work "$@"; spent training"""
    first = subprocess.run(["bash", "-c", script, "x", "2", "bad"], capture_output=True, text=True)
    assert first.returncode == 1 and "running the script again continues here" in first.stderr
    second = subprocess.run(["bash", "-c", script, "x", "1", "good"], capture_output=True, text=True)
    assert second.returncode == 0 and int(second.stdout.split()[-1]) >= 3


def test_a_dense_output_has_no_forms_to_list(recipe):
    done, calls = recipe("--all")
    assert done.returncode == 0, done.stderr
    trained = [words(call, "--criterion", "--attention-mapping") for call in calls if call.startswith("fairseq-train")]
    mappings = ["softmax", "entmax15", "sparsemax"]
    assert trained == [[criterion, name] for criterion in ("entmax", "entmax15", "sparsemax") for name in mappings]
    assert words(calls[0], "--entmax-alpha") == ["1"]
    listed = [call for call in calls if "--gen-subset valid" in call]
    assert len(listed) == 6 and not any("output1-" in call for call in listed)


@pytest.mark.parametrize(
    "options, says",
    [
        (["--fast"], "unknown option --fast"),
        (["--out"], "--out: wanted a value, got none"),
        (["--setting", "low"], "--setting: wanted medium or high, got low"),
        (["--alpha-output", "3"], "--alpha-output: wanted 1, 1.5 or 2, got 3"),
        (["--alpha-attention", "x"], "--alpha-attention: wanted 1, 1.5 or 2, got x"),
        (["--seeds", "--all"], "--seeds: wanted values, got none"),
        (["--seeds", "1", "x"], "--seeds: wanted a whole number of 0 or more, got x"),
        (["--all", "--alpha-output", "2"], "--all: wanted no alpha with it, got one"),
        (["--data", "nowhere"], "--data nowhere: no such folder"),
    ],
    ids=["unknown", "no value", "setting", "output", "attention", "no seeds", "seed", "all", "no folder"],
)
def test_mistakes_are_one_line(options, says, recipe):
    assert recipe_runs.refuses(says, recipe(*options)[0])


def test_the_data_has_to_be_named(recipe):
    done, _ = recipe(data=None)
    assert done.returncode == 1 and "wanted a clone of https://github.com/sigmorphon/conll2018" in done.stderr


def test_commands_without_their_start_end_as_they_do_with_it(warm_environment, tmp_path):
    """What warm.py runs has the output, the error and the status of a process of its own."""

    def ends(environment, *command):
        command = [f"{environment}/bin/{command[0]}", *map(str, command[1:])]
        done = subprocess.run(command, cwd=tmp_path, input="", capture_output=True, text=True)
        printed = [line for line in done.stdout.splitlines() if " | INFO | " not in line]  # of imports, with the time
        return done.returncode, printed, [line for line in done.stderr.splitlines() if "Traceback" in line]

    for command in (
        ("python", recipe_runs.EXAMPLES / "evaluate_g2p.py"),
        ("fairseq-train", "nowhere", "--arch", "lstm"),
    ):
        assert ends(warm_environment, *command) == ends(sys.prefix, *command)


@pytest.mark.usefixtures("warm_recipes")
def test_the_recipe_with_fairseq_itself(clone, tmp_path):
    done = recipe_runs.run("inflection", "--data", clone, "--out", tmp_path / "a run", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("valid on 'valid' subset", "Certificates: 20 sentences", "average  accuracy", "finished"):
        assert word in done.stdout
    (result,) = results.read(tmp_path / "a run" / "results")
    assert set(result["scores"]["test"]["languages"]) == set(LINES)
    assert result["scores"]["training"]["epochs"] == 2 and "single" in result["scores"]["valid"]


def test_an_environment_is_filled_although_another_one_left_its_traces(tmp_path):
    """`.ci/run` leaves `fairseq_entmax.egg-info` in the clone, which Python finds from there."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (tmp_path / "fairseq_entmax.egg-info").mkdir()
    (tmp_path / "fairseq_entmax.egg-info" / "PKG-INFO").write_text("Name: fairseq-entmax\nVersion: 0.1.0\n")
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (packages / "pip.py").write_text("import sys\nprint('pip', *sys.argv[1:])\n")
    script = f"source {recipe_runs.EXAMPLES}/common.sh; activate_environment"
    env = {**os.environ, "VIRTUAL_ENV": str(tmp_path / "venv")}
    env.pop("PYTHONPATH", None)
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"pip install --quiet -e {recipe_runs.EXAMPLES.parent} -c " in done.stdout
