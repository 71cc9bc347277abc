"""The interface of a rule, and functions that several rules use to count lines and words."""

import functools
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from plmjax.data import sentences


class Dropped(NamedTuple):
    """The reason for which a rule drops a document."""

    reason: str


class Settings(NamedTuple):
    """The options of rules.

    language: code of the language that the language rules keep.
    bad_words: the words and phrases of the bad-words rule.
    """

    language: str = "en"
    bad_words: tuple[str, ...] = ()


class TextRule(NamedTuple):
    """A rule on one document. It runs in the worker processes.

    source: the paper and its section, or the repository and its path.
    apply: function from the text of a document, one paragraph per line, to the remaining text, or to the reason to drop
        the document.
    """

    name: str
    source: str
    apply: Callable[[str, Settings], str | Dropped]


class CorpusRule(NamedTuple):
    """A rule that compares documents: a part of a document is repeated if its key occurred before.

    Only the comparison of keys (`find_repeated`) needs all documents. `keys` and `without` run in any process.

    keys: function from a text to the keys of its parts, concatenated: hashes uint64 [parts * width].
    without: function from a text and its repeated parts, bool [parts], to the remaining text, or to the reason to drop
        it.
    width: number of hashes of a key.
    """

    name: str
    source: str
    keys: Callable[[str, Settings], np.ndarray]
    without: Callable[[str, np.ndarray, Settings], str | Dropped]
    width: int = 1


Rule = TextRule | CorpusRule

# Vowel signs of Indic and other scripts are not word characters for `re`.
_SIGNS = "".join(map(chr, (code for code in range(0x300, 0x20000) if unicodedata.category(chr(code))[0] == "M")))
_WORD = re.compile(rf"\w+(?:[.,'’/-]\w+|(?![\0-\x7f])[{_SIGNS}]\w*)*|\.+|[^\w\s]")


def is_ended(line: str, marks: tuple[str, ...], settings: Settings) -> bool:
    """Return whether a line ends with one of `marks` or, in languages other than English, like a sentence."""
    return line.endswith(marks) or (settings.language != "en" and sentences.ends(line))


def kept_lines(text: str, keeps: Callable[[str], bool]) -> str:
    """Return the lines of a text for which `keeps` is true."""
    return "\n".join(filter(keeps, text.split("\n")))


@functools.lru_cache(maxsize=1)  # several rules count the words of a document one after another
def words(text: str) -> tuple[str, ...]:
    """Return the words and the punctuation marks of a text.

    Deviation: FineWeb finds words with spaCy, which needs a model for each language, and earlier with NLTK, which is 30
    times slower than this pattern. Here a contraction such as "don't" is one word, and quotation marks are not changed.
    """
    return tuple(_WORD.findall(text))


def duplicates(parts: Sequence[str]) -> tuple[int, int]:
    """Return the number of parts that occur earlier in the list, and their characters."""
    seen: set[str] = set()
    count = characters = 0
    for part in parts:
        if part in seen:
            count, characters = count + 1, characters + len(part)
        seen.add(part)
    return count, characters


def fraction(part: int, whole: int) -> float:
    """Return part / whole, or 0 if `whole` is 0."""
    return part / whole if whole else 0.0
