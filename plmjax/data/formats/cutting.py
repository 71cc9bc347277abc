"""A stream of characters to whole texts or to lines, none of them too long to hold in memory."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from plmjax.errors import UserError

LONGEST_DOCUMENT = 1 << 22
"""Characters of a document; a longer text becomes several documents, cut where a line or a word ends."""
LONGEST_RECORD = 1 << 26
"""Characters of a JSON line or a wiki page, which cannot be cut; what is longer is an error."""


def cut(text: str) -> tuple[str, str]:
    """Splits a text that is too long for a document at the last paragraph, line or word that ends within the limit."""
    for end in ("\n\n", "\n", " "):
        at = text.rfind(end, LONGEST_DOCUMENT // 2, LONGEST_DOCUMENT)
        if at >= 0:
            return text[:at], text[at + len(end) :]
    return text[:LONGEST_DOCUMENT], text[LONGEST_DOCUMENT:]


def whole(place: str, blocks: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(place, text) of one text; a long one in several parts."""
    pending = ""
    for block in blocks:
        pending += block
        while len(pending) > LONGEST_DOCUMENT:
            part, pending = cut(pending)
            yield place, part
    yield place, pending


def lines(path: Path, blocks: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(place, line) of every line that is not blank.

    Raises:
      UserError: a line of more than `LONGEST_RECORD` characters.
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
