"""The format `text`: documents between blank lines."""

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from plmjax.data.formats import cutting
from plmjax.data.formats.document import Format, nonblank_lines
from plmjax.data.text_files import characters

UNMARKED = 1000
"""Line ends from which on a file without a blank line (in its first `LONGEST_DOCUMENT` characters) is no document but
many whose borders are not marked: one sentence per line, or one paragraph. Nothing could be held out of a single
document, and no second one be drawn for a sentence pair."""
UNMARKED_LINES = 50
"""Lines of a document of such a file."""
_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")


def _split(path: Path, blocks: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    """Each text between blank lines; every `UNMARKED_LINES` lines of a long file that has none (see `UNMARKED`)."""
    parts = _between_blank_lines(characters(path, blocks))
    parts = ((text, ended) for text, ended in parts if text and not text.isspace())
    first, ended = next(parts, ("", True))
    second = next(parts, None)
    marked = (second is not None and ended) or first.count("\n") < UNMARKED
    for text, _ in itertools.chain([(first, ended)], [second] if second else [], parts):
        if marked:
            yield str(path), text
        else:
            lines = text.split("\n")
            for start in range(0, len(lines), UNMARKED_LINES):
                yield str(path), "\n".join(lines[start : start + UNMARKED_LINES])


def _between_blank_lines(blocks: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """(text, whether a blank line ends it) of the text between blank lines; a long text in several parts."""
    pending = ""
    for block in blocks:
        *complete, pending = _BLANK_LINES.split(pending + block)
        for text in complete:
            while len(text) > cutting.LONGEST_DOCUMENT:
                part, text = cutting.cut(text)
                yield part, False
            yield text, True
        while len(pending) > cutting.LONGEST_DOCUMENT:
            part, pending = cutting.cut(pending)
            yield part, False
    yield pending, False


TEXT = Format(_split, nonblank_lines)
