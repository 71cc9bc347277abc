"""The format `wikiextractor`: the articles that WikiExtractor writes, each between <doc ...> and </doc>."""

import html
import re
from collections.abc import Iterator
from pathlib import Path

from plmjax.data import text_files
from plmjax.data.formats import cutting
from plmjax.data.formats.document import Document, Format
from plmjax.errors import UserError, quoted


def _split(path: Path, blocks: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    pending, opened = "", False
    for block in text_files.text(path, blocks):
        *complete, pending = (pending + block).split("</doc>")
        for text in complete:
            _check_open_tag(path, text, opened)
            opened = False
            yield str(path), text
        while len(pending) > cutting.LONGEST_DOCUMENT:
            _check_open_tag(path, pending, opened)
            opened = True
            part, pending = cutting.cut(pending)
            yield str(path), part
    if opened or pending.strip():
        _check_open_tag(path, pending, opened)
        raise UserError(f"Expected every <doc> of {path} to be closed, found the last one open: the file is truncated.")


def _check_open_tag(path: Path, text: str, opened: bool) -> None:
    """Raise UserError for text that does not start with <doc, unless an earlier part had the tag."""
    if not opened and not text.lstrip().startswith("<doc "):
        raise UserError(
            f"Expected WikiExtractor's <doc ...> in {path}, found {quoted(text.strip())}; check --format or leave it "
            "auto."
        )


def _prose(document: Document) -> list[str]:
    """Return the lines of an article without its title."""
    title = None
    lines = document.text.lstrip().split("\n")
    if lines[0].startswith("<doc "):
        match = re.search(r'title="([^"]*)"', lines[0])
        title = html.unescape(match[1]) if match else None
        lines = lines[1:]
    lines = [line for line in map(html.unescape, lines) if line and not line.isspace()]
    return lines[1:] if lines and lines[0].strip() == title else lines


WIKIEXTRACTOR = Format(_split, _prose)
