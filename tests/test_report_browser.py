"""The report's page in headless Chromium: it opens, sorts, filters, pages, shows sentences, and obeys the keyboard."""

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from report_records import ARABIC, HOSTILE, drawing, hypothesis, record, write

from fairseq_entmax.report import build_report

BROWSERS = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((path for path in map(shutil.which, BROWSERS) if path), None)

pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser: none of {', '.join(BROWSERS)} is on the PATH")

# Gives a test's script what a user has: clicks, keys, and time for the page to react.
TOOLS = """
const $ = (q) => document.querySelector(q), all = (q) => [...document.querySelectorAll(q)];
const texts = (q) => all(q).map((e) => e.textContent);
const settle = () => new Promise((done) => setTimeout(done, 200));
const key = (name) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: name, bubbles: true}));
const choose = (q, value) => {
  $(q).value = value;
  $(q).dispatchEvent(new Event($(q).type === "search" ? "input" : "change"));
};
const ids = () => texts("#sentences tbody th").join(" ");
(async () => {
  const seen = {};
  await settle();
  SCRIPT
  document.body.dataset.seen = JSON.stringify(seen);
})();
"""


def visit(page, folder, address="", script="", options=()):
    """Opens the page, runs `script` in it, and returns what it stored in `seen` and the page as it then is.

    The script is let in by its hash, so that the page's own policy stays in force. Anything on the console fails.
    """
    code = TOOLS.replace("SCRIPT", script)
    allowed = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    text = Path(page).read_text(encoding="utf-8")
    assert "script-src 'sha256-" in text
    text = text.replace("script-src '", f"script-src 'sha256-{allowed}' '", 1)
    copy = Path(page).with_name("visited.html")
    copy.write_text(text.replace("</body>\n</html>", f"<script>{code}</script></body>\n</html>"), encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
    command += ["--virtual-time-budget=20000", "--enable-logging=stderr", "--dump-dom", *options]
    done = subprocess.run([*command, f"{copy.as_uri()}{address}"], capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr, re.findall(r"CONSOLE.*", done.stderr)
    seen = re.search(r'data-seen="(.*?)"', done.stdout)
    assert seen, done.stderr
    return json.loads(html.unescape(seen.group(1))), done.stdout


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    records = [
        drawing(0),
        record(1, HOSTILE, [hypothesis(HOSTILE, 0.5)], "none", 0.5, reason="beam"),
        record(
            2,
            ARABIC,
            [hypothesis(ARABIC, 0.9, attention=[[[0, 1.0], [1, 0.0]], [], [], [], [[4, 1.0]]])],
            "optimal",
            0.9,
        ),
    ]
    records += [record(i, f"word {i}", mass=i / 100, certificate="optimal") for i in range(3, 70)]
    other = [record(i, hypotheses=[hypothesis("x z", 0.5)], mass=0.5) for i in range(0, 69)]
    reference = folder / "reference"
    reference.write_text("d r a w e d\n" + "x y\n" * 69)
    first, second = (write(folder / name, r) for name, r in (("a.jsonl", records), ("b.jsonl", other)))
    (path, *_) = build_report(first, str(folder / "out"), second, str(reference), [2])
    return path


def test_it_opens_sorts_filters_and_pages(page, tmp_path):
    script = """
    seen.opened = [texts("#count")[0], ids(), texts("#pager span")[0], $("#detail h2").textContent.trim()];
    $('[data-sort="mass"]').focus();
    $('[data-sort="mass"]').click(); await settle();
    seen.rising = ids().split(" ")[0];
    $('[data-sort="mass"]').click(); await settle();
    seen.falling = [ids().split(" ")[0], $('[data-sort="mass"]').parentElement.getAttribute("aria-sort")];
    seen.focus = document.activeElement.dataset.sort;
    all("#pager button").find((b) => b.textContent === "Last").click(); await settle();
    seen.last = [texts("#pager span")[0], all("#sentences tbody tr").length];
    choose("#kind", "none"); await settle();
    seen.none = [ids(), texts("#count")[0]];
    choose("#kind", ""); await settle();
    choose("#query", "WORD 4"); await settle();
    seen.query = [texts("#count")[0], location.hash];
    choose("#query", "12"); await settle();
    seen.id = ids();
    choose("#query", ""); choose("#right", "1"); await settle();
    seen.right = texts("#count")[0];
    choose("#right", ""); $("#differs").click(); await settle();
    seen.differs = texts("#count")[0];
    seen.whose = $("#sentences td div.run1").title;
    """
    seen, _ = visit(page, tmp_path, script=script)
    assert seen["opened"] == ["70 sentences", " ".join(map(str, range(25))), "page 1 of 3", "Sentence 2 optimal"]
    assert (seen["rising"], seen["falling"]) == ("3", ["0", "descending"])
    assert seen["focus"] == "mass"  # the keyboard stays where it was
    assert seen["last"] == ["page 3 of 3", 20]
    assert seen["none"] == ["1", "1 of 70 sentences"]
    assert seen["query"][0] == "11 of 70 sentences" and "q=WORD+4" in seen["query"][1]
    assert seen["id"] == "12"
    assert seen["right"] == "68 of 70 sentences"
    assert seen["whose"] == "b.jsonl"
    assert seen["differs"] == "69 of 70 sentences"  # the last one is not in the other file


def test_a_sentence_is_shown_with_attention_support_candidates_and_tree(page, tmp_path):
    script = """
    seen.tree = texts("#detail .run0 .node");
    seen.columns = texts("#detail .run0 .heat thead th");
    seen.weights = texts("#detail .run0 .heat tbody tr:first-child td");
    seen.sizes = texts("#detail .run0 .steps .size");
    seen.candidates = texts("#detail .run0 .candidates").slice(2, 3);
    seen.taken = texts("#detail .run0 .taken .symbol").join("");
    seen.words = $("#detail .run0").textContent.includes("Everything the model can say was enumerated: 3 outputs");
    seen.other = texts("#detail .run1 .missing");
    seen.reference = texts("#detail dd")[1];
    const first = $('#detail .run0 .heat td[tabindex="0"]');
    first.focus();
    seen.readout = [$("#detail .run0 .readout").textContent];
    key("ArrowRight"); seen.readout.push($("#detail .run0 .readout").textContent);
    key("ArrowDown"); seen.readout.push($("#detail .run0 .readout").textContent);
    seen.number = getComputedStyle(document.activeElement.firstChild).display;
    choose("#detail .run0 select", "1"); await settle();
    seen.second = texts("#detail .run0 .missing");
    key("Escape");
    $("#detail-title").focus(); key("Escape"); await settle(); await settle();
    seen.closed = [$("#detail").hidden, document.activeElement.dataset.id];
    $('[data-id="1"]').click(); await settle();
    seen.next = [$("#detail h2").textContent.trim(), document.activeElement.id];
    """
    seen, _ = visit(page, tmp_path, "#id=0", script)
    assert seen["tree"] == ["dr 1", "aw 0.7", "ed 0.42", "n 0.28", "ew 0.3"]
    assert seen["columns"] == ["d", "r", "</s>"] and seen["weights"] == ["0.75", "0", "0.25"]
    assert seen["sizes"] == [" 1", " 1", " 2", " 1", " 2", " 1", " 1"]
    assert seen["candidates"] == ["a 0.7e 0.3"] and seen["taken"] == "drawed</s>"
    assert seen["words"] and seen["reference"] == "d r a w e d"
    wanted = [f"Not in this file: decode with --certificate-{flag}." for flag in ("attention", "candidates")]
    assert [text[: len(start)] for text, start in zip(seen["other"], wanted)] == wanted
    assert seen["readout"] == ["d looks at d: 0.75", "d looks at r: exactly 0", "r looks at r: 1"]
    assert seen["number"] == "block"  # numbers show on focus, not only under a pointer
    assert len(seen["second"]) == 2  # the second output has neither attention nor candidates
    assert seen["closed"] == [True, "0"]
    assert seen["next"] == ["Sentence 1 none", "detail-title"]


def test_markup_in_the_data_is_text(page, tmp_path):
    script = """
    seen.source = texts("#detail dd")[0];
    seen.hacked = document.body.dataset.hacked || "no";
    seen.bold = all("#detail dd b, #sentences td b").length;
    """
    seen, _ = visit(page, tmp_path, "#id=1", script)
    assert seen == {"source": HOSTILE, "hacked": "no", "bold": 0}


def test_right_to_left_scripts_and_marks(page, tmp_path):
    script = """
    const [table, tree] = [$("#detail .run0 .heat"), $("#detail .run0 .tree")];
    seen.dir = [table.dir, tree.dir, $("#detail .run1 .tree").dir];
    const heads = all("#detail .run0 .heat thead th");
    seen.flipped = heads[0].getBoundingClientRect().left > heads[3].getBoundingClientRect().left;
    seen.mark = heads[1].textContent;
    $('#detail .run0 .heat td[tabindex="0"]').focus();
    key("ArrowLeft");
    seen.left = document.activeElement.dataset.i;
    seen.tiny = $("#detail .run0 .readout").textContent;
    """
    seen, _ = visit(page, tmp_path, "#id=2", script)
    tiny = seen.pop("tiny")
    assert seen == {"dir": ["rtl", "rtl", "ltr"], "flipped": True, "mark": "\u25cc\u0650", "left": "1"}
    assert tiny.endswith(": below 1e-6")  # recorded as 0, so it is none


@pytest.fixture(scope="module")
def uncertain(tmp_path_factory):
    """One sentence of whose four outputs the file has three; almost all probability is covered."""
    folder = tmp_path_factory.mktemp("uncertain")
    made = {**drawing(0), "source": "l e t t e r s " * 9, "certificate": "optimal", "mass": 0.99997, "strings": 4}
    made["hypotheses"][0]["attention"][0] = [[0, 0.99996], [2, 0.00004]]
    reference = folder / "reference"
    reference.write_text("d r a w e d\n")
    (path, *_) = build_report(write(folder / "c.jsonl", [made]), str(folder / "out"), None, str(reference), [0])
    return path


def test_what_is_nearly_one_is_not_shown_as_one(uncertain, tmp_path):
    script = """
    seen.covered = texts("#sentences td").find((text) => text.includes("0.999"));
    seen.weights = texts("#detail .heat tbody tr:first-child td").slice(0, 3);
    seen.title = texts("#detail h4")[0];
    seen.bins = texts(".bars tr").filter((t) => t.includes("(of")).map((t) => t.replace(/\\s+/g, " ").trim());
    """
    seen, _ = visit(uncertain, tmp_path, script=script)
    assert seen["covered"] == ">0.999" and seen["weights"] == [">0.999", "0", "4.0e-5"]
    assert seen["title"] == "The 3 best of the 4 outputs found, with their probabilities"
    assert len(seen["bins"]) == 10 and seen["bins"][0].endswith("\u2013 (of 0)")  # no accuracy where nothing is
    assert seen["bins"][9].endswith("100.0 % (of 1)")


def test_a_narrow_window_leaves_words_whole_and_scrolls_the_table_alone(uncertain, tmp_path):
    script = """
    seen.height = $("#sentences tbody tr").offsetHeight;
    seen.wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
    """
    seen, _ = visit(uncertain, tmp_path, script=script, options=["--window-size=500,900"])
    assert seen["height"] < 200 and not seen["wide"]


def test_an_address_that_leads_nowhere_shows_the_list(page, tmp_path):
    script = 'seen.state = [$("#detail").hidden, texts("#count")[0], texts("#pager span")[0]];'
    seen, _ = visit(page, tmp_path, "#id=999&sort=none&page=77&kind=", script)
    assert seen["state"] == [True, "70 sentences", "page 3 of 3"]


@pytest.mark.parametrize("scheme, dark", [(1, False), (0, True)], ids=["light", "dark"])
def test_text_has_contrast_in_both_schemes(scheme, dark, page, tmp_path):
    """WCAG AA: at least 4.5 to 1 between text and page for every colour in use."""
    script = """
    const luminance = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map((v) => v / 255)
      .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
      return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const back = luminance(getComputedStyle(document.body).backgroundColor);
    seen.dark = back < 0.1;
    seen.low = all("body *").filter((e) => e.textContent.trim() && e.checkVisibility()).map((e) => {
      const fore = luminance(getComputedStyle(e).color), [x, y] = [Math.max(fore, back), Math.min(fore, back)];
      return [(x + 0.05) / (y + 0.05), e.className || e.tagName];
    }).filter(([c]) => c < 4.5).map(([c, n]) => n + " " + c);
    """
    seen, _ = visit(page, tmp_path, "#id=0", script, [f"--blink-settings=preferredColorScheme={scheme}"])
    assert seen == {"dark": dark, "low": []}


def test_ten_thousand_sentences_are_paged(tmp_path):
    path = write(tmp_path / "c.jsonl", [record(i, f"word {i}") for i in range(10_000)])
    (built, *_) = build_report(path, str(tmp_path / "out"))
    script = """
    seen.rows = all("#sentences tbody tr").length;
    seen.elements = all("*").length;
    choose("#query", "9999"); await settle();
    seen.found = ids();
    $('[data-id="9999"]').click(); await settle();
    seen.source = texts("#detail dd")[0];
    """
    seen, dom = visit(built, tmp_path, script=script)
    assert seen["rows"] == 25 and seen["elements"] < 1500
    assert (seen["found"], seen["source"]) == ("9999", "word 9999")
    assert re.search(r'data-ready="\d+"', dom)
