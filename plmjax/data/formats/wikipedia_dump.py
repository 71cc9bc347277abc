"""The format `wikipedia-dump`: the articles of a pages-articles dump, without their MediaWiki markup."""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.parsers import expat

from plmjax.data.formats import cutting
from plmjax.data.formats.document import Format
from plmjax.data.formats.wiki_markup import prose
from plmjax.data.text_files import with_end
from plmjax.errors import UserError, quoted

_NAMESPACES = {"-2": "Media", "6": "File", "14": "Category"}
"""Key of each namespace whose links are not text -> its English name, which every Wikipedia knows."""


def _in_english(namespaces: dict[str, str], markup: str) -> str:
    """Replace the names of namespaces in links by English names. namespaces: name in the dump -> English name."""
    for name, english in namespaces.items():
        local = re.escape(name).replace(r"\ ", "[ _]+")
        markup = re.sub(rf"\[\[[ _]*{local}[ _]*:", f"[[{english}:", markup, flags=re.IGNORECASE)
    return markup


def _split(path: Path, blocks: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    """Yield the articles: namespace 0, without redirects. The last of several revisions is used.

    Raises:
        UserError: the XML is truncated or damaged, or the file is not XML.
    """
    found: list[tuple[str, str]] = []
    page: dict[str, str] = {}
    namespaces: dict[str, str] = {}
    key = ""  # of the namespace whose name is read
    parts: list[str] | None = None
    length = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal parts, length, key
        if name == "page":
            page.clear()
        elif name == "redirect":
            page["redirect"] = "yes"
        elif name in ("title", "ns", "text", "namespace"):
            parts, length, key = [], 0, attributes.get("key", "")

    def characters(data: str) -> None:
        nonlocal length
        if parts is not None:
            parts.append(data)
            length += len(data)
            if length > cutting.LONGEST_RECORD:
                raise UserError(
                    f"Expected pages of less than {cutting.LONGEST_RECORD} characters in {path}, found a longer one "
                    f"({quoted(page.get('title', 'untitled'))}); the file is damaged."
                )

    def end(name: str) -> None:
        nonlocal parts
        if parts is not None and name in ("title", "ns", "text"):
            page[name] = "".join(parts)
            parts = None
        elif parts is not None and name == "namespace":
            if key in _NAMESPACES and (local := "".join(parts)) != _NAMESPACES[key]:
                namespaces[local] = _NAMESPACES[key]
            parts = None
        elif name == "page" and page.get("ns", "0") == "0" and "redirect" not in page and page.get("text"):
            found.append((f"{path} page {quoted(page.get('title', ''))}", _in_english(namespaces, page["text"])))

    parser = expat.ParserCreate()
    parser.buffer_text, parser.buffer_size = True, 1 << 16
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, characters
    try:
        for block in with_end(blocks):
            parser.Parse(block, not block)
            yield from found
            found.clear()
    except expat.ExpatError as error:
        raise UserError(
            f"Expected the XML of a pages-articles dump in {path}, found {expat.ErrorString(error.code)} at byte "
            f"{parser.ErrorByteIndex}; the file is truncated or of another --format."
        ) from error


WIKIPEDIA_DUMP = Format(_split, lambda document: prose(document.text))
