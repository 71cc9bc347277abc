"""Reading of raw text files in blocks of bytes or characters; compression is detected from the first bytes.

A line ends with a line feed, a carriage return, or both, in every file that is read. Other characters that may begin a
new line (U+000B, U+000C, U+0085, U+2028) are white space within a line, as in JSON and most programs.

A range of an uncompressed file has the records that begin in it, so that several processes can read one file.
"""

import bz2
import codecs
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from plmjax.errors import UserError, quoted
from plmjax.files import storage

BLOCK = 1 << 20
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
"""Suffixes of the names of compressed files."""


def _zstandard(raw: Any) -> Any:
    """Return a stream of decompressed bytes. Python's standard library has Zstandard from 3.14 on."""
    import pyarrow

    return pyarrow.CompressedInputStream(raw, "zstd")


_KINDS = {
    b"\x1f\x8b": ("gzip", gzip.open),
    b"BZh": ("bzip2", bz2.open),
    b"\xfd7zXZ\0": ("xz", lzma.open),
    b"\x28\xb5\x2f\xfd": ("Zstandard", _zstandard),
    # pzstd begins with a frame that has no text (RFC 8878, section 3.1.2).
    **{bytes([byte]) + b"\x2a\x4d\x18": ("Zstandard", _zstandard) for byte in range(0x50, 0x60)},
}
"""First bytes of a compressed file -> its name, and the function that opens it."""
_UNPACK = "unpack it and name its files"
_FOREIGN = (
    (0, b"PK\x03\x04", "a zip archive or an office document", _UNPACK),
    (0, b"PK\x05\x06", "an empty zip archive", "leave it out"),
    (257, b"ustar", "a tar archive", _UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (0, b"Rar!\x1a\x07", "a rar archive", _UNPACK),
    (0, b"\x04\x22\x4d\x18", "an lz4 file", "decompress it first"),
    (0, b"\x1f\x9d", "a file of compress (.Z)", "decompress it first"),
    (0, b"\x5d\0\0", "an lzma file", "decompress it first"),
    (0, b"%PDF-", "a PDF", "extract its text first"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an office document", "convert it to plain text first"),
    (0, b"PAR1\x15", "a Parquet file", "decompress it if it is compressed, and name the format parquet or auto"),
    (0, b"ARROW1\0\0", "an Arrow file", "decompress it if it is compressed, and name the format arrow or auto"),
    (0, b"FEA1", "an old Feather file", "write it as a Parquet file"),
    (0, b"Obj\x01", "an Avro file", "write it as a Parquet file"),
    (0, b"SQLite format 3\0", "an SQLite database", "write its text to a .jsonl file"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file", "write its text to a .jsonl file"),
)
"""(offset, bytes at it, name, advice) of kinds of files that are not text."""


def blocks(path: Path, progress: Callable[[int], None] = lambda count: None) -> Iterator[bytes]:
    """Yield the decompressed blocks of a file.

    progress: function that is called with the bytes read from disk since its last call.

    Raises:
        UserError: the file is empty, unreadable, truncated or damaged, or of a kind that is not text.
    """
    kind = ""
    try:
        with path.open("rb") as raw:
            magic = raw.read(max(map(len, _KINDS)))
            raw.seek(0)
            kind, opener = next((value for start, value in _KINDS.items() if magic.startswith(start)), ("", None))
            stream = opener(raw) if opener else raw
            position = size = 0
            while block := stream.read(BLOCK):
                if not size:
                    _check_is_text(path, kind, block)
                progress(raw.tell() - position)
                position, size = raw.tell(), size + len(block)
                yield block
            progress(raw.tell() - position)
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise _damaged(path, kind) from error
    except OSError as error:
        if error.errno is None:  # gzip, bz2 and pyarrow report damaged data in this way
            raise _damaged(path, kind) from error
        raise UserError(
            f"Expected to read {path}, found that the system cannot ({error.strerror}); check it."
        ) from error
    if size == 0:
        raise UserError(f"Expected text in {path}, found an empty file; leave it out.")


def is_compressed(path: Path) -> bool:
    """Return whether a file is compressed, so that it can only be read from its beginning."""
    with path.open("rb") as file:
        return file.read(max(map(len, _KINDS))).startswith(tuple(_KINDS))


WINDOW, LAST_WINDOW = 1 << 24, 1 << 28
"""Number of bytes in which a boundary is searched for, and the number for the last pattern of boundaries."""
_LOOK_BACK = 1 << 16


def boundary(path: Path, at: int, boundaries: Sequence[re.Pattern[bytes]]) -> int:
    """Return the first byte of the first record of an uncompressed file that begins at byte `at` or later.

    Ranges of a file between such bytes have all of its records, each once.

    boundaries: patterns of the bytes between two records, the best one first. A pattern is searched for in the next
        `WINDOW` bytes, the last one in `LAST_WINDOW`. If none matches, the result is the end of the file.
    """
    size = storage.size(path)
    if at <= 0 or at >= size:
        return min(max(at, 0), size)
    with path.open("rb") as file:
        for pattern in boundaries:
            window = LAST_WINDOW if pattern is boundaries[-1] else WINDOW
            file.seek(at - 1)  # a record may begin at `at` itself
            found, searched = b"", 0
            while len(found) < window:
                if not (block := file.read(BLOCK)):
                    return size  # the last record goes on to the end
                found += block
                # A boundary at the end of the block may continue in the next one.
                match = pattern.search(found, searched)
                if match and (match.end() < len(found) or at - 1 + len(found) == size):
                    return at - 1 + match.end()
                searched = max(0, len(found) - _LOOK_BACK)
    return size


def range_blocks(path: Path, begin: int, end: int, progress: Callable[[int], None]) -> Iterator[bytes]:
    """Yield the blocks of the bytes from `begin` to `end` of an uncompressed file."""
    with path.open("rb") as file:
        file.seek(begin)
        while begin < end and (block := file.read(min(BLOCK, end - begin))):
            begin += len(block)
            progress(len(block))
            yield block


def _check_is_text(path: Path, kind: str, first: bytes) -> None:
    for place, start, what, advice in _FOREIGN:
        if first.startswith(start, place):
            within = f" compressed with {kind}" if kind else ""
            raise UserError(f"Expected text in {path}, found {what}{within}; {advice}.")


def _damaged(path: Path, kind: str) -> UserError:
    return UserError(f"Expected a whole {kind} file at {path}, found it truncated or damaged; copy it again.")


def characters(path: Path, blocks: Iterable[bytes]) -> Iterator[str]:
    """Yield the text of UTF-8 blocks, without a byte order mark.

    Raises:
        UserError: bytes are not UTF-8, or are binary.
    """
    decoder, fed = codecs.getincrementaldecoder("utf-8")(), 0
    for block in with_end(blocks):
        zero = block.find(b"\0")
        if zero >= 0:
            raise UserError(
                f"Expected UTF-8 text in {path}, found a zero byte at offset {fed + zero}: it is binary or UTF-16; "
                "convert it to UTF-8 or leave it out."
            )
        first, fed = fed == 0, fed + len(block)
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            offset, byte = fed - len(error.object) + error.start, error.object[error.start]
            raise UserError(
                f"Expected UTF-8 text in {path}, found byte 0x{byte:02x} at offset {offset}, which is not UTF-8; "
                "convert the file to UTF-8."
            ) from error
        yield text.removeprefix("\ufeff") if first else text


LINE_END = re.compile(rb"\r\n?+|\n")


def text(path: Path, blocks: Iterable[bytes]) -> Iterator[str]:
    """Yield the text of UTF-8 blocks as `characters` does, with "\\n" for every line end.

    Raises:
        UserError: see `characters`.
    """
    ends = io.IncrementalNewlineDecoder(None, translate=True)
    for block in characters(path, blocks):
        yield ends.decode(block)
    yield ends.decode("", final=True)


def byte_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of blocks without their ends."""
    pending = b""
    for block in with_end(blocks):
        pending += block
        held = b"\r" if block and pending.endswith(b"\r") else b""  # its line feed may follow
        *complete, pending = LINE_END.split(pending.removesuffix(held))
        yield from complete
        pending += held
    if pending:
        yield pending


def lines(path: Path) -> list[str]:
    """Return the lines of a text file, which may be compressed. Empty lines are kept.

    Raises:
        UserError: there is no file, or `blocks` or `characters` raises it.
    """
    if not path.is_file():
        raise UserError(
            f"Expected a text file with one text per line, found no file {quoted(str(path), 300)}; name one."
        )
    return split_lines("".join(characters(path, blocks(path))))


def split_lines(text: str) -> list[str]:
    """Return the lines of a text without their line ends."""
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")


def with_end(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the blocks, and then an empty one."""
    yield from blocks
    yield b""
