"""Checkpoints from Python: a trained model, of any architecture, ready to translate."""

from typing import Any, Dict, List, Optional, Sequence, Union

import torch
from fairseq import checkpoint_utils, tasks, utils
from fairseq.data import LanguagePairDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.hub_utils import GeneratorHubInterface
from omegaconf import open_dict

from .generation_checks import refuse_unknown
from .reference_scorer import ReferenceScorer

TASK = "translation_entmax"
# Options of generation that belong to the task.
OF_TASK = ("exact_search", "exact_budget", "enumerate_mass")


class Translator(GeneratorHubInterface):
    """fairseq's interface, which takes our options of generation too and refuses names that are none.

    Where no `beam` is given, it is that of `load`.
    """

    def translate(self, sentences: Union[str, List[str]], beam: Optional[int] = None, verbose: bool = False, **options):
        """The best output of a sentence, or of each in a list, as text; `options` as for `generate`."""
        return super().translate(sentences, self._beam(beam), verbose, **options)

    def generate(self, tokenized_sentences, beam: Optional[int] = None, *args, **options):
        """fairseq's `generate`; with `exact_search`, `exact_budget`, `enumerate_mass`, and any of `cfg.generation`."""
        if torch.is_tensor(tokenized_sentences) and tokenized_sentences.dim() == 1:
            # fairseq would forget some of its own arguments here.
            return self.generate(tokenized_sentences.unsqueeze(0), beam, *args, **options)[0]
        own = {name: options.pop(name) for name in OF_TASK if name in options}
        refuse_unknown("generate", set(options) - ARGUMENTS, self.cfg.generation)
        before = {name: getattr(self.task.cfg, name) for name in own}
        try:
            _set(self.task.cfg, own)
            return super().generate(tokenized_sentences, self._beam(beam), *args, **options)
        finally:
            _set(self.task.cfg, before)

    def _beam(self, beam: Optional[int]) -> int:
        return self.cfg.generation.beam if beam is None else beam

    def score(self, sources: Union[str, Sequence[str]], targets: Union[str, Sequence[str]]) -> Union[Dict, List[Dict]]:
        """Scores given outputs.

        Args:
            sources: a sentence, or several
            targets: an output for each

        Returns:
            for each what `--score-reference` computes: `logprob` (in nats; -inf where the model gives it probability
            zero), `positional_scores` `(tgt_len,)` and `tokens`. A symbol that the dictionary lacks counts as unknown.
        """
        if isinstance(sources, str) and isinstance(targets, str):
            return self.score([sources], [targets])[0]
        if isinstance(sources, str) or isinstance(targets, str) or len(sources) != len(targets):
            raise ValueError(f"score: wanted a target for each source, got {_many(targets)} for {_many(sources)}")
        pairs = [[self.encode(text) for text in sources], [self._encode_target(text) for text in targets]]
        sides = [(side, torch.tensor([len(tokens) for tokens in side])) for side in pairs]
        dataset = LanguagePairDataset(*sides[0], self.src_dict, *sides[1], self.tgt_dict)
        scorer = ReferenceScorer(self.tgt_dict)
        batches = self.task.get_batch_iterator(
            dataset,
            max_tokens=self.cfg.dataset.max_tokens,
            max_sentences=self.cfg.dataset.batch_size,
            max_positions=self.max_positions,
            disable_iterator_cache=True,
        )
        found: Dict[int, Any] = {}
        for batch in batches.next_epoch_itr(shuffle=False):
            batch = utils.apply_to_sample(lambda tensor: tensor.to(self.device), batch)
            scored = self.task.inference_step(scorer, self.models, batch)
            found.update(zip(batch["id"].tolist(), (hypotheses[0] for hypotheses in scored)))
        return [found[i] for i in range(len(sources))]

    def _encode_target(self, text: str) -> torch.Tensor:
        return self.tgt_dict.encode_line(self.apply_bpe(self.tokenize(text)), add_if_not_exist=False).long()


def _many(texts) -> str:
    return "one text" if isinstance(texts, str) else f"{len(texts)}"


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
        fairseq's interface: `translate(sentence)`, `generate`, `models`, `task`; and `score(source, target)`
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
