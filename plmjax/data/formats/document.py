"""A raw document, and the interface of a format: how a file is split into documents, and how one becomes paragraphs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple


class Document(NamedTuple):
    """A raw document: its format, where it stands (for messages), its text as read, and the text's key in a record.

    With the format "jsonl" the text is a record (see `records`), as a JSON object.
    """

    format: str
    place: str
    text: str
    key: str = "text"


class Format(NamedTuple):
    """A format of files, one module each.

    split: (path, the file's decompressed blocks) -> (place, text) of every raw document, a few megabytes in memory.
    prose: a raw document -> its paragraphs, markup and boilerplate removed; empty without running text.
    """

    split: Callable[[Path, Iterator[bytes]], Iterator[tuple[str, str]]]
    prose: Callable[[Document], list[str]]


def nonblank_lines(document: Document) -> list[str]:
    """The lines of a document that hold more than white space."""
    return [line for line in document.text.split("\n") if line and not line.isspace()]
