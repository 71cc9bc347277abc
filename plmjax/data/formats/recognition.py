"""Recognition of the format of a raw text by its name and first bytes, and of files that are not prose.

Only files that cannot be prose are refused. A text that is refused by mistake is read only if the user names its
format; a table that is accepted by mistake is visible in the prepared dataset.
"""

import csv
import re
from pathlib import Path

from plmjax.data.formats import books, wet
from plmjax.data.text_files import COMPRESSED
from plmjax.errors import UserError
from plmjax.files import json_text

HEAD = 1 << 16
"""Number of bytes to examine."""

_HTML = re.compile(r"(?is)(?:<\?xml[^>]*>\s*|<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)\b")
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_OBJECT = re.compile(rf"\{{\s*{_STRING}\s*:")
_ARRAY = re.compile(rf"\[\s*(?:\{{\s*{_STRING}\s*:|{_STRING}\s*,\s*\")")
_NAME = re.compile(r"[A-Za-z_][\w .#/-]{0,40}")
_LEAST_ROWS = 10


def recognise(path: Path, first: bytes) -> str:
    """Return the format of a file from its name and its first bytes (decompressed).

    A text with lines broken at one width, such as Gutenberg's books, counts as a book.

    Raises:
        UserError: HTML, XML, RTF, a JSON array, a JSON object of several lines, or a table.
    """
    if wet.recognise(first):
        return "wet"
    name = path.name.lower()
    for suffix in COMPRESSED:
        name = name.removesuffix(suffix)
    head = first[:HEAD].decode("utf-8", errors="ignore").lstrip("\ufeff").lstrip()
    if head.startswith("<mediawiki") or (head.startswith(("<?xml", "<!--")) and "<mediawiki" in head[:5000]):
        return "wikipedia-dump"
    if head.startswith("<doc "):
        return "wikiextractor"
    if found := _no_prose(name, head):
        what, advice = found
        raise UserError(
            f"Expected prose in {path}, found {what}; {advice}, or read the file as it is with the format text."
        )
    if name.endswith((".jsonl", ".ndjson")) or _OBJECT.match(head):
        return "jsonl"
    return "books" if books.recognise(head) else "text"


def _no_prose(name: str, head: str) -> tuple[str, str] | None:
    """Return (kind, advice) for a text that is not prose, or None for prose."""
    if _HTML.match(head) or (name.endswith((".html", ".htm", ".xhtml")) and head.startswith("<")):
        return "HTML", "extract its text first"
    if head.startswith("<?xml"):
        return "XML", "extract its text first"
    if head.startswith("{\\rtf"):
        return "RTF", "convert it to plain text first"
    if _ARRAY.match(head) or (name.endswith(".json") and head.startswith("[")):
        return "a JSON array", f"write one object per line (jq -c '.[]' {name} > lines.jsonl)"
    if _OBJECT.match(head) and _goes_on(head):
        return "a JSON object of many lines", "write one object per line (jq -c makes them) with the text in it"
    if name.endswith((".csv", ".tsv", ".tab")) or _is_table(head):
        return "a table", "write the column of the text to a .jsonl file, one object per line"
    return None


def _goes_on(head: str) -> bool:
    """Return whether a JSON object at the start of a text continues after its first line."""
    line, found, _ = head.partition("\n")
    if not found or not line.rstrip().endswith(("{", ",", "[")):
        return False
    try:
        json_text.parse(line)
    except ValueError:
        return True
    return False


def _is_table(head: str) -> bool:
    """Return whether a text is a table.

    In a table, all lines have the same number of tabs between cells, or, after a line of column names, the same number
    of commas without a space after them. A poem with a comma in every line is no table: it has spaces after the commas
    or, in Chinese, no line of column names.
    """
    lines = [line for line in head.split("\n")[:-1] if line and not line.isspace()]
    if len(lines) < _LEAST_ROWS:
        return False
    tabs = {line.strip().count("\t") for line in lines}
    if len(tabs) == 1 and tabs != {0}:
        return True
    try:
        rows = list(csv.reader(head.split("\n")[:-1]))[:-1]  # the last may be cut
    except csv.Error:
        return False
    rows = [row for row in rows if row]
    names = rows[0] if len(rows) >= _LEAST_ROWS else []
    return (
        len(names) > 1
        and all(_NAME.fullmatch(name) for name in names)
        and all(len(row) == len(names) and not any(field.startswith(" ") for field in row[1:]) for row in rows)
    )
