"""The format `lines`: one document per line."""

from collections.abc import Iterator
from pathlib import Path

from plmjax.data import text_files
from plmjax.data.formats import cutting
from plmjax.data.formats.document import LINE_END, Format, nonblank_lines


def _split(path: Path, blocks: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    for place, line in cutting.lines(path, text_files.text(path, blocks)):
        while len(line) > cutting.LONGEST_DOCUMENT:
            part, line = cutting.cut(line)
            yield place, part
        yield place, line


LINES = Format(_split, nonblank_lines, (LINE_END,))
