"""The real commands, from raw text to scores: train, resume, validate, generate, interactive."""

import io
import json
import math
import re
import shutil
import subprocess
import sys

import pytest
import torch
from commands import USER_DIR, generate, lines, preprocess, records, run, train
from fairseq import options as fairseq_options
from fairseq import tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

VALIDATE = ["--eval-bleu", "--eval-accuracy", "--eval-bleu-args", '{"beam": 3, "unnormalized": true}']


# ---------------------------------------------------------------------------- the main job


@pytest.mark.parametrize("arch", ["lstm_entmax", "lstm", "transformer"])
def test_train_resume_validate_decode__cases_3_23_35(corpus, tmp_path, arch):
    """No option about the output is repeated after training, for our model and for fairseq's own."""
    first = train(corpus, tmp_path, *VALIDATE, arch=arch)
    (second,) = train(corpus, tmp_path, *VALIDATE, arch=arch, epochs=2)[len(first) :]
    assert second["epoch"] == 2  # resumed, not started again
    for name in ("loss", "token_accuracy", "support", "gold_outside", "bleu", "word_accuracy", "edit_distance"):
        assert math.isfinite(float(second[f"valid_{name}"]))
    assert "valid_ppl" not in second
    checkpoint, certificates = tmp_path / "checkpoint_last.pt", tmp_path / "c.jsonl"
    printed = generate(
        corpus, checkpoint, "--beam", 3, "--scoring", "word_accuracy", "--certificate-file", certificates
    )
    assert len(lines(printed, "H")) == 30 and "word accuracy" in printed
    found = records(certificates)
    assert sorted(r["id"] for r in found) == list(range(30))
    vocab = 9 + 3  # five letters, four special symbols, rounded up to a multiple of 8 in the dictionary
    supports = [s for r in found for s in r["hypotheses"][0]["support"]]
    assert min(supports) < vocab  # exact zeros, so the softmax was not used
    argv = [corpus, "--user-dir", USER_DIR, "--task", "translation_entmax", "--path", checkpoint, "--cpu"]
    printed = run("validate", *argv, "--batch-size", 8)
    assert "| word_accuracy " in printed and "| bsz 13" in printed


def test_output_is_sparse_and_certified(corpus, trained, tmp_path):
    path = tmp_path / "c.jsonl"
    options = ["--beam", 5, "--unnormalized", "--nbest", 3, "--certificate-file", path, "--certificate-attention"]
    printed = generate(corpus, trained, *options, "--certificate-candidates", "--scoring", "word_accuracy")
    summary = [line for line in printed.splitlines() if line.startswith("Certificates: 30 sentences, complete ")]
    assert len(summary) == 1
    hypotheses, references = lines(printed, "H"), lines(printed, "T")
    for record in records(path):
        assert record["certificate"] in ("complete", "optimal", "none") and record["objective"] == "logprob"
        assert record["source_tokens"] == [*record["source"].split(), "</s>"]
        best = record["hypotheses"][0]
        assert best["text"] == hypotheses[record["id"]][1] and record["source"] == references[record["id"]][0]
        assert best["score"] == pytest.approx(float(hypotheses[record["id"]][0]) * math.log(2), abs=1e-5)
        assert best["tokens"][-1] == "</s>" and len(best["tokens"]) == len(best["support"]) == len(best["attention"])
        for step, size in zip(best["candidates"], best["support"]):
            assert len(step) == size and sum(p for _, p in step) == pytest.approx(1, abs=1e-6)
        for step in best["attention"]:
            assert sum(w for _, w in step) == pytest.approx(1, abs=1e-4) and len(step) <= 6
    # the model has learnt its task, so that the claims above are about a sparse model
    assert sum(r["certificate"] != "none" for r in records(path)) >= 25
    accuracy = float(printed.split("word accuracy ")[1].split()[0])
    assert accuracy > 60


@pytest.mark.parametrize("criterion, alpha", [("sparsemax", 2.0), ("entmax", 1.25), ("entmax", 1.0)])
def test_other_criterions_and_impossible_references__case_67(corpus, tmp_path, criterion, alpha):
    options = ["--entmax-alpha", alpha] if criterion == "entmax" else []
    train(corpus, tmp_path, *VALIDATE, *options, criterion=criterion, epochs=10 if alpha == 2 else 1)
    state = torch.load(tmp_path / "checkpoint_last.pt")["task_state"]
    assert state.get("entmax_output_alpha", 1.0) == alpha
    printed = generate(corpus, tmp_path / "checkpoint_last.pt", "--beam", 2, "--score-reference")
    scores = [float(x) for fields in lines(printed, "P").values() for x in fields[0].split()]
    assert len(lines(printed, "H")) == 30 and (-math.inf in scores or alpha < 2)
    assert not any(math.isnan(s) for s in scores)
    # one impossible reference spoils no average
    sums = [sum(map(float, fields[0].split())) * math.log(2) for fields in lines(printed, "P").values()]
    possible = [total for total in sums if total > -math.inf]
    summary = re.search(r"(\d+) of 30 references have probability zero; mean .* others (\S+) nats", printed)
    assert int(summary[1]) == len(sums) - len(possible)
    assert float(summary[2]) == pytest.approx(sum(possible) / len(possible), abs=2e-3)


def test_trained_under_plain_translation_decodes_under_ours(corpus, tmp_path):
    train(corpus, tmp_path, task="translation")
    path = tmp_path / "c.jsonl"
    generate(corpus, tmp_path / "checkpoint_last.pt", "--certificate-file", path)
    assert len(records(path)) == 30


@pytest.mark.parametrize("arch", ["lstm_entmax", "lstm"])
def test_the_wrong_task_is_refused_before_decoding(corpus, tmp_path, arch):
    train(corpus, tmp_path, arch=arch)
    for options in ([], ["--score-reference"]):
        with pytest.raises(ValueError, match="--task translation_entmax"):
            generate(corpus, tmp_path / "checkpoint_last.pt", *options, task="translation")


def test_generating_validation_under_the_wrong_task_is_refused_at_the_start__case_3(corpus, tmp_path):
    with pytest.raises(ValueError, match="--task translation_entmax"):
        train(corpus, tmp_path, "--eval-bleu", task="translation")


def test_dense_models_decode_as_under_translation__case_5(corpus, tmp_path, caplog):
    train(corpus, tmp_path, arch="lstm", criterion="cross_entropy", epochs=2)
    options = ["--beam", 4, "--nbest", 2, "--print-alignment"]
    ours = generate(corpus, tmp_path / "checkpoint_last.pt", *options)
    stock = generate(
        corpus, tmp_path / "checkpoint_last.pt", *options, "--required-batch-size-multiple", 1, task="translation"
    )
    for kind in "SHDP":
        assert lines(ours, kind) == lines(stock, kind) and len(lines(ours, kind)) == 30
    assert "Certificates: 30 sentences" in ours
    assert "--beam" not in caplog.text
    generate(corpus, tmp_path / "checkpoint_last.pt", "--beam", 40)
    assert "--beam 40: fairseq's generator takes 15 for this vocabulary" in caplog.text


def test_ensemble_of_sparse_and_dense_and_of_architectures__cases_18_74(corpus, trained, tmp_path):
    train(corpus, tmp_path, arch="lstm", criterion="cross_entropy", epochs=3)
    paths = [str(trained), str(tmp_path / "checkpoint_last.pt")]
    for order in (paths, paths[::-1]):
        printed = generate(corpus, ":".join(order), "--beam", 3)
        assert len(lines(printed, "H")) == 30
        # the dense member keeps its softmax: every word is possible, so no answer is complete
        assert "complete 0.00 %" in printed
    # references have the logarithm of the mean probability, where one member gives zero too
    scored = [lines(generate(corpus, path, "--score-reference"), "P") for path in (*paths, ":".join(paths))]
    steps = [[2 ** float(x) for i in range(30) for x in found[i][0].split()] for found in scored]
    assert len(steps[2]) > 60 and 0 in steps[0]
    assert steps[2] == pytest.approx([(sparse + dense) / 2 for sparse, dense in zip(*steps[:2])], abs=2e-4)


# ---------------------------------------------------------------------------- options of generation


@pytest.mark.parametrize(
    "options",
    [
        ["--print-step"],
        ["--print-alignment"],
        ["--print-alignment", "soft"],
        ["--prefix-size", "2"],
        ["--sampling", "--beam", "3", "--nbest", "3"],
        ["--sampling", "--sampling-topk", "2", "--beam", "2", "--nbest", "2"],
        ["--sampling", "--sampling-topp", "0.5", "--beam", "2", "--nbest", "2"],
        ["--temperature", "2.0"],
        ["--no-repeat-ngram-size", "2"],
        ["--lenpen", "0.3"],
        ["--max-len-a", "1", "--max-len-b", "1"],
        ["--min-len", "3"],
        ["--unkpen", "2"],
        ["--diversity-rate", "0.5"],
        ["--diverse-beam-groups", "2", "--beam", "4", "--nbest", "4", "--print-alignment"],
        ["--match-source-len"],
        ["--beam", "40", "--nbest", "40"],
        ["--score-reference", "--print-alignment"],
        ["--scoring", "sacrebleu"],
    ],
    ids=lambda options: " ".join(options),
)
def test_options_of_generation(corpus, trained, options):
    printed = generate(corpus, trained, *options)
    assert sorted(lines(printed, "H")) == list(range(30))
    if "--print-step" in options:
        assert all(int(fields[0]) >= 2 for fields in lines(printed, "I").values()) and len(lines(printed, "I")) == 30
    if "--print-alignment" in options:
        assert len(lines(printed, "A")) == 30
    if "--prefix-size" in options:
        targets, outputs = lines(printed, "T"), lines(printed, "H")
        assert all(outputs[i][1].split()[:2] == targets[i][0].split()[:2] for i in outputs)
    if "--min-len" in options:
        assert all(len(fields[1].split()) >= 3 for fields in lines(printed, "H").values())


def random_language_model(folder):
    """A checkpoint beside the `dict.txt` of a folder. (fairseq cannot train one with numpy 2.)"""
    argv = [folder, "--task", "language_modeling", "--arch", "transformer_lm", "--decoder-layers", 1]
    argv += ["--decoder-embed-dim", 16, "--decoder-ffn-embed-dim", 16, "--decoder-attention-heads", 2]
    args = fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), list(map(str, argv)))
    cfg = convert_namespace_to_omegaconf(args)
    torch.manual_seed(0)
    model = tasks.setup_task(cfg.task).build_model(cfg.model)
    state = {"cfg": OmegaConf.to_container(cfg), "args": None, "model": model.state_dict()}
    history = {"criterion_name": "CrossEntropyCriterion", "optimizer_name": "FairseqAdam", "lr_scheduler_state": {}}
    state.update(optimizer_history=[{**history, "num_updates": 1}], last_optimizer_state=None)
    torch.save({**state, "extra_state": {"train_iterator": {"epoch": 1}}}, folder / "lm.pt")
    return folder / "lm.pt"


@pytest.mark.parametrize("arch", ["lstm_entmax", "lstm"])
def test_a_language_model_is_fused(corpus, trained, tmp_path, arch):
    """fairseq's own; one of another vocabulary is refused by name."""
    data = tmp_path / "data"
    shutil.copytree(corpus, data)
    shutil.copy(data / "dict.tgt.txt", data / "dict.txt")
    if arch == "lstm":  # fairseq's own generator
        train(corpus, tmp_path, arch=arch, criterion="cross_entropy")
        trained = tmp_path / "checkpoint_last.pt"
    lm, path = random_language_model(data), tmp_path / "c.jsonl"
    found = {}
    for weight in (0, 1.5):
        fused = ["--lm-path", lm, "--lm-weight", weight, "--certificate-file", path]
        generate(str(data), trained, "--unnormalized", *fused)
        found[weight] = {r["id"]: r["hypotheses"][0] for r in records(path)}
    # the score has the language model's part, the log probability has not
    assert all(h["score"] == pytest.approx(h["logprob"], abs=1e-5) for h in found[0].values())
    assert all(h["score"] < h["logprob"] - 0.1 for h in found[1.5].values())
    (data / "dict.txt").write_text("a 3\nb 2\n")
    lm = random_language_model(data)
    with pytest.raises(ValueError, match="--lm-path: wanted the vocabulary of the outputs, .* got one of 6 symbols"):
        generate(str(data), trained, "--lm-path", lm, "--lm-weight", 1)


@pytest.mark.parametrize(
    "options, match",
    [
        (["--diverse-beam-groups", "2", "--beam", "3"], "--beam must be divisible by --diverse-beam-groups 2"),
        (["--constraints"], "--constraints ordered: .* fairseq-interactive"),
        (["--retain-iter-history"], "--retain-iter-history True"),
        (["--temperature", "0"], "--temperature must be above 0"),
        (["--min-len", "300"], "--min-len 300 is above the longest output"),
        (["--score-reference", "--print-alignment", "soft"], "--print-alignment soft"),
        (["--enumerate-mass", "0.5"], "--enumerate-mass 0.5 .* add --unnormalized"),
        (["--exact-search", "--exact-budget", "0"], "--exact-budget must be at least 1, got 0"),
        (["--exact-budget", "5"], "--exact-budget 5 needs --exact-search or --enumerate-mass"),
        (["--certificate-file", "/nowhere/at/all.jsonl"], "--certificate-file /nowhere/at/all.jsonl"),
        (["--certificate-file", "/"], "--certificate-file: wanted a file, got /"),
        (["--certificate-file", ""], "--certificate-file: wanted a file, got nothing"),
        (["--certificate-attention"], "--certificate-attention needs --certificate-file"),
        (
            ["--score-reference", "--certificate-file", "c.jsonl"],
            "--certificate-file does not go with --score-reference",
        ),
        (["--score-reference", "--exact-search"], "--exact-search does not go with --score-reference"),
        (["--score-reference", "--enumerate-mass", "0.5"], "--enumerate-mass does not go with --score-reference"),
        (["--certificate-candidates"], "--certificate-candidates needs --certificate-file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_do_not_go_with_sparse_outputs_are_named__case_32(corpus, trained, options, match):
    with pytest.raises(ValueError, match=match):
        generate(corpus, trained, *options)


def test_a_mistake_leaves_the_certificates_of_an_earlier_run(corpus, trained, tmp_path):
    kept = tmp_path / "c.jsonl"
    kept.write_text("kept\n")
    for options in (["--enumerate-mass", 0.5], ["--score-reference"], ["--temperature", 0]):
        with pytest.raises(ValueError, match=str(options[0])):
            generate(corpus, trained, "--certificate-file", kept, *options)
        assert kept.read_text() == "kept\n", options


def test_exact_search_and_enumeration(corpus, trained, tmp_path):
    plain, exact, listed = tmp_path / "p.jsonl", tmp_path / "e.jsonl", tmp_path / "l.jsonl"
    options = ["--unnormalized", "--beam", 1]
    generate(corpus, trained, *options, "--certificate-file", plain)
    generate(corpus, trained, *options, "--certificate-file", exact, "--exact-search")
    generate(corpus, trained, *options, "--certificate-file", listed, "--enumerate-mass", 0.95, "--exact-budget", 9000)
    best = {r["id"]: r["hypotheses"][0] for r in records(listed)}
    assert all(r["certificate"] != "none" for r in records(exact)) and len(records(exact)) == 30
    for record in records(exact):
        assert record["hypotheses"][0]["logprob"] == pytest.approx(best[record["id"]]["logprob"], abs=1e-5)
    assert all(r["mass"] >= 0.95 - 1e-6 or r["reason"] == "budget" for r in records(listed))
    worse = [r["id"] for r in records(plain) if r["hypotheses"][0]["logprob"] < best[r["id"]]["logprob"] - 1e-5]
    assert all(r["certificate"] == "none" for r in records(plain) if r["id"] in worse)


def test_dense_models_can_be_proved_too(corpus, tmp_path):
    train(corpus, tmp_path, criterion="cross_entropy", epochs=12)
    path = tmp_path / "c.jsonl"
    options = ["--unnormalized", "--exact-search", "--exact-budget", 300, "--certificate-file", path]
    generate(corpus, tmp_path / "checkpoint_last.pt", *options)
    assert sum(r["certificate"] == "optimal" for r in records(path)) >= 15


def interactive(corpus, trained, text, monkeypatch, *options):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    argv = [corpus, "--user-dir", USER_DIR, "--task", "translation_entmax", "--path", trained, "--cpu"]
    return run("interactive", *argv, *options)


def test_interactive(corpus, trained, tmp_path, monkeypatch):
    path, text = tmp_path / "c.jsonl", "a b c\nc\n\nd e a b\nb b\n"
    options = ["--buffer-size", 2, "--batch-size", 2, "--certificate-file", path, "--print-alignment"]
    printed = interactive(corpus, trained, text, monkeypatch, *options)
    assert [fields[0] for _, fields in sorted(lines(printed, "S").items())] == ["a b c", "c", "", "d e a b", "b b"]
    assert {r["id"]: r["source"] for r in records(path)} == {0: "a b c", 1: "c", 2: "", 3: "d e a b", 4: "b b"}


@pytest.mark.parametrize("kind", [["--constraints"], ["--constraints", "unordered"]], ids=lambda kind: kind[-1])
def test_constraints_in_interactive__case_32(corpus, trained, tmp_path, monkeypatch, kind):
    """Phrases come after tabs; a sentence without any is decoded as ever."""
    path, text = tmp_path / "c.jsonl", "a b c\tb\td\nc d\ne a\te\n"
    options = ["--buffer-size", 3, "--batch-size", 3, "--temperature", 3, "--certificate-file", path]
    printed = interactive(corpus, trained, text, monkeypatch, *options, *kind)
    found = {r["id"]: r for r in records(path)}
    first = found[0]["hypotheses"][0]
    assert first["score"] is None or {"b", "d"} <= set(first["tokens"])
    assert "constraints" in found[0]["reason"] or found[0]["certificate"] == "none"
    assert "e" in found[2]["hypotheses"][0]["tokens"] and len(lines(printed, "H")) == 3


@pytest.mark.parametrize("options", [["--print-alignment", "soft"], ["--score-reference"]], ids=lambda o: o[0])
def test_what_stock_interactive_crashes_on_is_refused(corpus, trained, monkeypatch, options):
    with pytest.raises(ValueError, match=f"{options[0]}.*fairseq-interactive"):
        interactive(corpus, trained, "a b\n", monkeypatch, *options)


# ---------------------------------------------------------------------------- no sentence is lost


@pytest.mark.parametrize(
    "options", [["--batch-size", 16], ["--batch-size", 7], ["--batch-size", 1], ["--max-tokens", 60]]
)
def test_every_sentence_is_decoded__case_73(corpus, trained, options):
    printed = generate(corpus, trained, "--beam", 1, *options, batch_size=None)
    assert sorted(lines(printed, "H")) == list(range(30))


def test_every_pair_is_trained_on_and_validated(corpus, tmp_path, monkeypatch):
    from fairseq_entmax.criterion import Entmax15Criterion

    seen = {True: 0, False: 0}
    forward = Entmax15Criterion.forward

    def counting(self, model, sample, reduce=True):
        seen[model.training] += sample["target"].size(0)
        return forward(self, model, sample, reduce)

    monkeypatch.setattr(Entmax15Criterion, "forward", counting)
    train(corpus, tmp_path)
    assert seen[True] == 197 and seen[False] in (13, 26)  # some versions of fairseq begin with a dry run


def test_fewer_pairs_than_the_batch_multiple(tmp_path):
    data = preprocess(tmp_path, {"train": 5, "valid": 3, "test": 2})
    train(data, tmp_path / "m")
    assert len(lines(generate(data, tmp_path / "m" / "checkpoint_last.pt"), "H")) == 2


def test_long_training_pairs_are_counted_and_named(tmp_path, caplog):
    data = preprocess(tmp_path, {"train": 40, "valid": 8}, longest=9)
    train(
        data,
        tmp_path / "m",
        "--max-source-positions",
        8,
        "--max-target-positions",
        8,
        "--skip-invalid-size-inputs-valid-test",
    )
    lengths = [len(line.split()) + 1 for line in (tmp_path / "train.src").read_text().splitlines()]
    too_long = [i for i, length in enumerate(lengths) if length > 8]
    assert too_long and f"{len(too_long)} sentence(s) are too long and left out" in caplog.text
    assert ": " + ", ".join(map(str, too_long)) in caplog.text


# ---------------------------------------------------------------------------- what is logged


METRICS = ["loss", "token_accuracy", "support", "gold_outside", "word_accuracy", "edit_distance", "complete", "optimal"]


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_chooses_checkpoints__case_51(corpus, tmp_path, name):
    maximize = ["--maximize-best-checkpoint-metric"] if name in ("token_accuracy", "word_accuracy") else []
    (log,) = train(corpus, tmp_path, "--eval-accuracy", "--best-checkpoint-metric", name, *maximize)
    best = torch.load(tmp_path / "checkpoint_best.pt")["extra_state"]["best"]
    assert best == pytest.approx(float(log[f"valid_{name}"]), abs=1e-2)


def test_validation_equals_generation(corpus, trained, tmp_path):
    """What is logged in training is what the commands give afterwards."""
    log = train(corpus, tmp_path, "--eval-accuracy", "--eval-bleu", "--eval-bleu-args", '{"beam": 5}', epochs=8)[-1]
    options = ["--gen-subset", "valid", "--beam", 5, "--scoring", "word_accuracy"]
    printed = generate(corpus, tmp_path / "checkpoint_last.pt", *options)
    accuracy = float(printed.split("word accuracy ")[1].split()[0])
    assert accuracy == pytest.approx(float(log["valid_word_accuracy"]), abs=0.01)
    assert f"complete {float(log['valid_complete']):.2f} %" in printed
    bleu = generate(corpus, tmp_path / "checkpoint_last.pt", *options[:4], "--scoring", "sacrebleu")
    assert f"BLEU = {float(log['valid_bleu']):.2f} " in bleu


# ---------------------------------------------------------------------------- mistakes


def last_line(*argv):
    """Runs a fairseq command of its own; returns the last line of what it said, and its exit status."""
    command = [sys.executable, "-c", f"from fairseq_cli.{argv[0]} import cli_main; cli_main()", *map(str, argv[1:])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return (done.stdout + done.stderr).strip().splitlines()[-1], done.returncode


def train_line(data, save_dir, *options):
    base = [
        data,
        "--user-dir",
        USER_DIR,
        "--task",
        "translation_entmax",
        "--cpu",
        "--optimizer",
        "adam",
        "--batch-size",
        8,
    ]
    return last_line("train", *base, "--save-dir", save_dir, *options)


def test_unknown_names_are_listed(corpus, tmp_path):
    line, status = train_line(
        corpus, tmp_path, "--arch", "lstm_entmax", "--criterion", "entmax15", "--attention-mapping", "hardmax"
    )
    assert status != 0 and "hardmax" in line and "attention-mapping" in line and "sparsemax" in line


@pytest.mark.parametrize(
    "options, match",
    [
        (["--criterion", "entmax", "--entmax-alpha", 0.5], "--entmax-alpha.*0.5"),
        (["--attention-mapping", "entmax", "--attention-alpha", 0.5], "--attention-alpha.*0.5"),
        (["--eval-bleu", "--eval-bleu-args", "{beam: 5}"], "--eval-bleu-args must be a JSON object, got '{beam: 5}'"),
        (["--eval-bleu", "--eval-bleu-args", '{"bem": 5}'], "--eval-bleu-args: no option of generation is called bem"),
        (["--eval-accuracy", "--eval-bleu-args", "[5]"], "--eval-bleu-args must be a JSON object"),
        (["--label-smoothing", 1.5], "--label-smoothing.*1.5"),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, list) else "",
)
def test_wrong_values_are_named__case_17(corpus, tmp_path, options, match):
    with pytest.raises(ValueError, match=match):
        train(corpus, tmp_path, *options)


def test_missing_data_and_files_are_named(corpus, trained, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match="nowhere"):
        train(str(tmp_path / "nowhere"), tmp_path, "-s", "src", "-t", "tgt")
    with pytest.raises(OSError, match="missing.pt"):
        generate(corpus, tmp_path / "missing.pt")
    with pytest.raises((ValueError, FileNotFoundError), match="test7"):
        generate(corpus, trained, "--gen-subset", "test7")


def test_empty_test_set(tmp_path):
    data = preprocess(tmp_path, {"train": 20, "valid": 5, "test": 0})
    train(data, tmp_path / "m")
    with pytest.raises(ValueError, match="test"):
        generate(data, tmp_path / "m" / "checkpoint_last.pt")


def test_a_very_long_line_names_the_limit(corpus, trained, monkeypatch):
    text = "a " * 10_000 + "\n"
    with pytest.raises(ValueError, match="--max-source-positions"):
        interactive(corpus, trained, text, monkeypatch)


def test_a_mistake_in_a_real_command_ends_in_one_line(corpus, trained):
    argv = [corpus, "--user-dir", USER_DIR, "--path", trained, "--cpu", "--task", "translation"]
    line, status = last_line("generate", *argv)
    assert status != 0 and line.startswith("ValueError: ") and "--task translation_entmax" in line


def test_certificate_options_do_nothing_in_training(corpus, tmp_path):
    """They are stored with the task's settings; validation in training must not act on them."""
    path = tmp_path / "c.jsonl"
    train(corpus, tmp_path, "--eval-accuracy", "--certificate-file", path)
    assert not path.exists()


def test_json_has_no_infinity(corpus, tmp_path):
    """An output that cannot end in time has score -inf, which JSON cannot hold: null."""
    train(corpus, tmp_path, criterion="sparsemax")
    path = tmp_path / "c.jsonl"
    generate(corpus, tmp_path / "checkpoint_last.pt", "--max-len-b", 1, "--beam", 1, "--certificate-file", path)
    text = path.read_text()
    assert "Infinity" not in text and "NaN" not in text and json.loads(text.splitlines()[0])
