"""The format `jsonl`: one JSON object per line, with the text under a key."""

from collections.abc import Iterator
from pathlib import Path

from plmjax.data import text_files
from plmjax.data.formats import cutting, records
from plmjax.data.formats.document import LINE_END, Document, Format, nonblank_lines


def _split(path: Path, blocks: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    return cutting.lines(path, text_files.text(path, blocks))


def _prose(document: Document) -> list[str]:
    record = records.parse(document.text, document.place)
    text = records.text(record, document.key, document.place, "--text_key")
    return nonblank_lines(document._replace(text=text))


JSONL = Format(_split, _prose, (LINE_END,))
