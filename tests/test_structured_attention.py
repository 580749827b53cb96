"""The structured attention recipe: its options, and the whole script on made-up captions."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "user_dir_examples"
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


def recipe(*options):
    env = {**os.environ, "VIRTUAL_ENV": sys.prefix}
    command = ["bash", str(EXAMPLES / "structured_attention.sh"), *options]
    return subprocess.run(command, env=env, capture_output=True, text=True)


@pytest.mark.parametrize(
    "options, says",
    [
        (["--mappings"], "error: --mappings: wanted values, got none"),
        (["--sweep"], "error: unknown option --sweep"),
        (["--pair", "de-fr"], "error: --pair: wanted one of de-en en-de fr-en en-fr, got de-fr"),
    ],
    ids=["mappings", "another recipe's", "pair"],
)
def test_mistakes_are_one_line(options, says):
    done = recipe(*options)
    assert done.returncode == 1 and done.stderr.startswith(says) and done.stderr.count("\n") == 1


def test_help_is_that_of_this_recipe():
    done = recipe("--help")
    assert (
        done.returncode == 0 and "--mappings M...  default: softmax sparsemax fusedmax oscarmax pnormmax" in done.stdout
    )
    assert "--sweep" not in done.stdout


def test_the_recipe_runs_through_and_a_second_run_reuses_everything(tmp_path):
    options = ["--quick", "--unchecked", "--data", str(captions(tmp_path / "data")), "--out", str(tmp_path / "run")]
    options += ["--mappings", "fusedmax"]
    first = recipe(*options)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "sacreBLEU" in first.stdout and "equal_neighbours" in first.stdout and "| fusedmax |" in first.stdout
    folder = tmp_path / "run" / "results" / "structured-attention"
    result = json.loads((folder / "de-en-quick-fusedmax-seed-1.json").read_text())
    assert result["scores"]["sentences"] == 8 and result["scores"]["spread"]["attended"] >= 1
    assert result["settings"]["mapping"] == "fusedmax" and str(tmp_path) not in json.dumps(result)
    assert list((tmp_path / "run" / "de-en").rglob("report/*.html"))
    second = recipe(*options)
    assert second.returncode == 0 and second.stdout.count("done before") == 6, second.stdout + second.stderr
