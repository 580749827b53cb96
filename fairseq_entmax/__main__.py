"""Command line: `python -m fairseq_entmax user-dir | doctor`."""

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


COMMANDS = {"user-dir": user_dir, "doctor": doctor}


def main(arguments: Optional[List[str]] = None) -> int:
    parser = _OneLineParser(
        prog="python -m fairseq_entmax", description="Helpers of the fairseq plugin fairseq-entmax."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_OneLineParser)
    commands.add_parser("user-dir", help="print the folder to give to --user-dir of the fairseq commands")
    commands.add_parser("doctor", help="check the installation: versions, fairseq, checkpoints; non-zero if unusable")
    args = parser.parse_args(arguments)
    return COMMANDS[args.command]()


if __name__ == "__main__":
    sys.exit(main())
