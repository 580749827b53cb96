"""Command line: `python -m fairseq_entmax user-dir | doctor | options | suggest | report | mappings`."""

import argparse
import sys
from pathlib import Path
from typing import List, Optional, Sequence


class _OneLineParser(argparse.ArgumentParser):
    """Reports a mistake in one line, without the usage text."""

    def error(self, message: str) -> None:
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")


def user_dir() -> int:
    """Prints the folder to give to `--user-dir`."""
    print(Path(__file__).resolve().parent)
    return 0


def doctor() -> int:
    """Checks the installation."""
    from .doctor import run

    return run()


def options(names: List[str]) -> int:
    """Shows the options of the package's parts."""
    from .options import show

    try:
        return show(names)
    except ValueError as error:
        raise _one_line("options", error) from None


def suggest(model: str, data: str) -> int:
    """Shows the possible next symbols after each prefix that is typed."""
    from .outputs import interactive_suggest

    for path in model.split(":"):
        if not Path(path).is_file():
            raise _one_line("suggest", ValueError(f"MODEL: no such file: {path}"))
    if not Path(data).is_dir():
        raise _one_line("suggest", ValueError(f"DATA: no such folder: {data}"))
    if not any(Path(data).glob("dict.*.txt")):
        wanted = "wanted a folder that fairseq-preprocess wrote, with dict.SOURCE.txt and dict.TARGET.txt"
        raise _one_line("suggest", ValueError(f"DATA: {wanted}, got {data}"))
    try:
        return interactive_suggest(model, data)
    except KeyboardInterrupt:
        return 0
    except Exception as error:  # fairseq and pickle raise whatever they like at files that are none of theirs
        why = " ".join(str(error).split())[:300] or type(error).__name__
        raise _one_line("suggest", ValueError(f"MODEL {model} cannot be used with DATA {data}: {why}")) from None


def report(
    certificates: str, out: str, compare: Optional[str], reference: Optional[str], sentences: Optional[List[List[int]]]
) -> int:
    """Draws what a model did."""
    try:
        from .report import build_report

        chosen: Optional[Sequence[int]] = None if sentences is None else [i for group in sentences for i in group]
        written = build_report(certificates, out, compare=compare, reference=reference, sentences=chosen)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        raise _one_line("report", error) from None
    print(f"{written[0]}\n{len(written) - 1} pictures in {Path(written[0]).parent / 'images'}")
    return 0


def mappings(out: str) -> int:
    """Draws the mappings."""
    try:
        from .mappings import draw_mappings

        draw_mappings(out)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        raise _one_line("mappings", error) from None
    print(out)
    return 0


def _one_line(command: str, error: Exception) -> SystemExit:
    """What ends the command with one line; where a package for pictures is missing, it says how to get it."""
    message = str(error)
    if isinstance(error, ModuleNotFoundError):
        if error.name not in ("matplotlib", "jinja2", "markupsafe"):
            raise error
        message = f"{error.name} is not installed: pip install 'fairseq-entmax[report]'"
    return SystemExit(f"python -m fairseq_entmax {command}: error: {message}")


def _ids(text: str) -> List[int]:
    """Ids with commas between them."""
    try:
        return [int(item) for item in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"wanted ids such as 3 17 or 3,17, got {text!r}") from None


COMMANDS = {
    "user-dir": user_dir,
    "doctor": doctor,
    "options": options,
    "suggest": suggest,
    "report": report,
    "mappings": mappings,
}


def _parser() -> argparse.ArgumentParser:
    parser = _OneLineParser(
        prog="python -m fairseq_entmax", description="Helpers of the fairseq plugin fairseq-entmax."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_OneLineParser)
    about = "print the folder to give to --user-dir of the fairseq commands"
    commands.add_parser("user-dir", help=about, description=about)
    about = "check the installation: versions, fairseq, checkpoints; non-zero if unusable"
    commands.add_parser("doctor", help=about, description=about)

    about = "show the options of this package's tasks, models, criterions and so on, which fairseq's --help leaves out"
    options_parser = commands.add_parser("options", help=about, description=about)
    options_parser.add_argument(
        "names", metavar="NAME", nargs="*", help="such as translation_entmax, lstm_entmax, entmax (default: all)"
    )

    about = "show the possible next symbols after each typed prefix of the output"
    suggest_parser = commands.add_parser("suggest", help=about, description=f"{about}; asks for a source line first")
    suggest_parser.add_argument("model", metavar="MODEL", help="checkpoint, or several with colons between them")
    suggest_parser.add_argument(
        "data", metavar="DATA", help="folder that fairseq-preprocess wrote, for its dictionaries"
    )

    about = "draw what a model did, as one HTML page and pictures, from a certificate file"
    report_parser = commands.add_parser("report", help=about, description=about)
    report_parser.add_argument("certificates", metavar="CERTIFICATES.jsonl", help="what --certificate-file wrote")
    report_parser.add_argument("--out", metavar="DIR", required=True, help="folder to write to")
    report_parser.add_argument(
        "--compare", metavar="OTHER.jsonl", help="certificate file of another run over the same sentences"
    )
    report_parser.add_argument(
        "--reference", metavar="FILE", help="the right outputs, a line for each id from 0, written as the outputs are"
    )
    report_parser.add_argument(
        "--sentences",
        metavar="IDS",
        nargs="+",
        type=_ids,
        help="sentences to draw to files and list first (3 17 or 3,17); default: widest, longest, most ambiguous",
    )

    about = "draw the mappings: probability against score for several alpha, and the structured ones"
    mappings_parser = commands.add_parser("mappings", help=about, description=about)
    mappings_parser.add_argument(
        "--out", metavar="FILE", required=True, help="picture to write; its ending (.png, .svg, .pdf) says the format"
    )
    return parser


def main(arguments: Optional[List[str]] = None) -> int:
    args = vars(_parser().parse_args(arguments))
    return COMMANDS[args.pop("command")](**args)


if __name__ == "__main__":
    sys.exit(main())
