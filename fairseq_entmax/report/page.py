"""The page: one HTML file with everything in it. The browser unpacks the details of a sentence when it is shown."""

import base64
import gzip
import hashlib
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

import jinja2
from markupsafe import Markup

from .details import make_detail
from .figures import MASS_BINS, Agreement, Row, histogram
from .reading import read_at
from .runs import Run
from .words import KINDS, percent

HERE = Path(__file__).parent
PACKED = 50  # sentences in a pack: unpacking one takes a few milliseconds
_LISTS = {
    "ambiguous": "Most ambiguous (least probable answer)",
    "widest": "Widest (mean support size)",
    "longest": "Longest",
}


def write_page(
    path: str,
    runs: List[Run],
    agreement: Optional[Agreement],
    chosen: Sequence[int],
    references: Optional[List[str]],
    named: bool,
) -> None:
    """Write the page.

    Args:
        path: file to write.
        runs: the run, and the one to compare it with if there is one.
        agreement: how the two compare.
        chosen: ids to list first.
        references: lines by id.
        named: somebody asked for `chosen`, so the first of them is shown at once.
    """
    script, style = ((HERE / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(HERE)), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["percent"] = percent
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    ids = sorted(runs[0].rows)
    stream = environment.get_template("page.html").stream(
        title=" and ".join(run.figures.name for run in runs),
        figures=[run.figures for run in runs],
        charts=_charts(runs),
        agreement=agreement,
        lists=_lists(runs[0], chosen, named),
        columns=Row._fields,
        index=_index(runs, ids, chosen[0] if named and chosen else None),
        packs=_packs(runs, ids, references),
        script=Markup(script),
        style=Markup(style),
        script_hash=_hash(script),
        style_hash=_hash(style),
    )
    stream.enable_buffering(16)
    with open(path, "w", encoding="utf-8", errors="replace") as file:  # JSON can hold half a surrogate pair
        file.writelines(stream)


def _hash(text: str) -> str:
    """For the page's security policy: scripts and styles other than ours do not run, and nothing is loaded."""
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _index(runs: List[Run], ids: Sequence[int], first: Optional[int]) -> Dict[str, Any]:
    return {
        "columns": Row._fields,
        "names": [run.figures.name for run in runs],
        "rows": [[run.rows.get(index) for index in ids] for run in runs],
        "packed": PACKED,
        "first": first,
    }


def _packs(runs: List[Run], ids: Sequence[int], references: Optional[List[str]]) -> Iterator[str]:
    """Details of `PACKED` sentences at a time: JSON, gzip, base64."""
    with ExitStack() as stack:
        files = [stack.enter_context(open(run.path, "rb")) for run in runs]
        for start in range(0, len(ids), PACKED):
            pack = []
            for index in ids[start : start + PACKED]:
                reference = None if references is None else references[index]
                pack.append(
                    [
                        make_detail(read_at(file, run.offsets[index]), reference) if index in run.offsets else None
                        for run, file in zip(runs, files)
                    ]
                )
            text = json.dumps(pack, ensure_ascii=False, separators=(",", ":"))
            yield base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 6, mtime=0)).decode("ascii")


def _lists(run: Run, chosen: Sequence[int], named: bool) -> List[Dict[str, Any]]:
    lists = [{"title": title, "rows": [run.rows[i] for i in run.figures.listed(key)]} for key, title in _LISTS.items()]
    if named:
        lists.insert(0, {"title": "Chosen", "rows": [run.rows[i] for i in chosen]})
    return lists


def _charts(runs: List[Run]) -> List[Dict[str, Any]]:
    """Bar charts: `labels`, for each run a `series` of shares in [0, 1] or None, for each bar a `note`."""
    figures = [run.figures for run in runs]
    charts = [
        {
            "title": "Certificates",
            "labels": list(KINDS),
            "series": [[share for _, share in f.shares()] for f in figures],
            "notes": [[f"{f.kinds[kind]}" for kind in KINDS] for f in figures],
            "what": "share of the sentences",
        },
        {"title": "Support size of a step", "what": "share of the steps", **histogram([f.support for f in figures])},
    ]
    attention = histogram([f.attention for f in figures])
    charts.append(
        {"title": "Source words attended to in a step", "what": "share of the steps", "flag": "attention", **attention}
    )
    if figures[0].has_references:
        labels = [f"{i / MASS_BINS:.1f}\u2013{(i + 1) / MASS_BINS:.1f}" for i in range(MASS_BINS)]
        charts.append(
            {
                "title": "Accuracy by covered mass",
                "labels": labels,
                "series": [[right / n if n else None for n, right in f.bins] for f in figures],
                "notes": [[f"of {n}" for n, _ in f.bins] for f in figures],
                "what": "share of right answers among the sentences whose outputs cover this much",
            }
        )
    return charts
