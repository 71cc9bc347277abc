"""Line-by-line reading of a file of examples, plain or gzipped."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from plmjax import json_text, storage
from plmjax.errors import UserError, nearest, quoted


def suffix(path: str) -> str:
    """Return the suffix of a file without .gz: `.tsv` for `train.tsv.gz`."""
    return Path(path.removesuffix(".gz")).suffix


def lines(path: str) -> Iterator[str]:
    """Yield the lines of a file, each with its end, while reading; decompress it if its name ends in .gz.

    Raises:
        UserError: no such file, a damaged one, or text that is not UTF-8; the message names the line.
    """
    place = storage.path(path)
    if not place.is_file():
        others = [str(other) for other in place.parent.iterdir()] if place.parent.is_dir() else []
        hint = nearest(str(place), others) if others else "check the path."
        raise UserError(f"Expected a file of examples, found no file {quoted(str(place), 300)}; {hint}")
    with place.open("rb") as file:
        for number, line in enumerate(_unpacked(file, place) if place.suffix == ".gz" else file, start=1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"Expected UTF-8 text, found the byte 0x{line[error.start]:02x} in line {number} of {place}; "
                    f"convert the file, for instance with iconv."
                ) from None


def whole_text(path: str) -> str:
    """Return the whole text of a file, read like `lines`."""
    return "".join(lines(path))


def _unpacked(file: BinaryIO, place: Path) -> Iterator[bytes]:
    try:
        with gzip.open(file) as contents:
            yield from contents
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(
            f"Expected a whole gzip file at {place}, found a damaged one ({json_text.reason(error)}); copy it again."
        ) from None
