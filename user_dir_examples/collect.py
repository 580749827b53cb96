"""Makes `docs/reproduction.md` from the result files of the recipes, so that no number in it is typed by hand."""

import argparse
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

import results
import tables_2017
import tables_inflection
import tables_translation
import tables_words

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reproduction.md"
# In the order of the page. Each takes all results and returns its part as Markdown: "" where it has no results.
SECTIONS: List[Callable[[List[Dict[str, Any]]], str]] = [
    tables_inflection.section,
    tables_translation.section,
    tables_2017.section,
    tables_words.pronunciation,
    tables_words.segmentation,
]

HEAD = """# Published results, reproduced

Every figure on this page comes from a result file in
[`user_dir_examples/results`](../user_dir_examples/results), which also records versions, seed, settings, command line,
time and machine. The page is made by `python user_dir_examples/collect.py`; do not edit it. The recipes themselves are
in [`user_dir_examples/README.md`](../user_dir_examples/README.md). Settings that fit a CPU are smaller than those of
the papers: compare the rows of a table with each other, not with the paper's.
"""


def page(found: Sequence[Dict[str, Any]]) -> str:
    parts = [part.strip() for part in (section(list(found)) for section in SECTIONS)]
    return "\n\n".join([HEAD.strip(), *(part for part in parts if part)]) + "\n"


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--results", type=Path, default=results.FOLDER, help="folder with result files, read with all below it"
    )
    parser.add_argument("--page", type=Path, default=PAGE, help="file to write")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not up to date")
    args = parser.parse_args(arguments)
    try:
        text = page(results.read(args.results))
    except ValueError as error:
        print(f"collect: {error}", file=sys.stderr)
        return 1
    if args.check:
        old = args.page.read_text(encoding="utf-8") if args.page.exists() else ""
        if old != text:
            print(f"collect: {args.page} is not what the results say; run collect.py", file=sys.stderr)
        return int(old != text)
    args.page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
