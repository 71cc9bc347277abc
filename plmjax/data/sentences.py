"""Sentences of English and Chinese prose.

The splitter is sentencex (Wikimedia's, rules and abbreviations of many languages, in Rust, nothing to download).
Measured on Wikipedia and novels, one core: sentencex 35 to 69 million characters a second, blingfire 10 to 31 (and
99 MB of wheel), syntok 1.1 to 1.4, sentencesplit 0.3, pysbd 0.14 to 0.22. Boundaries of UD English-EWT (train) found,
F1: sentencex 0.908, blingfire 0.923, syntok 0.918, pysbd 0.910; a tokenizer passes 2 to 3 million characters a second.
"""

import re
from collections.abc import Iterable

import sentencex

from plmjax.errors import UserError, nearest

LANGUAGES = ("en", "zh")
# A Chinese stop ends a sentence whatever follows; sentencex takes one before a digit for a decimal
# point (all but a few of the boundaries it misses in UD Chinese-GSDSimp).
_CHINESE_STOP = re.compile(r"(?<=[。！？])(?=[0-9])")


def check(language: str) -> None:
    """Raises UserError unless sentences of `language` can be told apart."""
    if language not in LANGUAGES:
        raise UserError(
            f"Expected a language whose sentences can be split, found {language!r}; {nearest(language, LANGUAGES)}"
        )


def split(paragraphs: Iterable[str], language: str = "en") -> list[str]:
    """Sentences of `paragraphs`, in order, none empty, white space in them reduced to single spaces.

    A paragraph's end is always a sentence's end.
    """
    sentences = []
    for paragraph in paragraphs:
        parts = sentencex.segment(language, " ".join(paragraph.split()))
        if language == "zh":
            parts = [part for whole in parts for part in _CHINESE_STOP.split(whole)]
        sentences += filter(None, map(str.strip, parts))
    return sentences
