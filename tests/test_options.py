"""`python -m fairseq_entmax options`: every option of the package's own parts, which fairseq's --help leaves out."""

import pytest

from fairseq_entmax import options
from fairseq_entmax.__main__ import main


def test_every_part_and_each_of_its_own_options_is_shown(capsys):
    assert main(["options"]) == 0
    shown = capsys.readouterr().out
    for line in (
        "--task translation_entmax",
        "--task entailment_entmax",
        "--arch lstm_entmax",
        "--arch transformer_entmax",
        "--arch entailment_gru",
        "--criterion entmax15",
        "--criterion sparsemax",
        "--criterion entmax",
        "--lr-scheduler plateau",
        "--scoring word_accuracy",
        "  presets: lstm_entmax_inflection, lstm_entmax_translation",
        "  DATA",
        "  --exact-budget",
        "  --cross-attention-mapping",
        "  --entmax-alpha",
        "  and the options of fairseq's transformer",
    ):
        assert f"\n{line}\n" in "\n" + shown, line
    assert "(default 2000)" in shown and "(default 1.5) (default" not in shown and "%%" not in shown
    assert "--layernorm-embedding" not in shown  # fairseq's own
    assert max(map(len, shown.splitlines())) <= options.WIDTH


def test_a_name_or_a_preset_chooses(capsys):
    assert main(["options", "entmax", "lstm_entmax_inflection"]) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if line.startswith("--")]
    assert heads == ["--arch lstm_entmax", "--criterion entmax"]


def test_an_unknown_name_is_one_line():
    with pytest.raises(SystemExit, match="NAME: wanted one of entailment_entmax, .*word_accuracy, got entmx") as stop:
        main(["options", "entmx"])
    assert "\n" not in str(stop.value)


def test_what_a_part_extends_exists():
    from fairseq import registry, tasks
    from fairseq.models import MODEL_REGISTRY

    known = {*tasks.TASK_REGISTRY, *MODEL_REGISTRY, *registry.REGISTRIES["lr_scheduler"]["registry"]}
    assert set(options.EXTENDS.values()) <= known
