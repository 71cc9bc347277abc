"""A raw document, and the interface of a format: it splits a file into documents, and a document into paragraphs."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from plmjax.data import text_files


class Document(NamedTuple):
    """A raw document: its format, its place for messages, its text as read, and the key of the text in a record.

    With the format "jsonl" the text is a record (see `records`), as a JSON object. split: the split that a published
    corpus gives the document; "" for other formats.
    """

    format: str
    place: str
    text: str
    key: str = "text"
    split: str = ""


class Format(NamedTuple):
    """A format of files, one module each.

    Attributes:
        split: function from (path, decompressed blocks of the file) to (place, text) of every raw document, with a few
            megabytes in memory.
        prose: function from a raw document to its paragraphs without markup and boilerplate; empty if it has no
            running text.
        boundaries: patterns of the bytes between two documents at which reading can start, the best one first; empty
            if a file can only be read from its beginning.
    """

    split: Callable[[Path, Iterator[bytes]], Iterator[tuple[str, str]]]
    prose: Callable[[Document], list[str]]
    boundaries: tuple[re.Pattern[bytes], ...] = ()


LINE_END = text_files.LINE_END
"""The boundary of formats with a document on every line."""


def nonblank_lines(document: Document) -> list[str]:
    """Return the lines of a document that are not blank."""
    return [line for line in text_files.split_lines(document.text) if line and not line.isspace()]
