"""Raw text files as users have them: plain or gzipped, with or without an end of line after the last line."""

import gzip
import zlib
from pathlib import Path
from typing import List


def read_raw(path: Path) -> bytes:
    """The content of a file, unpacked if its name ends in .gz.

    Raises:
        ValueError: a broken archive, by name.
    """
    raw = path.read_bytes()
    if path.suffix != ".gz":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: wanted a whole gzip file, got {error}") from None


def decode(raw: bytes, path: Path) -> str:
    """Text in UTF-8, without the mark that some files begin with."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: wanted UTF-8, got {error}") from None


def split_lines(text: str) -> List[str]:
    """The lines of a text; an end of line after the last one begins no further line."""
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def read_lines(path: Path) -> List[str]:
    """The lines of a file in UTF-8."""
    return split_lines(decode(read_raw(path), path))
