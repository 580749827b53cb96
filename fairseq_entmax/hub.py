"""Checkpoints from Python: a trained model, of any architecture, ready to translate."""

from typing import Optional

from fairseq import checkpoint_utils, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.hub_utils import GeneratorHubInterface
from omegaconf import open_dict

TASK = "translation_entmax"


def load(*checkpoints, data: Optional[str] = None, **generation) -> GeneratorHubInterface:
    """Loads a model, or several as an ensemble, for translation by the generator that knows zero probability.

        model = fairseq_entmax.load("checkpoints/checkpoint_best.pt")
        model.translate("f i n i r V PRS 1 SG")

    A model that was trained under fairseq's `translation` is loaded under `translation_entmax` here.

    Args:
        checkpoints: files
        data: folder with the dictionaries (default: the one it was trained on)
        generation: options of generation by their names, such as `beam=5`, `unnormalized=True`, `max_len_b=50`

    Returns:
        fairseq's interface: `translate(sentence, beam=5)`, `generate`, `score`, `models`, `task`
    """
    paths = [str(path) for path in checkpoints]
    if not paths:
        raise ValueError("load: wanted at least one checkpoint, got none")
    state = checkpoint_utils.load_checkpoint_to_cpu(paths[0])
    cfg = state["cfg"] if state.get("cfg") is not None else convert_namespace_to_omegaconf(state["args"])
    unknown = sorted(set(generation) - set(cfg.generation))
    if unknown:
        raise ValueError(f"load: no option of generation is called {', '.join(unknown)}")
    with open_dict(cfg):
        cfg.task._name = TASK
        cfg.task.data = cfg.task.data if data is None else str(data)
        cfg.generation.update(generation)
    task = tasks.setup_task(cfg.task)
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(paths, task=task)
    return GeneratorHubInterface(cfg, task, models)
