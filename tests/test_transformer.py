from argparse import Namespace

import commands
import pytest
import torch
import toy
from fairseq import checkpoint_utils, models, options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.modules import MultiheadAttention
from omegaconf import OmegaConf

from fairseq_entmax.attention import MAPPINGS, attention_alphas
from fairseq_entmax.criterion import Entmax15Criterion
from fairseq_entmax.ensemble import Ensemble
from fairseq_entmax.ops import token_entmax_loss
from fairseq_entmax.output_layer import token_loss_in_forward
from fairseq_entmax.transformer import TransformerEntmaxModel
from fairseq_entmax.transformer_attention import SparseMultiheadAttention

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
HALF = pytest.mark.skipif(TORCH < (2, 3), reason="torch computes no products of float16 on CPU")
SIZES = {"encoder_embed_dim": 16, "encoder_ffn_embed_dim": 12, "encoder_layers": 2, "decoder_layers": 2}
SIZES.update(encoder_attention_heads=2, decoder_attention_heads=2, dropout=0.0)
SPARSE = MAPPINGS[1:]
commands.SMALL["transformer_entmax"] = commands.SMALL["transformer"]


def build(task=None, name="transformer_entmax", sharpen=4, **settings):
    torch.manual_seed(0)
    cfg = {"_name": name, **SIZES, **settings}
    cfg = Namespace(arch=name, **cfg) if name == "transformer" else OmegaConf.create(cfg)
    model = models.build_model(cfg, task or toy.task())
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, MultiheadAttention):  # uneven attention, as after some training
                module.q_proj.weight.mul_(sharpen)
    return model.eval()


def run(model, batch):
    with torch.no_grad():
        logits, extra = model(**batch["net_input"])
    return logits, extra["attn"][0]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"encoder_normalize_before": True, "decoder_normalize_before": True},
        {"encoder_learned_pos": True, "decoder_learned_pos": True, "layernorm_embedding": True},
        {"share_all_embeddings": True, "activation_fn": "gelu"},
        {"cross_self_attention": True, "no_cross_attention": True},
        {"decoder_embed_dim": 8, "decoder_output_dim": 6, "decoder_ffn_embed_dim": 10},
    ],
    ids=lambda settings: next(iter(settings), "plain"),
)
def test_with_softmax_it_is_fairseqs(settings):
    task = toy.task()
    if settings.get("share_all_embeddings"):
        task.tgt_dict = task.src_dict
    ours, stock = build(task, attention_mapping="softmax", **settings), build(task, "transformer", **settings)
    assert not any(isinstance(module, SparseMultiheadAttention) for module in ours.modules())
    ours.load_state_dict(stock.state_dict())
    sparse = build(task, attention_mapping="sparsemax", **settings)
    sparse.load_state_dict(stock.state_dict())
    batch = toy.sample()
    for training in (True, False):
        logits, extra = ours.train(training)(**batch["net_input"])
        expected, expected_extra = stock.train(training)(**batch["net_input"])
        assert torch.allclose(logits, expected, atol=1e-6)
        if expected_extra["attn"][0] is not None:
            assert torch.allclose(extra["attn"][0], expected_extra["attn"][0], atol=1e-6)
        assert not torch.allclose(sparse.train(training)(**batch["net_input"])[0], expected, atol=1e-3)


def test_our_attention_with_softmax_in_every_place_is_fairseqs():
    """The same with our module in place of fairseq's: entmax with alpha 1 is softmax."""
    ours, stock = build(attention_mapping="entmax", attention_alpha=1.0), build(name="transformer")
    ours.load_state_dict(stock.state_dict())
    batch = toy.sample()
    heads = {"alignment_layer": 0, "alignment_heads": 1}
    for options_ in ({}, heads):
        logits, extra = ours(**batch["net_input"], **options_)
        expected, expected_extra = stock(**batch["net_input"], **options_)
        assert torch.allclose(logits, expected, atol=1e-5)
        assert torch.allclose(extra["attn"][0], expected_extra["attn"][0], atol=1e-6)


@pytest.mark.parametrize("mapping", SPARSE)
def test_batch_mates_and_padding_do_not_matter_case_25(mapping):
    model = build(attention_mapping=mapping)
    for left_pad in (True, False):
        lengths = (2, 17, 7)
        src_tokens, src_lengths = toy.sources(lengths, left_pad=left_pad)
        prev_output_tokens = toy.sources((6, 6, 6), seed=1)[0]
        net_input = {"src_tokens": src_tokens, "src_lengths": src_lengths, "prev_output_tokens": prev_output_tokens}
        logits, attention = run(model, {"net_input": net_input})
        for i, words in enumerate(src_tokens.ne(1)):
            alone = {name: value[i : i + 1] for name, value in net_input.items()}
            alone["src_tokens"] = src_tokens[i][words][None]
            logits_alone, attention_alone = run(model, {"net_input": alone})
            assert (attention[i][:, ~words] == 0).all()
            assert torch.allclose(attention[i][:, words], attention_alone[0], atol=1e-5)
            assert torch.equal(attention[i][:, words] > 0, attention_alone[0] > 0)
            assert torch.allclose(logits[i], logits_alone[0], atol=1e-4)
    assert (attention_alone == 0).any() or mapping == "entmax"


@pytest.mark.parametrize("normalize_before", [False, True])
def test_training_and_evaluation_compute_the_same_case_35(normalize_before):
    """Encoders have a fused inference path in some fairseq releases, which would bring softmax back."""
    norm = {"encoder_normalize_before": normalize_before, "decoder_normalize_before": normalize_before}
    model, batch = build(attention_mapping="sparsemax", **norm), toy.sample()
    fresh = build(attention_mapping="sparsemax", **norm)  # has never trained
    fresh.load_state_dict(model.state_dict())
    trained = model.train()(**batch["net_input"])[0]
    assert torch.allclose(run(fresh, batch)[0], trained, atol=1e-6)
    assert torch.allclose(run(model.eval(), batch)[0], trained, atol=1e-6)
    assert not torch.allclose(run(build(attention_mapping="softmax", **norm), batch)[0], trained, atol=1e-3)


@pytest.mark.parametrize(
    "settings", [{}, {"cross_self_attention": True, "no_cross_attention": True}], ids=["two", "one"]
)
@pytest.mark.parametrize("seed", range(2))
def test_incremental_equals_full_under_ragged_reorder_case_36(seed, settings):
    """Rows are dropped, repeated and moved between sentences at each step, as a sparse beam does."""
    model, generator = build(**settings), torch.Generator().manual_seed(seed)
    batch = toy.sample((5, 2, 8, 3), (1, 1, 1, 1), seed=seed)
    sources = batch["net_input"]["src_tokens"]
    state = Ensemble([model], 1).eval().start(batch["net_input"])
    tokens = torch.full((4, 1), 2)
    with torch.no_grad():
        for _ in range(6):
            probs, attention, *_ = state.step(tokens, want_attention=True)
            full = model(sources[state.sentence], None, tokens)
            assert torch.allclose(probs.float(), full[0][:, -1].softmax(-1), atol=1e-5)
            if attention is not None:
                columns = sources[state.sentence].eq(1).long().argsort(dim=1, stable=True)
                assert torch.allclose(attention, full[1]["attn"][0][:, -1].gather(1, columns), atol=1e-5)
            rows = len(tokens) if seed else int(torch.randint(2, 7, (), generator=generator))
            order = torch.randint(len(tokens), (rows,), generator=generator).sort().values
            state.reorder(order)
            added = torch.randint(4, 13, (rows, 1), generator=generator)
            tokens = torch.cat([tokens[order], added], dim=1)


def test_each_place_has_its_mapping():
    chosen = {"attention_mapping": "entmax", "attention_alpha": 1.3, "encoder_attention_mapping": "fusedmax"}
    model = build(**chosen, attention_strength=0.2, cross_attention_mapping="softmax")
    assert str(model.encoder.layers[1].self_attn.mapping) == "Mapping(fusedmax, strength=0.2)"
    assert str(model.decoder.layers[0].self_attn.mapping) == "Mapping(entmax, alpha=1.3)"
    assert type(model.decoder.layers[0].encoder_attn) is MultiheadAttention
    assert str(build().encoder.layers[0].self_attn.mapping) == "Mapping(entmax15, alpha=1.5)"
    assert build(attention_alpha=1.7).decoder.layers[1].encoder_attn.mapping.alpha == 1.7


def test_learnt_alphas_have_a_gradient_and_a_name():
    model, batch = build(learn_attention_alpha=True, encoder_attention_mapping="sparsemax"), toy.sample()
    names = [f"decoder.layers.{i}.{kind}" for i in range(2) for kind in ("self_attn", "encoder_attn")]
    assert {name: alpha.tolist() for name, alpha in attention_alphas(model).items()} == {n: [1.5, 1.5] for n in names}
    model.train()(**batch["net_input"])[0].square().sum().backward()
    for name, parameter in model.named_parameters():
        assert not name.endswith("alpha.raw") or (parameter.shape == (2, 1, 1) and (parameter.grad != 0).all())


def test_architectures_set_what_is_left_open_case_62():
    model = build(name="transformer_entmax_iwslt_de_en", encoder_layers=1)
    assert model.cfg.encoder.ffn_embed_dim == 12 and model.cfg.decoder.ffn_embed_dim == 1024
    assert model.cfg.decoder.embed_dim == 512 and len(model.encoder.layers) == 1
    plain = models.build_model(OmegaConf.create({"_name": "transformer_entmax", "encoder_layers": 1}), toy.task())
    assert (plain.cfg.encoder.ffn_embed_dim, plain.cfg.decoder.attention_heads) == (2048, 8)


def test_loss_is_computed_where_features_meet_the_output_weights():
    model, batch = build(share_decoder_input_output_embed=True), toy.sample()
    settings = {"alpha": 1.5, "ignore_index": 1}
    fused = token_loss_in_forward(model, batch["net_input"], batch["target"], summed=True, **settings)
    assert fused is not None
    plain = token_entmax_loss(model(**batch["net_input"])[0], batch["target"], **settings)
    assert torch.allclose(fused.loss, plain.loss.sum(), rtol=1e-5) and torch.equal(fused.support, plain.support)


@pytest.mark.parametrize("dtype", [pytest.param(torch.float16, marks=HALF), torch.bfloat16], ids=str)
def test_low_precision_has_the_supports_of_its_own_logits_case_10(dtype):
    """The loss is solved in float32 from whatever the model computes, so supports are those of the same logits."""
    task, batch = toy.task(), toy.sample()
    model = build(task, sharpen=1, attention_mapping="entmax15").to(dtype).train()
    criterion = Entmax15Criterion.build_criterion(Namespace(), task)
    loss, _, logs = criterion(model, batch)
    assert loss.dtype == torch.float32
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    exact = token_entmax_loss(model(**batch["net_input"])[0].double(), batch["target"], alpha=1.5, ignore_index=1)
    assert int(logs["support"]) == int(exact.support.sum())
    assert loss.item() == pytest.approx(float(exact.loss.detach().sum()), rel=1e-5)
    wide = criterion(model.float(), batch)[0]
    assert loss.item() == pytest.approx(wide.item(), rel=0.03)


def test_autocast_keeps_the_loss_in_float32():
    task, batch = toy.task(), toy.sample()
    model, criterion = build(task, sharpen=1), Entmax15Criterion.build_criterion(Namespace(), task)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = criterion(model, batch)[0]
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(criterion(model, batch)[0].item(), rel=0.03)


@pytest.mark.parametrize(
    "settings",
    [
        {"encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5},
        {"checkpoint_activations": True},
        {"quant_noise_pq": 0.1, "quant_noise_pq_block_size": 4},
        {"attention_dropout": 0.3, "activation_dropout": 0.3, "dropout": 0.3},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_fairseqs_features_train(settings):
    model, batch = build(attention_mapping="entmax15", **settings).train(), toy.sample()
    for _ in range(3):
        model(**batch["net_input"])[0].square().mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert model.encoder.layers[0].self_attn.q_proj.weight.grad is not None or "encoder_layerdrop" in settings


def test_checkpointed_activations_give_the_same_gradient():
    gradients = []
    for checkpoint in (False, True):
        model = build(attention_mapping="sparsemax", checkpoint_activations=checkpoint).train()
        model(**toy.sample()["net_input"])[0].square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
        assert ("forward" in vars(model.encoder.layers[0])) == checkpoint  # fairseq's wrapper replaces it
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*gradients))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"attention_mapping": "softmaxx"}, "--encoder-attention-mapping: wanted one of softmax"),
        ({"cross_attention_mapping": "x"}, "--cross-attention-mapping: wanted one of"),
        ({"attention_mapping": "sparsemax", "attention_alpha": 1.2}, "--attention-alpha goes with"),
        ({"attention_mapping": "softmax", "learn_attention_alpha": True}, "--learn-attention-alpha goes with"),
        ({"attention_alpha": 0.5}, "--attention-alpha: wanted a finite number >= 1, got 0.5"),
        ({"attention_alpha": 2.5, "learn_attention_alpha": True}, "--attention-alpha 2.5 with --learn-attention-alpha"),
        ({"encoder_attention_heads": 3}, "--encoder-attention-heads: wanted a divisor of 16"),
        ({"activation_fn": "rellu"}, "--activation-fn: wanted one of"),
        ({"encoder_layers_to_keep": "0,1"}, "--encoder-layers-to-keep is not available"),
        ({"encoder_xformers_att_config": "{}"}, "--encoder-xformers-att-config is not available"),
        ({"base_layers": 1}, "--base-layers is not available"),
    ],
)
def test_what_cannot_be_had_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        models.build_model(Namespace(arch="transformer_entmax_iwslt_de_en", **{**SIZES, **settings}), toy.task())


def test_names_that_are_no_options_and_sharding_are_refused():
    with pytest.raises(ValueError, match="no option atention_mapping"):
        build(name="transformer_entmax_iwslt_de_en", atention_mapping="sparsemax")
    with pytest.raises(ValueError, match="--ddp-backend fully_sharded"):
        cfg = Namespace(arch="transformer_entmax_iwslt_de_en", ddp_backend="fully_sharded")
        models.build_model(cfg, toy.task())
    whole = OmegaConf.create(
        {"model": {"_name": "transformer_entmax"}, "distributed_training": {"ddp_backend": "fully_sharded"}}
    )
    with pytest.raises(ValueError, match="--ddp-backend fully_sharded"):
        models.build_model(whole.model, toy.task())


FLAGS = {
    "--attention-mapping": "entmax",
    "--encoder-attention-mapping": "fusedmax",
    "--decoder-attention-mapping": "pnormmax",
    "--cross-attention-mapping": "oscarmax",
    "--attention-alpha": 1.25,
    "--attention-strength": 0.5,
    "--attention-gamma": 2.0,
    "--attention-p": 1.25,
    "--encoder-embed-dim": 24,
    "--encoder-ffn-embed-dim": 20,
    "--encoder-attention-heads": 3,
    "--decoder-attention-heads": 2,
    "--decoder-embed-dim": 12,
    "--decoder-ffn-embed-dim": 28,
    "--encoder-layers": 1,
    "--decoder-layers": 3,
    "--dropout": 0.25,
    "--attention-dropout": 0.5,
    "--activation-fn": "gelu",
    "--quant-noise-pq": 0.25,
    "--encoder-layerdrop": 0.125,
    "--max-source-positions": 77,
}
SWITCHES = ["--encoder-normalize-before", "--decoder-normalize-before", "--no-cross-attention", "--layernorm-embedding"]


@pytest.mark.parametrize("arch", ["transformer_entmax", "transformer_entmax_iwslt_de_en"])
def test_every_flag_arrives(arch):
    argv = ["data", "--arch", arch, "--task", "translation", *SWITCHES, "--learn-attention-alpha"]
    argv += [str(x) for item in FLAGS.items() for x in item]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), argv))
    for flag, value in {**FLAGS, **dict.fromkeys([*SWITCHES, "--learn-attention-alpha"], True)}.items():
        assert getattr(cfg.model, flag[2:].replace("-", "_")) == value, flag


@pytest.fixture(scope="module")
def learnt(corpus, tmp_path_factory):
    """A small transformer that has learnt the copy task, with learnt alphas: its checkpoint and its log."""
    folder = tmp_path_factory.mktemp("transformer")
    argv = ["--learn-attention-alpha", "--eval-accuracy", "--share-all-embeddings", "--log-interval", 5]
    commands.train(corpus, folder, *argv, arch="transformer_entmax", epochs=3)
    return folder / "checkpoint_last.pt", (folder / "log.json").read_text()


def test_commands_train_log_and_generate(corpus, learnt, tmp_path):
    checkpoint, log = learnt
    for name in ("alpha_encoder_0", "alpha_decoder_0", "alpha_cross_0", "valid_word_accuracy"):
        assert f'"{name}": ' in log or f'"train_{name}": ' in log, name
    certificates = tmp_path / "records.jsonl"
    options_ = ["--beam", 3, "--max-len-b", 8]
    batched = commands.generate(
        corpus, checkpoint, *options_, "--certificate-file", certificates, "--certificate-attention"
    )
    alone = commands.generate(corpus, checkpoint, *options_, batch_size=1)
    texts = [[fields[1] for _, fields in sorted(commands.lines(out, "H").items())] for out in (batched, alone)]
    assert texts[0] == texts[1] and len(texts[0]) == 30
    for record in commands.records(certificates):
        attention = record["hypotheses"][0]["attention"]
        assert len(attention) == len(record["hypotheses"][0]["tokens"])
        assert all(sum(weight for _, weight in row) == pytest.approx(1, abs=1e-4) for row in attention)


def test_checkpoint_holds_plain_types_and_the_model_comes_back_case_74(learnt):
    checkpoint, _ = learnt
    state = torch.load(checkpoint, weights_only=True) if hasattr(torch.serialization, "add_safe_globals") else None
    assert state is None or state["task_state"]["entmax_output_alpha"] == 1.5
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)])
    assert isinstance(task, tasks.TASK_REGISTRY["translation_entmax"])
    assert model.decoder.output_alpha == 1.5 and len(attention_alphas(model)) == 3


def test_from_pretrained_builds_our_task_case_74(corpus, learnt):
    folder, name = learnt[0].parent, learnt[0].name
    hub = TransformerEntmaxModel.from_pretrained(str(folder), name, data_name_or_path=corpus)
    assert isinstance(hub.task, tasks.TASK_REGISTRY["translation_entmax"])
    assert hub.models[0].decoder.output_alpha == 1.5
    assert "certificate" in hub.generate(hub.encode("a b"), beam=2)[0]
