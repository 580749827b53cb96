"""Dense models: fairseq's own answers, with certificates that brute force confirms; and ragged rows on transformers."""

import copy
import math
from argparse import Namespace
from functools import partial

import pytest
import torch
from fairseq.models.lstm import LSTMModel
from fairseq.models.lstm import base_architecture as lstm_base
from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer import base_architecture as transformer_base
from fairseq.search import DiverseBeamSearch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import FairseqTask
from helpers import EOS, FIRST, letters
from toy import sources
from toy import task as toy_task

from fairseq_entmax.ensemble import Ensemble
from fairseq_entmax.generator import EntmaxGenerator, SparseGenerator
from fairseq_entmax.output import set_output_alpha
from fairseq_entmax.stock import StockGenerator

SIZES = {
    **dict.fromkeys(("encoder_embed_dim", "decoder_embed_dim", "decoder_out_embed_dim"), 16),
    **dict.fromkeys(("encoder_hidden_size", "decoder_hidden_size"), 16),
    **dict.fromkeys(("encoder_ffn_embed_dim", "decoder_ffn_embed_dim"), 16),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), 64),
    "dropout": 0.0,
    "criterion": "cross_entropy",
}


def build(kind, dictionary, seed=0, scale=1.0):
    """A random fairseq model; `scale` sharpens its output."""
    torch.manual_seed(seed)
    args = Namespace(**SIZES)
    (lstm_base if kind == "lstm" else transformer_base)(args)
    model_class = LSTMModel if kind == "lstm" else TransformerModel
    model = model_class.build_model(args, toy_task(dictionary, dictionary)).eval()
    projection = model.decoder.fc_out if kind == "lstm" else model.decoder.output_projection
    with torch.no_grad():
        projection.weight.mul_(scale)
        if projection.bias is not None:
            projection.bias.mul_(scale)
            projection.bias[EOS] = projection.bias.max()  # so that outputs end
    return model


def batch(lengths, vocab):
    tokens, sizes = sources(lengths, vocab, seed=3)
    return {"id": torch.arange(len(lengths)), "net_input": {"src_tokens": tokens, "src_lengths": sizes}}


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
@pytest.mark.parametrize(
    "options", [{}, {"normalize_scores": False, "beam_size": 2}, {"len_penalty": 0.5, "min_len": 2}]
)
def test_dense_models_decode_as_in_fairseq(kind, options):
    dictionary = letters(6)
    options = {"beam_size": 3, "max_len_b": 8, **options}
    model = build(kind, dictionary, scale=3.0)
    sample = batch([7, 5, 3, 2], len(dictionary))
    expected = SequenceGenerator([copy.deepcopy(model)], dictionary, **options).generate([model], copy.deepcopy(sample))
    generator = EntmaxGenerator([model], None, lambda: SequenceGenerator([model], dictionary, **options))
    for want, got in zip(expected, generator.generate([model], sample)):
        assert [h["tokens"].tolist() for h in got] == [h["tokens"].tolist() for h in want]
        assert [h["score"].item() for h in got] == [h["score"].item() for h in want]
        assert all(torch.equal(g["positional_scores"], w["positional_scores"]) for g, w in zip(got, want))


def alone(sample, i, pad=1):
    """The net input of sentence i without padding."""
    source = sample["net_input"]["src_tokens"][i]
    source = source[source.ne(pad)].unsqueeze(0)
    return {"src_tokens": source, "src_lengths": torch.tensor([source.size(1)])}


def enumerate_model(model, sample, i, max_len, vocab, pad):
    """Score of every output of one sentence, by running every prefix."""
    encoder_out = model.encoder.forward_torchscript(alone(sample, i, pad))
    found, level = {}, {(): 0.0}
    for _ in range(max_len + 1):
        prefixes, following = list(level), {}
        rows = model.encoder.reorder_encoder_out(encoder_out, torch.zeros(len(prefixes), dtype=torch.long))
        out = model.decoder(torch.tensor([[EOS, *p] for p in prefixes]), encoder_out=rows)
        logprobs = model.get_normalized_probs((out[0][:, -1:], None), log_probs=True)[:, 0].double().tolist()
        for prefix, row in zip(prefixes, logprobs):
            for token in range(vocab):
                if token == EOS:
                    found[prefix + (EOS,)] = level[prefix] + row[EOS]
                elif token != pad and len(prefix) < max_len and row[token] > -math.inf:
                    following[prefix + (token,)] = level[prefix] + row[token]
        level = following
        if not level:
            break
    return found


@pytest.mark.parametrize("normalize, lenpen", [(False, 1.0), (True, 0.25), (True, -0.5)])
def test_certificates_of_dense_models_against_brute_force(normalize, lenpen):
    dictionary, max_len, claims = letters(2), 3, 0
    for seed in range(6):
        model = build("lstm", dictionary, seed=seed, scale=30.0)
        sample = batch([3, 3, 3], len(dictionary))
        stock = SequenceGenerator(
            [model],
            dictionary,
            beam_size=3,
            max_len_b=max_len,
            min_len=0,
            normalize_scores=normalize,
            len_penalty=lenpen,
        )
        results = StockGenerator([model], stock).generate([model], sample)
        for i, hypotheses in enumerate(results):
            found = hypotheses[0]["certificate"]
            strings = enumerate_model(model, sample, i, max_len, len(dictionary), dictionary.pad())
            scores = {t: s / len(t) ** lenpen if normalize else s for t, s in strings.items()}
            assert found.mass == pytest.approx(sum(math.exp(h["logprob"]) for h in hypotheses), abs=1e-5)
            assert found.certificate in ("optimal", "none") and found.decoder_rows > 0
            if found.certificate == "optimal":
                claims += 1
                assert hypotheses[0]["score"].item() >= max(scores.values()) - 1e-5
    assert claims >= 3


@pytest.mark.parametrize("search", [None, DiverseBeamSearch])
@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_nan_in_a_dense_model__case_13(kind, search):
    """Of one sentence only, as an overflow in half precision makes it; fairseq dies of an assertion on its length."""
    dictionary = letters(6)
    model = build(kind, dictionary)
    sample = batch([3, 3], len(dictionary))
    if search is None:  # fairseq's diverse search takes ids for places in the batch
        sample["id"] += 7
    with torch.no_grad():
        sample["net_input"]["src_tokens"][0] = FIRST
        sample["net_input"]["src_tokens"][1] = FIRST + 1
        model.encoder.embed_tokens.weight[FIRST + 1] = math.nan
    options = {} if search is None else {"search_strategy": search(dictionary, 2, 0.5)}
    stock = SequenceGenerator([model], dictionary, beam_size=2, max_len_b=6, **options)
    with pytest.raises(ValueError, match=rf"NaN for sentences with the ids \[{int(sample['id'][1])}\]"):
        StockGenerator([model], stock).generate([model], sample)
    sample["net_input"]["src_tokens"][1] = FIRST
    assert all(hypotheses for hypotheses in StockGenerator([model], stock).generate([model], sample))


def test_alignment_of_fairseqs_lstm_is_in_source_order__case_37():
    """fairseq's LSTM moves padding; a padded sentence must get the alignment it gets alone."""
    dictionary = letters(6)
    model = build("lstm", dictionary, scale=3.0)
    sample = batch([6, 2], len(dictionary))
    single_sample = {"id": torch.tensor([0]), "net_input": alone(sample, 1)}

    def decode(sample):
        stock = SequenceGenerator([model], dictionary, beam_size=2, max_len_b=5)
        return StockGenerator([model], stock, print_alignment="soft").generate([model], sample)

    padded, single = decode(sample)[1][0], decode(single_sample)[0][0]
    assert padded["attention"].shape == single["attention"].shape == (2, len(single["tokens"]))
    assert torch.allclose(padded["attention"], single["attention"], atol=1e-6)
    assert torch.allclose(padded["attention"].sum(dim=0), torch.ones(len(single["tokens"])), atol=1e-5)


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_ragged_rows_keep_their_sentence(kind, alpha):
    """Rows that change hands while their number stays the same: scores must equal the full pass over the prefix."""
    dictionary = letters(8)
    model = build(kind, dictionary, scale=2.0)
    set_output_alpha(model, alpha)
    sample = batch([7, 5, 3, 2], len(dictionary))
    state = Ensemble([model], dictionary.pad()).eval().start(sample["net_input"])
    sentence = torch.arange(4)
    tokens = torch.full((4, 1), EOS)
    orders = [[0, 1, 2, 3], [0, 0, 2, 3], [1, 2, 2, 3], [0, 3, 3, 3], [3], [0, 0, 0], [2, 1, 0]]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for order in orders:
            probs = state.step(tokens).probs
            for row in range(tokens.size(0)):
                encoder_out = model.encoder.forward_torchscript(alone(sample, sentence[row]))
                out = model.decoder(tokens[row : row + 1], encoder_out=encoder_out)
                full = model.get_normalized_probs((out[0][:, -1:], None), log_probs=False)[0, 0]
                assert torch.allclose(probs[row].float(), full, atol=2e-6)
            order = torch.tensor(order)
            following = torch.randint(FIRST, len(dictionary), (len(order), 1), generator=generator)
            tokens = torch.cat([tokens[order], following], dim=1)
            sentence = sentence[order]
            state.reorder(order)


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_sparse_stock_models_against_brute_force(kind):
    """fairseq's own architectures with a sparse output: true scores, true claims."""
    dictionary, max_len, claims = letters(3), 3, 0
    for seed in range(4):
        model = build(kind, dictionary, seed=seed, scale=30.0 if kind == "lstm" else 2.0)
        set_output_alpha(model, 1.5)
        sample = batch([4, 3, 2], len(dictionary))
        generator = SparseGenerator(
            [model], dictionary, beam_size=3, nbest=3, max_len_b=max_len, min_len=0, normalize_scores=False
        )
        generator.options.forbidden = [dictionary.pad()]  # as in the enumeration
        for i, hypotheses in enumerate(generator.generate([model], sample)):
            strings = enumerate_model(model, sample, i, max_len, len(dictionary), dictionary.pad())
            for h in hypotheses:
                if not h["truncated"]:
                    assert h["score"].item() == pytest.approx(strings[tuple(h["tokens"].tolist())], abs=1e-4)
            if hypotheses[0]["certificate"].certificate != "none":
                claims += 1
                assert hypotheses[0]["score"].item() >= max(strings.values()) - 1e-5
    assert claims >= 3


def test_mixed_ensemble_of_architectures_and_alphas__cases_18_74():
    dictionary = letters(6)
    models = [build("lstm", dictionary, scale=3.0), build("transformer", dictionary, scale=2.0)]
    set_output_alpha(models[1], 1.5)  # softmax and entmax, LSTM and transformer
    sample = batch([7, 5, 2], len(dictionary))
    generator = SparseGenerator(models, dictionary, beam_size=3, max_len_b=5)
    for i, hypotheses in enumerate(generator.generate(models, sample)):
        tokens = hypotheses[0]["tokens"]
        prev = torch.cat([torch.tensor([EOS]), tokens[:-1]]).unsqueeze(0)
        total = 0
        for model in models:
            out = model.decoder(prev, encoder_out=model.encoder.forward_torchscript(alone(sample, i)))
            total = total + model.get_normalized_probs((out[0], None), log_probs=False)[0]
        expected = (total / 2).gather(1, tokens.unsqueeze(1)).squeeze(1).log()
        assert torch.allclose(hypotheses[0]["positional_scores"], expected, atol=1e-4)


def teacher_forced(models, sample, i, tokens, temperature=1.0):
    """True log probability of an output, from one pass over it without padding; probabilities are averaged."""
    previous, total = torch.cat([torch.tensor([EOS]), tokens[:-1]]).unsqueeze(0), 0
    for model in models:
        out = model.decoder(previous, encoder_out=model.encoder.forward_torchscript(alone(sample, i)))
        total = total + model.get_normalized_probs((out[0] / temperature, None), log_probs=False)[0].double()
    return (total / len(models)).gather(1, tokens.unsqueeze(1)).log().sum().item()


class LanguageModel(torch.nn.Module):
    """Prefers late letters, whatever went before."""

    def __init__(self, vocab):
        super().__init__()
        self.vocab = vocab

    def forward(self, tokens, **kwargs):
        return (torch.arange(self.vocab).float().expand(*tokens.shape, -1), None)

    def get_normalized_probs(self, net_output, log_probs, sample):
        return net_output[0].log_softmax(dim=-1)


MODIFIED = {
    "none": ({}, None),
    "diverse groups": ({"diverse_beam_groups": 2}, "not watched (--diverse-beam-groups)"),
    "diversity rate": ({"diversity_rate": 0.7}, "not watched (--diversity-rate)"),
    "source length": ({"match_source_len": True}, "not watched (--match-source-len)"),
    "unknown words": ({"unkpen": -2.0}, "modified scores (--unkpen -2)"),
    "language model": ({}, "modified scores (--lm-weight -0.5)"),
    "sampling": ({"sampling": True, "sampling_topk": 4}, "sampling"),
    "sampling from the head": ({"sampling": True, "sampling_topp": 0.8}, "sampling"),
}


@pytest.mark.parametrize("kinds", [["lstm"], ["transformer"], ["lstm", "transformer"]], ids="-".join)
@pytest.mark.parametrize("name", MODIFIED)
def test_logprob_of_dense_models_is_true_where_scores_are_not(name, kinds):
    dictionary = letters(6)
    options, reason = MODIFIED[name]
    models = [build(kind, dictionary, scale=30.0 if kind == "lstm" else 3.0) for kind in kinds]
    task = toy_task(dictionary, dictionary)
    args = Namespace(beam=4, max_len_b=6, temperature=1.5, **options)
    lm = {"lm_model": LanguageModel(len(dictionary)), "lm_weight": -0.5} if name == "language model" else {}
    build_stock = partial(FairseqTask.build_generator, task, models, args, extra_gen_cls_kwargs=lm)
    generator = EntmaxGenerator(models, None, build_stock)
    sample = batch([7, 5, 3, 2], len(dictionary))
    # Twice: nothing is left behind that the next batch would see (ve-fairseq's groups do not last that long).
    for _ in range(1 if name == "diverse groups" else 2):
        differ = 0
        torch.manual_seed(1)
        expected = build_stock().generate(models, copy.deepcopy(sample))
        torch.manual_seed(1)
        for i, (want, hypotheses) in enumerate(zip(expected, generator.generate(models, sample))):
            assert [h["tokens"].tolist() for h in hypotheses] == [h["tokens"].tolist() for h in want]
            assert [h["score"].item() for h in hypotheses] == [h["score"].item() for h in want]
            certificate, outputs = hypotheses[0]["certificate"], {}
            for h in hypotheses:
                true = teacher_forced(models, sample, i, h["tokens"], temperature=1.5)
                assert h["logprob"] == pytest.approx(true, abs=1e-4)
                outputs[tuple(h["tokens"].tolist())] = true
                differ += abs(h["positional_scores"].double().sum().item() - true) > 1e-3
            assert certificate.mass == pytest.approx(sum(math.exp(x) for x in outputs.values()), abs=1e-4)
            assert reason is None or (certificate.certificate, certificate.reason) == ("none", reason)
        assert (differ > 0) == (name != "none" and "sampling" not in name)


def test_attention_keeps_fairseqs_shortcut_for_a_fixed_beam():
    """Scores computed anew must not change how fairseq decodes the next batch."""
    dictionary = letters(6)
    model = build("transformer", dictionary, scale=3.0)
    args = Namespace(beam=4, max_len_b=6, unkpen=1.0)
    attention = [layer.encoder_attn for layer in model.decoder.layers]
    generator = StockGenerator([model], FairseqTask.build_generator(toy_task(dictionary, dictionary), [model], args))
    for module in attention:
        module.set_beam_size(4)  # as fairseq's decoders do it
    generator.generate([model], batch([3, 2], len(dictionary)))
    assert [module.beam_size for module in attention] == [4, 4]
