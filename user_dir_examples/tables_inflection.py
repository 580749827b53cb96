"""The inflection part of `docs/reproduction.md`."""

from typing import Any, Dict, List, Tuple

from prepare_inflection import spell
from results import apart, conditions, of_recipe, same_options, table

Result = Dict[str, Any]
MAPPINGS = {1: "softmax", 1.5: "1.5-entmax", 2: "sparsemax"}
INTRODUCTION = """## Inflection (Peters, Niculae and Martins, 2019)

SIGMORPHON 2018 shared task 1: one model for all languages, by `inflection.sh`. The columns:

- *accuracy*, *edit distance*: by the definitions of the shared task, on the test set, averaged over languages
- *single form*: sources of the development set for which the model leaves one possible form, with all the probability
- *all listed*: those for which the beam of 5 listed every possible form, so that its answer is exact (the paper's
  certificate, from the 5 forms its beam returned; ours may list more than 5). Both are averaged over languages; a
  softmax output leaves none. The paper, with all languages and larger models: 66 % and 79 % in the medium setting,
  81 % and 87 % in the high one
- *proved*: test sources whose answer is proved best, by listing or by bounds
- *rows*: decoder rows a test source
- *epochs*: that of the best development loss, whose model is decoded, of all (the paper's code,
  deep-spin/OpenNMT-entmax, took the model of the best accuracy)
- *minutes*: training and decoding"""


def section(found: List[Result]) -> str:
    """Markdown of the tables; "" without results."""
    groups: Dict[Tuple, List[Result]] = {}
    for result in of_recipe(found, "inflection"):
        settings = result["settings"]
        training = same_options(settings.get("training", ""))
        key = settings["setting"], settings["size"], tuple(settings["languages"]), training
        groups.setdefault(key, []).append(result)
    parts = []
    for group, results in sorted(groups.items()):
        trainings = [other[-1] for other in groups if other[:-1] == group[:-1]]
        parts += group_parts(group, results, trainings)
    return "\n\n".join([INTRODUCTION, *parts]) if parts else ""


def group_parts(group: Tuple, results: List[Result], trainings: List[str]) -> List[str]:
    """Title, tables and conditions of the models of one setting, size, list of languages and training out of some."""
    setting, size, languages, training = group
    results = sorted(results, key=order)
    names = ", ".join(languages) if len(languages) <= 10 else f"{len(languages)} languages"
    title = f"### {setting.capitalize()} setting, {size} model: {names}"
    parts = [title, *apart(training, trainings), model_table(results)]
    parts += ["Accuracy and edit distance by language:", language_table(results, languages)]
    parts += [paragraph for paragraph in [example(results)] if paragraph]
    parts += [conditions(results), f"The first row: `{results[0]['command']}`."]
    return parts


def example(results: List[Result]) -> str:
    """The paper's figure 1: every form that a model with 1.5-entmax output leaves possible for one source."""
    for result in results:
        found = result["scores"].get("valid", {}).get("example")
        if result["settings"]["alpha_output"] == 1.5 and found:
            forms = ", ".join(f"{form} ({probability:.3f})" for form, probability in found["forms"])
            language, *tags = [symbol.strip("<>") for symbol in found["source"].split() if symbol.startswith("<")]
            symbols = [symbol for symbol in found["source"].split() if not symbol.startswith("<") or symbol == "<"]
            source = f"{spell(' '.join(symbols))} ({language}, {';'.join(tags)})"
            model = " / ".join(model_cells(result))
            return f"Every form that {model} leaves for one source, as in the paper's figure 1: {source} gives {forms}."
    return ""


def order(result: Result) -> Tuple:
    settings, seeds = result["settings"], seeds_of(result)
    return settings["alpha_output"], settings["alpha_attention"], len(seeds), seeds


def seeds_of(result: Result) -> List[int]:
    return result["seed"] if isinstance(result["seed"], list) else [result["seed"]]


def model_cells(result: Result) -> List[str]:
    """Output, attention, seeds."""
    settings, seeds = result["settings"], seeds_of(result)
    names = [MAPPINGS[settings["alpha_output"]], MAPPINGS[settings["alpha_attention"]]]
    return [*names, ("ensemble of " if len(seeds) > 1 else "") + ", ".join(map(str, seeds))]


def model_table(results: List[Result]) -> str:
    header = ["output", "attention", "seed", "accuracy %", "edit distance", "single form %", "all listed %", "proved %"]
    return table([*header, "rows", "epochs", "minutes"], [model_row(result) for result in results])


def model_row(result: Result) -> List[str]:
    scores = result["scores"]
    test, valid, training = scores["test"], scores.get("valid"), scores.get("training")
    exact = [f"{valid['single']:.1f}", f"{valid['complete']:.1f}"] if valid else ["none", "none"]
    epochs = f"{training['best_epoch']} of {training['epochs']}" if training else ""
    figures = [f"{test['accuracy']:.2f}", f"{test['distance']:.3f}", *exact, f"{test['proved']:.1f}"]
    return [*model_cells(result), *figures, f"{test['decoder_rows']:.1f}", epochs, f"{result['seconds'] / 60:.0f}"]


def language_table(results: List[Result], languages: Tuple[str, ...]) -> str:
    """Whatever is more, languages or models, goes down."""
    rows = [["output / attention / seed", *languages]]
    for result in results:
        scores = result["scores"]["test"]["languages"]
        cells = [f"{scores[name]['accuracy']:.1f}, {scores[name]['distance']:.2f}" for name in languages]
        rows.append([" / ".join(model_cells(result)), *cells])
    if len(languages) > len(results):
        rows = [list(column) for column in zip(*rows)]
    return table(rows[0], rows[1:])
