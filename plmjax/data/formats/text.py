"""The format `text`: documents between blank lines."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from plmjax.data import text_files
from plmjax.data.formats import cutting
from plmjax.data.formats.document import LINE_END, Format, nonblank_lines

UNMARKED = 1000
"""Number of line ends from which on a file without a blank line (in its first `LONGEST_DOCUMENT` characters) counts as
several documents without marks between them. Such a file has one sentence or one paragraph per line. As one document,
it would have nothing to hold out, and no second document for a sentence pair.
"""
UNMARKED_LINES = 50
"""Number of lines of each document of such a file."""
_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")


def _split(path: Path, blocks: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    """Yield each text between blank lines.

    A long file without blank lines is divided into documents of `UNMARKED_LINES` lines (see `UNMARKED`).
    """
    parts = cutting.between(text_files.text(path, blocks), _BLANK_LINES)
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


_BLANK_LINE_BYTES = re.compile(rb"(?:\r\n?+|\n)(?:[ \t\f\v]*+(?:\r\n?+|\n))+")

TEXT = Format(_split, nonblank_lines, (_BLANK_LINE_BYTES, LINE_END, re.compile(rb" ")))
