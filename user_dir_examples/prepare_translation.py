"""The data step of the translation recipes: raw public files to text, sentencepiece BPE pieces and dictionaries.

Text is normalised to Unicode NFC with single spaces, XML entities are resolved, and Romanian s and t with cedilla
become the letters with comma below; nothing else changes (sentencepiece normalises nothing). With `--diacritics
remove`, as in the 2019 paper, the models see Romanian without diacritics; the references keep theirs, both are scored.

Writes below `--out`: `text/`, `pieces/` (train, valid and test), `pieces*.model`, `dict.LANGUAGE.txt`, and `data.json`
with the hashes of what was read.
"""

import argparse
import hashlib
import html
import json
import re
import sys
import unicodedata
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Optional

from raw_text import decode, read_raw, split_lines
from translation_corpora import CORPORA, Corpus

PARTS = ("train", "valid", "test")
CEDILLA_TO_COMMA = str.maketrans("\u015e\u015f\u0162\u0163", "\u0218\u0219\u021a\u021b")
WITHOUT_DIACRITICS = str.maketrans(
    "\u0102\u0103\u00c2\u00e2\u00ce\u00ee\u0218\u0219\u021a\u021b", "AaAaIiSsTt"
)  # of Romanian only: other languages' letters stay
SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)
UNKNOWN_AT_MOST = 0.01


class File(NamedTuple):
    """One raw file as it was found."""

    name: str
    lines: List[str]
    sha256: str  # of the unpacked text


# --- raw files -------------------------------------------------------------------------------------------------------


def file_name(template: str, language: str) -> str:
    return template.format(language=language, side="ref" if language == "en" else "src")


def find(folder: Path, name: str) -> Optional[Path]:
    """The file in the folder or anywhere below it, plain or gzipped."""
    for candidate in (name, f"{name}.gz"):
        found = [path for path in folder.rglob(Path(candidate).name) if f"/{path.as_posix()}".endswith(f"/{candidate}")]
        if found:
            return min(found, key=lambda path: (len(path.parts), str(path)))
    return None


def find_file(corpus: Corpus, folder: Path, template: str, language: str) -> Optional[Path]:
    """The file under its own name, or under the other one that it may have."""
    path = find(folder, file_name(template, language))
    if path is None and template in corpus.other_names:
        path = find(folder, file_name(corpus.other_names[template], language))
    return path


def templates(corpus: Corpus) -> List[str]:
    return [name for part in PARTS for name in corpus.parts[part]] + ([corpus.raw_test] if corpus.raw_test else [])


def check_files(corpus: Corpus, folder: Path, languages: Iterable[str]) -> None:
    """Raises ValueError that lists all missing files with their public source and licence page."""
    wanted = [(template, language) for template in templates(corpus) for language in languages]
    missing = [file_name(*file) for file in wanted if not folder.is_dir() or find_file(corpus, folder, *file) is None]
    if missing:
        raise ValueError(
            f"--data {folder}: missing {', '.join(missing)} (unpacked, or as .gz; here or in a folder below); "
            f"source: {corpus.source}; licence: {corpus.licence}"
        )


def extract(name: str, text: str) -> List[str]:
    """The sentences of a raw file: all lines, or what is marked as sentence in the formats of IWSLT and WMT."""
    if name.endswith((".xml", ".sgm")):
        return [html.unescape(segment) for segment in SEGMENT.findall(text)]
    lines = split_lines(text)
    if name.startswith("train.tags."):  # lines about the talks stand between tags
        return [html.unescape(line) for line in lines if not line.lstrip().startswith("<")]
    return lines


def read_file(corpus: Corpus, folder: Path, template: str, language: str, unchecked: bool) -> File:
    name = file_name(template, language)
    path = find_file(corpus, folder, template, language)
    raw = read_raw(path)
    digest, lines = hashlib.sha256(raw).hexdigest(), extract(Path(name).name, decode(raw, path))
    known = corpus.hashes.get(name)
    if not unchecked and len(lines) != corpus.lines[template]:
        raise ValueError(f"{path}: wanted {corpus.lines[template]} sentences, got {len(lines)}; --unchecked takes it")
    if not unchecked and known not in (None, digest):
        raise ValueError(f"{path}: wanted SHA-256 {known} (unpacked), got {digest}; --unchecked takes it")
    note = "as known" if known == digest else "not checked" if known else "none known to check against"
    print(f"{name}: {len(lines)} sentences, SHA-256 {digest} ({note})", flush=True)
    return File(name, [normalise(line, language) for line in lines], digest)


# --- text ------------------------------------------------------------------------------------------------------------


def normalise(line: str, language: str) -> str:
    text = unicodedata.normalize("NFC", " ".join(line.split()))
    return text.translate(CEDILLA_TO_COMMA) if language == "ro" else text


def remove_diacritics(line: str) -> str:
    """Romanian without diacritics; takes letters with cedilla, too."""
    return line.translate(CEDILLA_TO_COMMA).translate(WITHOUT_DIACRITICS)


def without_empty_pairs(text: Dict[str, List[str]]) -> Dict[str, List[str]]:
    pairs = [pair for pair in zip(*text.values()) if all(pair)]
    return dict(zip(text, map(list, zip(*pairs))))


def check_lengths(part: str, text: Dict[str, List[str]]) -> None:
    sizes = {language: len(lines) for language, lines in text.items()}
    if len(set(sizes.values())) != 1:
        raise ValueError(f"{part}: wanted as many sentences in both languages, got {sizes}")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def read_lines(path: Path) -> List[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


# --- pieces ----------------------------------------------------------------------------------------------------------


def learn_pieces(files: List[Path], prefix: Path, size: int, coverage: float):
    """A sentencepiece BPE model of at most `size` pieces, learnt from files of text.

    Raises:
        ValueError: `size` is smaller than the number of different characters.
    """
    import sentencepiece

    options = {"input": ",".join(map(str, files)), "model_prefix": str(prefix), "vocab_size": size}
    try:
        sentencepiece.SentencePieceTrainer.train(
            **options, model_type="bpe", character_coverage=coverage, normalization_rule_name="identity",
            hard_vocab_limit=False, minloglevel=2, num_threads=1,
        )  # fmt: skip
    except RuntimeError as error:
        raise ValueError(f"--pieces {size}: {error}") from None
    return sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")


def pieces_of(model) -> List[str]:
    """All pieces but those that fairseq's dictionary has of its own (unknown, begin and end of sentence)."""
    ids = range(model.get_piece_size())
    return [model.id_to_piece(i) for i in ids if not (model.is_unknown(i) or model.is_control(i))]


def dictionary_symbols(path: Path) -> List[str]:
    return [line.rsplit(" ", 1)[0] for line in read_lines(path)]


def check_dictionary(folder: Path, language: str) -> float:
    """Share of unknown pieces in the training text under the dictionary that fairseq will use.

    Raises:
        ValueError: the dictionary belongs to another segmentation.
    """
    binary = folder / "data-bin" / f"dict.{language}.txt"
    dictionary, own = set(dictionary_symbols(binary)), dictionary_symbols(folder / f"dict.{language}.txt")
    pieces = [piece for line in read_lines(folder / "pieces" / f"train.{language}") for piece in line.split(" ")]
    unknown = sum(piece not in dictionary for piece in pieces) / max(len(pieces), 1)
    if dictionary != set(own) or unknown > UNKNOWN_AT_MOST:
        raise ValueError(
            f"{binary}: wanted the dictionary of this segmentation ({len(own)} pieces), got {len(dictionary)} symbols, "
            f"{len(dictionary - set(own))} of them others; {100 * unknown:.1f} % of the {language} training pieces "
            "would be unknown"
        )
    return unknown


# --- the step --------------------------------------------------------------------------------------------------------


def segment(args, text: Dict[str, Dict[str, List[str]]]) -> None:
    """Learns the pieces from the training text and writes pieces and dictionaries."""

    def seen(language, line):  # what the model sees of a sentence
        return remove_diacritics(line) if language == "ro" and args.diacritics == "remove" else line

    for part in PARTS:
        for language, lines in text[part].items():
            write_lines(args.out / "seen" / f"{part}.{language}", (seen(language, line) for line in lines))
    groups = [[language] for language in text["train"]] if args.separate else [list(text["train"])]
    for languages in groups:
        files = [args.out / "seen" / f"train.{language}" for language in languages]
        prefix = args.out / ("pieces." + languages[0] if args.separate else "pieces")
        model = learn_pieces(files, prefix, args.pieces, 0.9995 if "ja" in languages else 1.0)
        for language in languages:
            for part in PARTS:
                lines = read_lines(args.out / "seen" / f"{part}.{language}")
                segmented = (" ".join(model.encode(line, out_type=str)) for line in lines)
                write_lines(args.out / "pieces" / f"{part}.{language}", segmented)
            pieces = pieces_of(model)
            if args.own_dictionaries:
                lines = read_lines(args.out / "pieces" / f"train.{language}")
                used = {piece for line in lines for piece in line.split(" ")}
                pieces = [piece for piece in pieces if piece in used]
            write_lines(args.out / f"dict.{language}.txt", (f"{piece} 1" for piece in pieces))
            print(f"{language}: {len(pieces)} pieces", flush=True)


def prepare(args) -> None:
    corpus = CORPORA[args.corpus]
    languages = args.pair.split("-")
    if len(set(languages)) != 2 or not set(languages) <= set(corpus.languages):
        raise ValueError(f"--pair: wanted two of {', '.join(corpus.languages)} as in de-en, got {args.pair}")
    check_files(corpus, args.data, languages)
    text: Dict[str, Dict[str, List[str]]] = {part: {language: [] for language in languages} for part in PARTS}
    hashes = {}
    for part in PARTS:
        for template in corpus.parts[part]:
            for language in languages:
                file = read_file(corpus, args.data, template, language, args.unchecked)
                text[part][language] += file.lines[: args.limit] if part == "train" else file.lines
                hashes[file.name] = file.sha256
        check_lengths(part, text[part])
    if corpus.raw_test:
        raw = read_file(corpus, args.data, corpus.raw_test, languages[1], args.unchecked)
        check_lengths("test", {languages[1]: text["test"][languages[1]], "untokenised": raw.lines})
        hashes[raw.name] = raw.sha256
        write_lines(args.out / "text" / f"test.raw.{languages[1]}", raw.lines)
    read = len(text["train"][languages[0]])
    text["train"] = without_empty_pairs(text["train"])
    kept = len(text["train"][languages[0]])
    print(f"{kept} training pairs; {read - kept} with an empty side left out", flush=True)
    for part in PARTS:
        for language, lines in text[part].items():
            write_lines(args.out / "text" / f"{part}.{language}", lines)
    segment(args, text)
    facts = {"corpus": args.corpus, "pair": args.pair, "pieces": args.pieces, "separate": args.separate}
    facts["own_dictionaries"] = args.own_dictionaries
    facts.update(diacritics=args.diacritics if "ro" in languages else None, tokenised=corpus.tokenised)
    facts.update(pairs=kept, empty_pairs=read - kept, sha256=hashes)
    (args.out / "data.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def parse(arguments: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", choices=CORPORA, required=True)
    parser.add_argument("--pair", required=True, help="source and target language, as in de-en")
    parser.add_argument("--data", type=Path, help="folder with the raw files, in it or below")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--pieces", type=int, default=8000, help="pieces, of each language with --separate")
    parser.add_argument("--separate", action="store_true", help="learn pieces of each language for itself")
    parser.add_argument(
        "--own-dictionaries", action="store_true", help="of joint pieces, those of each language's training text"
    )
    parser.add_argument("--diacritics", choices=("keep", "remove"), default="keep", help="of Romanian, for the model")
    parser.add_argument("--limit", type=int, help="take the first N sentences of each training file")
    parser.add_argument("--unchecked", action="store_true", help="take files of other sizes and hashes")
    parser.add_argument("--check-dictionary", action="store_true", help="only compare OUT/data-bin with the pieces")
    args = parser.parse_args(arguments)
    if args.data is None and not args.check_dictionary:
        parser.error("--data is missing")
    return args


def main(arguments: Optional[List[str]] = None) -> int:
    args = parse(arguments)
    try:
        if not args.check_dictionary:
            prepare(args)
        else:
            for language in args.pair.split("-"):
                unknown = check_dictionary(args.out, language)
                print(f"{language}: {100 * unknown:.3f} % of the training pieces are unknown")
    except (ValueError, OSError) as error:
        print(f"prepare_translation: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
