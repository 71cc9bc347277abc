"""The format `books`: Gutenberg-style books, one per file; licence texts, headings and line breaks are removed."""

import re
import statistics
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from plmjax.data import sentences, text_files
from plmjax.data.formats import cutting
from plmjax.data.formats.document import Format

_START = re.compile(
    r"\*\*\*\s*START OF (?:THE|THIS) PROJECT GUTENBERG EBOOK.{0,400}?\*\*\*"
    r"|\*END\*\s*THE SMALL PRINT.{0,200}?\*END\*",  # before 2002
    re.DOTALL | re.IGNORECASE,
)
_END = re.compile(
    r"^\s*(?:\*\*\*\s*END OF (?:THE|THIS) PROJECT GUTENBERG|\*{0,3}\s*End of (?:the |this )?Project Gutenberg)",
    re.MULTILINE | re.IGNORECASE,
)
_CREDIT = re.compile(
    r"\s*(?:Produced by|E-?text prepared by|Transcribed (?:from|by)|This e-?(?:text|book) was (?:produced|prepared)|"
    r"Transcriber'?s Note|\[Illustration|\[Transcriber)",
    re.IGNORECASE,
)
_NUMBER = r"(?:[ivxlcdm]+|\d+|the \w+|\w+)"
_HEADING = re.compile(
    rf"(?:chapter|book|part|volume|canto|act|scene|letter|stave|section)\s+{_NUMBER}(?:[\s.:,\-—–].{{0,70}})?"
    r"|[IVXLCDM]+\.?|\d+\.?|(?:the )?(?:preface|prologue|epilogue|contents|introduction|the end|finis)\.?"
    r"|第[一二三四五六七八九十百千零〇\d]+[回章节節卷部集](?:\s.{0,60})?|《[^》]{1,30}》\S{0,10}",
    re.IGNORECASE,
)
_CJK = re.compile(r"[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]")
_STRESS = re.compile(r"(?<!\w)_([^_\n]+)_(?!\w)")


def recognise(head: str) -> bool:
    """Return whether a text looks like a book: it starts with Project Gutenberg, or its lines are wrapped at one width.

    A wrapped line ends where the next word would not fit, in the middle of most sentences. Lines that are sentences end
    with a full stop, and have any length.
    """
    if "Project Gutenberg" in head[:4000]:
        return True
    lines = [line.rstrip() for line in head.split("\n")[:-1] if line.strip()]
    widths = sorted(map(len, lines))
    if len(widths) < 20 or statistics.median(widths) < 50 or widths[int(0.98 * len(widths))] > 85:
        return False
    width = widths[int(0.9 * (len(widths) - 1))]
    broken = [
        len(line) + 1 + len(after.split()[0]) > width for line, after in pairwise(lines) if not sentences.ends(line)
    ]
    # Measured: the fraction is 0.35 or more in novels, and 0.28 or less in text with a sentence without stop per line.
    return len(broken) > len(lines) / 3 and sum(broken) > 0.3 * len(broken)


def prose(text: str) -> list[str]:
    """Return the paragraphs of a book, or of a part of one.

    Lines wrapped at a width are joined. A paragraph ends at a blank line, before an indented line, and after a short
    line that ends a sentence. Headings of chapters are left out.
    """
    if start := _START.search(text):
        text = text[start.end() :]
    if end := _END.search(text):
        text = text[: end.start()]
    lines = [line.rstrip() for line in _STRESS.sub(r"\1", text).split("\n")]
    widths = sorted(len(line) for line in lines if line)
    if not widths:
        return []
    short = 0.8 * widths[int(0.9 * (len(widths) - 1))]
    indents = sum(line[0].isspace() for line in lines if line)
    marks_indents = indents < len(widths) / 2  # if most lines are indented, an indent does not begin a paragraph
    paragraphs: list[str] = []
    paragraph = ""  # the paragraph that is being read
    for index, line in enumerate(lines):
        words = " ".join(line.split())
        if not words:
            # Some Chinese texts have a blank line after every wrapped line.
            if paragraph and (sentences.ends(paragraph) or not _CJK.match(paragraph[-1])):
                paragraphs.append(paragraph)
                paragraph = ""
            continue
        alone = (index == 0 or not lines[index - 1]) and (index + 1 == len(lines) or not lines[index + 1])
        if _is_heading(words, alone):
            paragraphs.append(paragraph)
            paragraph = ""
            continue
        if paragraph and marks_indents and line[0].isspace() and lines[index - 1] and not lines[index - 1][0].isspace():
            paragraphs.append(paragraph)
            paragraph = ""
        paragraph = _join(paragraph, words)
        if len(line) < short and sentences.ends(paragraph):
            paragraphs.append(paragraph)
            paragraph = ""
    paragraphs.append(paragraph)
    head = [p for p in paragraphs[:20] if not _CREDIT.match(p)]
    return [p for p in head + paragraphs[20:] if p and not p.startswith("[Illustration")]


def _is_heading(words: str, alone: bool) -> bool:
    if len(words) > 100:
        return False
    if _HEADING.fullmatch(words) and (alone or words[0].isupper() or _CJK.match(words)):
        return not words.endswith((",", ";"))
    letters = [c for c in words if c.isalpha()]
    capitals = len(letters) > 3 and all(c.isupper() for c in letters)
    return capitals and (alone or not sentences.ends(words)) and len(words) <= 70


def _join(text: str, words: str) -> str:
    if not text:
        return words
    if _CJK.match(text[-1]) and _CJK.match(words[0]):
        return text + words
    if text[-1] == "-" and text[-2:-1].isalpha():
        return text + words
    return f"{text} {words}"


def _split(path: Path, blocks: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    return cutting.split_long(str(path), text_files.text(path, blocks))


BOOKS = Format(_split, lambda document: prose(document.text))
