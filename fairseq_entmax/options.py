"""`python -m fairseq_entmax options`: the options of this package's parts, which fairseq's --help does not get to."""

import textwrap
from dataclasses import Field, fields, is_dataclass
from typing import Dict, Iterator, List, Sequence, Tuple

MISSING = "???"  # what omegaconf has for a value that must be given

WIDTH = 100
# Parts that also take every option of one of fairseq's.
EXTENDS = {
    "translation_entmax": "translation",
    "transformer_entmax": "transformer",
    "plateau": "reduce_lr_on_plateau",
}


def parts() -> Dict[Tuple[str, str], type]:
    """Class of each registered part of this package, by the option that chooses it and its name there."""
    from fairseq import registry, tasks
    from fairseq.models import MODEL_REGISTRY

    kinds = {"--task": tasks.TASK_REGISTRY, "--arch": MODEL_REGISTRY}
    for kind, entry in registry.REGISTRIES.items():
        kinds["--" + kind.replace("_", "-")] = entry["registry"]
    package = __name__.partition(".")[0] + "."
    return {
        (option, name): part
        for option, known in kinds.items()
        for name, part in known.items()
        if part.__module__.startswith(package)
    }


def own_options(name: str, part: type) -> List[Field]:
    """The options that a part has beyond those of fairseq's part it is made from."""
    config = getattr(part, "__dataclass")  # noqa: B009 (a name that Python would change inside a class)
    bases = [base for base in config.__mro__[1:] if base.__module__.startswith("fairseq.") and is_dataclass(base)]
    theirs = {option for base in bases for option in _flat(base)}
    if EXTENDS.get(name) == "transformer":  # our configuration is a flat copy of that one
        from fairseq.models.transformer import TransformerConfig

        theirs.update(_flat(TransformerConfig))
    return [option for option in fields(config) if option.name not in theirs and option.metadata.get("help")]


def _flat(config: type) -> Iterator[str]:
    """Names of options; those of a nested configuration begin with its name."""
    for option in fields(config):
        if is_dataclass(option.type):
            yield from (f"{option.name}_{inner}" for inner in _flat(option.type))
        else:
            yield option.name


def describe(option: Field) -> str:
    """Name, default (where the help does not say it) and help of an option."""
    text = option.metadata["help"].replace("%%", "%")
    needed = option.default == MISSING  # what has no default stands without a name on the command line
    if not (needed or isinstance(option.default, bool) or option.default is None or "default" in text):
        text += f" (default {option.default})"
    name = option.name.upper() if needed else "--" + option.name.replace("_", "-")
    indent = " " * 6
    filled = textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )
    return f"  {name}\n{filled}"


def show(names: Sequence[str]) -> int:
    """Prints the options of the parts called `names`, or of all.

    Raises:
        ValueError: no part has that name.
    """
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY

    known = parts()
    wanted = [ARCH_MODEL_NAME_REGISTRY.get(name, name) for name in names]  # presets have the options of their model
    everything = sorted({name for _, name in known})
    for given, name in zip(names, wanted):
        if name not in everything:
            raise ValueError(f"NAME: wanted one of {', '.join(everything)}, got {given}")
    for (option, name), part in known.items():
        if wanted and name not in wanted:
            continue
        print(f"{option} {name}")
        presets = [arch for arch, model in ARCH_MODEL_NAME_REGISTRY.items() if model == name and arch != name]
        if option == "--arch" and presets:
            print(f"  presets: {', '.join(presets)}")
        for own in own_options(name, part):
            print(describe(own))
        if name in EXTENDS:
            print(f"  and the options of fairseq's {EXTENDS[name]}")
        print()
    return 0
