"""The parts of `docs/reproduction.md` about words: pronunciation, segmentation."""

from typing import Any, Dict, List

from results import conditions, of_recipe, table

Result = Dict[str, Any]
PRONUNCIATION = """## Grapheme to phoneme

A second quickstart, by `g2p.sh`: English words, some with several right pronunciations, from the pronouncing dictionary
of Carnegie Mellon University (no stress marks). *All*: 1,000 test words drawn at random; *several*: those of them that
have several pronunciations, and 500 more such words. *WER*: words whose most probable pronunciation is none of the
dictionary's (shared tasks of SIGMORPHON know one right pronunciation only: not comparable). *P(dictionary)*: the
model's probability of all pronunciations in the dictionary; *impossible*: those that it gives none. *ECE*: expected
calibration error of the most probable pronunciation. The lists hold the most probable pronunciations up to the given
probability, for words with several; precision and recall are against the dictionary's."""
SEGMENTATION = """## Morpheme segmentation (Peters and Martins, 2022; label smoothing: 2021)

Data of the SIGMORPHON 2022 shared task, by `segmentation.sh`. *F1*, *precision* and *recall* of morphemes on the test
words, as the shared task computes them; *distance*: edit distance of a segmentation. *Published*: F1 in this language
of the paper's systems, in the results of the shared task: LSTM on characters with softmax or 1.5-entmax, transformer on
pieces with 1.5-entmax (means over nine languages: 96.32, 97.15, 97.29). Training is that of their scripts
(bpopeters/2022-shared-tasks), at one point of the grid they searched. Data are not quite theirs: pieces are learnt on
text as it is (theirs normalised it) and never sampled (theirs could be), and answers are the most probable ones, not
those best by length."""
# F1 of DeepSPIN-1, -2 and -3: sigmorphon/2022SegmentationST, results.
PUBLISHED = {
    "ces": (93.42, 93.88, 93.84),
    "eng": (92.29, 93.39, 93.63),
    "fra": (91.66, 95.29, 95.73),
    "ita": (96.01, 97.47, 97.43),
    "lat": (99.37, 99.36, 99.38),
    "rus": (98.75, 99.30, 99.35),
    "mon": (98.03, 98.00, 98.51),
    "hun": (98.56, 98.68, 98.72),
    "spa": (98.79, 99.02, 99.04),
}


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
        figures = [f"{scores['f1']:.2f}", published(settings)]
        figures += [f"{scores[name]:.2f}" for name in ("precision", "recall", "distance")]
        rows.append([model, str(settings["smoothing"]), *figures, f"{result['seconds'] / 60:.0f}"])
    header = [
        "language, model, units, criterion",
        "smoothing",
        "F1",
        "published",
        "precision",
        "recall",
        "distance",
        "minutes",
    ]
    first = f"The first row: `{results[0]['command']}`."
    return "\n\n".join([SEGMENTATION, table(header, rows), conditions(results), first])


def published(settings: Dict[str, Any]) -> str:
    """F1 of the paper's system of the same kind in the same language; "" without one."""
    characters = settings["units"] == "characters to characters"
    kinds = ("lstm", "softmax", True), ("lstm", "entmax15", True), ("transformer", "entmax15", False)
    kind = settings["architecture"], settings["criterion"], characters
    if kind not in kinds or settings["limit"] is not None or settings["language"] not in PUBLISHED:
        return ""
    return f"{PUBLISHED[settings['language']][kinds.index(kind)]:.2f}"
