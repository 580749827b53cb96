"""The translation recipes: their data step, their scores, their pages, and the scripts on made-up text."""

import gzip
import json
import math
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import recipe_runs
from recipe_runs import value

sys.path.insert(0, str(recipe_runs.EXAMPLES))

import pair_translation  # noqa: E402
import plot_translation  # noqa: E402
import prepare_translation  # noqa: E402
import raw_text  # noqa: E402
import results  # noqa: E402
import score_translation  # noqa: E402
import tables_translation  # noqa: E402
from translation_corpora import CORPORA  # noqa: E402

WORDS = {"de": "der mann sieht einen großen hund und läuft".split(), "en": "the man sees a large dog and runs".split()}
CEDILLA, COMMA = "Ştiinţa şi viaţa în pădure, Â", "Știința și viața în pădure, Â"
SIZES = {"train": 60, "val": 6, "test_2016_flickr": 5}


def sentences(count, language, seed=0):
    rng = random.Random(seed)  # the same choices in every language
    numbers = [[rng.randrange(8) for _ in range(rng.randint(3, 7))] for _ in range(count)]
    return [" ".join(WORDS[language][number] for number in line) + "." for line in numbers]


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def read(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


@pytest.fixture(scope="module")
def multi30k(tmp_path_factory):
    """A made-up Multi30k, some files gzipped, in a folder below the one that is named."""
    folder = tmp_path_factory.mktemp("raw")
    for seed, (name, count) in enumerate(SIZES.items()):
        for language in WORDS:
            ending = ".gz" if name == "train" else ""
            write(folder / "raw" / f"{name}.{language}{ending}", sentences(count, language, seed))
    return folder


def prepare(corpus, pair, data, out, *options):
    given = ["--corpus", corpus, "--pair", pair, "--data", data, "--out", out, "--pieces", 60, *options]
    return prepare_translation.main(list(map(str, given)))


@pytest.fixture(scope="module")
def prepared(multi30k, tmp_path_factory):
    out = tmp_path_factory.mktemp("prepared")
    assert prepare("multi30k", "de-en", multi30k, out, "--unchecked") == 0
    return out


# --- raw files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CORPORA)
def test_case_68_all_missing_files_are_named_with_source_and_licence(name, tmp_path, capsys):
    corpus = CORPORA[name]
    pair = corpus.pair or "de-en"
    source, target = pair.split("-")
    found = [prepare_translation.file_name(template, source) for template in prepare_translation.templates(corpus)]
    for file in found:
        write(tmp_path / "raw" / file, ["x"])
    assert prepare(name, pair, tmp_path / "raw", tmp_path / "out") == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and corpus.source in message and corpus.licence in message
    for template, file in zip(prepare_translation.templates(corpus), found):
        assert prepare_translation.file_name(template, target) in message and file not in message


@pytest.mark.parametrize("change", ["size", "text"])
def test_case_68_files_of_other_sizes_or_hashes_are_refused(change, multi30k, tmp_path, capsys, monkeypatch):
    corpus = CORPORA["multi30k"]
    lines = {f"{name}.{{language}}": count for name, count in SIZES.items()}
    if change == "size":
        lines["val.{language}"] += 1
    monkeypatch.setitem(CORPORA, "multi30k", corpus._replace(lines=lines, hashes={"val.de": "0" * 64}))
    assert prepare("multi30k", "de-en", multi30k, tmp_path) == 1
    message = capsys.readouterr().err
    wanted = "wanted 7 sentences, got 6" if change == "size" else f"wanted SHA-256 {'0' * 64} (unpacked), got "
    assert "val.de" in message and wanted in message and not (tmp_path / "pieces").exists()


def test_case_68_hashes_of_what_was_read_are_recorded(prepared, multi30k):
    import hashlib

    facts = json.loads((prepared / "data.json").read_text())
    text = gzip.decompress((multi30k / "raw" / "train.de.gz").read_bytes())
    assert facts["sha256"]["train.de"] == hashlib.sha256(text).hexdigest() and len(facts["sha256"]) == 6


def test_case_68_a_broken_archive_is_named(tmp_path, capsys):
    whole = gzip.compress("".join(f"line {i} {i * i}\n" for i in range(500)).encode())
    for path, raw in ((tmp_path / "cut.gz", whole[:400]), (tmp_path / "plain.gz", b"no archive\n")):
        path.write_bytes(raw)
        with pytest.raises(ValueError, match=f"{path.name}: wanted a whole gzip file, got "):
            raw_text.read_lines(path)
    path.write_bytes(whole)
    assert len(raw_text.read_lines(path)) == 500


def test_case_68_a_file_that_is_not_utf_8_is_named(tmp_path, capsys):
    for name, count in SIZES.items():
        for language in WORDS:
            write(tmp_path / "raw" / f"{name}.{language}", sentences(count, language))
    (tmp_path / "raw" / "val.de").write_bytes("Straße\n".encode("latin-1"))
    assert prepare("multi30k", "de-en", tmp_path / "raw", tmp_path / "out", "--unchecked") == 1
    assert f"{tmp_path / 'raw' / 'val.de'}: wanted UTF-8, got " in capsys.readouterr().err


# --- the archives ---------------------------------------------------------------------------------------------------

TALK = """<doc docid="343" genre="lectures">
<url>http://www.ted.com/talks/a</url>
<keywords>talks, R&amp;D</keywords>
<talkid>343</talkid>
<title>A: &lt;B&gt;</title>
<description>TED Talk: With clips.</description>
{}
<reviewer href="http://www.ted.com/profiles/1">C</reviewer>
</doc>"""


def segments(lines):
    return "\n".join(f'<seg id="{number}"> {line} </seg>' for number, line in enumerate(lines, 1))


def test_case_68_the_archive_of_iwslt_2017(tmp_path):
    folder = tmp_path / "2017-01-trnted" / "texts" / "de" / "en" / "de-en"
    for language in WORDS:
        lines = [f" {line} " for line in [f"{language} R&D", f"{language} &amp;\u2028a\xa0b", *sentences(20, language)]]
        write(folder / f"train.tags.de-en.{language}", [TALK.format("\n".join(lines)), TALK.format("c")])
        for year in ("dev2010", *(f"tst{year}" for year in range(2010, 2016))):
            talk = TALK.format(segments([f"{language} {year} &quot;x&quot;", "2 &lt; 3"]))
            write(folder / f"IWSLT17.TED.{year}.de-en.{language}.xml", ["<mteval>", talk, "</mteval>"])
    assert prepare("iwslt17", "en-de", tmp_path, tmp_path / "out", "--unchecked") == 0
    assert read(tmp_path / "out" / "text" / "train.de")[:2] == ["de R&D", "de & a b"]
    assert read(tmp_path / "out" / "text" / "train.en")[-1] == "c" and len(read(tmp_path / "out/text/train.en")) == 23
    assert read(tmp_path / "out" / "text" / "valid.en") == ['en dev2010 "x"', "2 < 3"]
    test = read(tmp_path / "out" / "text" / "test.de")
    assert test[::2] == [f'de tst{year} "x"' for year in range(2010, 2016)]


@pytest.mark.parametrize("name", ["SETIMES", "SETIMES2"])
def test_case_68_the_archives_of_wmt_2016(name, tmp_path):
    for language, line, sides in (("ro", CEDILLA, ("src", "ref")), ("en", "Science, life", ("ref", "src"))):
        lines = [line, "a\x85b", "", "end"]
        write(tmp_path / "training-parallel-ep-v8" / f"europarl-v8.ro-en.{language}", lines)
        write(tmp_path / "en-ro" / f"{name}.en-ro.{language}", ["\ufeff" + line, "c\r", "d\r"])
        for part in ("dev/newsdev", "test/newstest"):
            for pair, side in zip(("roen", "enro"), sides):
                text = segments([line, f"S&amp;P {pair}"])
                write(tmp_path / f"{part}2016-{pair}-{side}.{language}.sgm", [f'\ufeff<{side}set srclang="any">', text])
    assert prepare("wmt16", "en-ro", tmp_path, tmp_path / "out", "--unchecked", "--separate") == 0
    text = {part: read(tmp_path / "out" / "text" / f"{part}.ro") for part in ("train", "valid", "test")}
    assert text["train"] == [COMMA, "a b", "end", COMMA, "c", "d"]
    assert text["valid"] == text["test"] == [COMMA, "S&P roen"]


def kftt(folder, sizes=(30, 3, 4, 4)):
    """Untokenised sentences are those with tokens, written together."""
    names = ("tok/kyoto-train.cln", "tok/kyoto-dev", "tok/kyoto-test", "orig/kyoto-test")
    for name, size in zip(names, sizes):
        for language, sentence in (("en", "temple {} of Kyoto ."), ("ja", "京都 の 古い 寺 {} 。")):
            lines = [sentence.format(number) for number in range(size)]
            if name.startswith("orig"):
                lines = [line.replace(" .", ".") if language == "en" else line.replace(" ", "") for line in lines]
            write(folder / "kftt-data-1.0" / "data" / f"{name}.{language}", lines)
    write(folder / "kftt-data-1.0" / "data" / "tok" / "kyoto-train.ja", ["no"])


def test_case_68_the_archive_of_kftt(tmp_path, capsys):
    kftt(tmp_path)
    assert prepare("kftt", "en-ja", tmp_path, tmp_path / "out", "--unchecked") == 0
    text = tmp_path / "out" / "text"
    assert len(read(text / "train.ja")) == 30 and read(text / "test.ja")[3] == "京都 の 古い 寺 3 。"
    assert read(text / "test.raw.ja")[3] == "京都の古い寺3。" and not (text / "test.raw.en").exists()
    assert json.loads((tmp_path / "out" / "data.json").read_text())["tokenised"]
    kftt(tmp_path, (30, 3, 4, 5))
    assert prepare("kftt", "en-ja", tmp_path, tmp_path / "out", "--unchecked") == 1
    assert "got {'ja': 4, 'untokenised': 5}" in capsys.readouterr().err
    assert prepare("kftt", "en-ja", tmp_path, tmp_path / "out") == 1  # the sizes of the real corpus
    assert "kyoto-train.cln.en: wanted 329882 sentences, got 30" in capsys.readouterr().err


def test_fewer_pieces_than_characters_is_said_in_one_line(tmp_path, capsys):
    kftt(tmp_path)
    assert prepare("kftt", "ja-en", tmp_path, tmp_path / "out", "--unchecked", "--pieces", 20) == 1
    message = capsys.readouterr().err
    assert message.startswith("prepare_translation: --pieces 20: ") and message.count("\n") == 1


def test_a_last_line_needs_no_end_of_line(tmp_path):
    for text, lines in (("a\nb", ["a", "b"]), ("a\nb\n", ["a", "b"]), ("a\n\n", ["a", ""]), ("", []), ("a", ["a"])):
        (tmp_path / "text").write_text(text)
        assert raw_text.read_lines(tmp_path / "text") == lines
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfa\n")  # a byte order mark
    assert raw_text.read_lines(tmp_path / "text") == ["a"]
    (tmp_path / "text").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="text: wanted UTF-8"):
        raw_text.read_lines(tmp_path / "text")


def test_tools_that_scores_need_are_asked_for_at_once(tmp_path, monkeypatch, capsys):
    (tmp_path / "data.json").write_text(json.dumps({"pair": "en-ja", "tokenised": True}))

    def no_tokeniser(*args, **options):
        raise RuntimeError("Please install the latest version of mecab-python3")

    monkeypatch.setattr("sacrebleu.metrics.BLEU", no_tokeniser)
    assert score_translation.main(["--data", str(tmp_path)]) == 1
    assert (
        capsys.readouterr().err == "score_translation: sacrebleu: Please install the latest version of mecab-python3\n"
    )


def test_formats_of_iwslt_and_wmt():
    xml = '<doc docid="1">\n<title>no</title>\n<seg id="1"> R&amp;D isn&apos;t it </seg>\n<seg id="2">two\n lines</seg>'
    assert prepare_translation.extract("a.xml", xml) == [" R&D isn't it ", "two\n lines"]
    assert prepare_translation.extract("a.en.sgm", xml) == prepare_translation.extract("a.xml", xml)
    tags = "<url>x</url>\n Hello.\n<title>no</title>\n2 &lt; 3\n"
    assert prepare_translation.extract("train.tags.de-en.en", tags) == [" Hello.", "2 < 3"]
    assert prepare_translation.extract("train.en", "a\u2028b\n\nc\n") == ["a\u2028b", "", "c"]


def test_training_pairs_with_an_empty_side_are_left_out_and_test_pairs_kept(tmp_path, capsys):
    for name, count in SIZES.items():
        for language in WORDS:
            lines = sentences(count, language)
            lines[2 if language == "de" else 3] = " "
            write(tmp_path / "raw" / f"{name}.{language}", lines)
    assert prepare("multi30k", "de-en", tmp_path / "raw", tmp_path / "out", "--unchecked") == 0
    assert "58 training pairs; 2 with an empty side left out" in capsys.readouterr().out
    assert len(read(tmp_path / "out" / "pieces" / "train.en")) == 58
    test = read(tmp_path / "out" / "text" / "test.de")
    assert test[2] == "" and len(test) == 5


# --- Romanian -------------------------------------------------------------------------------------------------------


def test_case_69_cedilla_and_comma_below_are_one_letter():
    assert CEDILLA != COMMA and prepare_translation.normalise(CEDILLA, "ro") == COMMA
    assert prepare_translation.normalise(COMMA, "ro") == COMMA
    assert prepare_translation.normalise("s\u0327t\u0326", "ro") == "șț"  # combining marks
    assert prepare_translation.normalise(CEDILLA, "en") == CEDILLA
    assert prepare_translation.remove_diacritics(CEDILLA) == "Stiinta si viata in padure, A"
    assert prepare_translation.remove_diacritics("é ß") == "é ß"


@pytest.mark.parametrize("pair", ["ro-en", "en-ro"])
def test_case_69_models_see_no_diacritics_and_references_keep_them(pair, tmp_path):
    corpus = CORPORA["wmt16"]
    for template in prepare_translation.templates(corpus):
        for language in pair.split("-"):
            line = CEDILLA if language == "ro" else "Science and life in the forest"
            name = prepare_translation.file_name(template, language)
            text = [f'<seg id="1">{line}</seg>'] * 3 if name.endswith(".sgm") else [line] * 3
            write(tmp_path / "raw" / name, text)
    assert (
        prepare("wmt16", pair, tmp_path / "raw", tmp_path, "--unchecked", "--separate", "--diacritics", "remove") == 0
    )
    assert read(tmp_path / "text" / "test.ro")[0] == COMMA and len(read(tmp_path / "text" / "train.ro")) == 6
    seen = "".join(read(tmp_path / "pieces" / "test.ro")[0].split(" ")).replace("\u2581", " ")
    assert seen.strip() == "Stiinta si viata in padure, A"
    assert read(tmp_path / "dict.ro.txt") != read(tmp_path / "dict.en.txt")
    assert json.loads((tmp_path / "data.json").read_text())["diacritics"] == "remove"


def romanian(folder, diacritics):
    write(folder / "text" / "test.ro", ["Știința și viața în pădure se află aici"] * 2)
    return {"pair": "en-ro", "tokenised": False, "diacritics": diacritics}


def test_case_69_both_scores_are_reported_where_romanian_is_the_target(tmp_path):
    facts = romanian(tmp_path, "remove")
    scores = score_translation.all_bleu(tmp_path, facts, ["Stiinta si viata in padure se afla aici"] * 2, False)
    assert scores["bleu"] < 50 and scores["bleu_without_diacritics"] == pytest.approx(100)
    cedilla = ["Ştiinţa şi viaţa în pădure se află aici"] * 2
    scores = score_translation.all_bleu(tmp_path, facts, cedilla, False)
    assert scores["bleu_without_diacritics"] == pytest.approx(100)


# --- pieces and dictionary ------------------------------------------------------------------------------------------


def binary(folder, symbols, language="de"):
    write(folder / "data-bin" / f"dict.{language}.txt", [f"{symbol} 1" for symbol in symbols])


def test_pieces_come_back_as_text_and_dictionaries_hold_all_of_them(prepared):
    pieces = set(prepare_translation.dictionary_symbols(prepared / "dict.de.txt"))
    assert read(prepared / "dict.de.txt") == read(prepared / "dict.en.txt")
    assert not pieces & {"<unk>", "<s>", "</s>", "<pad>"}
    for part in ("train", "valid", "test"):
        for language in WORDS:
            lines = read(prepared / "pieces" / f"{part}.{language}")
            assert set(" ".join(lines).split(" ")) <= pieces
            plain = ["".join(line.split(" ")).replace("\u2581", " ").strip() for line in lines]
            assert plain == read(prepared / "text" / f"{part}.{language}")


def test_joint_pieces_can_have_a_dictionary_for_each_language(multi30k, prepared, tmp_path):
    """As in the paper, whose target vocabulary is smaller than its pieces."""
    assert prepare("multi30k", "de-en", multi30k, tmp_path, "--unchecked", "--own-dictionaries") == 0
    joint = prepare_translation.dictionary_symbols(prepared / "dict.de.txt")
    for language in WORDS:
        own = prepare_translation.dictionary_symbols(tmp_path / f"dict.{language}.txt")
        lines = read(tmp_path / "pieces" / f"train.{language}")
        assert lines == read(prepared / "pieces" / f"train.{language}")
        assert set(own) == set(" ".join(lines).split(" ")) < set(joint)
        binary(tmp_path, own, language)
    check = ["--corpus", "multi30k", "--pair", "de-en", "--out", str(tmp_path), "--check-dictionary"]
    assert prepare_translation.main(check) == 0


def test_case_71_the_dictionary_of_another_segmentation_is_refused(prepared, capsys):
    own = prepare_translation.dictionary_symbols(prepared / "dict.de.txt")
    check = ["--corpus", "multi30k", "--pair", "de-de", "--out", str(prepared), "--check-dictionary"]
    binary(prepared, own)
    assert prepare_translation.main(check) == 0 and "0.000 %" in capsys.readouterr().out
    for symbols in (own[:-1], [*own[:-2], "x", "y"], [*own, "madeupword0000"], ["a", "b", "c"]):
        binary(prepared, symbols)
        assert prepare_translation.main(check) == 1
        message = capsys.readouterr().err
        assert f"({len(own)} pieces), got {len(symbols)} symbols" in message and "would be unknown" in message


# --- scores ---------------------------------------------------------------------------------------------------------

REFERENCES = ["The dog isn't here, it's over there.", "He said: \u201cNo, 3.5% more!\u201d", "A man runs."]
OUTPUTS = ["The dog isn't there, it's over here.", "He said: \u201cNo, 3.5% more!\u201d", "A man walks quickly."]


def test_case_54_the_score_is_that_of_the_sacrebleu_command_with_its_signature(tmp_path):
    write(tmp_path / "ref", REFERENCES)
    write(tmp_path / "out", OUTPUTS)
    score = score_translation.sacrebleu_score(OUTPUTS, REFERENCES, "en")
    command = [sys.executable, "-m", "sacrebleu", tmp_path / "ref", "-i", tmp_path / "out", "-m", "bleu", "-w", "6"]
    fixed = ["--tokenize", "13a", "--smooth-method", "exp"]
    told = json.loads(subprocess.run([*map(str, command), *fixed], capture_output=True, text=True, check=True).stdout)
    assert score.bleu == pytest.approx(told["score"], abs=1e-6)
    assert score.signature == told["signature"]
    for part in ("nrefs:1", "case:mixed", "eff:no", "tok:13a", "smooth:exp", "version:"):
        assert part in score.signature


def test_case_54_arguments_reach_sacrebleu():
    assert (
        score_translation.sacrebleu_score(["THE dog runs very fast"], ["the dog runs very fast"], "en").bleu < 100
    )  # mixed case
    assert "tok:none" in score_translation.tokenised_score(OUTPUTS, REFERENCES).signature
    assert score_translation.tokenised_score(["a b c x"], ["a b c d"]).bleu == 0  # no smoothing


def test_case_70_one_file_by_both_routes(tmp_path):
    """The text as tokens scores otherwise than the text, so the two must never share a column."""
    apart = [[text.replace(",", " ,").replace(".", " .").replace("'", " '") for text in side]
             for side in (OUTPUTS, REFERENCES)]  # fmt: skip
    plain = score_translation.sacrebleu_score(OUTPUTS, REFERENCES, "en")
    tokens = score_translation.tokenised_score(*apart)
    untouched = score_translation.tokenised_score(OUTPUTS, REFERENCES)
    assert len({round(score.bleu, 3) for score in (plain, tokens, untouched)}) == 3

    # Of a corpus that is tokenised, both come from one file: tokens as they are, and text against the raw references.
    write(tmp_path / "text" / "test.ja", ["京都 は 古い 都 で ある 。"])
    write(tmp_path / "text" / "test.raw.ja", ["京都は古い都である。"])
    facts = {"pair": "en-ja", "tokenised": True, "diacritics": None}
    score_translation_tokenisers = dict(score_translation.TOKENISERS)
    try:
        score_translation.TOKENISERS["ja"] = "char"  # MeCab need not be installed
        scores = score_translation.all_bleu(tmp_path, facts, ["京都 は 古い 都 です 。"], False)
    finally:
        score_translation.TOKENISERS.update(score_translation_tokenisers)
    words = math.exp(sum(map(math.log, (5 / 6, 3 / 5, 2 / 4, 1 / 3))) / 4) * math.exp(1 - 7 / 6)
    assert scores["tokenised_bleu"] == pytest.approx(100 * words) and scores["tokens"] == "of the corpus"
    assert score_translation.detokenise(["京都 は 古い 。"], "ja") == ["京都は古い。"]
    assert "tok:char" in scores["signature"] and scores["bleu"] != scores["tokenised_bleu"]


def test_case_70_moses_tokens_keep_apostrophes_and_have_no_entities():
    pytest.importorskip("sacremoses")
    tokenise, detokenise = score_translation.moses("en")
    assert tokenise("The dog isn't here & there.") == "The dog isn 't here & there ."
    assert detokenise("The dog isn 't here & there .") == "The dog isn't here & there."


def test_case_70_without_sacremoses_the_message_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(ValueError, match="pip install sacremoses"):
        score_translation.moses("en")


LOG = """some line of fairseq
epoch 001 | valid on 'valid' subset | loss 2.5 | token_accuracy 50 | support 40 | gold_outside 3 | num_updates 10
epoch 001 | loss 3.1 | token_accuracy 40 | wps 700 | wpb 300 | num_updates 10 | lr 0.002 | train_wall 6 | wall 10
epoch 002:      5 / 10 loss=2, token_accuracy=3, num_updates=15, train_wall=2, wall=12
epoch 002:      5 / 10 loss=2, token_accuracy=3, num_updates=15, train_wall=2, wall=3
epoch 002 | valid on 'valid' subset | loss 2.1 | token_accuracy 55 | support 30 | gold_outside 2 | num_updates 15
epoch 002 | valid on 'valid' subset | loss 2.2 | token_accuracy 57 | support 20 | gold_outside 1 | num_updates 20
epoch 002 | valid on 'valid' subset | loss 2.2 | token_accuracy 57 | support 20 | gold_outside 1 | num_updates 20
epoch 002 | loss 2.4 | token_accuracy 45 | wps 700 | wpb 360 | num_updates 20 | lr 0.001 | train_wall 4 | wall 9
"""


def test_training_figures_come_from_the_log_and_count_once():
    found = score_translation.training(LOG)
    assert (found["epochs"], found["updates"], found["seconds"]) == (2, 20, 12 + 9)
    assert found["target_tokens_per_second"] == pytest.approx((300 * 10 + 360 * 10) / (6 + 4))
    assert [step["num_updates"] for step in found["curve"]] == [10, 15, 20] and found["best"]["loss"] == 2.1
    assert [step["train_seconds"] for step in found["curve"]] == [6, None, 10]
    with pytest.raises(ValueError, match="at least one epoch"):
        score_translation.training("nothing\n")


def record(number, support=(2, 4), attention=((0, 1),), **changes):
    best = {"support": list(support), "attention": [[[place, 0.5] for place in attention[0]]] * len(support)}
    claim = {"certificate": "optimal", "reason": "", "mass": 0.5, "strings": 2, "decoder_rows": 7, "hypotheses": [best]}
    return {"id": number, **claim, **changes}


def decoded(folder, data, order, records=None):
    """A run whose outputs are the references of the prepared data, in some order."""
    references = read(data / "text" / "test.en")
    lines = [f"D-{number}\t-0.1\t{references[number]}" for number in order if number < len(references)]
    write(folder / "generate-test.txt", lines)
    chosen = records or [record(number) for number in reversed(order)]
    write(folder / "certificates-test.jsonl", map(json.dumps, chosen))
    write(folder / "train.log", LOG.split("\n"))
    return ["--data", str(data), "--run", str(folder)]


def test_case_73_outputs_are_put_in_order_and_scored(prepared, tmp_path, capsys):
    special = record(3, (6, 6), certificate="none", reason="beam")
    arguments = decoded(tmp_path, prepared, [4, 0, 2, 1, 3], [*map(record, (2, 0, 4, 1)), special])
    assert score_translation.main(arguments) == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["bleu"] == pytest.approx(100) and scores["sentences"] == 5
    assert read(tmp_path / "hypotheses.test.txt") == read(prepared / "text" / "test.en")
    assert scores["nonzeros"]["output"] == pytest.approx((4 * 6 + 12) / 10) and scores["nonzeros"]["attention"] == 2
    lengths = [len(line.split()) + 1 for line in read(prepared / "pieces" / "test.de")]
    assert scores["nonzeros"]["source"] == pytest.approx(sum(lengths) / 5)
    claims = scores["certificates"]
    assert (claims["optimal"], claims["none"], claims["complete"]) == (80, 20, 0) and claims["reasons"] == {"beam": 1}
    assert f"of {len(read(prepared / 'dict.en.txt')) + 4}, attention 2.00" in capsys.readouterr().out


@pytest.mark.parametrize("order", [[4, 0, 2, 1], [0, 1, 2, 3, 3]], ids=["missing", "twice"])
def test_case_73_a_missing_sentence_stops_the_scoring(order, prepared, tmp_path, capsys):
    records = [record(number) for number in range(5)]
    assert score_translation.main(decoded(tmp_path, prepared, order, records)) == 1
    assert "wanted 5 outputs" in capsys.readouterr().err and not (tmp_path / "scores.json").exists()


def test_case_73_counts_are_compared_in_every_score():
    with pytest.raises(ValueError, match="one for each of 3 references, got 2"):
        score_translation.tokenised_score(OUTPUTS[:2], REFERENCES)


# --- tables and pictures --------------------------------------------------------------------------------------------


def result(attention, output, bleu, sweep=0, **scores):
    found = {
        "bleu": bleu,
        "signature": "nrefs:1|tok:13a",
        "vocabulary": 7997,
        "training": score_translation.training(LOG),
    }
    found["nonzeros"] = {"output": 7.25, "attention": 3.5, "source": 15.0}
    found["certificates"] = {"complete": 1.0, "optimal": 61.0, "none": 38.0, "mass": 0.25, "decoder_rows": 40.0}
    settings = {"pair": "de-en", "attention_alpha": attention, "output_alpha": output, "sweep": sweep}
    settings["training"] = "--max-epoch 20"
    about = {"recipe": "multi30k", "name": f"{attention}-{output}-{sweep}", "seed": 1, "seconds": 90, "date": "d"}
    about.update(versions={"torch": "2"}, command="bash DATA OUT", machine="m")
    return {**about, "settings": settings, "scores": {**found, **scores}}


def test_tables_hold_the_figures_of_the_files():
    assert tables_translation.section([]) == ""
    found = [result(1, 1, 30.125), result(1.5, 1.5, 31.5, tokenised_bleu=33.0)]
    speed = {
        "1/1": {"target_tokens_per_second": 900.4, "time": 1},
        "1.5/1.3": {"target_tokens_per_second": 1200, "time": 0.8},
    }
    found.append(
        {**result(1, 1, 0), "settings": {"pair": "de-en", "speed": 1}, "scores": {"speed": speed, "batches": 20}}
    )
    found += [result(1.25, 1.5, 20.5, 1), result(1.5, 1.5, 21.25, 1), result(1.5, 2, 22.0, 1)]
    text = tables_translation.section(found)
    assert "### Multi30k, a small stand-in: de to en" in text
    assert "| 1.5-entmax | 1.5-entmax | 1 | 31.50 | 33.00 | 2 of 2 | 660 | 2 |" in text
    assert "| softmax | softmax | 1 | 30.12 |  | 2 of 2 | 660 | 2 |" in text
    assert "| softmax | softmax | 7.25 | 30.00 | 7997 | 3.50 | 15.00 | 62.0 | 1.0 | 0.250 | 40.0 |" in text
    assert "| softmax | softmax | 900 | 1.00 |" in text and "| 1.5-entmax | 1.3-entmax | 1200 | 0.80 |" in text
    assert "| attention \\ output | 1.5 | 2 |" in text
    assert "| 1.25 | 20.50 |  |" in text and "| 1.5 | 21.25 | 22.00 |" in text


def test_differences_to_softmax_stand_beside_the_scores():
    paired = {"paired": {"1.5/1.5": {"difference": 1.375, "p": 0.002}}, "baseline": "1/1"}
    found = [result(1, 1, 30.125, bleu_interval=1.5), result(1.5, 1.5, 31.5)]
    about = {"settings": {"pair": "de-en", "paired": 1}, "scores": paired}
    text = tables_translation.section([*found, {**result(1, 1, 0), **about}])
    assert "| attention | output | seed | sacreBLEU | to softmax (p) | epochs |" in text
    assert "| softmax | softmax | 1 | 30.12 ± 1.50 |  |" in text
    assert "| 1.5-entmax | 1.5-entmax | 1 | 31.50 | +1.38 (0.002) |" in text
    assert "+1.38" not in tables_translation.section([*found, {**result(1, 1, 0), **about, "seed": 2}])


def test_paired_differences_are_those_of_sacrebleu(prepared, tmp_path, capsys):
    references = read(prepared / "text" / "test.en")
    shortened = [line.rsplit(" ", 2)[0] for line in references]
    for name, lines in (("base", shortened), ("same", shortened), ("right", references)):
        write(tmp_path / name / "hypotheses.test.txt", lines)
    options = [f"--system={name}={tmp_path / name}" for name in ("base", "same", "right")]
    out = tmp_path / "paired.json"
    assert pair_translation.main(["--data", str(prepared), "--out", str(out), *options]) == 0
    found = json.loads(out.read_text())
    assert found["baseline"] == "base" and found["paired"]["same"]["difference"] == 0
    bleu = score_translation.sacrebleu_score(shortened, references, "en").bleu
    assert found["paired"]["right"]["difference"] == pytest.approx(100 - bleu)
    assert found["paired"]["right"]["p"] < 0.05 < found["paired"]["same"]["p"]
    write(tmp_path / "right" / "hypotheses.test.txt", references[:-1])
    assert pair_translation.main(["--data", str(prepared), "--out", str(out), *options]) == 1
    assert "wanted one for each of 5 references, got 4" in capsys.readouterr().err


def test_other_trainings_and_sizes_have_tables_of_their_own():
    found = [result(1, 1, 30), result(1.5, 1.5, 31), result(2, 2, 32), result(1, 1, 9)]
    found[0]["settings"]["training"] = "--lr 0.1 --max-epoch 10"
    found[1]["settings"]["training"] = found[2]["settings"]["training"] = "--lr 0.1 --max-epoch 20 --sentence-avg"
    found[3]["settings"]["size"] = "quick"
    text = tables_translation.section(found)
    first, second = (
        text.index("Trained with `--max-epoch 10`:"),
        text.index("Trained with `--max-epoch 20 --sentence-avg`:"),
    )
    assert first < text.index("| 30.00 |") < second < text.index("| 31.00 |") < text.index("| 32.00 |")
    assert text.index("| 32.00 |") < text.index("### Multi30k, a small stand-in, quick model") < text.index("| 9.00 |")
    assert "Trained with" not in tables_translation.section(found[1:3])


def test_pictures_are_drawn_from_result_files(tmp_path, capsys):
    for item in [result(1, 1, 30), result(1.5, 1.5, 20, 1), result(1, 1.5, 19, 1), result(1.5, 1, 18, 1)]:
        (tmp_path / f"{item['name']}.json").write_text(json.dumps(item))
    found = plot_translation.of_pair(results.read(tmp_path), "multi30k", "de-en", sweep=True)
    assert plot_translation.line_of(found, "attention_alpha", "output_alpha") == [(1, 19), (1.5, 20)]
    given = ["--results", tmp_path, "--recipe", "multi30k", "--pair", "de-en", "--out", tmp_path / "out"]
    assert plot_translation.main(list(map(str, given))) == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"alpha-sweep-multi30k-de-en.png", "training-multi30k-de-en.png"}


# --- the scripts ----------------------------------------------------------------------------------------------------

RECIPES = ("multi30k", "iwslt_de_en", "kftt_ja_en", "wmt16_ro_en")
# Only what reads the arguments of the recipe runs; data and scores are made up.
CASES = """*pair_translation.py*) echo "pair $*" >>"$CALLS"; echo '{"paired": {}}' >"$5" ;;
  *prepare_translation.py*) echo "prepare $*" >>"$CALLS" ;;
  *score_translation.py*) echo "score $*" >>"$CALLS"; [[ $4 != --run ]] || cp "$CALLS.json" "$5/scores.json" ;;"""


@pytest.fixture
def recipe(tmp_path):
    """Runs a recipe; instead of fairseq, the data step and the scoring there are notes of their arguments."""
    return recipe_runs.noted(tmp_path, result(1, 1, 30.0)["scores"], CASES)


@pytest.mark.parametrize("name", RECIPES)
def test_case_53_the_schedule_is_ours_and_minimises(name, recipe):
    done, calls = recipe(name, "--alpha", 1.5)
    assert done.returncode == 0, done.stdout + done.stderr
    train = next(call for call in calls if call.startswith("fairseq-train"))
    assert value(train, "--lr-scheduler") == "plateau" and value(train, "--lr-shrink") == "0.5"
    assert value(train, "--best-checkpoint-metric") == "loss" and "--maximize" not in train
    assert value(train, "--dropout") == "0.3" and value(train, "--batch-size") == "64"
    units = ("256", "128") if name == "multi30k" else ("500", "250")
    assert (value(train, "--decoder-hidden-size"), value(train, "--encoder-hidden-size")) == units
    steps = {"iwslt_de_en": ("5000", "120000"), "kftt_ja_en": ("10000", "100000"), "wmt16_ro_en": ("10000", "120000")}
    paper = ("--sentence-avg", "--encoder-dropout-in 0", "--encoder-memory-dropout 0", "--lr-against previous")
    assert [option in train for option in paper] == [name in steps] * len(paper)
    if name in steps:
        assert (value(train, "--validate-interval-updates"), value(train, "--max-update")) == steps[name]
        assert value(train, "--lr") == "0.001"
    prepare = next(call for call in calls if call.startswith("prepare"))
    pieces = {"multi30k": "8000", "wmt16_ro_en": "25000"}.get(name, "32000")
    assert value(prepare, "--pieces") == pieces and ("--separate" in prepare) == (name == "wmt16_ro_en")
    preprocess = next(call for call in calls if call.startswith("fairseq-preprocess"))
    assert ("--joined-dictionary" in preprocess) != ("--tgtdict" in preprocess) == (name != "multi30k")
    scored = [call for call in calls if call.startswith("score")]  # the first one only looks if all tools are there
    assert ["--run" in call for call in scored] == [False, True]
    assert ["--tokenised" in call for call in scored] == [name != "multi30k"] * 2


def test_alphas_become_mappings_and_criterions(recipe):
    done, calls = recipe("multi30k", "--pair", "en-fr", "--attention-alpha", 1.3, "--output-alpha", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    train = next(call for call in calls if call.startswith("fairseq-train"))
    assert (value(train, "--attention-mapping"), value(train, "--attention-alpha")) == ("entmax", "1.3")
    assert (value(train, "--criterion"), value(train, "--entmax-alpha")) == ("entmax", "1")
    done, calls = recipe("multi30k", "--pair", "en-fr")
    trained = [call for call in calls if call.startswith("fairseq-train")]
    found = [(value(call, "--attention-mapping"), value(call, "--criterion")) for call in trained]
    assert found == [("entmax15", "entmax15"), ("softmax", "entmax"), ("sparsemax", "sparsemax")]
    generate = next(call for call in calls if call.startswith("fairseq-generate"))
    assert value(generate, "--beam") == "5" and "--unnormalized" in generate and "--certificate-attention" in generate
    files = results.read(recipe.out / "results")
    assert [item["settings"]["attention_alpha"] for item in files] == [1, 1.3, 1.5, 2]
    assert files[1]["command"].startswith("bash user_dir_examples/multi30k.sh --data DATA --out OUT --pair en-fr")


@pytest.mark.parametrize("name, pieces", [("multi30k", "200"), ("kftt_ja_en", "4000")])
def test_quick_models_have_pieces_for_all_characters(name, pieces, recipe):
    done, calls = recipe(name, "--alpha", 1.5, "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert value(calls[0], "--pieces") == pieces and value(calls[0], "--limit") == "200"


def test_the_sweep_varies_one_alpha_at_a_time(recipe):
    done, calls = recipe("multi30k", "--sweep", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    settings = [item["settings"] for item in results.read(recipe.out / "results")]
    pairs = {(item["attention_alpha"], item["output_alpha"]) for item in settings}
    assert pairs == {(1, 1.5), (1.5, 1), (1.5, 1.5)} and all(item["sweep"] == 1 for item in settings)
    trained = [call for call in calls if call.startswith("fairseq-train")]
    assert [value(call, "--max-epoch") for call in trained] == ["1"] * 3
    assert (recipe.out / "alpha-sweep-multi30k-de-en.png").is_file()


def test_it_goes_on_where_it_stopped_and_replaces_only_by_force(recipe):
    Path(f"{recipe.calls}.broken").touch()
    done, _ = recipe("multi30k", "--alpha", 1.5)
    assert done.returncode == 1 and "error: preprocessing failed" in done.stderr
    Path(f"{recipe.calls}.broken").unlink()
    done, calls = recipe("multi30k", "--alpha", 1.5)
    assert done.returncode == 0 and "data: done before" in done.stdout and len(calls) == 6
    (path,) = (recipe.out / "results").rglob("*.json")
    path.write_text(path.read_text().replace('"seed": 1', '"seed": 7'))
    done, calls = recipe("multi30k", "--alpha", 1.5)
    assert done.returncode == 0 and calls == [] and '"seed": 7' in path.read_text()
    done, calls = recipe("multi30k", "--alpha", 1.5, "--force")
    assert done.returncode == 0 and len(calls) == 3 and '"seed": 1' in path.read_text()
    done, calls = recipe("multi30k", "--alpha", 1.5, "--epochs", 20)
    assert done.returncode == 1 and "take another --out, or --force" in done.stderr and calls == []
    done, calls = recipe("multi30k", "--alpha", 1.5, "--quick")
    assert done.returncode == 1 and "take another --out\n" in done.stderr and calls == []


def test_a_model_that_was_trained_again_does_not_keep_its_old_result(recipe):
    assert recipe("multi30k", "--alpha", 1.5)[0].returncode == 0
    scores = Path(f"{recipe.calls}.json")
    scores.write_text(json.dumps({**json.loads(scores.read_text()), "epochs": 99}))
    shutil.rmtree(recipe.out / "de-en" / "de-en-attention-1.5-output-1.5-seed-1")
    done, calls = recipe("multi30k", "--alpha", 1.5)
    assert len(calls) == 3 and done.returncode == 1 and "there is a result already; wanted --force" in done.stderr


def test_outputs_are_compared_with_those_of_softmax_when_they_are_new(recipe):
    def outputs(alpha, text):
        folder = recipe.out / "de-en" / f"de-en-attention-{alpha}-output-{alpha}-seed-1"
        write(folder / "hypotheses.test.txt", [text])
        return f"--system {alpha}/{alpha}={folder}"

    def compared():
        done, calls = recipe("multi30k", "--alpha", 2)
        assert done.returncode == 0, done.stdout + done.stderr
        return [call[call.index("--system") :] for call in calls if call.startswith("pair")]

    sparse = outputs(2, "a")
    assert compared() == []  # no softmax
    softmax = outputs(1, "b")
    assert compared() == [f"{softmax} {sparse}"] and compared() == []
    assert (recipe.out / "results" / "multi30k" / "de-en-paired-seed-1.json").is_file()
    outputs(2, "c")
    assert compared() == [f"{softmax} {sparse}"]


def test_the_data_of_another_folder_needs_another_out(recipe, tmp_path):
    assert recipe("multi30k", "--alpha", 1.5)[0].returncode == 0
    (tmp_path / "other").mkdir()
    done, calls = recipe("multi30k", "--alpha", 1.5, data=tmp_path / "other")
    assert recipe_runs.refuses(f"{tmp_path / 'other'}: what is in {recipe.out / 'de-en'} was made of", done)
    assert calls == [] and recipe("multi30k", "--alpha", 1.5)[0].returncode == 0


def test_times_of_other_models_are_not_taken_for_these(recipe):
    checkpoints = []
    for alpha in (1, 1.5, 2):
        assert recipe("multi30k", "--alpha", alpha)[0].returncode == 0
        path = recipe.out / "de-en" / f"de-en-attention-{alpha}-output-{alpha}-seed-1" / "checkpoints"
        checkpoints.append(path / "checkpoint_best.pt")
    result_file = recipe.out / "results" / "multi30k" / "de-en-speed-seed-1.json"
    for path in checkpoints[:2]:
        path.touch()
    result_file.write_text("{}")
    models = " ".join(f"--model {name}={path}" for name, path in zip(("1/1", "1.5/1.5"), checkpoints))
    (recipe.out / "de-en" / ".de-en-speed-seed-1.models").write_text(models + "\n")
    done, _ = recipe("multi30k", "--speed")
    assert done.returncode == 0 and "de-en-speed-seed-1: done before" in done.stdout
    checkpoints[2].touch()
    done, _ = recipe("multi30k", "--speed")
    assert recipe_runs.refuses(f"{result_file}: of other models; --force replaces it", done)


@pytest.mark.parametrize(
    "options, says",
    [
        (["--fast"], "unknown option --fast"),
        (["--out"], "--out: wanted a value, got none"),
        (["--data", "nowhere"], "--data nowhere: no such folder"),
        (["--pair", "de-fr"], "--pair: wanted one of de-en en-de fr-en en-fr, got de-fr"),
        (["--pair", "de-en en-de"], "--pair: wanted one of de-en en-de fr-en en-fr, got de-en en-de"),
        (["--output-alpha", "0.5"], "--output-alpha: wanted a number of 1 or more, got 0.5"),
        (["--seed", "x"], "--seed: wanted a whole number of 0 or more, got x"),
        (["--seed", "01"], "--seed: wanted a number without a zero before it, got 01"),
        (["--epochs", "0"], "--epochs: wanted a whole number of 1 or more, got 0"),
        (["--sweep", "--alpha", "2"], "--sweep, --speed: wanted no alpha with them, got 2"),
        (["--sweep", "--speed"], "--sweep, --speed: wanted one of them, got both"),
    ],
)
def test_mistakes_are_one_line(options, says, recipe):
    done, calls = recipe("multi30k", *options)
    assert recipe_runs.refuses(says, done) and calls == []


@pytest.mark.parametrize("name", RECIPES)
def test_help_names_the_data_and_changes_nothing(name, recipe):
    done, calls = recipe(name, "--help")
    assert done.returncode == 0 and calls == [] and not recipe.out.exists()
    assert "--data DIR" in done.stdout and "(1 1.25 1.5 1.75 2)" in done.stdout


@pytest.mark.usefixtures("warm_recipes")
def test_the_recipe_with_fairseq_itself(multi30k, tmp_path):
    out = tmp_path / "a run"

    def recipe(*options):
        return recipe_runs.run("multi30k", "--data", multi30k, "--out", out, "--quick", *options)

    done = recipe("--unchecked", "--alpha", 1.5)
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("valid on 'valid' subset", "Certificates: 5 sentences", "sacreBLEU", "finished"):
        assert word in done.stdout
    (found,) = results.read(out / "results")
    assert found["scores"]["sentences"] == 5 and found["scores"]["training"]["epochs"] == 2
    assert 1 <= found["scores"]["nonzeros"]["attention"] <= found["scores"]["nonzeros"]["source"]

    done = recipe("--alpha", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    done = recipe("--speed")
    assert done.returncode == 0 and "target tokens a second, 1.00 x the time" in done.stdout, done.stdout + done.stderr
    speed = {item["name"]: item for item in results.read(out / "results")}["de-en-speed-seed-1"]["scores"]["speed"]
    assert list(speed) == ["1/1", "1.5/1.5"] and speed["1/1"]["time"] == 1 and speed["1.5/1.5"]["time"] > 0
