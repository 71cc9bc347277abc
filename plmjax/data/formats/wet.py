"""The format `wet`: the text of web pages, in the conversion records of Common Crawl's WET files.

A WET file is a WARC file (ISO 28500), usually with one gzip member for each record.
"""

from collections.abc import Iterator
from pathlib import Path

from plmjax.data.formats import cutting
from plmjax.data.formats.document import Format, nonblank_lines
from plmjax.errors import UserError, quoted

_VERSION = b"WARC/1."
_LONGEST_HEADER = 1 << 16
_LEFT_OUT = ("warcinfo", "metadata")
"""Types of records that are left out: they describe the file or a page."""


def recognise(head: bytes) -> bool:
    """Return whether a decompressed file starts like a WARC file."""
    return head.startswith(_VERSION)


class _Bytes:
    """A buffered reader over a stream of blocks."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._pending = blocks, bytearray()

    def through(self, end: bytes, most: int) -> bytes | None:
        """Return the bytes up to and including the next `end`, or None if it does not follow within `most` bytes."""
        searched = 0
        while (at := self._pending.find(end, searched)) < 0:
            searched = max(0, len(self._pending) - len(end) + 1)
            if len(self._pending) > most or not self._more():
                return None
        return self.take(at + len(end))

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes, or fewer at the end of the stream."""
        while len(self._pending) < count and self._more():
            pass
        taken = bytes(self._pending[:count])
        del self._pending[:count]
        return taken

    def skip_line_ends(self) -> bool:
        """Skip line ends. Return whether anything follows."""
        while self._pending or self._more():
            if self._pending[0] not in b"\r\n":
                return True
            del self._pending[:1]
        return False

    def _more(self) -> bool:
        block = next(self._blocks, b"")
        self._pending += block
        return bool(block)


def _split(path: Path, blocks: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    stream, number = _Bytes(blocks), 0
    while stream.skip_line_ends():
        number += 1
        place = f"{path} record {number}"
        kind, length = _header(place, stream.through(b"\r\n\r\n", _LONGEST_HEADER))
        if length > cutting.LONGEST_RECORD:
            raise UserError(
                f"Expected records of at most {cutting.LONGEST_RECORD} bytes, found {length} in {place}; leave it out."
            )
        content = stream.take(length)
        if len(content) < length:
            raise UserError(f"Expected {length} bytes in {place}, found the end of the file; copy it again.")
        if kind in _LEFT_OUT:
            continue
        if kind != "conversion":
            raise UserError(
                f"Expected the text of pages in {place}, as WET files have it in records of the type conversion, found "
                f"the type {quoted(kind)}; extract the text first."
            )
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"Expected UTF-8 text in {place}, found byte 0x{content[error.start]:02x} at offset {error.start}, "
                "which is not UTF-8; convert the file to UTF-8."
            ) from error
        for _, part in cutting.split_long(place, [text]):
            yield place, part


def _header(place: str, header: bytes | None) -> tuple[str, int]:
    """Return the type of a record and the length of its content."""
    if header is None or not header.startswith(_VERSION):
        found = "none" if header is None else quoted(header[:20].decode("latin-1"))
        raise UserError(f"Expected the header of a WARC record at {place}, found {found}; check the file.")
    fields = {}
    for line in header.decode("utf-8", errors="replace").split("\r\n")[1:]:
        name, _, value = line.partition(":")
        fields[name.strip().lower()] = value.strip()
    length = fields.get("content-length", "")
    if not (length.isascii() and length.isdigit() and len(length) < 20):
        raise UserError(
            f"Expected a Content-Length in the header of {place}, found {quoted(length)}; copy the file again."
        )
    return fields.get("warc-type", "").lower(), int(length)


WET = Format(_split, nonblank_lines)
