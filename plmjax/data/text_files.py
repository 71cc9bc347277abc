"""Reading of raw text files in blocks of bytes or characters; the first bytes of a file show if it is compressed.

A range of an uncompressed file has the records that begin in it, so that several processes can read one file.
"""

import bz2
import codecs
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from plmjax import storage
from plmjax.errors import UserError, quoted

BLOCK = 1 << 20
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
"""Suffixes of the names of compressed files."""


def _zstandard(raw: Any) -> Any:
    """Return a stream of decompressed bytes. Python's standard library has Zstandard from 3.14 on."""
    import pyarrow

    return pyarrow.CompressedInputStream(raw, "zstd")


_OPENERS = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open, b"\x28\xb5\x2f\xfd": _zstandard}


def blocks(path: Path, progress: Callable[[int], None] = lambda count: None) -> Iterator[bytes]:
    """Yield the decompressed blocks of a file.

    progress: function that is called with the bytes read from disk since its last call.

    Raises:
        UserError: the file is empty, unreadable, truncated or damaged.
    """
    try:
        with path.open("rb") as raw:
            magic = raw.read(max(map(len, _OPENERS)))
            raw.seek(0)
            opener = next((opener for start, opener in _OPENERS.items() if magic.startswith(start)), None)
            stream = opener(raw) if opener else raw
            position = size = 0
            while block := stream.read(BLOCK):
                progress(raw.tell() - position)
                position, size = raw.tell(), size + len(block)
                yield block
            progress(raw.tell() - position)
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise _damaged(path) from error
    except OSError as error:
        if error.errno is None:  # gzip, bz2 and pyarrow report damaged data so
            raise _damaged(path) from error
        raise UserError(
            f"Expected to read {path}, found that the system cannot ({error.strerror}); check it."
        ) from error
    if size == 0:
        raise UserError(f"Expected text in {path}, found an empty file; leave it out.")


def is_compressed(path: Path) -> bool:
    """Return whether a file is compressed, so that it can only be read from its beginning."""
    with path.open("rb") as file:
        return file.read(max(map(len, _OPENERS))).startswith(tuple(_OPENERS))


WINDOW, LAST_WINDOW = 1 << 24, 1 << 28
"""Number of bytes in which a boundary between records is searched, and in which the last kind of boundary is."""
_LOOK_BACK = 1 << 16


def boundary(path: Path, at: int, boundaries: Sequence[re.Pattern[bytes]]) -> int:
    """Return the first byte of the first record of an uncompressed file that begins at byte `at` or later.

    Ranges of a file between such bytes have all of its records, each once.

    boundaries: patterns of the bytes between two records, the best one first. The next one is taken where `WINDOW`
        bytes that follow have none of it, and the end of the file where none is left.
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


def _damaged(path: Path) -> UserError:
    return UserError(f"Expected {path} to be a whole compressed file, found it truncated or damaged; copy it again.")


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


def lines(path: Path) -> list[str]:
    """Return the lines of a text file, which may be compressed; an empty line is a text without words.

    Raises:
        UserError: there is no file, or `blocks` or `characters` raises it.
    """
    if not path.is_file():
        raise UserError(
            f"Expected a text file with one text per line, found no file {quoted(str(path), 300)}; name one."
        )
    return divided("".join(characters(path, blocks(path))))


def divided(text: str) -> list[str]:
    """Return the lines of a text with the line ends of any system."""
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")


def with_end(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the blocks, and then an empty one."""
    yield from blocks
    yield b""
