import math
from argparse import Namespace

import pytest
import torch
import toy
from fairseq import checkpoint_utils, models, options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY
from omegaconf import OmegaConf

import fairseq_entmax.criterion  # noqa: F401  registers the names that settings refer to
from fairseq_entmax import lstm, output
from fairseq_entmax.attention import MAPPINGS, attention_alpha, build_mapping
from fairseq_entmax.generator import SparseGenerator
from fairseq_entmax.lstm_options import LSTMEntmaxConfig

SMALL = {
    "encoder_embed_dim": 6,
    "decoder_embed_dim": 5,
    "encoder_hidden_size": 4,
    "decoder_hidden_size": 7,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "dropout": 0.0,
}


def build(task=None, **settings):
    task = task or toy.task()
    torch.manual_seed(0)
    model = models.build_model(OmegaConf.create({"_name": "lstm_entmax", **{**SMALL, **settings}}), task)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # larger than at the start, so that attention is uneven
            if "embed_tokens" not in name:
                parameter.mul_(6)
    return model.eval()


def run(model, batch):
    with torch.no_grad():
        logits, extra = model(**batch["net_input"])
    return logits, extra["attn"][0]


def test_against_the_equations_one_sentence_at_a_time():
    """A plain Luong et al. model on the words alone: no batch, no padding, no shared work between steps."""
    model, batch = build(attention_mapping="sparsemax").double(), toy.sample()
    encoder, decoder = model.encoder, model.decoder
    logits, attention = run(model, batch)
    assert logits.dtype == torch.float64
    combine = torch.cat([decoder.attention.query_proj.weight, encoder.projection.value_proj.weight], dim=1)
    for i, words in enumerate(batch["net_input"]["src_tokens"]):
        places = words.ne(1).nonzero()[:, 0]
        states, (hidden, cell) = encoder.lstm(encoder.embed_tokens(words[places])[:, None])
        hidden = [decoder.hidden_proj(torch.cat([*hidden[2 * k : 2 * k + 2]], dim=1)) for k in range(2)]
        cell = [decoder.cell_proj(torch.cat([*cell[2 * k : 2 * k + 2]], dim=1)) for k in range(2)]
        fed = torch.zeros(1, 7, dtype=torch.float64)
        for t, previous in enumerate(batch["net_input"]["prev_output_tokens"][i]):
            if batch["target"][i, t] == 1:
                continue
            below = torch.cat([decoder.embed_tokens(previous[None]), fed], dim=1)
            for k, gates in enumerate(decoder.gates):
                width = gates.weight.size(1) - 7
                of_input, of_state = gates.weight[:, :width], gates.weight[:, width:]
                if k == 0:
                    of_input, bias = torch.cat([decoder.embed_gates.weight, of_input], 1), decoder.embed_gates.bias
                else:
                    bias = gates.bias
                hidden[k], cell[k] = torch.lstm_cell(
                    below, (hidden[k], cell[k]), of_input, of_state, bias, torch.zeros_like(bias)
                )
                below = hidden[k]
            scores = states[:, 0] @ encoder.projection.key_proj.weight.t() @ below[0]
            weights = build_mapping("sparsemax")(scores)
            context = weights @ states[:, 0]
            fed = torch.tanh(torch.cat([below[0], context]) @ combine.t() + decoder.attention.query_proj.bias)[None]
            expected = torch.zeros(words.size(0), dtype=torch.float64)
            expected[places] = weights
            assert torch.allclose(attention[i, t], expected, atol=1e-12)
            assert torch.allclose(logits[i, t], decoder.fc_out(fed)[0], atol=1e-12)


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("left_pad", [True, False])
def test_batch_mates_and_padding_do_not_matter_case_25(mapping, left_pad):
    model = build(attention_mapping=mapping)
    lengths = (2, 40, 7)
    src_tokens, src_lengths = toy.sources(lengths, left_pad=left_pad)
    prev_output_tokens = toy.sources((6, 6, 6), seed=1)[0]
    net_input = {"src_tokens": src_tokens, "src_lengths": src_lengths, "prev_output_tokens": prev_output_tokens}
    logits, attention = run(model, {"net_input": net_input})
    for i, length in enumerate(lengths):
        words = src_tokens[i].ne(1)
        alone = {
            "src_tokens": src_tokens[i][words][None],
            "src_lengths": src_lengths[i : i + 1],
            "prev_output_tokens": prev_output_tokens[i : i + 1],
        }
        logits_alone, attention_alone = run(model, {"net_input": alone})
        assert attention_alone.shape == (1, 6, length)
        assert (attention[i][:, ~words] == 0).all()
        assert torch.allclose(attention[i][:, words], attention_alone[0], atol=1e-5)
        assert torch.equal(attention[i][:, words] > 0, attention_alone[0] > 0)
        assert torch.allclose(logits[i], logits_alone[0], atol=1e-5)
    more_padding = torch.cat([torch.full((3, 5), 1), src_tokens], dim=1)
    padded_logits, padded_attention = run(model, {"net_input": {**net_input, "src_tokens": more_padding}})
    assert torch.allclose(padded_logits, logits, atol=1e-5)
    assert torch.allclose(padded_attention[:, :, 5:], attention, atol=1e-5) and (padded_attention[:, :, :5] == 0).all()


def test_attention_is_sparse_at_generation_as_in_training_case_35():
    model, batch = build(attention_mapping="sparsemax"), toy.sample((9, 3, 7))
    with torch.no_grad():
        model.encoder.projection.key_proj.weight.mul_(20)
    _, attention = run(model, batch)
    words = batch["net_input"]["src_tokens"].ne(1)[:, None].expand_as(attention)
    assert (attention[words] == 0).any() and torch.allclose(attention.sum(-1), torch.ones(3, 6))
    state, encoder_out = {}, model.encoder.forward_torchscript(batch["net_input"])
    for t in range(6):
        tokens = batch["net_input"]["prev_output_tokens"][:, : t + 1]
        _, extra = model.decoder.forward(tokens, encoder_out=encoder_out, incremental_state=state)
        assert torch.equal(extra["attn"][0][:, 0] > 0, attention[:, t] > 0)
        assert torch.allclose(extra["attn"][0][:, 0], attention[:, t], atol=1e-6)
    assert model.train()(**batch["net_input"])[1] == {"attn": [None]}


@pytest.mark.parametrize("lengths", [(2, 5, 3, 5), (5, 5, 5), (1, 1), (3,), (1, 9, 1, 9, 2)])
def test_sentences_in_any_order_case_24(lengths):
    model, batch = build(), toy.sample(lengths, [4] * len(lengths))
    logits, attention = run(model, batch)
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    by_length = {"net_input": {name: value[order] for name, value in batch["net_input"].items()}}
    sorted_logits, sorted_attention = run(model, by_length)
    assert torch.allclose(logits[order], sorted_logits, atol=1e-6)
    assert torch.allclose(attention[order], sorted_attention, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_incremental_equals_full_under_ragged_reorder_case_36(seed):
    """Rows are dropped, repeated and moved between sentences at each step, as a sparse beam does."""
    model, generator = build(attention_mapping="entmax15"), torch.Generator().manual_seed(seed)
    batch = toy.sample((5, 2, 8, 3), (1, 1, 1, 1), seed=seed)
    sources = batch["net_input"]["src_tokens"]
    with torch.no_grad():
        first = model.encoder.forward_torchscript(batch["net_input"])
        state, sentence, tokens = {}, torch.arange(4), torch.full((4, 1), 2)
        for _ in range(7):
            encoder_out = model.encoder.reorder_encoder_out(first, sentence)
            logits, extra = model.decoder(tokens, encoder_out=encoder_out, incremental_state=state)
            full, full_extra = model(sources[sentence], sources[sentence].ne(1).sum(1), tokens)
            assert logits.shape == (len(tokens), 1, 13)
            assert torch.allclose(logits[:, 0], full[:, -1], atol=1e-5)
            assert torch.allclose(extra["attn"][0][:, 0], full_extra["attn"][0][:, -1], atol=1e-5)
            rows = int(torch.randint(1, 9, (1,), generator=generator))
            new_order = torch.randint(len(tokens), (rows,), generator=generator)
            model.decoder.reorder_incremental_state_scripting(state, new_order)
            sentence, tokens = sentence[new_order], tokens[new_order]
            tokens = torch.cat([tokens, torch.randint(4, 13, (rows, 1), generator=generator)], dim=1)


def test_prefix_of_several_tokens_may_start_a_search():
    model, batch = build(), toy.sample((5, 2, 4), (6, 6, 6))
    tokens, encoder_out, state = (
        batch["net_input"]["prev_output_tokens"],
        model.encoder(batch["net_input"]["src_tokens"]),
        {},
    )
    logits, _ = run(model, batch)
    assert torch.allclose(model.decoder(tokens[:, :4], encoder_out, state)[0], logits[:, :4], atol=1e-6)
    assert torch.allclose(model.decoder(tokens[:, :5], encoder_out, state)[0][:, 0], logits[:, 4], atol=1e-6)


def test_attention_columns_are_those_of_the_source_case_37():
    """A model made to look at the word equal to the previous output finds it in the left-padded source."""
    model = build(
        encoder_embed_dim=13, decoder_embed_dim=13, encoder_hidden_size=13, decoder_hidden_size=13,
        encoder_layers=1, decoder_layers=1, encoder_bidirectional="false", attention_mapping="sparsemax",
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        one_hot = torch.eye(13)
        for embedding in (model.encoder.embed_tokens, model.decoder.embed_tokens):
            embedding.weight.copy_(one_hot)
        # Gates in the order input, forget, new, output: let the new input through, forget the rest.
        open_gates = torch.tensor([50.0, -50.0, 0.0, 50.0]).repeat_interleave(13)
        new_is_input = torch.cat([torch.zeros(26, 13), 5 * one_hot, torch.zeros(13, 13)])
        model.encoder.lstm.weight_ih_l0.copy_(new_is_input)
        model.encoder.lstm.bias_ih_l0.copy_(open_gates)
        model.decoder.embed_gates.weight.copy_(new_is_input)
        model.decoder.embed_gates.bias.copy_(open_gates)
        model.encoder.projection.key_proj.weight.copy_(20 * one_hot)
    src_tokens = torch.tensor([[1, 1, 1, 1, 5, 2], [7, 9, 4, 11, 6, 2]])
    previous = torch.tensor([[5, 2, 5, 2, 5, 2], [7, 9, 4, 11, 6, 2]])
    _, attention = run(
        model, {"net_input": {"src_tokens": src_tokens, "src_lengths": None, "prev_output_tokens": previous}}
    )
    assert attention[1].argmax(-1).tolist() == [0, 1, 2, 3, 4, 5]
    assert attention[0].argmax(-1).tolist() == [4, 5, 4, 5, 4, 5]
    assert ((attention == 0) | (attention == 1)).all()


SIZES = {"encoder_embed_dim": 8, "decoder_embed_dim": 8, "encoder_hidden_size": 8, "decoder_hidden_size": 8}
CLASHES = [
    ({"encoder_layers": 1, "decoder_layers": 3}, None),
    ({"encoder_layers": 3, "decoder_layers": 1}, None),
    ({"encoder_bidirectional": "false"}, None),
    ({"encoder_bidirectional": "false", "encoder_hidden_size": 7}, None),
    ({"encoder_bidirectional": True, "encoder_hidden_size": 4}, None),
    ({"encoder_bidirectional": "maybe"}, "--encoder-bidirectional.*maybe"),
    ({"encoder_embed_dim": 5, "decoder_embed_dim": 6, "decoder_out_embed_dim": 9}, None),
    ({"share_decoder_input_output_embed": True}, None),
    ({"share_decoder_input_output_embed": True, "decoder_embed_dim": 5}, None),
    (
        {"share_decoder_input_output_embed": True, "decoder_embed_dim": 5, "decoder_out_embed_dim": 8},
        "--share-decoder-input-output-embed.*8 and 5",
    ),
    ({"share_all_embeddings": True}, None),
    ({"share_all_embeddings": True, "decoder_hidden_size": 5}, None),
    ({"share_all_embeddings": True, "decoder_out_embed_dim": 5}, "--share-all-embeddings.*5 and 8"),
    ({"share_all_embeddings": True, "encoder_embed_dim": 5}, "--share-all-embeddings.*5 and 8"),
    ({"share_all_embeddings": True, "decoder_embed_path": "x.vec"}, "--decoder-embed-path x.vec"),
    ({"encoder_freeze_embed": True}, None),
    ({"decoder_freeze_embed": True}, None),
    ({"decoder_freeze_embed": True, "share_all_embeddings": True}, None),
    ({"encoder_embed_path": "no/such.vec"}, "--encoder-embed-path.*no/such.vec"),
    ({"decoder_embed_path": "no/such.vec"}, "--decoder-embed-path.*no/such.vec"),
    ({"encoder_layers": 0}, "--encoder-layers.*0"),
    ({"decoder_hidden_size": -1}, "--decoder-hidden-size.*-1"),
    ({"dropout": 1.5}, "dropout.*1.5"),
    ({"decoder_dropout_in": -0.1}, "--decoder-dropout-in.*-0.1"),
    ({"dropout": 0.4}, None),
    ({"attention_mapping": "sparsemux"}, "--attention-mapping.*sparsemux"),
    ({"attention_alpha": 0.5}, "--attention-alpha.*0.5"),
    ({"attention_mapping": "softmax", "attention_alpha": 1.5}, "--attention-alpha.*softmax"),
    ({"attention_mapping": "entmax", "attention_alpha": 1.25}, None),
    ({"attention_mapping": "fusedmax"}, None),
    ({"attention_mapping": "fusedmax", "attention_strength": 0.3, "attention_gamma": 2.0}, None),
    ({"attention_mapping": "oscarmax", "attention_strength": 0.02}, None),
    ({"attention_mapping": "pnormmax", "attention_p": 1.2, "attention_gamma": 0.5}, None),
    ({"attention_strength": 0.1}, "--attention-strength.*entmax15"),
    ({"attention_mapping": "pnormmax", "attention_strength": 0.1}, "--attention-strength.*pnormmax"),
    ({"attention_mapping": "fusedmax", "attention_gamma": 0.0}, "--attention-gamma.*0.0"),
    ({"attention_mapping": "oscarmax", "attention_p": 1.5}, "--attention-p.*oscarmax"),
    ({"attention_mapping": "pnormmax", "attention_p": 3.0}, "--attention-p.*3.0"),
    ({"learn_attention_alpha": True}, None),
    ({"learn_attention_alpha": True, "attention_alpha": 1.2}, None),
    ({"learn_attention_alpha": True, "attention_mapping": "entmax15", "share_all_embeddings": True}, None),
    ({"learn_attention_alpha": True, "attention_alpha": 2.0}, "--attention-alpha 2.0 with --learn-attention-alpha"),
    ({"learn_attention_alpha": True, "attention_mapping": "softmax"}, "--learn-attention-alpha.*softmax"),
    ({"learn_attention_alpha": True, "attention_mapping": "fusedmax"}, "--learn-attention-alpha.*fusedmax"),
]


@pytest.mark.parametrize("settings, refusal", CLASHES, ids=str)
def test_options_train_or_are_refused_when_the_model_is_built_case_64(settings, refusal):
    cfg = OmegaConf.create({"_name": "lstm_entmax", "encoder_layers": 2, "decoder_layers": 2, **SIZES, **settings})
    if refusal is not None:
        with pytest.raises(ValueError, match=refusal):
            models.build_model(cfg, toy.task())
        return
    model, batch = models.build_model(cfg, toy.task()), toy.sample()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    logits, _ = model(**batch["net_input"])
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["target"].flatten(), ignore_index=1).backward()
    optimizer.step()
    # So small a model attends evenly at first, where weights that fuse have no gradient, and alpha hardly any.
    even = {"encoder.projection.key_proj.weight", "decoder.attention.mapping.alpha.raw"}
    even = even if set(settings) & {"attention_mapping", "learn_attention_alpha"} else set()
    for name, parameter in model.named_parameters():
        assert name in even or torch.equal(parameter, before[name]) != parameter.requires_grad, name
        assert parameter.isfinite().all() and (parameter.grad is not None) == parameter.requires_grad
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert bool(frozen) == any(settings.get(f"{side}_freeze_embed") for side in ("encoder", "decoder"))


@pytest.mark.parametrize("encoder_layers, decoder_layers, beside", [(3, 1, [2]), (2, 2, [0, 1]), (1, 3, [0, 0, 0])])
def test_decoder_starts_from_the_top_encoder_layers_case_64(encoder_layers, decoder_layers, beside):
    layers = {"encoder_layers": encoder_layers, "decoder_layers": decoder_layers}
    decoder = build(**SIZES, encoder_bidirectional="false", **layers).decoder
    final = torch.arange(encoder_layers).float()[:, None, None].expand(encoder_layers, 2, 8)
    hidden, cell = decoder._first_state(lstm.EncoderOut(None, None, None, final, final + 10))
    assert [int(layer[0, 0]) for layer in hidden] == beside
    assert [int(layer[0, 0]) - 10 for layer in cell] == beside


def test_all_embeddings_shared_need_one_dictionary_case_64():
    with pytest.raises(ValueError, match="--share-all-embeddings.*13 and 10"):
        build(toy.task(toy.dictionary(9), toy.dictionary(6)), share_all_embeddings=True, encoder_embed_dim=5)
    model = build(share_all_embeddings=True, encoder_embed_dim=5)
    assert model.encoder.embed_tokens is model.decoder.embed_tokens and model.decoder.fc_out is None
    logits, _ = run(model, toy.sample())
    assert logits.shape == (3, 6, 13)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_pretrained_embeddings(side, tmp_path):
    path = tmp_path / "letters.vec"
    path.write_text("2 3\na 1 2 3\nz 4 5 6\n")
    dims = {f"{side}_embed_dim": 3, f"{side}_embed_path": str(path)}
    embedding = getattr(build(**dims), side).embed_tokens
    assert embedding.weight[4].tolist() == [1, 2, 3] and embedding.weight[1].tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match=f"--{side}-embed-path .*letters.vec.*3.*--{side}-embed-dim is 4"):
        build(**{**dims, f"{side}_embed_dim": 4})


@pytest.mark.parametrize(
    "settings",
    [{"attention_mapping": name} for name in MAPPINGS] + [{"learn_attention_alpha": True}],
    ids=lambda settings: next(iter(settings.values())),
)
def test_gradients_equal_those_of_plain_autograd(settings, monkeypatch):
    """Whole model: factors noted by the steps against products that autograd differentiates."""
    model, batch = build(**settings).double().train(), toy.sample()

    def gradients():
        model.zero_grad()
        model(**batch["net_input"])[0].square().sum().backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    recorded = gradients()
    monkeypatch.setattr("fairseq_entmax.lstm.StepMatrix", lambda matrix: lambda rows, addend=0: rows @ matrix + addend)
    monkeypatch.setattr(
        "fairseq_entmax.attention.StepMatrix", lambda matrix: lambda rows, addend=0: rows @ matrix + addend
    )
    for name, expected in gradients().items():
        assert torch.allclose(recorded[name], expected, atol=1e-10), name


@pytest.mark.parametrize("find_unused_parameters", [False, True])
def test_gradients_survive_distributed_training_case_22(find_unused_parameters, tmp_path):
    """Steps that give a weight no gradient of their own must not make DDP think it unused."""
    model, batch = build(learn_attention_alpha=True).train(), toy.sample()
    plain = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    model(**batch["net_input"])[0].square().mean().backward()
    for name, parameter in model.named_parameters():
        plain[name] += parameter.grad
        parameter.grad = None
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(
            model, broadcast_buffers=False, find_unused_parameters=find_unused_parameters
        )
        for _ in range(2):
            model.zero_grad()
            wrapped(**batch["net_input"])[0].square().mean().backward()
    finally:
        torch.distributed.destroy_process_group()
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, plain[name], atol=1e-6), name


NO_DROPOUT = ("encoder_dropout_in", "encoder_memory_dropout")


def test_dropout_acts_in_training_only():
    model, batch = build(dropout=0.5, decoder_dropout_out=0.0), toy.sample()
    dropouts = (
        model.encoder.dropout_in,
        model.encoder.dropout_memory,
        model.decoder.dropout_in,
        model.decoder.dropout_out,
    )
    assert [module.p for module in dropouts] == [0.5, 0.5, 0.5, 0.0] and model.encoder.lstm.dropout == 0.5
    assert torch.equal(run(model, batch)[0], run(model, batch)[0])
    model.train()
    assert not torch.equal(model(**batch["net_input"])[0], model(**batch["net_input"])[0])


def test_dropout_between_layers_and_of_what_attention_reads_differ():
    """OpenNMT-py has the first alone. Without an option of its own, the second is that of `--encoder-dropout-out`."""
    encoder = build(dropout=0.5, encoder_memory_dropout=0.0).encoder
    assert (encoder.lstm.dropout, encoder.dropout_memory.p) == (0.5, 0.0)
    encoder = build(dropout=0.5, encoder_dropout_out=0.25).encoder
    assert (encoder.lstm.dropout, encoder.dropout_memory.p) == (0.25, 0.25)
    source, quiet = toy.sample()["net_input"]["src_tokens"], dict.fromkeys(NO_DROPOUT, 0.0)
    encoder = build(dropout=0.5, **quiet, encoder_layers=1).encoder.train()
    assert torch.equal(encoder(source).values, encoder(source).values)
    encoder = build(dropout=0.5, **{**quiet, "encoder_memory_dropout": None}, encoder_layers=1).encoder.train()
    assert not torch.equal(encoder(source).values, encoder(source).values)


def test_attention_on_one_word_alone_case_66():
    """Weights of exactly zero are normal: nothing takes their logarithm, in training or in what is shown of them."""
    task, batch = toy.task(), toy.sample()
    model = build(task, attention_mapping="sparsemax")
    with torch.no_grad():
        model.encoder.projection.key_proj.weight.mul_(1e4)
    assert set(run(model, batch)[1].unique().tolist()) == {0.0, 1.0}
    criterion = fairseq_entmax.criterion.Entmax15Criterion(task, alpha=1.5)
    loss, _, log = criterion(model.train(), batch)
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert all(math.isfinite(float(value)) for value in log.values())
    model.eval()
    for alignment in ("hard", "soft"):
        generator = SparseGenerator(
            [model], task.target_dictionary, beam_size=2, print_alignment=alignment, max_len_b=5
        )
        for hypotheses in generator.generate([model], batch):
            assert all(math.isfinite(hypothesis["score"]) for hypothesis in hypotheses[:1])
            assert set(hypotheses[0]["attention"].unique().tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("arch, units, one_way, layers, dropout", [
    ("lstm_entmax", 512, 512, 1, 0.1),
    ("lstm_entmax_inflection", 300, 150, 2, 0.3),
    ("lstm_entmax_translation", 500, 250, 2, 0.3),
])  # fmt: skip
class TestArchitectures:
    def check(self, model, units, one_way, layers, dropout):
        assert model.encoder.lstm.hidden_size == one_way and model.encoder.lstm.num_layers == layers
        assert model.encoder.lstm.bidirectional and model.encoder.embed_tokens.embedding_dim == units
        assert len(model.decoder.gates) == layers and model.decoder.fc_out.in_features == units
        assert model.decoder.embed_tokens.embedding_dim == units
        assert model.encoder.dropout_in.p == model.decoder.dropout_out.p == dropout

    def parse(self, arch, *command):
        command = ["data", "--arch", arch, *command]
        return convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), command))

    def test_command_line(self, arch, units, one_way, layers, dropout):
        assert arch in ARCH_MODEL_REGISTRY
        self.check(toy.task().build_model(self.parse(arch).model), units, one_way, layers, dropout)

    def test_hydra(self, arch, units, one_way, layers, dropout):
        from fairseq.dataclass.initialize import add_defaults

        whole = OmegaConf.create({"model": {"_name": arch}, "criterion": {"_name": "entmax15"}})
        add_defaults(whole)
        model = toy.task().build_model(whole.model)
        self.check(model, units, one_way, layers, dropout)
        assert output.output_alpha(model) == 1.5

    def test_one_direction_has_all_units(self, arch, units, one_way, layers, dropout):
        model = toy.task().build_model(self.parse(arch, "--encoder-bidirectional", "false").model)
        assert not model.encoder.lstm.bidirectional and model.encoder.lstm.hidden_size == units

    def test_units_of_an_architecture_do_not_follow_the_embeddings(self, arch, units, one_way, layers, dropout):
        model = toy.task().build_model(self.parse(arch, "--encoder-embed-dim", "8", "--decoder-embed-dim", "8").model)
        follows = arch == "lstm_entmax"  # fairseq's lstm has no size of its own either
        assert model.encoder.lstm.hidden_size == (8 if follows else one_way)
        assert model.decoder.fc_out.in_features == (8 if follows else units)

    def test_namespace_of_an_old_checkpoint(self, arch, units, one_way, layers, dropout):
        self.check(models.build_model(Namespace(arch=arch), toy.task()), units, one_way, layers, dropout)

    def test_every_option_arrives(self, arch, units, one_way, layers, dropout):
        command, expected = [], {}
        for name, option in LSTMEntmaxConfig.__dataclass_fields__.items():
            if name == "_name":
                continue
            flag, kind = "--" + name.replace("_", "-"), option.type
            if kind is bool:
                command, expected[name] = [*command, flag], True
            else:
                value = {"attention_mapping": "entmax", "encoder_bidirectional": "false"}.get(name, 3)
                value = 0.25 if "dropout" in name else value
                command += [flag, str(value)]
                expected[name] = str(value) if "str" in str(kind) else value
        arrived = self.parse(arch, *command).model
        assert {name: arrived[name] for name in expected} == expected


def test_bidirectional_flag_may_come_without_a_value_as_in_fairseq():
    command = ["data", "--arch", "lstm_entmax", "--encoder-bidirectional", "--dropout", "0.2"]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), command))
    assert toy.task().build_model(cfg.model).encoder.lstm.bidirectional


def test_attention_alpha_alone_chooses_entmax():
    assert lstm.settings_from(Namespace(attention_alpha=1.3)).attention_mapping == "entmax"
    assert lstm.settings_from(Namespace(learn_attention_alpha=True)).attention_mapping == "entmax"
    assert lstm.settings_from(Namespace()).attention_mapping == "entmax15"


@pytest.mark.parametrize("alpha", [None, 1.2])
def test_learned_alpha_starts_from_its_option_and_travels_with_the_weights(alpha):
    cfg = OmegaConf.create({"_name": "lstm_entmax", **SMALL, "learn_attention_alpha": True, "attention_alpha": alpha})
    model, batch = models.build_model(cfg, toy.task()).eval(), toy.sample()
    assert float(attention_alpha(model)) == pytest.approx(alpha or 1.5)
    assert [name for name in model.state_dict() if "alpha" in name] == ["decoder.attention.mapping.alpha.raw"]
    with torch.no_grad():
        model.decoder.attention.mapping.alpha.raw.fill_(3.0)
    other = models.build_model(cfg, toy.task()).eval()
    other.load_state_dict(model.state_dict())
    assert attention_alpha(other) == attention_alpha(model) > 1.9
    assert torch.equal(run(other, batch)[1], run(model, batch)[1])


class TestGuardOfInference:
    def model(self, criterion):
        whole = OmegaConf.create({"model": {"_name": "lstm_entmax", **SMALL}, "criterion": {"_name": criterion}})
        return models.build_model(whole.model, toy.task())

    def cfg(self, task):
        return OmegaConf.create({"task": {"_name": task}, "generation": {"beam": 5}})

    def test_stock_task_may_not_decode_a_sparse_output(self):
        model = self.model("sparsemax")
        with pytest.raises(ValueError, match="alpha 2.0.*--task translation_entmax"):
            model.prepare_for_inference_(self.cfg("translation"))

    def test_dense_output_with_sparse_attention_is_welcome(self):
        self.model("cross_entropy").prepare_for_inference_(self.cfg("translation"))

    def test_sparse_generator_is_welcome(self, monkeypatch):
        monkeypatch.setattr(output, "task_has_sparse_generator", lambda name: name == "translation_entmax")
        model = self.model("entmax15")
        model.prepare_for_inference_(self.cfg("translation_entmax"))
        _, attention = run(model, toy.sample())
        assert attention is not None and not model.training


def test_checkpoint_brings_mapping_and_alpha_with_it_case_74(tmp_path):
    """Loaded from Python by fairseq's own function, under fairseq's own task, without any option repeated."""
    for language in ("s", "t"):
        toy.dictionary().save(str(tmp_path / f"dict.{language}.txt"))
    command = [str(tmp_path), "--source-lang", "s", "--target-lang", "t", "--criterion", "sparsemax"]
    command += ["--arch", "lstm_entmax_inflection", "--attention-mapping", "sparsemax", "--encoder-embed-dim", "8"]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), command))
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model)
    task.build_criterion(cfg.criterion)
    history = [{"optimizer_name": "Adam", "lr_scheduler_state": {}, "num_updates": 1}]
    saved = {"args": None, "cfg": OmegaConf.to_container(cfg), "model": model.state_dict()}
    saved.update(optimizer_history=history, extra_state={"train_iterator": {"epoch": 1}})
    for task_state in (task.state_dict(), {}):  # also a file from before anything recorded alpha
        saved["task_state"] = task_state
        torch.save(saved, tmp_path / "checkpoint.pt")
        (loaded,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "checkpoint.pt")])
        net_output = run(loaded.eval(), toy.sample())
        assert torch.equal(net_output[0], run(model.eval(), toy.sample())[0])
        assert output.output_alpha(loaded) == 2
        scores = torch.tensor([[0.0, 5.0, 0.0]])
        assert loaded.decoder.attention.mapping(scores).tolist() == [[0, 1, 0]]


def test_get_normalized_probs_has_exact_zeros_case_35():
    model, batch = build(), toy.sample()
    output.set_output_alpha(model, 2.0)
    net_output = run(model, batch)
    for owner in (model, model.decoder):
        assert (owner.get_normalized_probs(net_output, log_probs=False) == 0).any()
        assert owner.get_normalized_probs(net_output, log_probs=True, sample=batch).isinf().any()


def test_features_and_output_layer_make_up_the_forward_pass():
    for settings in ({}, {"decoder_out_embed_dim": 9}, {"share_decoder_input_output_embed": True}):
        model, batch = build(**settings), toy.sample()
        encoder_out = model.encoder(batch["net_input"]["src_tokens"])
        features, _ = model.decoder.extract_features(batch["net_input"]["prev_output_tokens"], encoder_out)
        assert torch.equal(model.decoder.output_layer(features), run(model, batch)[0])


def test_sentence_that_is_all_padding_harms_no_other_case_11():
    model, batch = build(attention_mapping="sparsemax"), toy.sample((5, 2, 4))
    expected, _ = run(model, batch)
    batch["net_input"]["src_tokens"][1] = 1
    logits, attention = run(model, batch)
    assert torch.allclose(logits[[0, 2]], expected[[0, 2]], atol=1e-6)
    assert (attention[1] == 0).all() and logits.isfinite().all()
    one_wide = {"src_tokens": torch.tensor([[2], [1]]), "prev_output_tokens": torch.tensor([[2], [2]])}
    _, attention = run(model, {"net_input": {**one_wide, "src_lengths": None}})
    assert attention.flatten().tolist() == [1, 0]


@pytest.mark.parametrize("mapping", ["entmax15", "fusedmax"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_trains_without_flattening_warnings_case_65(dtype, mapping, recwarn):
    model, batch = build(attention_mapping=mapping).to(dtype).train(), toy.sample()
    try:
        model.encoder.lstm(torch.zeros(1, 1, 6, dtype=dtype))
    except RuntimeError:
        pytest.skip(f"this torch has no {dtype} LSTM on CPU")
    logits, _ = model(**batch["net_input"])
    logits.float().square().sum().backward()
    assert logits.dtype == dtype
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert not [w for w in recwarn if "contiguous chunk" in str(w.message)]


@pytest.mark.parametrize("settings", [{}, {"learn_attention_alpha": True}, {"attention_mapping": "oscarmax"}], ids=str)
def test_autocast_trains(settings):
    model, batch = build(**settings).train(), toy.sample()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, _ = model(**batch["net_input"])
    logits.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
