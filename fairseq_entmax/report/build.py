"""From certificate files to a folder: streams the records, gathers figures, writes the page and the pictures."""

import os
from typing import List, Optional, Sequence

from .figures import Agreement
from .reading import read_at, read_references
from .runs import Run, read_run

_DRAWN = 3  # sentences drawn to files when none are named


def build_report(
    certificates: str,
    out: str,
    compare: Optional[str] = None,
    reference: Optional[str] = None,
    sentences: Optional[Sequence[int]] = None,
) -> List[str]:
    """Write the report of a certificate file.

    Args:
        certificates: file that `--certificate-file` wrote.
        out: folder to write to; made if it is not there.
        compare: certificate file of another run over the same sentences.
        reference: text file whose line `id` (from 0) is what the output should be.
        sentences: ids of the sentences to draw to files and to list first; by default the widest, the longest and the
            most ambiguous one.

    Returns:
        Paths of the files written, the page first.

    Raises:
        ValueError: a file is missing or malformed, or an id is not in it.
        ModuleNotFoundError: matplotlib or Jinja2 is not installed.
    """
    from .images import draw_corpus, draw_sentence
    from .page import write_page

    if not out:
        raise ValueError("--out: wanted a folder, got ''")
    if os.path.exists(out) and not os.path.isdir(out):
        raise ValueError(f"--out {out}: wanted a folder, got a file")
    references = None if reference is None else read_references(reference)
    runs = [read_run(path, references) for path in (certificates, compare) if path is not None]
    _name_apart(runs)
    first = runs[0]
    agreement = None
    if len(runs) == 2:
        agreement = Agreement()
        for index in first.rows.keys() & runs[1].rows.keys():
            agreement.add(first.rows[index], runs[1].rows[index])
        if agreement.both == 0:
            raise ValueError(f"--compare {compare}: no id in common with {certificates}")
    chosen = _choose(first, sentences)

    images = os.path.join(out, "images")
    try:
        os.makedirs(images, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {out}: {error.strerror}") from None
    page = os.path.join(out, "index.html")
    write_page(page, runs, agreement, chosen, references, named=sentences is not None)
    written = [page, *draw_corpus([run.figures for run in runs], images)]
    with open(certificates, "rb") as file:
        for index in chosen:
            written += draw_sentence(read_at(file, first.offsets[index]), images)
    return written


def _name_apart(runs: List[Run]) -> None:
    """Files of the same name are told apart by their folders."""
    if len({run.figures.name for run in runs}) < len(runs):
        for run in runs:
            run.figures.name = run.path


def _choose(run: Run, sentences: Optional[Sequence[int]]) -> List[int]:
    if sentences is None:
        firsts = [run.figures.listed(name)[0] for name in ("widest", "longest", "ambiguous")]
        return list(dict.fromkeys(firsts))[:_DRAWN]
    missing = [index for index in sentences if index not in run.rows]
    if missing:
        low, high = min(run.rows), max(run.rows)
        raise ValueError(f"--sentences: wanted ids of {run.path} ({low} to {high}), got {missing[0]}")
    return list(dict.fromkeys(sentences))
