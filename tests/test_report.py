"""`python -m fairseq_entmax report`: reading records, figures, trees, words, the files written, mistakes."""

import ast
import html
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from report_records import ARABIC, HOSTILE, drawing, hypothesis, record, write

import fairseq_entmax
from fairseq_entmax.__main__ import main
from fairseq_entmax.report import build_report
from fairseq_entmax.report.details import make_detail
from fairseq_entmax.report.figures import Figures, class_name, class_of, histogram, make_row
from fairseq_entmax.report.reading import read_lines, read_references, source_symbols
from fairseq_entmax.report.tree import build_tree, outputs_of
from fairseq_entmax.report.words import explain, percent, short, visible

PACKAGE = Path(fairseq_entmax.__file__).resolve().parent

# ---------------------------------------------------------------- reading


def spoil(path, value):
    """A valid record with one field changed: `path` leads to it."""
    made = drawing()
    place = made
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(made)


@pytest.mark.parametrize(
    "line, says",
    [
        ("{", "wanted a JSON object"),
        ("[1]", "wanted an object, got [1]"),
        (spoil(["id"], None), "id is missing"),
        (spoil(["id"], True), "id: wanted an integer, got True"),
        (spoil(["certificate"], "exact"), "certificate: wanted one of complete, optimal, none, got 'exact'"),
        (spoil(["mass"], "1"), "mass: wanted a number, got '1'"),
        (spoil(["hypotheses"], []), "hypotheses: wanted a list with at least one hypothesis, got []"),
        (spoil(["hypotheses", 1, "tokens"], "d r"), "hypothesis 1: tokens: wanted a list of symbols"),
        (spoil(["hypotheses", 0, "support"], [1.5]), "hypothesis 0: support: wanted a list of integers"),
        (spoil(["hypotheses", 0, "attention", 1], [[1]]), "hypothesis 0: attention: wanted for each step"),
        (spoil(["hypotheses", 0, "attention", 1], [[-1, 0.5]]), "hypothesis 0: attention: wanted for each step"),
        (spoil(["hypotheses", 0, "candidates", 1], [[1, 0.5]]), "hypothesis 0: candidates: wanted for each step"),
    ],
)
def test_a_malformed_line_is_named_with_its_number(line, says, tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps(drawing()) + "\n\n" + line + "\n")
    with pytest.raises(ValueError) as error:
        list(read_lines(str(path)))
    assert str(error.value).startswith(f"{path}, line 3: ") and says in str(error.value)


def test_an_interrupted_file_and_one_of_other_bytes_are_told_apart(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps(drawing()) + "\n" + '{"id": 2, "sour')
    with pytest.raises(ValueError, match="line 2: .*the last line is cut off: was decoding interrupted"):
        list(read_lines(str(path)))
    path.write_bytes(b'{"id": "\xff"}\n')
    with pytest.raises(ValueError, match="line 1: wanted UTF-8 text"):
        list(read_lines(str(path)))


def test_records_are_streamed(tmp_path):
    """The first record comes before a later line is looked at."""
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps(drawing(5)) + "\nnot json\n")
    assert next(read_lines(str(path))).record["id"] == 5


def test_a_byte_order_mark_is_no_mistake(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps(drawing(5)) + "\n", encoding="utf-8-sig")
    assert next(read_lines(str(path))).record["id"] == 5
    build_report(str(path), str(tmp_path / "out"))


@pytest.mark.parametrize(
    "change, symbols",
    [
        ({}, ["d", "r", "</s>"]),
        ({"source_tokens": ["d@@", "r", "</s>"]}, ["d@@", "r", "</s>"]),
        ({"source": "d"}, None),
    ],
    ids=["from the line", "recorded", "attention beyond the line"],
)
def test_source_symbols_are_known_or_said_to_be_unknown(change, symbols):
    assert source_symbols({**drawing(), **change}) == symbols


def test_joined_subwords_give_no_wrong_labels():
    """After --post-process the words of the source line are not the positions."""
    joined = record(0, "new word", [{**hypothesis("a@@ b", 1.0), "text": "ab"}])
    assert source_symbols(joined) is None


# ---------------------------------------------------------------- trees, words, figures


def test_the_tree_shares_beginnings_and_keeps_unbranched_stretches_together():
    (root,) = build_tree(outputs_of(drawing()))
    assert root.as_lists() == [
        "dr",
        1.0,
        [["aw", 0.7, [["ed", 0.42, []], ["n", 0.28, []]]], ["ew", 0.3, []]],
    ]
    assert root.leaves() == 3


def test_the_tree_keeps_words_apart_and_shows_an_end_that_stands_alone():
    found = [(["the", "cat", "</s>"], 0.5), (["the", "cat", "sat", "</s>"], 0.3), (["a", "dog", "</s>"], 0.2)]
    assert [node.as_lists() for node in build_tree(found)] == [
        ["the cat", 0.8, [["</s>", 0.5, []], ["sat", 0.3, []]]],
        ["a dog", 0.2, []],
    ]


def test_an_output_that_was_sampled_several_times_is_in_the_tree_once():
    sampled = record(0, "d r", [hypothesis("d r a w n", 0.5)] * 4 + [hypothesis("d r e w", 0.25)], mass=0.75, strings=2)
    (root,) = build_tree(outputs_of(sampled))
    assert root.probability == 0.75 and root.leaves() == 2
    detail = make_detail(sampled)
    assert (detail["listed"], detail["found"], detail["unlisted"]) == (2, 2, 0.25)


def test_outputs_without_attention_on_the_page_say_so():
    attention, candidates = [[[0, 1.0]]] * 2, [[["x", 1.0]]] * 2
    many = [hypothesis(f"x{i}", 0.01, attention=attention, candidates=candidates) for i in range(25)]
    shown = make_detail(record(0, hypotheses=many))["hypotheses"]
    assert "attention" in shown[19] and "left_out" not in shown[19]
    assert "attention" not in shown[20] and shown[20]["left_out"] == 20
    plain = make_detail(record(0, hypotheses=[hypothesis(f"x{i}", 0.01) for i in range(25)]))["hypotheses"]
    assert "left_out" not in plain[20]


def test_references_that_are_empty_count(tmp_path):
    file = tmp_path / "references"
    for text, lines in (("a\nb\n\n", ["a", "b", ""]), ("a\nb", ["a", "b"]), ("\n", [""]), ("", [])):
        file.write_text(text)
        assert read_references(str(file)) == lines


def test_outputs_of_probability_zero_are_in_no_tree():
    assert outputs_of(record(0, hypotheses=[hypothesis("x", 0.0)])) == []


@pytest.mark.parametrize(
    "fields, says",
    [
        ({}, "Everything the model can say was enumerated: 1 output"),
        (
            {"certificate": "optimal", "mass": 0.4, "reason": "subject to min length"},
            "Condition: outputs shorter than --min-len were left out.",
        ),
        ({"certificate": "none", "mass": 0.4, "reason": "beam", "safe_length": 9}, "at most 9 symbols can beat it"),
        ({"certificate": "none", "mass": 0.4, "reason": "sampling"}, "outputs were sampled"),
        ({"certificate": "none", "mass": 0.4, "reason": "something new"}, "Not proved: something new."),
        (
            {"certificate": "optimal", "reason": "for scores modified by --unkpen 1; subject to length limit"},
            "Condition: for scores modified by --unkpen 1; outputs beyond the length limit were left out.",
        ),
        (
            {"certificate": "optimal", "mass": 0.4, "reason": "budget"},
            "although not all were looked at. Outputs may be missing after the first one, as --exact-budget was spent.",
        ),
        (
            {"certificate": "optimal", "mass": 0.4, "reason": "subject to min length; length limit"},
            "Condition: outputs shorter than --min-len were left out. Outputs beyond the length limit",
        ),
        ({"objective": "normalized"}, "divided by length"),
        ({"mass": 0.4}, "The output found covers 40.0 % of the probability."),
    ],
)
def test_certificates_in_words(fields, says):
    assert says in explain(record(0, **fields))


@pytest.mark.parametrize(
    "reason, says",
    [
        ("length limit", "No output was found: nothing ends within the length limit"),
        ("beam", "No output was found: nothing that the beam kept ends"),
        ("budget", "No output was found: the search ended with --exact-budget before it found one"),
        ("source length", "No output was found: nothing ends at the length of the source"),
        ("constraints", "No output was found: none with the phrases"),
        ("something new", "No output was found: something new."),
        ("NaN", "No output was found: the model gave NaN"),
    ],
)
def test_a_sentence_without_an_output_is_not_said_to_have_one(reason, says):
    nothing = record(0, hypotheses=[hypothesis("x", 0.0)], certificate="none", mass=0.0, reason=reason, strings=0)
    words = explain(nothing)
    assert words.startswith(says) and "found cover" not in words


def test_numbers_keep_their_distance_from_zero_and_one():
    assert [short(p) for p in (0, 1e-7, 0.123456, 0.99997, 1 - 1e-8, 1)] == [0, 1e-7, 0.1235, 0.9999, 1, 1]
    nearly = record(0, hypotheses=[hypothesis("x", 0.99997)], certificate="optimal", mass=0.99997)
    assert make_row(nearly).probability == 0.9999
    assert build_tree(outputs_of(nearly))[0].as_lists()[1] == 0.9999


def test_shares_never_round_to_certainty():
    assert [percent(p) for p in (0, 1e-5, 0.5, 0.99996, 1)] == [
        "0.0 %",
        "less than 0.1 %",
        "50.0 %",
        "more than 99.9 %",
        "100.0 %",
    ]


def test_marks_are_drawn_on_a_circle_and_blanks_are_named():
    assert [visible(s) for s in ("\u0650", "a", " ", "")] == ["\u25cc\u0650", "a", "U+0020", "(empty)"]


def test_classes_of_sizes():
    assert [class_name(class_of(n)) for n in (0, 1, 5, 6, 10, 11, 500, 99999)] == [
        *("0", "1", "5", "6\u201310", "6\u201310", "11\u201320", "101\u2013500", "10001+"),
    ]


def test_figures_by_hand():
    figures = Figures("run")
    records = [drawing(0), record(1, mass=0.25, certificate="none", reason="beam")]
    for r in records:
        figures.add(r, make_row(r, ["d r a  w e d", "no"]))
    assert figures.accuracy == 0.5 and figures.mean("mass") == 0.625 and figures.mean_support == 12 / 10
    assert figures.mean_attention == 8 / 7  # two weights above zero in the first step, one in the others
    assert figures.bins[2] == [1, 0] and figures.bins[9] == [1, 1]
    assert figures.shares() == [("complete", 0.5), ("optimal", 0.0), ("none", 0.5)]
    assert figures.listed("longest") == [0, 1] and figures.listed("ambiguous") == [0, 1]
    chart = histogram([figures.support])
    assert (chart["labels"], chart["series"]) == (["1", "2"], [[0.8, 0.2]])


def test_a_list_holds_the_ten_largest():
    figures = Figures("run")
    for i in range(40):
        r = record(i, hypotheses=[hypothesis("x", 1.0, [(i * 7) % 40, 1])])
        figures.add(r, make_row(r))
    sizes = [(i * 7) % 40 for i in figures.listed("widest")]
    assert sizes == list(range(39, 29, -1))


def test_details_keep_small_numbers_and_sum_up_what_they_leave_out():
    step = [[f"w{i}", 2.0**-i] for i in range(1, 31)]
    best = hypothesis("w1", 0.5, attention=[[[0, 1 - 1e-7], [1, 0.0]], []], candidates=[step, []])
    detail = make_detail(record(0, hypotheses=[best], certificate="optimal", mass=0.5))
    shown = detail["hypotheses"][0]
    assert shown["attention"][0] == [[0, 1.0], [1, 0.0]]  # recorded, so not zero
    assert len(shown["candidates"][0]["top"]) == 12 and shown["candidates"][0]["rest"] == [18, 0.0002441]
    assert detail["unlisted"] == 0.5 and detail["found"] == 1


# ---------------------------------------------------------------- the command


@pytest.fixture
def certificates(tmp_path):
    rtl = record(2, ARABIC, [hypothesis(ARABIC, 0.9)], "optimal", 0.9)
    dead = record(4, hypotheses=[hypothesis("x", 0.0)], certificate="none", mass=0.0, reason="length limit")
    return write(tmp_path / "c.jsonl", [drawing(0), record(1, HOSTILE, [hypothesis(HOSTILE, 1.0)]), rtl, dead])


@pytest.fixture
def no_pictures(monkeypatch):
    """For tests of the page alone: drawing takes longer than all the rest."""
    from fairseq_entmax.report import images

    monkeypatch.setattr(images, "draw_corpus", lambda *args: [])
    monkeypatch.setattr(images, "draw_sentence", lambda *args: [])


def test_one_page_and_pictures_of_everything(certificates, tmp_path, capsys):
    out = tmp_path / "out"
    reference = tmp_path / "ref"
    reference.write_text("d r a w e d\nx\ny\nz\nw\n")
    other = write(tmp_path / "other.jsonl", [record(0), record(1)])
    options = ["--out", str(out), "--compare", other, "--reference", str(reference), "--sentences", "0,4", "2"]
    assert main(["report", certificates, *options]) == 0
    assert capsys.readouterr().out == f"{out}/index.html\n22 pictures in {out}/images\n"
    names = {path.name for path in (out / "images").iterdir()}
    wanted = {f"sentence-{i}-{what}" for i in (0, 2, 4) for what in ("support", "tree", "attention")}
    wanted -= {"sentence-2-attention", "sentence-4-attention", "sentence-4-tree"}  # the records do not have these
    wanted |= {"certificates", "support", "attention", "accuracy"}
    wanted |= {"sentence-2-tree", "sentence-0-candidates"}
    assert names == {f"{name}.{ending}" for name in wanted for ending in ("png", "svg")}
    for path in (out / "images").glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 1000
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "2 sentences are in both files; 50.0 % have the same answer" not in page  # 0: d r a w e d against x y
    assert "2 sentences are in both files" in page and "Right answers" in page


def test_candidates_are_drawn_as_wide_as_they_are_probable():
    from fairseq_entmax.report.images import _candidates

    tail = [[f"w{i}", 0.0001] for i in range(1000)]
    figure = _candidates(hypothesis("b a", 0.5, candidates=[[["a", 0.3], ["b", 0.6], *tail], [["a", 1.0]]]))
    (axes,) = figure.axes
    bars = [(round(bar.get_x(), 6), round(bar.get_width(), 6)) for bar in axes.patches]
    assert bars == [(0, 0.6), (0.6, 0.3), (0.9, 0.1), (0, 1)]  # what is too small to see is one bar
    assert [text.get_text() for text in axes.texts] == ["b", "a", "a"]


def test_the_page_is_one_file_that_loads_nothing(certificates, tmp_path, no_pictures):
    (page, *_) = build_report(certificates, str(tmp_path / "out"))
    text = Path(page).read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert not re.search(r"""(src|href)=(["'](?!#|data:)|[^"'])""", text), "something from elsewhere"
    assert "@import" not in text and "url(" not in text


def test_markup_in_the_data_stays_text(certificates, tmp_path, no_pictures):
    (page, *_) = build_report(certificates, str(tmp_path / "out"), sentences=[1])
    text = Path(page).read_text(encoding="utf-8")
    assert "<script>document" not in text and "<b>bold" not in text
    assert "&lt;script&gt;document.body" in text  # in the list of chosen sentences
    index = json.loads(re.search(r'id="index">(.*?)</script>', text, re.DOTALL).group(1))
    assert index["rows"][0][1][1] == HOSTILE


def test_dollars_and_half_surrogates_are_drawn_as_they_are(tmp_path):
    strange = "$x_{$ \ud800 \\frac"
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps(record(0, strange, [hypothesis(strange, 1.0)])) + "\n")
    out = tmp_path / "out"
    build_report(str(path), str(out))
    assert "\\frac" in html.unescape((out / "images" / "sentence-0-support.svg").read_text(encoding="utf-8"))


def test_the_page_says_which_flag_gives_what_is_missing(tmp_path, no_pictures):
    (page, *_) = build_report(write(tmp_path / "c.jsonl", [record(0)]), str(tmp_path / "out"))
    text = Path(page).read_text(encoding="utf-8")
    assert text.count("--certificate-attention</code>") == 2  # in the table and in the place of the chart


def test_the_same_file_gives_the_same_page(certificates, tmp_path, no_pictures):
    first, second = (Path(build_report(certificates, str(tmp_path / n))[0]).read_bytes() for n in ("a", "b"))
    assert first == second


@pytest.mark.parametrize(
    "options, says",
    [
        (["nowhere.jsonl", "--out", "OUT"], "nowhere.jsonl: no such file"),
        (["FILE", "--out", "OUT", "--compare", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["FILE", "--out", "OUT", "--reference", "nowhere"], "--reference nowhere: no such file"),
        (["FILE", "--out", "FILE"], "wanted a folder, got a file"),
        (["FILE", "--out", "FILE/in"], "--out FILE/in: Not a directory"),
        (["FILE", "--out", ""], "--out: wanted a folder, got ''"),
        (["FILE", "--out", "OUT", "--sentences", "0", "9"], "--sentences: wanted ids of FILE (0 to 4), got 9"),
        (["FILE", "--out", "OUT", "--compare", "EMPTY"], "EMPTY: no record in this file"),
        (["FOLDER", "--out", "OUT"], "FOLDER: wanted a file, got a folder"),
        (["FILE", "--out", "OUT", "--reference", "FOLDER"], "--reference FOLDER: wanted a file, got a folder"),
        (["FILE", "--out", "OUT", "--reference", "EMPTY"], "wanted a line for id 0, counted from 0, got 0 lines"),
        (["SHORT", "--out", "OUT"], "line 1: wanted a JSON object (Expecting value at column 1), as --certificate"),
        (["FILE", "--out", "OUT", "--compare", "TWICE"], "line 2: id 8 occurs a second time"),
        (["FILE", "--out", "OUT", "--compare", "APART"], "no id in common with FILE"),
        (["FILE", "--out", "OUT", "--reference", "SHORT"], "wanted a line for id 1, counted from 0, got 1 lines"),
    ],
)
def test_mistakes_are_one_line(options, says, certificates, tmp_path):
    files = {"FILE": certificates, "OUT": str(tmp_path / "out"), "SHORT": str(tmp_path / "short")}
    files.update({"FOLDER": str(tmp_path), "FILE/in": certificates + "/in"})
    Path(files["SHORT"]).write_text("d r\n")
    for name, records in (("EMPTY", []), ("TWICE", [record(8), record(8)]), ("APART", [record(77)])):
        files[name] = write(tmp_path / name, records)
    for name, path in files.items():
        says = says.replace(name, path)
    with pytest.raises(SystemExit) as stop:
        main(["report", *(files.get(option, option) for option in options)])
    message = str(stop.value)
    assert message.startswith("python -m fairseq_entmax report: error: ") and says in message and "\n" not in message


def test_ids_that_are_none_are_one_line(capsys):
    with pytest.raises(SystemExit):
        main(["report", "c.jsonl", "--out", "o", "--sentences", "x"])
    assert "argument --sentences: wanted ids such as 3 17 or 3,17, got 'x'" in capsys.readouterr().err


@pytest.mark.parametrize("absent", ["matplotlib", "jinja2"])
@pytest.mark.parametrize("command", [["report", "c.jsonl"], ["mappings"]], ids=["report", "mappings"])
def test_a_missing_package_is_named_with_the_extra(command, absent, monkeypatch, tmp_path):
    if command[0] == "mappings" and absent == "jinja2":
        return  # it needs none
    for name in list(sys.modules):
        if name.startswith(("fairseq_entmax.report", "fairseq_entmax.mappings")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(SystemExit, match=rf"{absent} is not installed: pip install 'fairseq-entmax\[report\]'"):
        main([*command, "--out", str(tmp_path / "x.png")])


def test_fairseq_and_torch_are_not_needed(certificates, tmp_path):
    code = (
        "import runpy, sys; sys.modules.update(dict.fromkeys(['fairseq', 'torch', 'numpy.torch']))\n"
        "sys.argv = ['-m', *sys.argv[1:]]; runpy.run_module('fairseq_entmax', run_name='__main__', alter_sys=False)"
    )
    command = [sys.executable, "-c", code, "report", certificates, "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_the_report_imports_nothing_of_the_rest_of_the_package():
    for path in sorted((PACKAGE / "report").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level < 2 and (node.module or "").split(".")[0] not in ("torch", "fairseq"), path
            if isinstance(node, ast.Import):
                assert not {alias.name.split(".")[0] for alias in node.names} & {"torch", "fairseq"}, path


def test_support_sizes_are_counted_in_whole_numbers():
    from fairseq_entmax.report.images import _support

    (axes,) = _support(hypothesis("x y z", 1.0, [1, 9, 14, 1])).axes
    assert all(tick == int(tick) for tick in axes.get_yticks())


def test_real_records_of_a_trained_model(corpus, trained, tmp_path):
    """What `fairseq-generate` writes is what the report reads."""
    import commands

    path = tmp_path / "c.jsonl"
    flags = ["--certificate-file", path, "--certificate-attention", "--certificate-candidates", "--nbest", 5]
    commands.generate(corpus, trained, *flags, "--beam", 5, "--unnormalized")
    (page, *pictures) = build_report(str(path), str(tmp_path / "out"))
    assert "Missing" not in Path(page).read_text() and len(pictures) >= 12
    r = commands.records(path)[0]
    assert source_symbols(r) == [*r["source"].split(), "</s>"]
