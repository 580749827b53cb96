"""Validation by decoding compares detokenised text, and says what is proved, whichever measure is asked for."""

from dataclasses import dataclass

import pytest
import torch
from commands import generate, run, train
from fairseq.data.encoders import register_tokenizer
from fairseq.dataclass import FairseqDataclass


@dataclass
class FoldingConfig(FairseqDataclass):
    folded: str = "a"


@register_tokenizer("folding_for_tests", dataclass=FoldingConfig)
class Folding:
    """Detokenised text has one letter in place of several, so that more outputs are right than by their symbols."""

    def __init__(self, cfg):
        self.folded = cfg.folded

    def encode(self, text):
        return text

    def decode(self, text):
        return "".join("_" if letter in self.folded else letter for letter in text)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """A copy task whose sentences are words cut into letters with `@@`."""
    folder = tmp_path_factory.mktemp("pieces")
    lines = {"train": 200, "valid": 14, "test": 4}
    for split, size in lines.items():
        words = ["".join("abcde"[(i * k + k) % 5] for k in range(1 + i % 3)) for i in range(1, 2 * size + 1)]
        cut = [" ".join("@@ ".join(word) for word in words[i : i + 2]) for i in range(0, len(words), 2)]
        for side in ("src", "tgt"):
            (folder / f"{split}.{side}").write_text("".join(line + "\n" for line in cut), encoding="utf-8")
    argv = ["-s", "src", "-t", "tgt", "--destdir", folder / "bin", "--joined-dictionary", "--workers", 1]
    run("preprocess", *argv, *(part for split in lines for part in (f"--{split}pref", folder / split)))
    return str(folder / "bin")


def printed_accuracy(data, checkpoint, *options):
    printed = generate(data, checkpoint, "--gen-subset", "valid", "--scoring", "word_accuracy", *options)
    return float(printed.split("word accuracy ")[1].split()[0])


def test_validation_compares_detokenised_text(pieces, tmp_path):
    detokenise = ["--eval-bleu-remove-bpe", "--eval-bleu-detok", "folding_for_tests"]
    detokenise += ["--eval-bleu-detok-args", '{"folded": "abcde"}']
    measures = ["--eval-accuracy", "--eval-bleu", "--eval-bleu-args", '{"beam": 5}']
    log = train(pieces, tmp_path, *measures, *detokenise, epochs=12)[-1]
    checkpoint = tmp_path / "checkpoint_last.pt"
    same = ["--post-process", "subword_nmt", "--tokenizer", "folding_for_tests", "--folded", "abcde"]
    accuracy = float(log["valid_word_accuracy"])
    assert accuracy == pytest.approx(printed_accuracy(pieces, checkpoint, *same), abs=0.01)
    assert accuracy > printed_accuracy(pieces, checkpoint, *same[:2])  # else this says nothing about the detokeniser
    bleu = generate(pieces, checkpoint, "--gen-subset", "valid", "--scoring", "sacrebleu", *same)
    assert f"BLEU = {float(log['valid_bleu']):.2f} " in bleu


def test_bleu_of_tokens(pieces, tmp_path):
    """`--eval-tokenized-bleu` takes what stands between spaces for words: here pieces, with their marks."""
    measures = ["--eval-bleu", "--eval-bleu-args", '{"beam": 5}', "--eval-bleu-print-samples"]
    log = train(pieces, tmp_path, *measures, "--eval-tokenized-bleu", epochs=6)[-1]
    options = ["--gen-subset", "valid", "--scoring", "sacrebleu", "--sacrebleu-tokenizer", "none"]
    printed = generate(pieces, tmp_path / "checkpoint_last.pt", *options)
    assert f"BLEU = {float(log['valid_bleu']):.2f} " in printed
    assert f"BLEU = {float(log['valid_bleu']):.2f} " not in generate(
        pieces, tmp_path / "checkpoint_last.pt", *options[:4]
    )


@pytest.mark.parametrize("name", ["complete", "optimal"])
def test_bleu_alone_shows_what_is_proved__case_51(corpus, tmp_path, name):
    chosen = ["--best-checkpoint-metric", name, "--maximize-best-checkpoint-metric"]
    (log,) = train(corpus, tmp_path, "--eval-bleu", "--eval-bleu-args", '{"beam": 5, "unnormalized": true}', *chosen)
    best = torch.load(tmp_path / "checkpoint_best.pt")["extra_state"]["best"]
    assert best == pytest.approx(float(log[f"valid_{name}"]), abs=1e-2)
    assert "valid_word_accuracy" not in log and "valid_bleu" in log
    printed = generate(corpus, tmp_path / "checkpoint_last.pt", "--gen-subset", "valid", "--unnormalized")
    assert f"{name} {float(log[f'valid_{name}']):.2f} %" in printed
