"""The decoder's steps by Triton kernels, in the interpreter where there is no GPU, against the plain loop."""

import sys
from pathlib import Path

import pytest
import torch
import toy

sys.path.insert(0, str(Path(__file__).with_name("ops")))
from interpreted import DEVICE, only_kernels  # noqa: E402, F401
from test_lstm import build  # noqa: E402

from fairseq_entmax import fused_steps  # noqa: E402
from fairseq_entmax.ops import kernels_step  # noqa: E402

MAPPINGS = [("softmax", None, 1), ("entmax15", None, 3), ("sparsemax", None, 1), ("entmax", 1.2, 2)]
LENGTHS = (5, 2, 4), (2, 3, 1)  # of sources and targets


@pytest.fixture
def runs(monkeypatch):
    """Counts how often the kernels ran all steps."""
    calls, real = [], fused_steps.run
    monkeypatch.setattr(fused_steps, "run", lambda *args: calls.append(1) or real(*args))
    return calls


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several tiles, the last one incomplete, for the toy's sizes."""
    monkeypatch.setattr(kernels_step, "BLOCK", 16)
    monkeypatch.setattr(kernels_step, "POSITIONS", 4)
    monkeypatch.setattr(kernels_step, "FEATURES", 4)


class AllFactors(torch.nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.drop = drop

    def forward(self, ones):
        return self.drop


class Factors(torch.nn.Module):
    """In place of dropout: factors in the order in which the plain loop asks for them."""

    def __init__(self, drop):
        super().__init__()
        layers, length = drop.shape[:2]
        ones = torch.ones_like(drop[0, 0])
        steps = [[drop[layer, t] if layer < layers - 1 else ones for layer in range(layers)] for t in range(length)]
        self.factors = iter([f for t, step in enumerate(steps) for f in (*step, drop[-1, t])])

    def forward(self, state):
        return state * next(self.factors)


def both(model, batch, monkeypatch, drop=None, weights=None):
    """Loss, outputs and gradients of `plain` and `fused` runs of a decoder over one batch."""
    found = []
    for fused in (False, True):
        model.zero_grad()
        decoder = model.decoder
        encoder_out = model.encoder(batch["net_input"]["src_tokens"].to(DEVICE))
        hidden, cell = decoder._first_state(encoder_out)
        tokens = batch["net_input"]["prev_output_tokens"].to(DEVICE)
        with monkeypatch.context() as patch:
            if drop is not None:
                own = AllFactors(drop) if fused else Factors(drop)
                patch.setitem(decoder._modules, "dropout_out", own)
            if fused:
                features, attention = decoder._run_fused(tokens, encoder_out, hidden, cell)
            else:
                fed = torch.zeros_like(hidden[0])
                features, attention, _ = decoder._run(tokens, encoder_out, hidden, cell, fed)
        generator = torch.Generator().manual_seed(1)
        loss = (features.double() * torch.randn(features.shape, generator=generator).to(DEVICE)).sum()
        if weights:
            loss = loss + weights * (attention * torch.randn(attention.shape, generator=generator).to(DEVICE)).sum()
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        found.append((features.detach(), attention.detach(), gradients))
    return found


def compare(found, tolerance):
    (features, attention, gradients), (fused_features, fused_attention, fused_gradients) = found
    assert torch.equal(attention == 0, fused_attention == 0)
    assert (attention - fused_attention).abs().max() <= tolerance
    assert (features - fused_features).abs().max() <= tolerance
    assert gradients.keys() == fused_gradients.keys()
    for name, gradient in gradients.items():
        error = (gradient - fused_gradients[name]).abs().max()
        assert error <= tolerance * max(1.0, gradient.abs().max()), (name, error)


@pytest.mark.parametrize("mapping, alpha, layers", MAPPINGS)
def test_equals_the_plain_loop(mapping, alpha, layers, monkeypatch):
    model = build(attention_mapping=mapping, attention_alpha=alpha, decoder_layers=layers).to(DEVICE)
    compare(both(model, toy.sample(*LENGTHS), monkeypatch, weights=0.7), 2e-6)


def test_one_word_and_long_source(monkeypatch):
    model = build(attention_mapping="entmax15").to(DEVICE)
    compare(both(model, toy.sample((1, 1), (1, 2)), monkeypatch), 2e-6)
    compare(both(model, toy.sample((37, 20), (2, 1)), monkeypatch), 2e-6)


def test_dropout_by_the_same_factors(monkeypatch):
    model, batch = build(attention_mapping="entmax15").to(DEVICE), toy.sample(*LENGTHS)
    shape = (2, batch["target"].shape[1], 3, 7)
    drop = (torch.rand(shape, generator=torch.Generator().manual_seed(3)) > 0.4).float().to(DEVICE) / 0.6
    compare(both(model, batch, monkeypatch, drop=drop), 2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_stays_near_float32_case_38(dtype, monkeypatch):
    model = build(attention_mapping="entmax15").to(DEVICE)
    wide = both(model, toy.sample(*LENGTHS), monkeypatch)[1]
    narrow = both(model.to(dtype), toy.sample(*LENGTHS), monkeypatch)[1]
    assert narrow[0].dtype == dtype and all(g.dtype == dtype for g in narrow[2].values())
    assert (narrow[0].float() - wide[0]).abs().max() < 20 * torch.finfo(dtype).eps
    for name, gradient in wide[2].items():
        error = (narrow[2][name].float() - gradient).abs().max()
        assert error < 40 * torch.finfo(dtype).eps * max(1.0, gradient.abs().max()), (name, error)


def test_the_model_takes_them_and_a_whole_step_agrees(runs, monkeypatch):
    model, batch = build(attention_mapping="sparsemax", decoder_out_embed_dim=5).to(DEVICE), toy.sample(*LENGTHS)
    net_input = {key: value.to(DEVICE) for key, value in batch["net_input"].items()}
    found = []
    for allowed in (True, False):
        if not allowed:
            monkeypatch.setattr(fused_steps, "can_run", lambda *args: False)
        logits, extra = model(**net_input)
        found.append((logits, extra["attn"][0]))
        assert len(runs) == 1
    for one, other in zip(*found):
        assert one.shape == other.shape and (one - other).abs().max() < 1e-5
    model.train()
    assert model(**net_input)[1]["attn"] == [None]


def test_training_drops_units_and_draws_anew(runs):
    model = build(attention_mapping="entmax15", decoder_dropout_out=0.5).to(DEVICE).train()
    net_input = {key: value.to(DEVICE) for key, value in toy.sample(*LENGTHS)["net_input"].items()}
    features = [
        model.decoder.extract_features(net_input["prev_output_tokens"], model.encoder(net_input["src_tokens"]))[0]
        for _ in range(2)
    ]
    assert len(runs) == 2 and not torch.equal(*features)
    assert 0.2 < (features[0] == 0).float().mean() < 0.8


@pytest.mark.parametrize(
    "settings", [{"attention_mapping": "fusedmax"}, {"attention_alpha": 2.5}, {"learn_attention_alpha": True}], ids=str
)
def test_what_they_cannot_do_is_left_to_the_loop(settings, runs):
    model, batch = build(**{"attention_mapping": "entmax", **settings}).to(DEVICE), toy.sample(*LENGTHS)
    model(**{key: value.to(DEVICE) for key, value in batch["net_input"].items()})
    assert not runs


def test_a_step_at_a_time_is_left_to_the_loop(runs):
    model, batch = build(attention_mapping="entmax15").to(DEVICE), toy.sample(*LENGTHS)
    with torch.no_grad():
        encoder_out = model.encoder(batch["net_input"]["src_tokens"].to(DEVICE))
        model.decoder(batch["net_input"]["prev_output_tokens"][:, :1].to(DEVICE), encoder_out, incremental_state={})
    assert not runs


def test_autocast(runs):
    model, batch = build(attention_mapping="entmax15").to(DEVICE), toy.sample(*LENGTHS)
    net_input = {key: value.to(DEVICE) for key, value in batch["net_input"].items()}
    exact = model(**net_input)[0]
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        logits = model(**net_input)[0]
    logits.float().sum().backward()
    assert len(runs) == 2 and (logits - exact).abs().max() < 0.5
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.decoder.gates.parameters())


def test_a_sentence_of_nothing_but_padding_gives_no_nan():
    model, batch = build(attention_mapping="entmax15").to(DEVICE), toy.sample(*LENGTHS)
    tokens = batch["net_input"]["src_tokens"].clone()
    tokens[1] = 1
    logits, extra = model(tokens.to(DEVICE), None, batch["net_input"]["prev_output_tokens"].to(DEVICE))
    logits.sum().backward()
    assert (extra["attn"][0][1] == 0).all() and logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_nan_stays_in_its_sentence():
    model, batch = build(attention_mapping="entmax15").to(DEVICE), toy.sample(*LENGTHS)
    keys = model.encoder(batch["net_input"]["src_tokens"].to(DEVICE))
    broken = keys._replace(keys=keys.keys.clone())
    broken.keys[0, 2] = torch.nan
    features, attention = model.decoder.extract_features(batch["net_input"]["prev_output_tokens"].to(DEVICE), broken)
    assert features[0].isnan().any() and features[1:].isfinite().all()
    assert attention["attn"][0][0].isnan().any()


def test_second_derivatives_are_refused():
    model, batch = build(attention_mapping="entmax15").to(DEVICE), toy.sample(*LENGTHS)
    net_input = {key: value.to(DEVICE) for key, value in batch["net_input"].items()}
    loss = model.decoder.extract_features(net_input["prev_output_tokens"], model.encoder(net_input["src_tokens"]))[
        0
    ].sum()
    (grad,) = torch.autograd.grad(loss, model.decoder.gates[0].weight, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiable once"):
        grad.sum().backward()
