"""Divides the input into ranges for several processes: files, bytes of a file, or examples of TFDS.

The ranges depend only on the input and their size, and so do their documents. A document belongs to the range in which
it begins.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from plmjax.data import text_files
from plmjax.data.formats import inputs, records, tfds
from plmjax.data.formats.corpora import CORPORA
from plmjax.data.formats.document import Document, Format
from plmjax.errors import UserError
from plmjax.files import storage


class Range(NamedTuple):
    """A part of the input.

    Attributes:
        name: path of a file, name of a split of TFDS, or "" for all of the input.
        begin: first byte or example.
        end: byte or example after the last one; None means the end.
        bytes: number of bytes on the disk, 0 if it is not known.
        state: state of the file when the ranges were made, to notice a change; "" if the range is not in a file.
    """

    name: str = ""
    begin: int = 0
    end: int | None = None
    bytes: int = 0
    state: str = ""


@dataclasses.dataclass(frozen=True)
class Input:
    """Raw text to read, with the arguments of `formats.documents`.

    declared: a format that a user's file declares. To unpickle it, a worker process imports its module.
    """

    paths: tuple[str, ...]
    format: str = "auto"
    text_key: str = "text"
    parts: records.Parts | None = None
    split: str = ""
    declared: Format | None = None

    def ranges(self, size: int) -> list[Range]:
        """Return the ranges of about `size` bytes in the order of reading.

        A compressed file is one range, and so is a file whose format must be read from its beginning.

        Raises:
            UserError: see `formats.files` and `tfds.ranges`.
        """
        if self.format.startswith(inputs.TFDS):
            found = tfds.ranges(self.format.removeprefix(inputs.TFDS), self.paths, size)
            return [Range(split, begin, end) for split, begin, end in found]
        if self.format in CORPORA or self.format == inputs.DOCUMENTATION:
            return [Range()]
        return [part for path in inputs.files(self.paths, self.format) for part in self._file_ranges(path, size)]

    def _file_ranges(self, path: Path, size: int) -> Iterator[Range]:
        total, state = storage.size(path), storage.state(path)
        boundaries = () if total <= size else inputs.boundaries(path, self.format)
        begin = 0
        while boundaries and begin + size < total:
            end = text_files.boundary(path, begin + size, boundaries)
            yield Range(str(path), begin, end, end - begin, state)
            begin = end
        if begin < total or not total:
            yield Range(str(path), begin, None, total - begin, state)

    def documents(self, part: Range, progress: Callable[[int], None] = lambda count: None) -> Iterator[Document]:
        """Yield the raw documents of a range.

        progress: function that is called with the bytes read from disk since its last call.

        Raises:
            UserError: see `formats.documents`; or the file has changed since the ranges were made.
        """
        if self.format.startswith(inputs.TFDS):
            name = self.format.removeprefix(inputs.TFDS)
            yield from tfds.documents(name, self.paths, self.text_key, parts=self.parts, part=part[:3])
            return
        if not part.name:
            yield from inputs.documents(
                self.paths,
                format=self.format,
                progress=progress,
                text_key=self.text_key,
                parts=self.parts,
                split=self.split,
            )
            return
        path = storage.path(part.name)
        _check_unchanged(path, part)
        bounds = (part.begin, part.end) if part.begin or part.end is not None else None
        yield from inputs.file_documents(
            path, self.format, self.text_key, parts=self.parts, progress=progress, bounds=bounds
        )
        _check_unchanged(path, part)


def _check_unchanged(path: Path, part: Range) -> None:
    try:
        state = storage.state(path)
    except FileNotFoundError:
        state = ""
    if state != part.state:
        found = "it changed" if state else "it removed"
        raise UserError(f"Expected {path} to stay as it was when this command began, found {found}; run it again.")
