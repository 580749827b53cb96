"""Command line: `python -m fairseq_entmax user-dir | doctor | suggest`."""

import argparse
import sys
from pathlib import Path
from typing import List, Optional


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


def suggest(model: str, data: str) -> int:
    """Shows the possible next symbols after each prefix that is typed."""
    from .outputs import interactive_suggest

    for path in model.split(":"):
        if not Path(path).is_file():
            raise SystemExit(f"python -m fairseq_entmax suggest: error: MODEL: no such file: {path}")
    if not Path(data).is_dir():
        raise SystemExit(f"python -m fairseq_entmax suggest: error: DATA: no such folder: {data}")
    return interactive_suggest(model, data)


COMMANDS = {"user-dir": user_dir, "doctor": doctor, "suggest": suggest}


def main(arguments: Optional[List[str]] = None) -> int:
    parser = _OneLineParser(
        prog="python -m fairseq_entmax", description="Helpers of the fairseq plugin fairseq-entmax."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_OneLineParser)
    commands.add_parser("user-dir", help="print the folder to give to --user-dir of the fairseq commands")
    commands.add_parser("doctor", help="check the installation: versions, fairseq, checkpoints; non-zero if unusable")
    suggest_parser = commands.add_parser("suggest", help="show the possible next symbols after each typed prefix")
    suggest_parser.add_argument("model", metavar="MODEL", help="checkpoint, or several with colons between them")
    suggest_parser.add_argument("data", metavar="DATA", help="folder that fairseq-preprocess wrote")
    args = vars(parser.parse_args(arguments))
    return COMMANDS[args.pop("command")](**args)


if __name__ == "__main__":
    sys.exit(main())
