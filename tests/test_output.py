import copy
import warnings
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
import toy
from fairseq.models import FairseqDecoder, FairseqEncoder, FairseqEncoderDecoderModel
from fairseq.tasks import TASK_REGISTRY, FairseqTask, register_task
from fairseq.tasks.fairseq_task import StatefulContainer
from omegaconf import OmegaConf

import fairseq_entmax.criterion  # noqa: F401  registers the names that settings refer to
from fairseq_entmax import output
from fairseq_entmax.ops import entmax


class SparseToyTask(FairseqTask):
    has_sparse_generator = True


class SubclassOfSparseToyTask(SparseToyTask):
    pass


class DenseToyTask(FairseqTask):
    pass


@pytest.fixture(autouse=True, scope="module")
def toy_tasks():
    for name, cls in (("toy_sparse", SparseToyTask), ("toy_sub", SubclassOfSparseToyTask), ("toy_dense", DenseToyTask)):
        register_task(name)(cls)
    yield
    for name in ("toy_sparse", "toy_sub", "toy_dense"):
        del TASK_REGISTRY[name]


def model():
    symbols = toy.dictionary()
    return FairseqEncoderDecoderModel(FairseqEncoder(symbols), FairseqDecoder(symbols))


def logits(dtype=torch.float32):
    return (3 * torch.randn(4, 5, 13, generator=torch.Generator().manual_seed(0))).to(dtype)


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("log_probs", [True, False])
@pytest.mark.parametrize("sample", [None, {"target": torch.zeros(4, 5, dtype=torch.long)}], ids=["none", "target"])
def test_normalized_probs_contract_case_63(alpha, dtype, log_probs, sample):
    tagged, z = model(), logits(dtype)
    output.set_output_alpha(tagged, alpha)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = tagged.get_normalized_probs((z, None), log_probs, sample)
    wide = z if dtype == torch.float64 else z.float()
    expected = torch.softmax(wide, -1) if alpha == 1 else entmax(wide, alpha)
    assert result.shape == z.shape
    keeps_double = dtype == torch.float64 and alpha > 1  # fairseq's own softmax is always float32
    assert result.dtype == (torch.float64 if keeps_double else torch.float32)
    assert torch.allclose(result, (expected.log() if log_probs else expected).to(result.dtype))
    if alpha > 1:
        assert (expected == 0).any() and not result.isnan().any()
        assert (result[expected == 0] == (-torch.inf if log_probs else 0)).all()


def test_alpha_one_restores_what_fairseq_does():
    tagged, untouched = model(), model()
    output.set_output_alpha(tagged, 1.5)
    output.set_output_alpha(tagged, 1)
    assert output.output_alpha(tagged) == 1
    assert "get_normalized_probs" not in vars(tagged.decoder)
    for log_probs in (True, False):
        ours, stock = (m.get_normalized_probs((logits(), None), log_probs) for m in (tagged, untouched))
        assert torch.equal(ours, stock)


def test_tagging_is_idempotent_and_survives_copies():
    tagged = model()
    assert output.output_alpha(tagged) is None
    output.set_output_alpha(tagged, 1.5)
    output.set_output_alpha(tagged, 1.5)
    copied = copy.deepcopy(tagged)
    output.set_output_alpha(tagged, 2.0)
    assert (output.output_alpha(tagged), output.output_alpha(copied)) == (2.0, 1.5)
    assert torch.allclose(copied.get_normalized_probs((logits(), None), False), entmax(logits(), 1.5))
    assert torch.allclose(tagged.get_normalized_probs((logits(), None), False), entmax(logits(), 2.0))


@pytest.mark.parametrize("alpha", [0.5, -1.0, float("nan"), float("inf")])
def test_impossible_alpha_is_refused_case_17(alpha):
    with pytest.raises(ValueError, match=f"output alpha.*{alpha}"):
        output.set_output_alpha(model(), alpha)


def test_adaptive_softmax_is_refused_case_63():
    adaptive = model()
    adaptive.decoder.adaptive_softmax = object()
    with pytest.raises(ValueError, match="--adaptive-softmax-cutoff"):
        output.set_output_alpha(adaptive, 1.5)


def test_state_holds_a_plain_float_only_when_the_output_is_sparse():
    task = toy.task()
    output.record_output_alpha(task, 1.5)
    assert task.state_dict() == {output.ALPHA_KEY: 1.5}
    output.record_output_alpha(task, 1.0)
    assert task.state_dict() == {}


def dataclass_settings(criterion, **options):
    """`cfg.model` inside a whole configuration, as checkpoints of dataclass models have it."""
    return OmegaConf.create({"model": {"_name": "m"}, "criterion": {"_name": criterion, **options}}).model


@pytest.mark.parametrize(
    "settings, alpha",
    [
        (dataclass_settings("entmax15"), 1.5),
        (dataclass_settings("sparsemax"), 2.0),
        (dataclass_settings("entmax", entmax_alpha=1.2), 1.2),
        (dataclass_settings("cross_entropy"), 1.0),
        (dataclass_settings("of_another_plugin"), 1.0),
        (Namespace(arch="lstm", criterion="entmax15"), 1.5),
        (Namespace(arch="lstm", criterion="entmax", entmax_alpha=1.7, _name="lstm"), 1.7),
        (Namespace(arch="lstm", criterion="cross_entropy"), 1.0),
        (Namespace(arch="lstm"), 1.0),
        (OmegaConf.create({"_name": "m"}), 1.0),
        (None, 1.0),
    ],
)
def test_alpha_of_a_checkpoint_without_the_key(settings, alpha):
    assert output.checkpoint_output_alpha(None, settings) == alpha
    assert output.checkpoint_output_alpha({}, settings) == alpha


def test_task_state_comes_before_the_settings():
    assert output.checkpoint_output_alpha({output.ALPHA_KEY: 1.3}, dataclass_settings("entmax15")) == 1.3
    assert output.checkpoint_output_alpha({output.ALPHA_KEY: 1.3}, dataclass_settings("of_another_plugin")) == 1.3
    assert output.checkpoint_output_alpha({output.ALPHA_KEY: 1.3}, None) == 1.3


@pytest.mark.parametrize("settings", [dataclass_settings("cross_entropy"), Namespace(criterion="cross_entropy")])
def test_sparse_state_with_a_softmax_criterion_is_an_error(settings):
    with pytest.raises(ValueError, match="entmax_output_alpha=1.5.*cross_entropy"):
        output.checkpoint_output_alpha({output.ALPHA_KEY: 1.5}, settings)


def test_sparse_generator_is_known_by_class_so_subclasses_pass():
    names = ("toy_sparse", "toy_sub", "toy_dense", "translation", "no_such_task", None)
    assert [bool(output.task_has_sparse_generator(name)) for name in names] == [True, True, False, False, False, False]


class TestGeneratorGuard:
    @pytest.fixture(autouse=True)
    def guarded(self, monkeypatch):
        built = []
        monkeypatch.setattr(FairseqTask, "build_generator", lambda self, models, args, **kwargs: built.append(kwargs))
        output.install_generator_guard()
        once = FairseqTask.build_generator
        output.install_generator_guard()
        assert FairseqTask.build_generator is once
        self.built = built

    def task(self, cls, **state):
        task = cls(SimpleNamespace())
        task.state.merge_state_dict(state)
        return task

    def test_stock_task_may_not_decode_a_sparse_model(self):
        for score_reference in (False, True):
            with pytest.raises(ValueError, match="--task translation_entmax") as error:
                self.task(DenseToyTask, **{output.ALPHA_KEY: 1.5}).build_generator(
                    [model()], Namespace(score_reference=score_reference)
                )
            assert "1.5" in str(error.value) and "toy_dense" in str(error.value)
        assert not self.built

    def test_stock_task_may_not_decode_a_tagged_model(self):
        tagged = model()
        output.set_output_alpha(tagged, 2.0)
        with pytest.raises(ValueError, match="--task translation_entmax"):
            self.task(DenseToyTask).build_generator([model(), tagged], Namespace())

    def test_dense_member_loaded_last_hides_no_sparse_one_case_18(self):
        task = self.task(DenseToyTask)
        for alpha in (1.5, 1.0):  # fairseq merges the state of one member after the other
            saved = self.task(DenseToyTask)
            output.record_output_alpha(saved, alpha)
            task.load_state_dict(saved.state_dict())
        with pytest.raises(ValueError, match="--task translation_entmax"):
            task.build_generator([model(), model()], Namespace())

    def test_everything_else_passes_unchanged(self):
        self.task(SparseToyTask, **{output.ALPHA_KEY: 1.5}).build_generator([model()], Namespace(), seq_gen_cls=1)
        self.task(SubclassOfSparseToyTask, **{output.ALPHA_KEY: 1.5}).build_generator([model()], Namespace())
        self.task(DenseToyTask).build_generator([model()], Namespace(), seq_gen_cls=2)
        assert self.built == [{"seq_gen_cls": 1}, {}, {"seq_gen_cls": 2}]


def test_tasks_with_a_generator_of_their_own_are_guarded():
    """translation_lev and others never call the `build_generator` that they inherit."""
    own = {name for name, task in TASK_REGISTRY.items() if "build_generator" in vars(task)}
    assert {"translation_lev", "translation_multi_simple_epoch", "translation_from_pretrained_bart"} <= own

    class PluginTask(FairseqTask):  # registered after this package
        def build_generator(self, models, args):
            return "decodes with softmax"

    for task_class in [*(TASK_REGISTRY[name] for name in own), PluginTask]:
        task = task_class.__new__(task_class)
        task.state = StatefulContainer()
        if not getattr(task_class, "has_sparse_generator", False):
            task.state.merge_state_dict({output.ALPHA_KEY: 1.5})
            with pytest.raises(ValueError, match="--task translation_entmax"):
                task.build_generator([model()], Namespace())
    task.state = StatefulContainer()
    assert task.build_generator([model()], Namespace()) == "decodes with softmax"


def test_made_up_symbols_case_71():
    symbols = toy.dictionary(3, multiple=8)
    assert [symbols[i] for i in output.made_up_symbols(symbols)] == ["madeupword0000"]
    assert output.made_up_symbols(toy.dictionary(4, multiple=8)) == []
