"""Textual entailment: data and vectors, the model, training and labelling by the real commands, and the recipe."""

import json
import random
import sys
from pathlib import Path

import commands
import numpy as np
import pytest
import recipe_runs
import torch
from fairseq.data import Dictionary

from fairseq_entmax.attention import MAPPINGS
from fairseq_entmax.entailment import EntailmentConfig, EntailmentModel
from fairseq_entmax.entailment_data import EntailmentDataset, read_labels, read_vectors
from fairseq_entmax.entailment_task import EntailmentTask, EntailmentTaskConfig

sys.path.insert(0, str(recipe_runs.EXAMPLES))

import evaluate_snli  # noqa: E402
import prepare_snli  # noqa: E402
import tables_2017  # noqa: E402

LABELS = ("entailment", "neutral", "contradiction")
FILLERS = "there is a big old thing in our house now".split()
ANIMALS = ("dog", "cat")
BINARY = "( ( A man ) ( is -LRB- asleep ) )"
PENN = "(ROOT (S (NP (DT A) (NN man)) (VP (VBZ is) (ADJP (-LRB- -LRB-) (JJ asleep)))))"


def snli(folder, sizes, seed=1):
    """A folder like that of SNLI: an animal among filler words; the hypothesis names it, the other one, or music."""
    rng = random.Random(seed)
    folder.mkdir()
    for part, size in sizes.items():
        lines = []
        for number in range(size):
            words = rng.choices(FILLERS, k=rng.randint(1, 6))
            animal = rng.choice(ANIMALS)
            words.insert(rng.randint(0, len(words)), animal)
            label = rng.choice(LABELS)
            other = ANIMALS[ANIMALS[0] == animal]
            said = {"entailment": animal, "contradiction": other, "neutral": "music"}[label]
            record = {"gold_label": label if number % 10 else "-"}
            for side, text in (("sentence1", words), ("sentence2", [*rng.choices(FILLERS, k=rng.randint(1, 2)), said])):
                record[f"{side}_binary_parse"] = "( " + " ".join(text) + " )"
            lines.append(json.dumps(record) + "\n")
        (folder / f"snli_1.0_{part}.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Raw folder and binary folder of 300 training pairs."""
    folder = tmp_path_factory.mktemp("entailment")
    raw = snli(folder / "snli", {"train": 334, "dev": 45, "test": 45})
    text, binary = folder / "text", folder / "bin"
    assert prepare_snli.main(["--data", str(raw), "--out", str(text)]) == 0
    argv = ["--source-lang", "premise", "--target-lang", "hypothesis", "--joined-dictionary", "--destdir", binary]
    argv += ["--srcdict", text / "dict.txt", "--workers", 1]
    commands.run("preprocess", *argv, *[f"--{part}pref={text / part}" for part in ("train", "valid", "test")])
    for part in ("train", "valid", "test"):
        (binary / f"{part}.label").write_text((text / f"{part}.label").read_text())
    return raw, binary


def train(binary, save_dir, *options, epochs=12):
    log = Path(save_dir) / "log.json"
    log.parent.mkdir(parents=True, exist_ok=True)
    argv = [binary, "--user-dir", commands.USER_DIR, "--task", "entailment_entmax", "--arch", "entailment_gru"]
    argv += ["--embed-dim", 16, "--hidden-size", 16, "--optimizer", "adam", "--lr", 0.02, "--batch-size", 25]
    argv += ["--max-epoch", epochs, "--save-dir", save_dir, "--no-epoch-checkpoints", "--seed", 1, "--cpu"]
    argv += ["--num-workers", 0, "--log-format", "json", "--log-file", log]
    commands.run("train", *argv, *options)
    texts = [line[line.index("{") :] for line in log.read_text().splitlines() if '"valid_loss"' in line]
    return json.loads(texts[-1])


def label(binary, checkpoint, file, *options):
    argv = [binary, "--user-dir", commands.USER_DIR, "--task", "entailment_entmax", "--path", checkpoint, "--cpu"]
    argv += ["--valid-subset", "test", "--batch-size", 20, "--num-workers", 0, "--predictions-file", file]
    commands.run("validate", *argv, *options)
    return commands.records(file)


# --- data -----------------------------------------------------------------------------------------------------------


def test_words_are_the_leaves_of_either_parse():
    words = ["A", "man", "is", "-LRB-", "asleep"]
    assert prepare_snli.leaves({"sentence1_binary_parse": BINARY, "sentence1_parse": "(X y)"}, "sentence1") == words
    assert prepare_snli.leaves({"sentence1_parse": PENN}, "sentence1") == words


def test_pairs_without_label_are_left_out(corpus, tmp_path):
    raw, _ = corpus
    assert prepare_snli.main(["--data", str(raw), "--out", str(tmp_path), "--limit", "100"]) == 0
    for part, kept in (("train", 100), ("valid", 40), ("test", 40)):
        for kind in ("premise", "hypothesis", "label"):
            lines = (tmp_path / f"{part}.{kind}").read_text().splitlines()
            assert len(lines) == kept and "-" not in lines


def test_vectors_bring_words_of_the_other_parts(tmp_path, capsys):
    raw = snli(tmp_path / "snli", {"train": 30, "dev": 20, "test": 20})
    line = {"gold_label": "neutral", "sentence1_binary_parse": "( zebra gnu )", "sentence2_binary_parse": "( dog )"}
    with open(raw / "snli_1.0_test.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("dog 0.5 1\nzebra 1 2\nunused 3 4\n")
    options = ["--data", str(raw), "--out", str(tmp_path / "out"), "--vectors", str(vectors), "--dim", "2"]
    assert prepare_snli.main(options) == 0
    words = [line.split()[0] for line in (tmp_path / "out" / "dict.txt").read_text().splitlines()]
    assert "zebra" in words and "gnu" not in words and "unused" not in words
    assert "unknown in test: 1 of" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line, says",
    [
        ("{", "wanted a pair of SNLI 1.0"),
        ('{"gold_label": "neutral"}', "wanted a pair of SNLI 1.0 (KeyError('sentence1_parse'))"),
        (json.dumps({"gold_label": "maybe", "sentence1_parse": PENN, "sentence2_parse": PENN}), "got 'maybe'"),
    ],
    ids=["no JSON", "no parse", "label"],
)
def test_a_bad_line_is_named(line, says, tmp_path, capsys):
    raw = snli(tmp_path / "snli", {"train": 10, "dev": 10, "test": 10})
    (raw / "snli_1.0_dev.jsonl").write_text(line + "\n")
    assert prepare_snli.main(["--data", str(raw), "--out", str(tmp_path / "out")]) == 1
    message = capsys.readouterr().err
    assert "snli_1.0_dev.jsonl, line 1: " in message and says in message and message.count("\n") == 1


def test_missing_files_are_named_with_the_page(tmp_path, capsys):
    assert prepare_snli.main(["--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert "missing snli_1.0_train.jsonl, snli_1.0_dev.jsonl" in capsys.readouterr().err


def test_vectors_with_and_without_header_and_words_with_spaces(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("3 2\na 1 2\n. . 3 4\nb 5 6\na 7 8\n")
    found = read_vectors(str(path), ["a", ". .", "c"], 2)
    assert {word: vector.tolist() for word, vector in found.items()} == {"a": [1, 2], ". .": [3, 4]}
    path.write_text("a 1 2\n1 2\n")
    with pytest.raises(ValueError, match=r"line 2: wanted a word and 2 numbers"):
        read_vectors(str(path), ["a"], 2)
    with pytest.raises(ValueError, match="nowhere: no such file"):
        read_vectors("nowhere", ["a"], 2)


@pytest.mark.parametrize(
    "text, numbers", [("a 1 2 3\nb 4 5 6\n", 3), ("c 1 2\n", 2), ("", 0)], ids=["long", "other", "empty"]
)
def test_vectors_of_no_word_are_refused(text, numbers, tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text(text)
    with pytest.raises(
        ValueError, match=f"with 2 numbers .--embed-dim., got none; the last line has {numbers} numbers"
    ):
        read_vectors(str(path), ["a", "b"], 2)


def test_labels_are_read_by_name(tmp_path):
    path = tmp_path / "train.label"
    path.write_text("neutral\nentailment\n")
    assert read_labels(str(path), LABELS) == [1, 0]
    path.write_text("neutral\nnone\n")
    with pytest.raises(ValueError, match="line 2: wanted one of --labels entailment,neutral,contradiction, got 'none'"):
        read_labels(str(path), LABELS)


# --- model ----------------------------------------------------------------------------------------------------------


def toy_task():
    dictionary = Dictionary()
    for word in "abcdefgh":
        dictionary.add_symbol(word)
    return EntailmentTask(EntailmentTaskConfig(data="none", labels=",".join(LABELS)), dictionary)


def toy_model(**options):
    torch.manual_seed(1)
    return EntailmentModel.build_model(EntailmentConfig(embed_dim=8, hidden_size=6, **options), toy_task()).eval()


PREMISES = [[4, 5, 6, 7, 8], [9, 4], [5]]
HYPOTHESES = [[4], [5, 6, 7, 8], [9, 10]]


class Sentences(list):
    @property
    def sizes(self):
        return np.array([len(sentence) for sentence in self])


def batch(pairs=(0, 1, 2)):
    def sentences(side):
        return Sentences(torch.tensor([*side[i], 2]) for i in pairs)

    labels = [i % 3 for i in pairs]
    dataset = EntailmentDataset("toy", sentences(PREMISES), sentences(HYPOTHESES), labels, toy_task().dictionary)
    return dataset.collater([dataset[i] for i in range(len(dataset))])


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_attention_sums_to_one_and_is_zero_at_padding(mapping):
    model, sample = toy_model(attention_mapping=mapping), batch()
    logits, extra = model(**sample["net_input"])
    assert logits.shape == (3, 1, 3)
    words = sample["net_input"]["premise"].ne(1)
    assert words.sum(1).tolist() == [5, 2, 1]
    torch.testing.assert_close(extra["attn"].sum(1), torch.ones(3))
    assert (extra["attn"][~words] == 0).all() and (extra["attn"] >= 0).all()


@pytest.mark.parametrize("mapping", ["softmax", "entmax15", "fusedmax"])
def test_a_padded_batch_equals_its_pairs(mapping):
    model = toy_model(attention_mapping=mapping)
    together, _ = model(**batch()["net_input"])
    alone = torch.cat([model(**batch([i])["net_input"])[0] for i in range(3)])
    torch.testing.assert_close(together, alone)


def test_the_hypothesis_is_read_from_the_end_of_the_premise():
    model = toy_model()
    model.mapping.forward = lambda scores, mask=None: torch.zeros_like(scores)  # only that way is left
    premise, hypothesis = torch.tensor([[6, 7], [8, 9]]), torch.tensor([[4, 5], [4, 5]])
    first, second = model(premise, hypothesis)[0].unbind(0)
    assert (first - second).abs().max() > 1e-4


def test_every_part_is_trained_but_fixed_vectors(tmp_path):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("".join(f"{word} " + " ".join([str(i)] * 8) + "\n" for i, word in enumerate("abc", start=1)))
    model = toy_model(vectors=str(vectors))
    assert model.embed_tokens.weight[5].tolist() == [2.0] * 8 and model.embed_tokens.weight[1].abs().sum() == 0
    assert 0 < model.embed_tokens.weight[8].abs().max() <= 0.05
    logits, _ = model(**batch()["net_input"])
    logits.logsumexp(-1).sum().backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().sum() == 0]
    assert without == ["embed_tokens.weight"] and not model.embed_tokens.weight.requires_grad


@pytest.mark.parametrize(
    "options, says",
    [
        ({"hidden_size": 0}, "--hidden-size: wanted a number >= 1, got 0"),
        ({"dropout": 1.0}, r"--dropout: wanted a probability in \[0, 1\), got 1.0"),
        ({"attention_mapping": "sharpmax"}, "--attention-mapping: wanted one of"),
        ({"attention_mapping": "softmax", "attention_strength": 1.0}, "--attention-strength goes with"),
    ],
    ids=["size", "dropout", "mapping", "strength"],
)
def test_wrong_options_are_named(options, says):
    with pytest.raises(ValueError, match=says):
        EntailmentModel.build_model(EntailmentConfig(**options), toy_task())


def test_a_sentence_without_words_is_refused():
    premises, hypotheses = Sentences([torch.tensor([4, 2])]), Sentences([torch.tensor([2])])
    with pytest.raises(ValueError, match="subset toy: pair 0 has a sentence without words"):
        EntailmentDataset("toy", premises, hypotheses, [0], toy_task().dictionary)
    with pytest.raises(ValueError, match="'label': 2"):
        EntailmentDataset("toy", premises, hypotheses, [0, 1], toy_task().dictionary)


# --- training and labelling -----------------------------------------------------------------------------------------


def test_it_learns_and_writes_labels_and_attention(corpus, tmp_path):
    _, binary = corpus
    options = ["--criterion", "entmax", "--entmax-alpha", 1, "--attention-mapping", "sparsemax"]
    options += ["--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric"]
    last = train(binary, tmp_path, *options)
    assert float(last["valid_best_accuracy"]) > 90  # the most frequent label has less than half
    records = label(binary, tmp_path / "checkpoint_best.pt", tmp_path / "predictions.jsonl")
    assert sorted(record["id"] for record in records) == list(range(40))
    labels = (binary / "test.label").read_text().splitlines()
    assert all(record["label"] == labels[record["id"]] for record in records)
    right = sum(record["label"] == record["predicted"] for record in records)
    assert right > 34
    for record in records:
        assert sum(record["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert sum(weight for _, weight in record["attention"]) == pytest.approx(1, abs=1e-5)
        assert all(position < len(record["premise"]) for position, _ in record["attention"])
    argv = ["--predictions", tmp_path / "predictions.jsonl", "--labels", binary / "test.label"]
    assert evaluate_snli.main([*map(str, argv), "--scores", str(tmp_path / "scores.json")]) == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["accuracy"] == pytest.approx(100 * right / 40) and scores["attended"] < scores["words"]


@pytest.mark.parametrize("criterion", ["cross_entropy", "entmax15"])
def test_other_criterions_log_accuracy_too(criterion, corpus, tmp_path):
    last = train(corpus[1], tmp_path, "--criterion", criterion, epochs=1)
    assert 0 <= float(last["valid_accuracy"]) <= 100 and float(last["valid_attended"]) >= 1
    if criterion == "entmax15":
        records = label(corpus[1], tmp_path / "checkpoint_last.pt", tmp_path / "predictions.jsonl")
        assert all(sum(record["probabilities"].values()) == pytest.approx(1, abs=1e-5) for record in records)


def test_plateau_resumes_to_the_same_rate_case_53(corpus, tmp_path):
    options = ["--criterion", "cross_entropy", "--lr-scheduler", "plateau", "--lr-patience", 1, "--lr-shrink", 0.5]
    options += ["--lr-threshold", 0.9]
    rates = []
    for name, parts in (("straight", [6]), ("interrupted", [2, 3, 6])):
        for epochs in parts:
            train(corpus[1], tmp_path / name, *options, epochs=epochs)
        state = torch.load(tmp_path / name / "checkpoint_last.pt", map_location="cpu")
        rates.append(state["last_optimizer_state"]["param_groups"][0]["lr"])
    assert rates[0] == rates[1] < 0.02


def test_a_checkpoint_needs_no_file_of_vectors(corpus, tmp_path):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("dog " + "1 " * 15 + "1\n")
    train(corpus[1], tmp_path, "--criterion", "cross_entropy", "--vectors", vectors, epochs=1)
    vectors.unlink()
    assert len(label(corpus[1], tmp_path / "checkpoint_last.pt", tmp_path / "predictions.jsonl")) == 40


def test_a_model_of_nan_labels_nothing(corpus, tmp_path):
    train(corpus[1], tmp_path, "--criterion", "cross_entropy", epochs=1)
    path = tmp_path / "checkpoint_last.pt"
    state = torch.load(path, weights_only=False)
    state["model"]["output_layer.bias"].fill_(float("nan"))
    torch.save(state, path)
    with pytest.raises(ValueError, match="the model gives NaN"):
        label(corpus[1], path, tmp_path / "predictions.jsonl")


@pytest.mark.parametrize(
    "options, says",
    [
        (["--predictions-file", "p.jsonl"], "--predictions-file is an option of fairseq-validate"),
        (["--labels", "yes"], "--labels: wanted two or more different names, got 'yes'"),
        (["--labels", "entailment,neutral"], "wanted one of --labels entailment,neutral, got 'contradiction'"),
        (["--vectors", "nowhere.txt"], "--vectors nowhere.txt: no such file"),
    ],
    ids=["predictions", "labels", "other labels", "vectors"],
)
def test_mistakes_in_training_are_named(options, says, corpus, tmp_path):
    with pytest.raises(ValueError, match=says):
        train(corpus[1], tmp_path, "--criterion", "cross_entropy", *options, epochs=1)


# --- the recipe -----------------------------------------------------------------------------------------------------


def recipe(*options):
    return recipe_runs.run("snli", *options)


def test_the_recipe_refuses_mistakes_in_one_line():
    for options, says in (
        ([], "--data: wanted the folder"),
        (["--sample", "--data", "."], "--sample: wanted neither --data nor --vectors with it, got ."),
        (["--data", "nowhere"], "--data nowhere: no such folder"),
        (["--data", ".", "--mappings", "soft"], "--mappings: wanted one of softmax"),
        (["--data", ".", "--limit", "abc"], "--limit: wanted a whole number of 1 or more, got abc"),
        (["--data", ".", "--dim", "0"], "--dim: wanted a whole number of 1 or more, got 0"),
    ):
        assert recipe_runs.refuses(says, recipe(*options))
    assert recipe("--help").stdout.startswith("usage: bash user_dir_examples/snli.sh")


@pytest.mark.usefixtures("warm_recipes")
def test_the_recipe_runs_through_and_a_second_run_reuses_everything(corpus, tmp_path):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("dog " + "1 " * 7 + "1\ncat " + "2 " * 7 + "2\n")
    options = ["--quick", "--data", corpus[0], "--vectors", vectors, "--dim", "8", "--out", tmp_path / "a run"]
    first = recipe(*options, "--mappings", "softmax", "fusedmax")
    assert first.returncode == 0, first.stdout + first.stderr
    for mapping in ("softmax", "fusedmax"):
        result = json.loads((tmp_path / "a run" / "results" / f"snli-quick-{mapping}.json").read_text())
        assert result["scores"]["pairs"] == 40 and result["settings"]["mapping"] == mapping
        assert str(tmp_path) not in json.dumps(result)
    second = recipe(*options, "--mappings", "fusedmax")
    assert second.returncode == 0 and second.stdout.count("done before") == 5, second.stdout + second.stderr
    third = recipe(*options, "--limit", "20")
    assert third.returncode == 1 and "; take another --out" in third.stderr


@pytest.mark.usefixtures("warm_recipes")
def test_the_recipe_makes_its_own_sample(tmp_path):
    run = recipe("--quick", "--sample", "--limit", "300", "--mappings", "sparsemax", "--out", tmp_path / "run")
    assert run.returncode == 0, run.stdout + run.stderr
    result = json.loads((tmp_path / "run" / "results" / "snli-sample-quick-sparsemax.json").read_text())
    assert result["scores"]["pairs"] == 1200 and result["settings"]["sample"] is True
    assert result["command"].startswith("bash user_dir_examples/snli.sh --sample --out OUT --mappings sparsemax")
    assert "#### Made-up pairs" in tables_2017.section([result])
