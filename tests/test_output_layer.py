"""The loss inside the forward pass: the same figures and gradients as from all logits, in every mode of training."""

from argparse import Namespace

import pytest
import torch
import toy
from fairseq import criterions, models
from fairseq.distributed import LegacyDistributedDataParallel, ModuleProxyWrapper
from omegaconf import OmegaConf
from torch.nn.parallel import DistributedDataParallel

import fairseq_entmax  # noqa: F401  registers
from fairseq_entmax import criterion as criterion_module
from fairseq_entmax import output_layer
from fairseq_entmax.lstm import LSTMEntmaxDecoder
from fairseq_entmax.output_layer import output_weights, token_loss_in_forward

VOCAB = 1104
SIZES = {"encoder_embed_dim": 8, "decoder_embed_dim": 8, "encoder_hidden_size": 8, "decoder_hidden_size": 8}
TRANSFORMER = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
TRANSFORMER.update(encoder_ffn_embed_dim=8, decoder_ffn_embed_dim=8)
MODELS = {
    "lstm_entmax": {},
    "lstm_entmax shared": {"share_all_embeddings": True},
    "lstm": {"decoder_out_embed_dim": 8},
    "lstm shared": {"decoder_out_embed_dim": 8, "share_decoder_input_output_embed": True},
    "lstm projected": {"decoder_out_embed_dim": 6},
    "transformer": TRANSFORMER,
    "transformer shared": {**TRANSFORMER, "share_all_embeddings": True},
    "transformer decoder shared": {**TRANSFORMER, "share_decoder_input_output_embed": True},
}


def dictionary():
    symbols = toy.dictionary(0)
    for i in range(VOCAB - 4):
        symbols.add_symbol(f"w{i}")
    return symbols


@pytest.fixture(scope="module")
def task():
    symbols = dictionary()
    return toy.task(symbols, symbols)


def build(name, task):
    torch.manual_seed(0)
    settings = {**SIZES, "dropout": 0.0, **MODELS[name]}
    return models.build_model(Namespace(arch=name.split()[0], criterion="entmax15", **settings), task)


def build_criterion(task, name="entmax15", **settings):
    return criterions.build_criterion(OmegaConf.create({"_name": name, "sentence_avg": False, **settings}), task)


def sample(seed=0):
    return toy.sample((5, 4, 2), vocab=VOCAB, seed=seed)


def results(criterion, model, batch, reduce=True):
    model.zero_grad()
    loss, sample_size, logging_output = criterion(model, batch, reduce=reduce)
    if loss.requires_grad:
        (loss * torch.arange(1, 1 + loss.numel()).view(loss.shape)).sum().backward()
    return loss.detach(), logging_output, {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("reduce, smoothing, scale", [(True, 0.0, 1), (False, 0.1, 30), (True, 0.1, 30)])
@pytest.mark.parametrize("name", MODELS)
def test_same_figures_and_gradients_as_from_all_logits(name, reduce, smoothing, scale, task, monkeypatch):
    model, batch = build(name, task).double(), sample()
    criterion = build_criterion(task, label_smoothing=smoothing)
    with torch.no_grad():
        weight, _ = output_weights(model.decoder)
        weight.mul_(scale)  # wide supports or narrow ones
    calls = []
    fused = output_layer.token_linear_entmax_loss
    monkeypatch.setattr(output_layer, "token_linear_entmax_loss", lambda *a, **k: calls.append(1) or fused(*a, **k))
    loss, figures, grads = results(criterion, model, batch, reduce)
    assert calls == [1] and "output_layer" not in vars(model.decoder)
    with torch.no_grad():
        assert torch.equal(results(criterion, model, batch, reduce)[0], loss)  # case 39
    monkeypatch.setattr(criterion_module, "token_loss_in_forward", lambda *args, **kwargs: None)
    all_loss, all_figures, all_grads = results(criterion, model, batch, reduce)
    assert loss.dtype == torch.float64 and torch.allclose(loss, all_loss, rtol=1e-9)
    for key, value in all_figures.items():
        assert float(figures[key]) == pytest.approx(float(value), rel=1e-9), key
    largest = max(float(grad.abs().max()) for grad in all_grads.values())
    for key, grad in all_grads.items():
        assert torch.allclose(grads[key], grad, rtol=1e-7, atol=1e-8 * largest), key


@pytest.mark.parametrize("name", ["lstm_entmax", "lstm", "transformer"])
@pytest.mark.parametrize("criterion", ["sparsemax", "entmax"])
def test_trains_like_all_logits(name, criterion, task, monkeypatch):
    """Losses of the first updates are the same, also for cross entropy (alpha 1)."""

    def losses():
        torch.manual_seed(0)
        settings = {"entmax_alpha": 1.0} if criterion == "entmax" else {}
        model, rule = build(name, task), build_criterion(task, criterion, **settings)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        found = []
        for seed in range(5):
            optimizer.zero_grad()
            loss, size, _ = rule(model, sample(seed))
            (loss / size).backward()
            optimizer.step()
            found.append(float(loss.detach()) / size)
        return found

    fused = losses()
    monkeypatch.setattr(criterion_module, "token_loss_in_forward", lambda *args, **kwargs: None)
    assert fused == pytest.approx(losses(), rel=1e-4)
    assert len(set(fused)) == 5


def test_decoders_that_are_not_known_keep_their_logits(task):
    model = build("lstm_entmax", task)

    class Scaled(LSTMEntmaxDecoder):
        def output_layer(self, features):
            return 2 * super().output_layer(features)

    class Ahead(LSTMEntmaxDecoder):
        def forward(self, *args, **kwargs):
            logits, extra = super().forward(*args, **kwargs)
            return logits - 1, extra

    for kind in (Scaled, Ahead):
        model.decoder.__class__ = kind
        assert output_weights(model.decoder) is None
        before = model.decoder.embed_tokens.weight.clone()
        loss, _, _ = build_criterion(task)(model, sample())
        assert loss.requires_grad and torch.equal(model.decoder.embed_tokens.weight, before)
    model.decoder.__class__ = LSTMEntmaxDecoder
    model.decoder.output_layer = lambda features: features
    assert output_weights(model.decoder) is None


def test_layers_that_are_not_plainly_linear_keep_their_logits(task):
    for name, attribute in (("transformer", "output_projection"), ("lstm projected", "fc_out")):
        decoder = build(name, task).decoder
        layer = getattr(decoder, attribute)
        handle = layer.register_forward_hook(lambda module, inputs, output: output + 1)
        assert output_weights(decoder) is None
        handle.remove()
        assert output_weights(decoder) is not None
        setattr(decoder, attribute, torch.nn.Sequential(layer))
        assert output_weights(decoder) is None


def test_model_that_does_more_than_its_parts_keeps_its_logits(task):
    model = build("lstm_entmax", task)

    class Louder(type(model)):
        def forward(self, *args, **kwargs):
            logits, extra = super().forward(*args, **kwargs)
            return 3 * logits, extra

    model.__class__ = Louder
    assert token_loss_in_forward(model, sample()["net_input"], sample()["target"]) is None


def test_output_layer_comes_back_after_an_error(task):
    model, batch = build("lstm_entmax", task), sample()
    batch["target"][0, 0] = VOCAB + 5
    with pytest.raises(ValueError, match="target"):
        build_criterion(task)(model, batch)
    assert "output_layer" not in vars(model.decoder)
    assert model(**batch["net_input"])[0].shape == (3, 6, VOCAB)


@pytest.mark.parametrize("name", ["lstm_entmax", "transformer shared"])
def test_autocast(name, task):
    model, batch = build(name, task), sample()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, _, grads = results(build_criterion(task), model, batch)
    exact, _, exact_grads = results(build_criterion(task), model, batch)
    assert float(loss) == pytest.approx(float(exact), rel=1e-2)
    weight = next(name for name in grads if name.endswith(("fc_out.weight", "embed_tokens.weight")))
    assert float((grads[weight] - exact_grads[weight]).norm() / exact_grads[weight].norm()) < 0.1


WRAPPERS = ("pytorch_ddp", "pytorch_ddp find_unused_parameters", "legacy_ddp")


def worker(rank, folder):
    """One of two processes: gradients of each model under each wrapper, which all workers must share."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    symbols = dictionary()
    task = toy.task(symbols, symbols)
    found = {}
    for name in ("lstm_entmax shared", "transformer"):
        for kind in WRAPPERS:
            model, criterion = build(name, task), build_criterion(task, label_smoothing=0.1)
            if kind == "legacy_ddp":
                wrapped = LegacyDistributedDataParallel(model, process_group=torch.distributed.group.WORLD)
            else:
                unused = kind.endswith("find_unused_parameters")
                wrapped = DistributedDataParallel(model, broadcast_buffers=False, find_unused_parameters=unused)
            wrapped = ModuleProxyWrapper(wrapped)
            loss, _, _ = criterion(wrapped, sample(rank))
            loss.backward()
            if kind == "legacy_ddp":
                wrapped.all_reduce_grads()
            found[name, kind] = {key: p.grad for key, p in model.named_parameters()}
    torch.save(found, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_workers_share_their_gradients_case_22(tmp_path, task):
    torch.multiprocessing.spawn(worker, args=(str(tmp_path),), nprocs=2)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for name in ("lstm_entmax shared", "transformer"):
        model, criterion = build(name, task), build_criterion(task, label_smoothing=0.1)
        model.zero_grad()
        (sum(criterion(model, sample(rank))[0] for rank in range(2)) / 2).backward()
        for kind in WRAPPERS:
            for key, parameter in model.named_parameters():
                first, second = (found[name, kind][key] for found in ranks)
                assert torch.equal(first, second), (name, kind, key)
                assert torch.allclose(first, parameter.grad, rtol=1e-4, atol=1e-6), (name, kind, key)
