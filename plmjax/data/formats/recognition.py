"""Recognition of the format of a raw text from its name and its beginning, and of texts that are no prose.

Only what cannot be prose is refused: a false alarm would keep somebody from their own text, while a table that passes
for prose can be seen in what was prepared.
"""

import csv
import re
from pathlib import Path

from plmjax import json_text
from plmjax.data.formats import books
from plmjax.data.text_files import COMPRESSED
from plmjax.errors import UserError

HEAD = 1 << 16
"""Bytes that are looked at."""

_HTML = re.compile(r"(?is)(?:<\?xml[^>]*>\s*|<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)\b")
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_OBJECT = re.compile(rf"\{{\s*{_STRING}\s*:")
_ARRAY = re.compile(rf"\[\s*(?:\{{\s*{_STRING}\s*:|{_STRING}\s*,\s*\")")
_NAME = re.compile(r"[A-Za-z_][\w .#/-]{0,40}")
_LEAST_ROWS = 10


def recognise(path: Path, first: bytes) -> str:
    """The format of a file from its name and its first bytes (decompressed).

    Text whose lines are broken at one width (as Gutenberg's books are) counts as a book.

    Raises:
      UserError: HTML, XML, a JSON array or a table.
    """
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
    """Return the kind of a text that is no prose, and advice."""
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
    """Return whether the object that a text begins with does not end on its first line."""
    line, found, _ = head.partition("\n")
    if not found or not line.rstrip().endswith(("{", ",", "[")):
        return False
    try:
        json_text.parse(line)
    except ValueError:
        return True
    return False


def _is_table(head: str) -> bool:
    """Return whether all lines have as many tabs within them, or after a line of names as many commas without a space.

    A poem may have a comma in every line: before a space or, in Chinese, below a line that is no list of names.
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
