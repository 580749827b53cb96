"""fairseq-hydra-train with our settings file, and models from Python."""

import math
import os
import subprocess
import sys
from pathlib import Path

import commands
import pytest
import torch
import yaml

import fairseq_entmax
from fairseq_entmax.generator import EntmaxGenerator

EXAMPLES = Path(__file__).parent.parent / "user_dir_examples"
commands.SMALL["transformer_entmax"] = commands.SMALL["transformer"]


def hydra_train(folder, *overrides, directory=EXAMPLES, name="quickstart"):
    argv = [sys.executable, "-m", "fairseq_cli.hydra_train", "--config-dir", directory, "--config-name", name]
    argv += [f"hydra.run.dir={folder}", f"common.user_dir={commands.USER_DIR}", f"checkpoint.save_dir={folder}/ckpt"]
    done = subprocess.run(
        [str(word) for word in [*argv, *overrides]],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HYDRA_FULL_ERROR": "1"},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "ckpt" / "checkpoint_last.pt"


def test_quickstart_settings_train_under_hydra_case_62(corpus, tmp_path):
    checkpoint = hydra_train(tmp_path, f"task.data={corpus}", "optimization.max_epoch=2")
    state = torch.load(checkpoint, map_location="cpu")
    assert state["task_state"]["entmax_output_alpha"] == 1.5
    layers = {name.split(".")[2] for name in state["model"] if name.startswith("decoder.gates.")}
    assert layers == {"0", "1"}  # the preset has two, which the file does not say
    assert state["model"]["decoder.gates.0.weight"].shape == (800, 400)  # and the file says 200 units
    printed = commands.generate(corpus, checkpoint, "--beam", 3, "--max-len-b", 8)
    assert len(commands.lines(printed, "H")) == 30 and "Certificates:" in printed


def test_transformer_trains_under_hydra_case_62(corpus, tmp_path):
    settings = yaml.safe_load((EXAMPLES / "quickstart.yaml").read_text())
    sizes = {"encoder_embed_dim": 16, "encoder_ffn_embed_dim": 16, "decoder_embed_dim": 16, "decoder_ffn_embed_dim": 16}
    sizes.update(encoder_layers=1, decoder_layers=1, learn_attention_alpha=True, share_all_embeddings=True)
    settings["model"] = {"_name": "transformer_entmax_iwslt_de_en", **sizes}
    settings["criterion"] = {"_name": "entmax", "entmax_alpha": 1.25}
    (tmp_path / "mine.yaml").write_text("# @package _global_\n" + yaml.safe_dump(settings))
    epochs = "optimization.max_epoch=1"
    checkpoint = hydra_train(tmp_path, f"task.data={corpus}", epochs, directory=tmp_path, name="mine")
    model = fairseq_entmax.load(checkpoint).models[0]
    assert model.decoder.output_alpha == 1.25
    assert model.decoder.layers[0].encoder_attn.mapping.alpha.raw.shape == (4, 1, 1)  # heads of the preset


def test_translates_in_five_lines(corpus, trained, tmp_path):
    model = fairseq_entmax.load(trained, max_len_b=8)
    printed = commands.generate(corpus, trained, "--max-len-b", 8)
    sources = [fields[0] for _, fields in sorted(commands.lines(printed, "S").items())]
    expected = [fields[1] for _, fields in sorted(commands.lines(printed, "H").items())]
    assert model.translate(sources) == expected and model.translate(sources[0]) == expected[0]
    assert isinstance(model.task.build_generator(model.models, model.cfg.generation), EntmaxGenerator)
    pair = fairseq_entmax.load(trained, trained, data=corpus)
    assert len(pair.models) == 2 and pair.translate(sources[1], max_len_b=8) == expected[1]


def test_stock_architecture_under_the_stock_task_loads_under_ours_case_74(corpus, tmp_path):
    commands.train(corpus, tmp_path, arch="lstm", task="translation", criterion="sparsemax")
    model = fairseq_entmax.load(tmp_path / "checkpoint_last.pt", max_len_b=5)
    assert model.task.has_sparse_generator and model.models[0].decoder.output_alpha == 2.0
    hypotheses = model.generate(model.encode("a b"), beam=2)
    assert hypotheses[0]["certificate"].certificate in ("complete", "optimal", "none")


def test_exact_search_and_enumeration_by_name(trained):
    model = fairseq_entmax.load(trained, max_len_b=8)
    source = model.encode("a b c")
    assert model.generate(source, beam=1, exact_search=True)[0]["certificate"].reason != "beam"
    assert not model.task.cfg.exact_search  # for that call only
    listed = model.generate(source, enumerate_mass=0.9, unnormalized=True)
    assert sum(math.exp(h["logprob"]) for h in listed) >= 0.9 or listed[0]["certificate"].reason == "budget"
    assert fairseq_entmax.load(trained, exact_search=True).task.cfg.exact_search
    with pytest.raises(ValueError, match="generate: no option of generation is called beem"):
        model.generate(source, beem=3)


def test_the_beam_is_that_of_load_unless_the_call_has_one(trained):
    model = fairseq_entmax.load(trained, max_len_b=8, beam=1, nbest=3)
    source = model.encode("a b c")
    rows = [model.generate(source, *args)[0]["certificate"].decoder_rows for args in ((), (1,), (4,))]
    assert rows[0] == rows[1] < rows[2]
    one, four = (model.translate("a b c", beam) for beam in (1, 4))
    assert model.translate("a b c") == one and model.translate(["a b c"], beam=4) == [four]


def test_a_single_sentence_keeps_every_argument(trained):
    model = fairseq_entmax.load(trained, max_len_b=4)
    only = model.tgt_dict.index("b")
    allow = {"prefix_allowed_tokens_fn": lambda batch, prefix: [only, model.tgt_dict.eos()]}
    source = model.encode("a b c")
    for found in (model.generate(source, 2, **allow), model.generate([source], beam=2, **allow)[0]):
        assert set(found[0]["tokens"].tolist()) <= {only, model.tgt_dict.eos()}


def test_score_gives_what_score_reference_gives_case_31(corpus, trained):
    model = fairseq_entmax.load(trained, data=corpus)
    printed = commands.generate(corpus, trained, "--score-reference")
    sources, targets, positions = (commands.lines(printed, kind) for kind in "STP")
    order = sorted(sources)
    sources, targets = ([lines[i][-1] for i in order] for lines in (sources, targets))
    for i, scored in zip(order, model.score(sources, targets)):
        expected = [float(score) * math.log(2) for score in positions[i][0].split()]  # printed in base 2
        assert scored["positional_scores"].tolist() == pytest.approx(expected, abs=2e-4)
        assert scored["logprob"] == pytest.approx(sum(expected), abs=2e-3)
    best = model.generate(model.encode(sources[0]), unnormalized=True)[0]
    assert model.score(sources[0], model.decode(best["tokens"]))["logprob"] == pytest.approx(best["logprob"], abs=1e-5)
    with pytest.raises(ValueError, match="score: wanted a target for each source, got 1 for 2"):
        model.score(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="got one text for 1"):
        model.score(["a"], "a")


def test_load_refuses_what_is_no_option(trained):
    with pytest.raises(ValueError, match="no option of generation is called bean"):
        fairseq_entmax.load(trained, bean=5)
    with pytest.raises(ValueError, match="at least one checkpoint"):
        fairseq_entmax.load()
