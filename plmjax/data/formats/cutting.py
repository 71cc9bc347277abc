"""Cutting of a stream of characters into documents or lines that fit into memory."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from plmjax.errors import UserError

LONGEST_DOCUMENT = 1 << 22
"""Maximum number of characters of a document; a longer text is cut at a line or a word."""
LONGEST_RECORD = 1 << 26
"""Maximum number of characters of a JSON line or a wiki page; these cannot be cut, so a longer one is an error."""


def cut(text: str) -> tuple[str, str]:
    """Split a long text at the last end of a paragraph, line or word within the limit.

    Ends in the first half of the limit are not used. Without any other end, the text is cut at the limit.
    """
    for end in ("\n\n", "\n", " "):
        at = text.rfind(end, LONGEST_DOCUMENT // 2, LONGEST_DOCUMENT)
        if at >= 0:
            return text[:at], text[at + len(end) :]
    return text[:LONGEST_DOCUMENT], text[LONGEST_DOCUMENT:]


def split_long(place: str, blocks: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (place, text) for a text; a long text is split into several parts."""
    pending = ""
    for block in blocks:
        pending += block
        while len(pending) > LONGEST_DOCUMENT:
            part, pending = cut(pending)
            yield place, part
    yield place, pending


def between(blocks: Iterable[str], separator: re.Pattern[str]) -> Iterator[tuple[str, bool]]:
    """Yield the text between separators as (text, true if a separator ends it); a long text is split into parts.

    separator: pattern of the characters between two documents, such as a blank line.
    """
    pending = ""
    for block in blocks:
        *complete, pending = separator.split(pending + block)
        for text in complete:
            while len(text) > LONGEST_DOCUMENT:
                part, text = cut(text)
                yield part, False
            yield text, True
        while len(pending) > LONGEST_DOCUMENT:
            part, pending = cut(pending)
            yield part, False
    yield pending, False


def lines(path: Path, blocks: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (place, line) of every line that is not blank.

    Raises:
        UserError: a line has more than `LONGEST_RECORD` characters.
    """
    pending, number = "", 0
    for block in blocks:
        *complete, pending = (pending + block).split("\n")
        for line in complete:
            number += 1
            if line and not line.isspace():
                yield f"{path} line {number}", line
        if len(pending) > LONGEST_RECORD:
            raise UserError(
                f"Expected lines of at most {LONGEST_RECORD} characters in {path}, found line {number + 1} longer; "
                "break it up."
            )
    if pending and not pending.isspace():
        yield f"{path} line {number + 1}", pending
