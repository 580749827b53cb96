"""Checkpoints from Python: a trained model, of any architecture, ready to translate."""

from typing import Optional

from fairseq import checkpoint_utils, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.hub_utils import GeneratorHubInterface
from omegaconf import open_dict

from .generation_checks import refuse_unknown

TASK = "translation_entmax"
# Options of generation that belong to the task.
OF_TASK = ("exact_search", "exact_budget", "enumerate_mass")


class Translator(GeneratorHubInterface):
    """fairseq's interface, which takes our options of generation too and refuses names that are none."""

    def generate(self, tokenized_sentences, *args, **options):
        """fairseq's `generate`; with `exact_search`, `exact_budget`, `enumerate_mass`, and any of `cfg.generation`."""
        own = {name: options.pop(name) for name in OF_TASK if name in options}
        refuse_unknown("generate", set(options) - ARGUMENTS, self.cfg.generation)
        before = {name: getattr(self.task.cfg, name) for name in own}
        try:
            _set(self.task.cfg, own)
            return super().generate(tokenized_sentences, *args, **options)
        finally:
            _set(self.task.cfg, before)


# Arguments of fairseq's `generate` that are no options of generation.
ARGUMENTS = {"verbose", "skip_invalid_size_inputs", "inference_step_args", "prefix_allowed_tokens_fn"}


def _set(settings, values):
    for name, value in values.items():
        setattr(settings, name, value)


def load(*checkpoints, data: Optional[str] = None, **generation) -> Translator:
    """Loads a model, or several as an ensemble, for translation by the generator that knows zero probability.

        model = fairseq_entmax.load("checkpoints/checkpoint_best.pt")
        model.translate("f i n i r V PRS 1 SG")

    A model that was trained under fairseq's `translation` is loaded under `translation_entmax` here.

    Args:
        checkpoints: files
        data: folder with the dictionaries (default: the one it was trained on)
        generation: options of generation by their names, such as `beam=5`, `unnormalized=True`, `exact_search=True`

    Returns:
        fairseq's interface: `translate(sentence, beam=5)`, `generate`, `score`, `models`, `task`
    """
    paths = [str(path) for path in checkpoints]
    if not paths:
        raise ValueError("load: wanted at least one checkpoint, got none")
    state = checkpoint_utils.load_checkpoint_to_cpu(paths[0])
    cfg = state["cfg"] if state.get("cfg") is not None else convert_namespace_to_omegaconf(state["args"])
    own = {name: generation.pop(name) for name in OF_TASK if name in generation}
    refuse_unknown("load", generation, cfg.generation)
    with open_dict(cfg), open_dict(cfg.task):
        cfg.task._name = TASK
        cfg.task.data = cfg.task.data if data is None else str(data)
        cfg.generation.update(generation)
        cfg.task.update(own)
    task = tasks.setup_task(cfg.task)
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(paths, task=task)
    return Translator(cfg, task, models)
