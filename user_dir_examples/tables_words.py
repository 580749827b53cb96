"""The parts of `docs/reproduction.md` about words: pronunciation, segmentation."""

from typing import Any, Dict, List

from results import conditions, of_recipe, table

Result = Dict[str, Any]
PRONUNCIATION = """## Grapheme to phoneme

A second quickstart, by `g2p.sh`: English words, some with several right pronunciations, from the pronouncing
dictionary of Carnegie Mellon University (no stress marks). *WER*: words whose most probable pronunciation is none of
the dictionary's. *P(dictionary)*: the model's probability of all pronunciations in the dictionary; *impossible*: those
that it gives none. *ECE*: expected calibration error of the most probable pronunciation. The lists hold the most
probable pronunciations up to the given probability, for words with several; precision and recall are against the
dictionary's."""
SEGMENTATION = """## Morpheme segmentation (Peters and Martins, 2022; label smoothing: 2021)

Data of the SIGMORPHON 2022 shared task, by `segmentation.sh`. *F1*, *precision* and *recall* of morphemes on the test
words, as the shared task computes them; *distance*: edit distance of a segmentation. The systems of the paper
averaged 96.32 (LSTM, softmax), 97.15 (LSTM, 1.5-entmax) and 97.29 (transformer on subwords, 1.5-entmax) over nine
languages."""


def pronunciation(found: List[Result]) -> str:
    """Markdown of the tables; "" without results."""
    results = of_recipe(found, "g2p")
    if not results:
        return ""
    header = ["model, words", "number", "WER %", "PER %", "P(dictionary)", "impossible %", "strings listed", "ECE"]
    rows = [row for result in results for row in error_rows(result)]
    lists = [row for result in results for row in list_rows(result)]
    parts = [PRONUNCIATION, table(header, rows)]
    if lists:
        parts.append(table(["model, list", "strings", "precision %", "recall %"], lists))
    minutes = ", ".join(f"{result['name']} {result['seconds'] / 60:.0f}" for result in results)
    commands = "; ".join(f"`{result['command']}`" for result in results)
    return "\n\n".join([*parts, f"{conditions(results)} Minutes: {minutes}. {commands}."])


def error_rows(result: Result) -> List[List[str]]:
    groups, calibration = result["scores"]["groups"], result["scores"]["calibration"]
    titles = {"all": "all", "one": "one pronunciation", "several": "several"}
    curves = {"all": "best", "several": "best, several"}
    errors = {key: calibration[name]["error"] for key, name in curves.items() if name in calibration}
    return [
        [
            f"{result['name']}, {title}",
            str(groups[key]["words"]),
            f"{groups[key]['word_error_rate']:.2f}",
            f"{groups[key]['phoneme_error_rate']:.2f}",
            f"{groups[key]['dictionary_mass']:.3f}",
            f"{groups[key]['impossible_variants']:.1f}",
            f"{groups[key]['strings']:.1f}",
            f"{errors[key]:.3f}" if key in errors else "",
        ]
        for key, title in titles.items()
        if key in groups
    ]


def list_rows(result: Result) -> List[List[str]]:
    rows = []
    for name, scores in result["scores"]["lists"].items():
        title = "most probable one" if name == "best" else f"probability {name}"
        figures = [f"{scores['strings']:.2f}", f"{scores['precision']:.1f}", f"{scores['recall']:.1f}"]
        rows.append([f"{result['name']}, {title}", *figures])
    return rows


def segmentation(found: List[Result]) -> str:
    """Markdown of the tables; "" without results."""
    results = of_recipe(found, "segmentation")
    if not results:
        return ""
    results = sorted(results, key=lambda r: (r["settings"]["language"], r["name"]))
    rows = []
    for result in results:
        settings, scores = result["settings"], result["scores"]["all"]
        model = f"{settings['language']}, {settings['architecture']}, {settings['units']}, {settings['criterion']}"
        if settings["limit"] is not None:
            model += f", the first {settings['limit']} words"
        figures = [f"{scores[name]:.2f}" for name in ("f1", "precision", "recall", "distance")]
        rows.append([model, str(settings["smoothing"]), *figures, f"{result['seconds'] / 60:.0f}"])
    header = ["language, model, units, criterion", "smoothing", "F1", "precision", "recall", "distance", "minutes"]
    first = f"The first row: `{results[0]['command']}`."
    return "\n\n".join([SEGMENTATION, table(header, rows), conditions(results), first])
