"""The format `lines`: one document per line."""

from collections.abc import Iterator
from pathlib import Path

from plmjax.data.formats import cutting
from plmjax.data.formats.document import LINE_END, Format, nonblank_lines
from plmjax.data.text_files import characters


def _split(path: Path, blocks: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    for place, line in cutting.lines(path, characters(path, blocks)):
        while len(line) > cutting.LONGEST_DOCUMENT:
            part, line = cutting.cut(line)
            yield place, part
        yield place, line


LINES = Format(_split, nonblank_lines, (LINE_END,))
