"""One pass over a certificate file: its figures, and where each sentence stands."""

import os
from typing import Dict, List, NamedTuple, Optional

from .figures import Figures, Row, make_row
from .reading import read_lines


class Run(NamedTuple):
    """One certificate file after a pass over it: figures, the row and the byte offset of each id."""

    path: str
    figures: Figures
    rows: Dict[int, Row]
    offsets: Dict[int, int]


def read_run(path: str, references: Optional[List[str]]) -> Run:
    """One pass over a certificate file.

    Raises:
        ValueError: a bad line, an id that occurs twice, no record, or too few references.
    """
    run = Run(path, Figures(os.path.basename(path)), {}, {})
    for offset, number, record in read_lines(path):
        if record["id"] in run.offsets:
            raise ValueError(f"{path}, line {number}: id {record['id']} occurs a second time: one run a file is wanted")
        run.offsets[record["id"]] = offset
        row = run.rows[record["id"]] = make_row(record, references)
        run.figures.add(record, row)
    if not run.rows:
        raise ValueError(f"{path}: no record in this file")
    return run
