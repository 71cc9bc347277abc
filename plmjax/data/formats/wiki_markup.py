"""Converts the MediaWiki markup of a page to paragraphs.

Templates, tables, references, pictures and their captions, headings, lists of names and sections of references are left
out. Other text is read as MediaWiki shows it: lines that follow each other are one paragraph, apostrophes are paired by
its rules (includes/parser/Parser.php, doQuotes), and `<nowiki>` shows markup as text.

Regular expressions remove the innermost templates, tables and links first. mwparserfromhell, which has a grammar, is
much slower than a tokenizer, and its text keeps the names of local namespaces, unpaired apostrophes, and the `<ref` of
elements that a page does not close.
"""

import html
import re
from collections.abc import Callable

from plmjax.data import sentences
from plmjax.data.formats import wikipedia_languages

_GONE = "\0"
"""Placeholder for a removed part, so that the markup before and after it is not joined. XML cannot contain it."""
_MARKS = "'\"[]{}|=*#:;<>!_~/-\n"
# Elements whose content is not prose. <ref ... /> has no content.
_OPAQUE = re.compile(
    r"<!--.*?(?:-->|\Z)"
    r"|<nowiki\b[^<>]*?(?:/>|>(?P<shown>.*?)</nowiki\s*>)"
    r"|<(ref|references|math|chem|ce|score|gallery|timeline|syntaxhighlight|source|code|pre|imagemap|hiero|graph|mapframe|"
    r"maplink|templatestyles|section|table)\b[^<>]*?(?:/>|>(?:.*?</\2\s*>))",
    re.DOTALL | re.IGNORECASE,
)
_TEMPLATE = re.compile(r"\{\{(?:[^{}]|(?<!\{)\{(?!\{)|(?<!\})\}(?!\}))*\}\}")
_NUMBER = re.compile(r"\{\{\s*formatnum\s*:([^|]*)", re.I)  # a function of MediaWiki, not a template
_VARIANTS = re.compile(r"-\{((?:(?!-\{|\}-).)*)\}-", re.DOTALL)
_VARIANT = re.compile(r"(?:^|;)\s*(?:[^;:=]*=>\s*)?[a-z]{2,4}(?:-[a-z]+)?\s*:\s*([^;]*)", re.I)
_TABLE = re.compile(r"^[ \t:*#\0]*\{\|(?:(?!^[ \t:*#\0]*\{\|).)*?^[ \t]*\|\}", re.DOTALL | re.MULTILINE)
_WITHIN = r"[^\[\]\n]*+(?:(?:\n(?!\s*\n|=)|\[[^\[\]\n]*+\])[^\[\]\n]*+)*+"  # a link ends in its paragraph
_LINK = re.compile(
    rf"\[(?:\[(?P<target>[^\[\]|\n]*+)(?:\|(?P<text>{_WITHIN}))?\]\]"
    r"|(?<!\[\[)(?:(?:https?:|ftp:|mailto:)?//|mailto:)[^\s\[\]]*[ \t]*(?P<words>[^\[\]\n]*)\])",
    re.IGNORECASE,
)
_URL_PART = r"[^\s<>\[\]|()（）]"
_URL = re.compile(
    rf"https?://(?:{_URL_PART}|\({_URL_PART}*\))*(?<![,;.:!?。，、])"
)  # punctuation after a URL belongs to the sentence
_LINE_TAG = re.compile(r"<br\b[^<>]*>", re.I)
_BLOCK_TAG = re.compile(r"</?(?:p|div|blockquote|center|h[1-6]|hr|ul|ol|dl|tr|td|th|caption|poem)\b[^<>]*>", re.I)
_ITEM_TAG = re.compile(r"<(?:li|dd|dt)\b[^<>]*>", re.I)
_TAG = re.compile(
    r"</?(?:a|abbr|b|bdi|bdo|big|cite|data|dd|del|dfn|dt|em|font|i|includeonly|ins|kbd|li|link|mark|meta|noinclude|"
    r"onlyinclude|q|rb|rbc|rp|rt|rtc|ruby|s|samp|small|span|strike|strong|sub|sup|tbody|tfoot|thead|time|tt|u|var|wbr|"
    r"ref|references|math|chem|ce|score|gallery|timeline|syntaxhighlight|source|code|pre|imagemap|hiero|graph|mapframe|"
    r"maplink|templatestyles|section|table|nowiki|indicator|inputbox|langconvert|languages|phonos|categorytree)"
    r"(?=[\s/>])[^<>]*>",
    re.I,
)
_QUOTES = re.compile(r"('{2,})")
_SWITCH = re.compile(r"__(?:(?![a-z])\w)+?__")
# Prefixes of links that show a picture, put the page into a category, or lead to the same page of another Wikipedia.
# The names are English and Chinese; `wikipedia_dump` replaces the names in other languages by English ones.
_HIDDEN = wikipedia_languages.CODES | {
    *("file", "image", "media", "category", "文件", "檔案", "档案", "图像", "圖像", "分类", "分類")
}
_PICTURE = re.compile(
    r":.*\.(?:jpe?g|png|gif|svg|tiff?|webp|xcf|pdf|djvu|og[agv]|webm|mp[34g]|wav|flac|midi?|stl)\s*", re.I
)
_EMPTY = re.compile(r"(?<![a-zA-Z0-9_])\(\s*[,;:\s]*\)|（\s*[，；：、\s]*）")
_LEADING = re.compile(r"\(\s*[,;:]\s*|（\s*[，；：、]\s*")
# French has a space before other marks, German one before an ellipsis.
_GAP = re.compile(r" +(?=[,)]|\.(?:[\s\"'”’)]|$))")
_HEADING = re.compile(r"(={1,6})(.+)\1")
_AND = re.compile(r"\s*(?:[,&/、]|\s(?:and|und|et|y|e|en|och|og|i|a|и|та|й|ja|και|și|ve|و|at)\s|及|與|与|と)\s*", re.I)
_DEEPEST = 100
"""Maximum number of levels of nested constructs that are read, as in MediaWiki."""
_LEAST = 40
"""Minimum length of running text that does not end like a sentence; a shorter line is a title or a name."""


def prose(markup: str) -> list[str]:
    """Return the paragraphs of a page: running text, without sections that have only references or links."""
    text = _OPAQUE.sub(_element_text, markup.replace(_GONE, ""))
    text = _replace_nested(_TEMPLATE, _template, text)
    text = _replace_nested(_VARIANTS, _variant, text)
    text = _replace_nested(_TABLE, _GONE, text)
    text = _replace_nested(_LINK, _link_text, text)
    text = _LINE_TAG.sub(" ", _URL.sub("", text))
    text = _TAG.sub("", _ITEM_TAG.sub("\n*", _BLOCK_TAG.sub("\n", text)))
    paragraphs: list[str] = []
    pending = ""  # lines of the paragraph that is being read
    section, left_out = 0, ""  # level of the section that is left out, and its part: "lists" or "all"

    def end() -> None:
        nonlocal pending
        if len(pending) > 1 and _is_prose(pending, listed=False):
            paragraphs.append(pending)
        pending = ""

    for raw in _SWITCH.sub("", text).split("\n"):
        source = _without_quotes(raw).replace(_GONE, "").strip()
        if heading := _HEADING.fullmatch(source):
            end()
            level = len(heading[1])
            if not left_out or level <= section:
                section, left_out = level, _omitted(html.unescape(heading[2]))
            continue
        if left_out == "all" or not source or raw.lstrip(f"{_GONE} \t")[0] in "|!{}":
            end()
            continue
        line = _tidy(html.unescape(html.unescape(source.lstrip("*#:; "))))
        if raw[0] in "*#:; \t":
            end()
            # List items that are not sentences (names, titles, links) are not prose.
            if not left_out and len(line) > 1 and _is_prose(line, listed=True):
                paragraphs.append(line)
            continue
        if len(pending) < _LEAST or sentences.ends(pending) or sentences.is_unstopped(pending):
            end()
        pending = f"{pending} {line}".strip()
    end()
    return paragraphs


def _element_text(element: re.Match) -> str:
    """Return the text of a comment or an element: empty, or for <nowiki> its content with marks as entities."""
    if element[0].startswith("<!--"):
        return ""
    return _GONE + "".join(f"&#{ord(char)};" if char in _MARKS else char for char in element["shown"] or "")


def _replace_nested(pattern: re.Pattern, replacement: str | Callable[[re.Match], str], text: str) -> str:
    """Replace until nothing matches, so that nested constructs are removed from the inside out."""
    for _ in range(_DEEPEST):
        text, count = pattern.subn(replacement, text)
        if not count:
            break
    return text


def _template(found: re.Match) -> str:
    number = _NUMBER.match(found[0].removesuffix("}}"))
    return number[1].strip() if number else _GONE


def _variant(found: re.Match) -> str:
    """Return the first variant of a text that `-{zh-hans:...; zh-hant:...}-` gives for several scripts or countries."""
    flags, bar, rest = found[1].rpartition("|")
    if bar and set(flags.strip().upper().split(";")) & {"H", "T", "-", "D"}:
        return ""  # a rule for the rest of the page, or its title
    variant = _VARIANT.search(rest)
    return variant[1].strip() if variant else rest


def _link_text(link: re.Match) -> str:
    target, text = link["target"], link["text"]
    if target is None:
        return link["words"] or _GONE
    prefix = target.partition(":")[0].strip().lower() if ":" in target else ""
    if prefix and (prefix in _HIDDEN or _PICTURE.search(target)):
        return _GONE
    return (text or "").rpartition("|")[2] or target.strip().lstrip(":")


def _without_quotes(line: str) -> str:
    """Return a line without the apostrophes of italic and bold text; unpaired apostrophes are text."""
    if "''" not in line:
        return line
    parts = _QUOTES.split(line)
    runs = range(1, len(parts), 2)
    for at in runs:
        extra = 1 if len(parts[at]) == 4 else max(0, len(parts[at]) - 5)
        parts[at - 1] += "'" * extra
        parts[at] = parts[at][extra:]
    bold, italic = (sum(len(parts[at]) in (length, 5) for at in runs) for length in (3, 2))
    if bold % 2 and italic % 2:
        # One bold mark is an apostrophe and an italic mark: after a word of one letter, else any word, else a space.
        places: dict[str, int] = {}
        for at in runs:
            if len(parts[at]) == 3:
                before = parts[at - 1]
                kind = "space" if before.endswith(" ") else "letter" if before[-2:-1] == " " else "word"
                places.setdefault(kind, at)
        if chosen := places.get("letter") or places.get("word") or places.get("space"):
            parts[chosen - 1] += "'"
    return "".join(parts[::2])


def _omitted(heading: str) -> str:
    """Return the part of a section to leave out, from its heading: "all", its "lists", or "" for nothing."""
    whole, *parts = (" ".join(name.split()).rstrip(":").casefold() for name in (heading, *_AND.split(heading)))
    for names, left_out in (
        (wikipedia_languages.END_MATTER, "all"),
        (wikipedia_languages.END_MATTER | wikipedia_languages.LITERATURE, "lists"),
    ):
        if whole in names or names.issuperset(parts):
            return left_out
    return ""


def _tidy(line: str) -> str:
    """Return a line without empty brackets and without the spaces that removed parts leave."""
    if "(" in line or "（" in line:
        line = _LEADING.sub(lambda found: found[0][0], _EMPTY.sub("", line))
    return _GAP.sub("", " ".join(line.split()))


def _is_prose(text: str, listed: bool) -> bool:
    """Return whether a text is prose.

    It is prose if it ends like a sentence, or if two of these are true: it has at least `_LEAST` characters, it is not
    in a list, its script may end sentences without a mark.
    """
    return sentences.ends(text) or (len(text) >= _LEAST) + (not listed) + sentences.is_unstopped(text) >= 2
