"""The made-up entailment pairs mean what their labels say."""

import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "user_dir_examples"))

import prepare_snli  # noqa: E402
import sample_snli  # noqa: E402


def most_general(table, text):
    """The general meaning of the entry of `table` that the text has; None without one."""
    for special, general in table.items():
        for form in (special, general) if isinstance(special, str) else zip(special, general):
            forms = (form,) if isinstance(form, str) else form
            if any(f" {f} " in text for f in forms):
                return general
    return None


def judge(premise, hypothesis):
    """The label, read from the two texts alone."""
    first, second = f" {premise} ", f" {hypothesis} "
    for table in (sample_snli.ACTORS, sample_snli.ACTIONS, sample_snli.PLACES):
        said, known = most_general(table, second), most_general(table, first)
        if said is not None and said != known:
            return "contradiction"
    adjectives = [word for word in sample_snli.ADJECTIVES if f" {word} " in second and f" {word} " not in first]
    return "neutral" if adjectives or any(phrase in second for phrase in sample_snli.UNSAID) else "entailment"


def pairs(folder, part):
    lines = (folder / sample_snli.FILES[part]).read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_labels_are_right_and_equally_frequent(tmp_path):
    assert sample_snli.main(["--out", str(tmp_path), "--train", "900", "--dev", "90", "--test", "90"]) == 0
    for part, size in (("train", 900), ("dev", 90), ("test", 90)):
        found = pairs(tmp_path, part)
        assert Counter(p["gold_label"] for p in found) == dict.fromkeys(prepare_snli.LABELS, size // 3)
        assert all(judge(p["sentence1"], p["sentence2"]) == p["gold_label"] for p in found)


def test_a_seed_gives_the_same_pairs_whatever_the_sizes(tmp_path):
    for name, more in (("a", ["--test", "20"]), ("b", []), ("c", ["--seed", "2"])):
        assert sample_snli.main(["--out", str(tmp_path / name), "--train", "30", "--dev", "10", *more]) == 0
    assert pairs(tmp_path / "a", "test") == pairs(tmp_path / "b", "test")[:20] != pairs(tmp_path / "c", "test")[:20]
    assert pairs(tmp_path / "a", "train") != pairs(tmp_path / "a", "test")


def test_no_premise_is_in_two_parts(tmp_path):
    assert sample_snli.main(["--out", str(tmp_path)]) == 0
    premises = {part: {pair["sentence1"] for pair in pairs(tmp_path, part)} for part in sample_snli.SIZES}
    for first, second in (("train", "dev"), ("train", "test"), ("dev", "test")):
        assert not premises[first] & premises[second]
    assert len(premises["test"]) > 500  # of 3,456


def test_the_data_step_reads_it(tmp_path):
    assert sample_snli.main(["--out", str(tmp_path / "raw"), "--train", "30", "--dev", "9", "--test", "9"]) == 0
    assert prepare_snli.main(["--data", str(tmp_path / "raw"), "--out", str(tmp_path / "text")]) == 0
    assert (tmp_path / "text" / "train.premise").read_text().splitlines()[0] == pairs(tmp_path / "raw", "train")[0][
        "sentence1"
    ]


def test_a_size_of_none_is_refused(tmp_path, capsys):
    assert sample_snli.main(["--out", str(tmp_path), "--dev", "0"]) == 1
    assert "--dev must be at least 1, got 0" in capsys.readouterr().err
