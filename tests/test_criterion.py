from argparse import Namespace

import pytest
import torch
import toy
from fairseq import criterions, options
from fairseq.logging import metrics
from fairseq.models import FairseqDecoder, FairseqEncoder, FairseqEncoderDecoderModel
from fairseq.tasks.translation import TranslationTask
from omegaconf import OmegaConf

from fairseq_entmax import output
from fairseq_entmax.attention import attention_alpha, build_mapping
from fairseq_entmax.criterion import Entmax15Config, EntmaxConfig, SparsemaxConfig
from fairseq_entmax.ops import entmax, entmax_loss

ALPHAS = {"entmax15": 1.5, "sparsemax": 2.0, "entmax": 1.5}
FIGURES = ("loss", "token_accuracy", "support", "gold_outside")


class SparseTask(TranslationTask):
    has_sparse_generator = True


class TableDecoder(FairseqDecoder):
    """Its logits depend on the previous token only."""

    def __init__(self, dictionary):
        super().__init__(dictionary)
        self.table = torch.nn.Parameter(
            2 * torch.randn(len(dictionary), len(dictionary), generator=torch.Generator().manual_seed(0))
        )

    def forward(self, prev_output_tokens, encoder_out=None):
        return self.table[prev_output_tokens], {}


class TableModel(FairseqEncoderDecoderModel):
    def __init__(self, dictionary):
        super().__init__(FairseqEncoder(dictionary), TableDecoder(dictionary))

    def forward(self, src_tokens, src_lengths, prev_output_tokens):
        return self.decoder(prev_output_tokens)


def build(name="entmax15", task=None, **settings):
    task = task or toy.task()
    return criterions.build_criterion(OmegaConf.create({"_name": name, "sentence_avg": False, **settings}), task)


def logged(criterion, *logging_outputs):
    with metrics.aggregate(new_root=True) as figures:
        criterion.reduce_metrics(list(logging_outputs))
    return figures.get_smoothed_values()


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name, alpha", [("entmax15", None), ("sparsemax", None), ("entmax", 1.3), ("entmax", 1.0)])
def test_loss_and_figures_against_their_definitions(name, alpha, label_smoothing):
    settings = {} if alpha is None else {"entmax_alpha": alpha}
    criterion = build(name, label_smoothing=label_smoothing, **settings)
    alpha = alpha or ALPHAS[name]
    model, batch = TableModel(toy.dictionary()), toy.sample()
    loss, sample_size, logging_output = criterion(model, batch)

    kept = batch["target"] != 1
    z, gold = model(**batch["net_input"])[0][kept], batch["target"][kept]
    sharing = torch.arange(13) > 1  # all but <s> and padding
    expected = entmax_loss(z, gold, alpha, reduction="sum", label_smoothing=label_smoothing, smoothing_mask=sharing)
    probs = entmax(z, alpha)
    assert sample_size == batch["ntokens"] == len(gold)
    assert torch.allclose(loss, expected) and loss > 0
    assert logged(criterion, logging_output) == {
        "loss": pytest.approx(float(expected) / len(gold), abs=1e-4),
        "token_accuracy": pytest.approx(float((probs.argmax(-1) == gold).float().mean() * 100), abs=1e-3),
        "support": pytest.approx(float((probs > 0).sum(-1).float().mean()), abs=1e-3),
        "gold_outside": pytest.approx(float((probs.gather(1, gold[:, None]) == 0).float().mean() * 100), abs=1e-3),
    }


def test_alpha_one_is_cross_entropy():
    model, batch = TableModel(toy.dictionary()), toy.sample()
    ours, _, _ = build("entmax", entmax_alpha=1.0)(model, batch)
    stock, _, _ = criterions.build_criterion(
        OmegaConf.create({"_name": "cross_entropy", "sentence_avg": False}), toy.task()
    )(model, batch)
    assert torch.allclose(ours, stock)


def test_label_smoothing_spares_what_no_output_has_case_42():
    symbols = toy.dictionary(3, multiple=8)
    task = toy.task(symbols, symbols)
    model, batch = TableModel(symbols), toy.sample(vocab=7)
    kept = batch["target"] != 1
    z, gold = model(**batch["net_input"])[0][kept], batch["target"][kept]
    target_mass = torch.zeros(len(gold), 8).scatter(1, gold[:, None], 0.9)
    shares = torch.tensor([s not in ("<s>", "<pad>") and not s.startswith("madeup") for s in symbols.symbols])
    target_mass += 0.1 * shares / shares.sum()

    loss, _, _ = build("entmax15", task, label_smoothing=0.1)(model, batch)
    loss.backward()
    expected = torch.zeros_like(model.decoder.table)
    previous = batch["net_input"]["prev_output_tokens"][kept]
    expected.index_add_(0, previous, (entmax(z, 1.5) - target_mass).detach())
    assert torch.allclose(model.decoder.table.grad, expected, atol=1e-6)
    plain, _, _ = build("entmax15", task)(model, batch)
    assert loss != plain


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, 2.0])
def test_impossible_label_smoothing_is_refused_case_42(smoothing):
    with pytest.raises(ValueError, match=f"--label-smoothing.*{smoothing}"):
        build("entmax15", label_smoothing=smoothing)


@pytest.mark.parametrize("alpha", [0.5, 0.0, -1.0, float("nan"), float("inf")])
def test_impossible_alpha_is_refused_case_17(alpha):
    with pytest.raises(ValueError, match=f"--entmax-alpha.*{alpha}"):
        build("entmax", entmax_alpha=alpha)


@pytest.mark.parametrize("sentence_avg", [False, True])
def test_sentence_avg_divides_gradients_but_not_the_logged_loss(sentence_avg):
    criterion = build("entmax15", sentence_avg=sentence_avg)
    batch = toy.sample()
    loss, sample_size, logging_output = criterion(TableModel(toy.dictionary()), batch)
    assert sample_size == logging_output["sample_size"] == (3 if sentence_avg else batch["ntokens"])
    assert logged(criterion, logging_output)["loss"] == pytest.approx(float(loss) / batch["ntokens"], abs=1e-4)


def test_without_reduce_there_is_a_loss_for_each_position():
    criterion, model, batch = build("entmax15"), TableModel(toy.dictionary()), toy.sample()
    summed, _, _ = criterion(model, batch)
    each, _, logging_output = criterion(model, batch, reduce=False)
    assert each.shape == (batch["target"].numel(),)
    assert torch.allclose(each.sum(), summed) and torch.allclose(logging_output["loss"], summed)
    assert (each[batch["target"].reshape(-1) == 1] == 0).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", ALPHAS)
def test_batch_without_targets_case_19(name, smoothing):
    criterion, model, batch = build(name, label_smoothing=smoothing), TableModel(toy.dictionary()), toy.sample()
    batch["target"].fill_(1)
    batch["ntokens"] = 0
    loss, sample_size, logging_output = criterion(model, batch)
    loss.backward()
    assert loss == 0 and sample_size == 0
    assert torch.equal(model.decoder.table.grad, torch.zeros_like(model.decoder.table))
    assert logged(criterion, logging_output) == dict.fromkeys(FIGURES, 0)


def test_batch_without_targets_has_no_weight_in_averages_case_19():
    criterion, model = build("entmax15"), TableModel(toy.dictionary())
    full, empty = toy.sample(), toy.sample()
    empty["target"].fill_(1)
    empty["ntokens"] = 0
    outputs = [criterion(model, batch)[2] for batch in (full, empty)]
    with metrics.aggregate(new_root=True) as figures:
        for logging_output in outputs:
            criterion.reduce_metrics([logging_output])
    assert figures.get_smoothed_values() == logged(criterion, outputs[0])


def test_figures_stay_finite_when_no_target_has_probability_case_20():
    criterion, model, batch = build("sparsemax"), TableModel(toy.dictionary()), toy.sample()
    with torch.no_grad():
        model.decoder.table.zero_()
        model.decoder.table[:, 3] = 50.0  # <unk>, which no target is, takes everything
    loss, _, logging_output = criterion(model, batch)
    figures = logged(criterion, logging_output)
    assert figures["gold_outside"] == 100 and figures["support"] == 1 and figures["token_accuracy"] == 0
    assert figures["loss"] == pytest.approx(float(loss) / batch["ntokens"], abs=1e-4) and loss.isfinite()
    assert not {"ppl", "nll_loss"} & set(figures)


def test_half_precision_loss_is_summed_in_float32_case_43():
    criterion, model, batch = build("entmax15"), TableModel(toy.dictionary()), toy.sample()
    with torch.no_grad():
        model.decoder.table[:] = torch.where(torch.arange(13) == 3, 60000.0, 0.0)
    model.half()
    loss, _, _ = criterion(model, batch)
    loss.backward()
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(60000 * batch["ntokens"], rel=1e-3)  # beyond the largest float16
    assert model.decoder.table.grad.isfinite().all()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_logging_outputs_of_workers_can_be_summed_case_51(workers):
    criterion, model = build("entmax15"), TableModel(toy.dictionary())
    outputs = [criterion(model, toy.sample(seed=seed))[2] for seed in range(workers)]
    summed = {name: sum(log[name] for log in outputs) for name in outputs[0]}
    assert criterion.logging_outputs_can_be_summed()
    assert logged(criterion, *outputs) == pytest.approx(logged(criterion, summed))
    assert set(logged(criterion, summed)) == set(FIGURES)


def test_loss_is_logged_without_any_logging_output_case_51():
    assert "loss" in logged(build("entmax15"))


def test_learned_alpha_is_logged_by_every_worker():
    criterion, model, batch = build("entmax15"), TableModel(toy.dictionary()), toy.sample()
    assert "attention_alpha" not in logged(criterion, criterion(model, batch)[2])
    outputs = []
    for alpha in (1.2, 1.4, 1.6):
        model.decoder.mapping = build_mapping("entmax", alpha=alpha, learn_alpha=True)
        outputs.append(criterion(model, batch)[2])
    assert logged(criterion, *outputs)["attention_alpha"] == pytest.approx(1.4, abs=1e-4)
    summed = {name: sum(log[name] for log in outputs) for name in outputs[0]}
    assert logged(criterion, summed) == pytest.approx(logged(criterion, *outputs))
    wrapped = torch.nn.Sequential(model)  # whatever the trainer puts around the model
    assert float(attention_alpha(wrapped)) == pytest.approx(1.6)


class TestConstruction:
    """Case 52: through the command line, a dataclass, and the Namespace of an old checkpoint."""

    def check(self, cfg, alpha, smoothing, sentence_avg):
        task = toy.task()
        criterion = task.build_criterion(cfg)
        assert criterion.output_alpha == alpha and criterion.label_smoothing == smoothing
        assert criterion.sentence_avg is sentence_avg
        assert task.state_dict() == ({output.ALPHA_KEY: alpha} if alpha > 1 else {})

    @pytest.mark.parametrize("sentence_avg", [False, True])
    @pytest.mark.parametrize("name, alpha", [("entmax15", 1.5), ("sparsemax", 2.0), ("entmax", 1.25), ("entmax", 1.0)])
    def test_command_line_case_52(self, name, alpha, sentence_avg):
        from fairseq.dataclass.utils import convert_namespace_to_omegaconf

        command = ["data", "--criterion", name, "--label-smoothing", "0.2", "--arch", "lstm"]
        command += ["--entmax-alpha", str(alpha)] if name == "entmax" else []
        command += ["--sentence-avg"] if sentence_avg else []
        cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), command))
        self.check(cfg.criterion, alpha, 0.2, sentence_avg)

    @pytest.mark.parametrize("name", ["entmax15", "sparsemax"])
    def test_option_that_would_do_nothing_is_refused(self, name, capsys):
        command = ["data", "--criterion", name, "--entmax-alpha", "1.2", "--arch", "lstm"]
        with pytest.raises(SystemExit):
            options.parse_args_and_arch(options.get_training_parser(), command)
        assert "--entmax-alpha" in capsys.readouterr().err

    @pytest.mark.parametrize("structured", [False, True])
    @pytest.mark.parametrize(
        "config, name, alpha",
        [
            (Entmax15Config(label_smoothing=0.2), "entmax15", 1.5),
            (SparsemaxConfig(label_smoothing=0.2), "sparsemax", 2.0),
            (EntmaxConfig(label_smoothing=0.2, entmax_alpha=1.75), "entmax", 1.75),
        ],
    )
    def test_dataclass_case_52(self, config, name, alpha, structured):
        config._name = name
        if structured:
            self.check(OmegaConf.structured(config), alpha, 0.2, False)
        else:
            criterion = criterions.CRITERION_REGISTRY[name].build_criterion(config, toy.task())
            assert criterion.output_alpha == alpha and criterion.sentence_avg is False

    def test_whole_configuration_resolves_sentence_avg_case_52(self):
        whole = OmegaConf.create(
            {
                "optimization": {"sentence_avg": True},
                "criterion": {"_name": "entmax15", "sentence_avg": "${optimization.sentence_avg}"},
            }
        )
        self.check(whole.criterion, 1.5, 0.0, True)

    def test_namespace_case_52(self):
        self.check(Namespace(criterion="entmax15"), 1.5, 0.0, False)
        self.check(Namespace(criterion="sparsemax", sentence_avg=True, label_smoothing=0.1), 2.0, 0.1, True)
        self.check(Namespace(criterion="entmax", entmax_alpha=1.6, sentence_avg=False), 1.6, 0.0, False)

    def test_bare_name_case_52(self):
        self.check("entmax", 1.5, 0.0, False)


@pytest.mark.parametrize("option", ["eval_bleu"])
def test_validation_with_the_stock_generator_is_refused_case_3(option):
    task = toy.task(**{option: True})
    with pytest.raises(ValueError, match="alpha 1.5.*task translation .*--task translation_entmax"):
        build("entmax15", task)
    build("entmax", task, entmax_alpha=1.0)
    sparse = SparseTask(task.cfg, task.source_dictionary, task.target_dictionary)
    assert build("entmax15", sparse).output_alpha == 1.5


def test_sharded_weights_are_refused():
    class FullyShardedDataParallel(torch.nn.Module):  # fairscale's, which need not be installed
        pass

    with pytest.raises(ValueError, match="--ddp-backend fully_sharded"):
        build().forward(FullyShardedDataParallel(), {})


def test_adaptive_softmax_is_refused_case_63():
    model = TableModel(toy.dictionary())
    model.decoder.adaptive_softmax = object()
    with pytest.raises(ValueError, match="--adaptive-softmax-cutoff"):
        build("entmax15")(model, toy.sample())


@pytest.mark.parametrize("name", ALPHAS)
def test_same_loss_with_and_without_gradients_case_39(name):
    criterion, model, batch = build(name), TableModel(toy.dictionary()), toy.sample()
    loss, _, _ = criterion(model, batch)
    with torch.no_grad():
        frozen, _, _ = criterion(model, batch)
    assert torch.equal(loss.detach(), frozen)
