"""Lines of a file of examples, plain or compressed."""

from collections.abc import Iterator
from pathlib import Path

from plmjax.data import text_files
from plmjax.errors import UserError, nearest, quoted
from plmjax.files import storage


def suffix(path: str) -> str:
    """Return the suffix of a file before the suffix of its compression: `.tsv` for `train.tsv.gz`."""
    place = Path(path)
    return Path(place.stem).suffix if place.suffix in text_files.COMPRESSED else place.suffix


def lines(path: str) -> Iterator[str]:
    """Yield the lines of a file, each with "\\n" at its end; a compressed file is decompressed.

    Raises:
        UserError: no such file, a damaged one, or text that is not UTF-8; the message names the line.
    """
    place = storage.path(path)
    if not place.is_file():
        others = [str(other) for other in place.parent.iterdir()] if place.parent.is_dir() else []
        hint = nearest(str(place), others) if others else "check the path."
        raise UserError(f"Expected a file of examples, found no file {quoted(str(place), 300)}; {hint}")
    if not storage.size(place):
        return
    for number, line in enumerate(text_files.byte_lines(text_files.blocks(place)), start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8") + "\n"
        except UnicodeDecodeError as error:
            raise UserError(
                f"Expected UTF-8 text, found the byte 0x{line[error.start]:02x} in line {number} of {place}; "
                f"convert the file, for instance with iconv."
            ) from None


def whole_text(path: str) -> str:
    """Return the text of a file, read like `lines`."""
    return "".join(lines(path))
