"""Import and export of word embeddings in the files of word2vec (code.google.com/archive/p/word2vec) and GloVe.

Three forms are published. Each also exists gzipped:

    text    a line "V D", then for each word a line: the word and D decimals, separated by spaces
    binary  a line "V D", then for each word: the word, a space, D little-endian float32 and mostly a newline
    glove   as text, without the line "V D"

A byte order mark at the beginning of a file is ignored. The last row of a text must also end in a newline: otherwise
its last number could be cut off unnoticed.

One tensor is read: `vectors`, with one word for each row.
"""

import array
import codecs
import contextlib
import gzip
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Literal

import chex
import numpy as np

from plmjax.errors import UserError, quoted
from plmjax.files import json_text, storage
from plmjax.interop.tensors import Tensors

Form = Literal["text", "binary", "glove"]

VECTORS = "vectors"
_BEGINNING = 1 << 20
"""Number of bytes from which the form is recognized: more than the longest published row."""
_WIDEST = 1 << 16
"""Maximum embedding size."""
_CHUNK = 1 << 24
_LONGEST_ROW = 1 << 22
"""Maximum number of bytes of a text row or a word. A small gzipped file can hold a line that fills the memory."""
_DAMAGED = (OSError, EOFError, zlib.error)
"""Errors of gzip on a damaged file."""
_MOST_DIGITS = 18
"""Maximum number of digits of the vocabulary size and the embedding size."""


def evidence(path: Path) -> str:
    """Return the evidence that a file holds words and vectors; empty if it does not."""
    if not path.is_file():
        return ""
    try:
        form, size = _form(path)
    except _DAMAGED:
        return ""
    return f"words with vectors of {size} numbers, {form} form" if form else ""


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[Tensors]:
    """Open `vectors`, float32 [V D], and its words for the duration of the block."""
    yield read(path)


def read(path: Path) -> Tensors:
    """Return `vectors`, float32 [V D], and its words, in the order of the file. A word may occur twice.

    The word2vec program cuts long words, which can leave bytes that are not UTF-8. They become \\xNN. Raises UserError
    if the file is not one of the three forms, is damaged, or ends early, naming the row.
    """
    try:
        form, size = _form(path)
        if form is None:
            raise UserError(
                f"Expected words and their vectors in {path}, found something else; name a file of word2vec or GloVe."
            )
        with _file(path) as file:
            count = None if form == "glove" else int(file.readline().split()[0])
            words, numbers = (_binary_rows if form == "binary" else _text_rows)(file, path, count, size)
    except _DAMAGED as error:
        raise UserError(
            f"Expected to read all of {path}, found it damaged ({json_text.reason(error)}); fetch it again."
        ) from error
    vectors = np.frombuffer(numbers, np.float32).reshape(-1, size)
    return Tensors(str(path), {VECTORS: vectors.shape}, {VECTORS: "float32"}, {VECTORS: vectors}.__getitem__, words)


def write(path: Path, words: Sequence[str], vectors: np.ndarray, form: Form = "text") -> None:
    """Write a file completely or not at all. Reading it returns every word and every bit of the vectors unchanged.

    words: V words of any characters except spaces and newlines, none empty. vectors: float32 [V D].

    Raises:
        UserError: the form cannot represent an empty word, a word with a space or newline, or in glove an embedding
            size of 1 or a byte order mark before the first word.
    """
    chex.assert_shape(vectors, (len(words), None))
    chex.assert_type(vectors, np.float32)
    if form == "glove" and vectors.shape[1] < 2:
        raise UserError("Expected vectors of two numbers or more for the glove form, found one; choose text.")
    if "" in words:
        raise UserError("Expected words of at least one character, found an empty one; leave it out.")
    if form == "glove" and words and words[0].startswith("\ufeff"):
        raise UserError(f"Expected no byte order mark before the first word, found {quoted(words[0])}; choose text.")
    for word in words:
        if any(separator in word for separator in " \n"):
            raise UserError(f"Expected words without spaces or newlines, found {quoted(word)}; join its parts with _.")
    with storage.replace_file(path) as scratch, scratch.open("wb") as file:
        if form != "glove":
            file.write(f"{len(words)} {vectors.shape[1]}\n".encode())
        for word, vector in zip(words, vectors, strict=True):
            if form == "binary":
                file.write(word.encode() + b" " + vector.astype("<f4").tobytes() + b"\n")
            else:  # the fewest digits that return the same float32
                file.write(f"{word} {' '.join(map(str, vector))}\n".encode())


@contextlib.contextmanager
def _file(path: Path) -> Iterator[IO[bytes]]:
    """Open the bytes of a file, decompressed if it is gzipped, after a byte order mark."""
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    with gzip.open(path) if zipped else path.open("rb") as file:
        if file.peek(3)[:3] == codecs.BOM_UTF8:
            file.read(3)
        yield file


def _form(path: Path) -> tuple[Form | None, int]:
    """Return the form of a file and the embedding size, from the beginning of the file."""
    with _file(path) as file:
        beginning = file.read(_BEGINNING)
    first, *rest = beginning.split(b"\n", 2)
    fields, second = first.split(), rest[0] if rest else b""
    digits = all(field.isdigit() and len(field) <= _MOST_DIGITS for field in fields)
    if first[:1].isdigit() and len(fields) == 2 and digits:
        count, size = map(int, fields)
        if not (count > 0 and 0 < size <= _WIDEST and second):
            return None, 0
        # A text row with another count of numbers is damaged, and reading the rows raises the error. The bytes of
        # float32 vectors never read as decimals up to the next newline.
        return ("text" if _is_complete(second) or _vector(second, size) else "binary" if b" " in second else None), size
    size = min((_numbers(line) for line in (first, second) if line), default=0)
    return ("glove", size) if 1 < size <= _WIDEST else (None, 0)


def _is_complete(line: bytes) -> bool:
    """Return true if a line is a word without spaces, followed by numbers."""
    return 0 < _numbers(line) == line.rstrip().count(b" ")


def _numbers(line: bytes) -> int:
    """Return the count of numbers at the end of a line. The word before may hold any character except a newline."""
    count = 0
    for field in reversed(line.rstrip().split(b" ")[1:]):
        if b"_" in field:  # Python reads 1_0 as 10
            break
        try:
            float(field)
        except ValueError:
            break
        count += 1
    return count


def _vector(line: bytes, size: int) -> list[float] | None:
    """Return the numbers at the end of a line after a word; None if there are fewer."""
    word, *numbers = line.rstrip().rsplit(b" ", size)
    if len(numbers) != size or b"_" in line[len(word) :]:  # Python reads 1_0 as 10
        return None
    try:
        return [float(number) for number in numbers]
    except ValueError:
        return None


def _text_rows(file: IO[bytes], path: Path, count: int | None, size: int) -> tuple[list[str], array.array]:
    words, numbers = [], array.array("f")
    while line := file.readline(_LONGEST_ROW):
        whole = line.endswith(b"\n")
        if whole and not line.strip():
            continue
        vector, word = _vector(line, size), line.rstrip().rsplit(b" ", size)[0]
        # GloVe's words may hold spaces. In a file whose first line has the sizes (`count`), a longer row has another
        # embedding size.
        if vector is None or not whole or not word.strip(b" ") or (count is not None and b" " in word):
            ending = "" if whole else " and a newline"
            raise UserError(
                f"Expected a word and {size} numbers{ending} in row {len(words) + 1} of {path}, found "
                f"{quoted(line.decode('utf-8', 'backslashreplace'))}; fetch it again."
            )
        words.append(_word(word))
        numbers.extend(vector)
    if count not in (None, len(words)):
        raise UserError(f"Expected {count} words in {path}, found {len(words)}; fetch it again.")
    return words, numbers


def _binary_rows(file: IO[bytes], path: Path, count: int, size: int) -> tuple[list[str], array.array]:
    words, numbers = [], array.array("f")
    buffer, start, width = b"", 0, 4 * size
    for row in range(count):
        while (end := buffer.find(b" ", start)) < 0 or len(buffer) < end + 1 + width:
            more = file.read(_CHUNK)
            if not more or (end < 0 and len(buffer) - start > _LONGEST_ROW):
                raise UserError(f"Expected {count} words in {path}, found {row}; fetch it again.")
            buffer, start = buffer[start:] + more, 0
        word = buffer[start:end].lstrip(b"\n")
        if not word:
            raise UserError(f"Expected a word in row {row + 1} of {path}, found an empty one; fetch it again.")
        words.append(_word(word))
        numbers.frombytes(buffer[end + 1 : end + 1 + width])
        start = end + 1 + width
    if (buffer[start:] + file.read(1)).strip():
        raise UserError(f"Expected {count} words in {path}, found more after them; fetch it again.")
    if sys.byteorder == "big":
        numbers.byteswap()
    return words, numbers


def _word(word: bytes) -> str:
    return word.decode("utf-8", "backslashreplace")
