"""The structured attention recipe: its options, and the whole script on made-up captions."""

import json
import random

import pytest
import recipe_runs

WORDS = {"de": "ein mann hund ball auf dem gras rennt".split(), "en": "a man dog ball on the grass runs".split()}


def captions(folder, sizes=(("train", 60), ("val", 8), ("test_2016_flickr", 8))):
    """The files of Multi30k with captions of like words in both languages."""
    rng = random.Random(1)
    folder.mkdir()
    for part, size in sizes:
        drawn = [rng.choices(range(8), k=rng.randint(3, 6)) for _ in range(size)]
        for language, words in WORDS.items():
            text = "".join(" ".join(words[i] for i in numbers) + " .\n" for numbers in drawn)
            (folder / f"{part}.{language}").write_text(text)
    return folder


# Data and scores are made up where fairseq does not run.
CASES = """*prepare_translation.py* | *score_attention.py* | *"fairseq_entmax report"*) ;;
  *pair_translation.py*) cp "$CALLS.paired" "$5" ;;
  *speed_translation.py*) shift; echo "speed $*" >>"$CALLS"; cp "$CALLS.speed" "$3" ;;
  *score_translation.py*) [[ $4 != --run ]] || cp "$CALLS.json" "$5/scores.json" ;;"""


def recipe(*options):
    return recipe_runs.run("structured_attention", *options)


@pytest.mark.parametrize(
    "options, says",
    [
        (["--mappings"], "--mappings: wanted values, got none"),
        (["--sweep"], "unknown option --sweep"),
        (["--strength", "much"], "--strength: wanted a number of 0 or more, got much"),
        (["--pair", "de-fr"], "--pair: wanted one of de-en en-de fr-en en-fr, got de-fr"),
    ],
    ids=["mappings", "another recipe's", "strength", "pair"],
)
def test_mistakes_are_one_line(options, says):
    assert recipe_runs.refuses(says, recipe(*options))


def test_help_is_that_of_this_recipe():
    done = recipe("--help")
    assert (
        done.returncode == 0 and "--mappings M...  default: softmax sparsemax fusedmax oscarmax pnormmax" in done.stdout
    )
    assert "--sweep" not in done.stdout


@pytest.fixture
def small(tmp_path):
    """The recipe with `--small`, without fairseq; what it would time is noted as `speed`."""
    training = {"seconds": 60, "target_tokens_per_second": 9.0, "curve": [{"token_accuracy": 50.0}]}
    spread = dict.fromkeys(("attended", "segments", "equal_neighbours", "fused", "tied", "words", "level", "end"), 0.5)
    scores = {"bleu": 20.0, "bleu_interval": 1.0, "spread": spread, "training": training}
    run = recipe_runs.noted(tmp_path, scores, CASES)
    speed = {"softmax": {"time": 1}, "oscarmax 0.01": {"time": 1.25}}
    (tmp_path / "calls.speed").write_text(json.dumps({"speed": speed, "batches": 20}))
    paired = {"oscarmax 0.01": {"difference": -0.5, "p": 0.25}}
    (tmp_path / "calls.paired").write_text(json.dumps({"paired": paired, "baseline": "softmax"}))
    for mapping in ("softmax", "oscarmax"):
        folder = run.out / "de-en" / f"de-en-small-{mapping}-seed-1" / "checkpoints"
        folder.mkdir(parents=True)
        (folder / "checkpoint_best.pt").touch()
        (folder.parent / "hypotheses.test.txt").write_text(mapping)

    def run_small(*options):
        return run("structured_attention", "--small", *options)

    run_small.out, run_small.run = run.out, run
    return run_small


def test_the_small_model_is_trained_like_the_large_one_but_by_adam(small):
    done, calls = small("--mappings", "softmax", "oscarmax")
    assert done.returncode == 0, done.stdout + done.stderr
    trained = [call for call in calls if call.startswith("fairseq-train")]
    assert [recipe_runs.value(call, "--attention-mapping") for call in trained] == ["softmax", "oscarmax"]
    assert "--attention-strength" not in trained[0] and "--attention-strength 0.01" in trained[1]
    options = {"--decoder-hidden-size": "128", "--encoder-layers": "1", "--optimizer": "adam", "--lr": "0.002"}
    options.update({"--encoder-bidirectional": "false", "--max-epoch": "15", "--force-anneal": "12"})
    assert {name: recipe_runs.value(trained[0], name) for name in options} == options
    decoded = [call for call in calls if call.startswith("fairseq-generate")]
    assert len(decoded) == 2 and all("--unnormalized" in call for call in decoded)
    folder = small.out / "results" / "structured-attention"
    names = {path.stem for path in folder.iterdir()}
    assert names >= {"de-en-small-softmax-seed-1", "de-en-small-oscarmax-seed-1", "de-en-small-speed-seed-1"}
    assert "de-en-small-paired-seed-1" in names
    result = json.loads((folder / "de-en-small-oscarmax-seed-1.json").read_text())
    assert result["settings"]["size"] == "small" and result["settings"]["segmentation"].endswith("--pieces 4000")
    assert result["settings"]["strength"] == 0.01
    assert result["command"].endswith("--out OUT --pair de-en --mappings oscarmax --seed 1 --small")
    assert (
        "#### de-en, small model" in done.stdout
        and "| oscarmax 0.01 | 20.00 ± 1.00 | -0.50 (0.250) | 1.25 |" in done.stdout
    )
    done, calls = small("--mappings", "softmax")
    assert done.returncode == 0 and calls == []
    done, calls = small.run("structured_attention", "--mappings", "softmax")
    assert done.returncode == 1 and "take another --out" in done.stderr and calls == []


def test_softmax_is_timed_first_and_once_for_the_same_models(small):
    done, calls = small("--mappings", "oscarmax", "softmax")
    (timed,) = [call for call in calls if call.startswith("speed")]
    models = [word.split("=")[0] for word in timed.split("--model ")[1:]]
    assert models == ["softmax", "oscarmax 0.01"], timed
    for mappings in (["softmax", "oscarmax"], ["softmax"]):  # those trained before keep their figures
        done, calls = small("--mappings", *mappings)
        assert done.returncode == 0 and calls == [] and "times: done before" in done.stdout


def test_another_strength_is_another_model(small):
    done, calls = small("--mappings", "fusedmax", "--strength", "0.02")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--attention-strength 0.02" in calls[1]
    name = "de-en-small-fusedmax-strength-0.02-seed-1"
    result = json.loads((small.out / "results" / "structured-attention" / f"{name}.json").read_text())
    assert result["settings"]["strength"] == 0.02 and "--strength 0.02" in result["command"]


def test_times_of_two_strengths_are_kept_side_by_side(small):
    folder = small.out / "de-en" / "de-en-small-oscarmax-strength-0.02-seed-1"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "checkpoint_best.pt").touch()
    (folder / "hypotheses.test.txt").write_text("oscarmax 0.02")
    for options, timed in (([], 1), (["--strength", "0.02"], 1), ([], 0), (["--strength", "0.02"], 0)):
        done, calls = small("--mappings", "softmax", "oscarmax", *options)
        assert done.returncode == 0, done.stdout + done.stderr
        assert sum(call.startswith("speed") for call in calls) == timed
    names = {path.stem for path in (small.out / "results" / "structured-attention").iterdir()}
    assert names >= {"de-en-small-speed-seed-1", "de-en-small-strength-0.02-speed-seed-1"}


@pytest.mark.usefixtures("warm_recipes")
def test_the_recipe_runs_through_and_a_second_run_reuses_everything(tmp_path):
    options = ["--quick", "--unchecked", "--data", str(captions(tmp_path / "data")), "--out", str(tmp_path / "run")]
    options += ["--mappings", "softmax", "fusedmax"]
    first = recipe(*options)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "sacreBLEU" in first.stdout and "equal_neighbours" in first.stdout and "| fusedmax 0.1 |" in first.stdout
    folder = tmp_path / "run" / "results" / "structured-attention"
    result = json.loads((folder / "de-en-quick-fusedmax-seed-1.json").read_text())
    assert result["scores"]["sentences"] == 8 and result["scores"]["spread"]["attended"] >= 1
    assert result["settings"]["mapping"] == "fusedmax" and str(tmp_path) not in json.dumps(result)
    assert len(list((tmp_path / "run" / "de-en").rglob("report/*.html"))) == 2
    speed = json.loads((folder / "de-en-quick-speed-seed-1.json").read_text())["scores"]["speed"]
    assert list(speed) == ["softmax", "fusedmax 0.1"] and speed["softmax"]["time"] == 1
    paired = json.loads((folder / "de-en-quick-paired-seed-1.json").read_text())["scores"]["paired"]
    assert list(paired) == ["fusedmax 0.1"] and 0 < paired["fusedmax 0.1"]["p"] <= 1
    second = recipe(*options)
    assert second.returncode == 0 and second.stdout.count("done before") == 13, second.stdout + second.stderr
