"""Sentence splitting for the languages that the splitter has rules for.

The splitter is Wikimedia's sentencex: rules and abbreviations of many languages, in Rust, without a download.
Measured on Wikipedia and novels, one core: sentencex 35 to 69 million characters a second, blingfire 10 to 31 (and a
wheel of 99 MB), syntok 1.1 to 1.4, sentencesplit 0.3, pysbd 0.14 to 0.22. F1 of sentence boundaries on UD English-EWT
(train): sentencex 0.908, blingfire 0.923, syntok 0.918, pysbd 0.910. A tokenizer processes 2 to 3 million characters a
second.
"""

import functools
import re
import unicodedata
from collections.abc import Iterable

import sentencex

from plmjax.errors import UserError, nearest, quoted

LANGUAGES = tuple(
    "am ar bg bn ca da de el en es fi fr gu hi hy it ja kk kn ml mr my nl pa pl pt ru sk ta te uk zh".split()
)
"""ISO 639-1 codes of the languages with their own abbreviations or stops in sentencex, which silently treats other
languages as English or as a related language.
"""
_SYMBOLS = frozenset("#%&*@/\\·・•†‡§¶‰‱′″‴※")
"""Punctuation of Unicode that does not end a sentence, besides commas, which `_is_end` finds by their names."""
_UNSTOPPED = re.compile(r"[\u0e00-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\ua980-\ua9df]")
"""Thai, Lao, Tibetan, Burmese, Khmer, and others that are written without spaces between words."""
_INVISIBLE = re.compile(r"[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]+")
# A Chinese stop always ends a sentence. sentencex takes a stop before a digit for a decimal point, which
# explains all but a few of the boundaries it misses in UD Chinese-GSDSimp.
_CHINESE_STOP = re.compile(r"(?<=[。！？])(?=[0-9])")


def check(language: str) -> None:
    """Raise UserError unless the splitter supports `language`."""
    if language not in LANGUAGES:
        hint = nearest(language, LANGUAGES)
        hint = hint if hint.startswith("did you mean") else "name the one of them that is nearest to it."
        raise UserError(
            f"Expected a language whose sentences can be split ({', '.join(LANGUAGES)}), found {quoted(language)}; "
            f"{hint}"
        )


def split(paragraphs: Iterable[str], language: str = "en") -> list[str]:
    """Return the sentences of `paragraphs`, in order, none empty, with white space reduced to single spaces.

    The end of a paragraph is always the end of a sentence.
    """
    sentences = []
    for paragraph in paragraphs:
        parts = sentencex.segment(language, " ".join(paragraph.split()))
        if language == "zh":
            parts = [part for whole in parts for part in _CHINESE_STOP.split(whole)]
        for part in filter(None, map(str.strip, parts)):
            if sentences and _INVISIBLE.fullmatch(part):  # sentencex separates a direction mark from the stop before it
                sentences[-1] += part
            else:
                sentences.append(part)
    return sentences


def ends(text: str) -> bool:
    """Return whether a text ends like a sentence: with a stop, colon, semicolon, bracket or quotation mark.

    Marks of every script count. Invisible characters at the end are ignored, such as the direction marks of Hebrew.
    """
    return _is_end(next((char for char in reversed(text) if unicodedata.category(char) != "Cf"), " "))


def is_unstopped(text: str) -> bool:
    """Return whether the last letter of a text is from a script that may end sentences without a mark, such as Thai."""
    return bool(_UNSTOPPED.match(next(filter(str.isalpha, reversed(text)), " ")))


@functools.cache
def _is_end(char: str) -> bool:
    kind = unicodedata.category(char)
    return kind in ("Pe", "Pf", "Pi") or (
        kind == "Po"
        and unicodedata.normalize("NFKC", char) not in _SYMBOLS
        and "COMMA" not in unicodedata.name(char, "")
    )
