"""The format `wikipedia-dump`: the articles of a pages-articles dump, without their MediaWiki markup.

Templates, tables, references, files, headings and lists of links are left out.

mwparserfromhell reads 1.8 MB of markup a second on one core, half the speed of a tokenizer. Here regular expressions
remove the innermost templates, tables and links first. They need no grammar, and process about 20 MB a second.
"""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from xml.parsers import expat

from plmjax.data.formats import cutting
from plmjax.data.formats.document import Format
from plmjax.data.text_files import with_end
from plmjax.errors import UserError, quoted

# Elements whose content is not prose. <ref ... /> and <br> have no content; _TAG removes them.
_OPAQUE = re.compile(
    r"<!--.*?(?:-->|\Z)"
    r"|<(ref|references|math|chem|ce|score|gallery|timeline|syntaxhighlight|source|code|pre|imagemap|hiero|graph|mapframe|"
    r"maplink|templatestyles|section|table|nowiki)\b[^<>]*?(?:/>|>(?:.*?</\1\s*>))",
    re.DOTALL | re.IGNORECASE,
)
_TEMPLATE = re.compile(r"\{\{(?:[^{}]|(?<!\{)\{(?!\{)|(?<!\})\}(?!\}))*\}\}")
_TABLE = re.compile(r"^[ \t:*#]*\{\|(?:(?!^[ \t:*#]*\{\|).)*?^[ \t]*\|\}", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[\[([^\[\]|]*)((?:\|[^\[\]]*)?)\]\]")
_EXTERNAL = re.compile(r"\[(?:https?:|ftp:|mailto:)?//[^\s\]]*[ \t]*([^\]]*)\]|\[mailto:[^\s\]]*[ \t]*([^\]]*)\]")
_URL = re.compile(r"https?://[^\s<>\[\]|]+")
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_QUOTES = re.compile(r"'{2,5}")
_SWITCH = re.compile(r"__[A-Z]+__")
# Namespaces whose links show a picture or put the page into a category, by their English and Chinese names. A prefix
# of two or three letters is a language: such a link leads to the same page of another Wikipedia.
_HIDDEN = re.compile(
    r"\s*(?:file|image|media|category|文件|檔案|档案|图像|圖像|分类|分類|[a-z]{2,3}(?:-[a-z]+)*)\s*:", re.I
)
_EMPTY = re.compile(r"\(\s*[,;:\s]*\)|（\s*[，；：、\s]*）")
_LEADING = re.compile(r"\(\s*[,;:]\s*|（\s*[，；：、]\s*")
_END_MATTER = {"references", "external links", "see also", "further reading", "notes", "bibliography", "sources"} | {
    *("参考文献", "參考文獻", "外部链接", "外部連結", "参见", "參見", "注释", "註釋", "参考资料", "參考資料")
}
_HEADING = re.compile(r"^(=+)\s*(.*?)\s*\1\s*$")
_STOPS = tuple('.!?。！？…"”’」』)）;；:：')


def _replace_nested(pattern: re.Pattern, replacement, text: str) -> str:
    """Replace until nothing matches, so that nested constructs are removed from the inside out."""
    count = 1
    while count:
        text, count = pattern.subn(replacement, text)
    return text


def _shown(link: re.Match) -> str:
    target, rest = link.groups()
    if _HIDDEN.match(target):
        return ""
    return rest.rpartition("|")[2] if rest else target.lstrip(":")


def prose(markup: str) -> list[str]:
    """Return the paragraphs of a page: lines of running text, without sections of references and links only."""
    text = _OPAQUE.sub("", markup)
    text = _replace_nested(_TEMPLATE, "", text)
    text = _replace_nested(_TABLE, "", text)
    text = _replace_nested(_LINK, _shown, text)
    text = _EXTERNAL.sub(lambda link: link[1] or link[2] or "", text)
    text = _TAG.sub("", _URL.sub("", text))
    text = html.unescape(html.unescape(_SWITCH.sub("", _QUOTES.sub("", text))))
    paragraphs, skipped_level = [], 0
    for line in text.split("\n"):
        line = " ".join(line.split())
        if heading := _HEADING.match(line):
            level = len(heading[1])
            if not skipped_level or level <= skipped_level:
                skipped_level = level if heading[2].casefold() in _END_MATTER else 0
            continue
        if skipped_level or not line or line[0] in "|!{}":
            continue
        line = _LEADING.sub(lambda m: m[0][0], _EMPTY.sub("", line.lstrip("*#:; ")))
        line = re.sub(r" +([,.;:!?)])", r"\1", re.sub(r"  +", " ", line)).strip()
        # List items that are not sentences (names, titles, links) are not prose.
        if len(line) > 1 and line.endswith(_STOPS):
            paragraphs.append(line)
    return paragraphs


def _split(path: Path, blocks: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    """Yield the articles: namespace 0, without redirects. The last of several revisions is used.

    Raises:
        UserError: the XML is truncated or damaged, or the file is not XML.
    """
    found: list[tuple[str, str]] = []
    page: dict[str, str] = {}
    parts: list[str] | None = None
    length = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal parts, length
        if name == "page":
            page.clear()
        elif name == "redirect":
            page["redirect"] = "yes"
        elif name in ("title", "ns", "text"):
            parts, length = [], 0

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
        elif name == "page" and page.get("ns", "0") == "0" and "redirect" not in page and page.get("text"):
            found.append((f"{path} page {quoted(page.get('title', ''))}", page["text"]))

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
