"""Sentences of prose in the languages that the splitter has rules for.

The splitter is sentencex (Wikimedia's, rules and abbreviations of many languages, in Rust, nothing to download).
Measured on Wikipedia and novels, one core: sentencex 35 to 69 million characters a second, blingfire 10 to 31 (and
99 MB of wheel), syntok 1.1 to 1.4, sentencesplit 0.3, pysbd 0.14 to 0.22. Boundaries of UD English-EWT (train) found,
F1: sentencex 0.908, blingfire 0.923, syntok 0.918, pysbd 0.910; a tokenizer passes 2 to 3 million characters a second.
"""

import re
from collections.abc import Iterable

import sentencex

from plmjax.errors import UserError, nearest, quoted

LANGUAGES = tuple(
    "am ar bg bn ca da de el en es fi fr gu hi hy it ja kk kn ml mr my nl pa pl pt ru sk ta te uk zh".split()
)
"""ISO 639-1 codes of the languages with abbreviations or stops of their own in sentencex; it takes others for English
or for a relative, without a word."""
# A Chinese stop ends a sentence whatever follows; sentencex takes one before a digit for a decimal
# point (all but a few of the boundaries it misses in UD Chinese-GSDSimp).
_CHINESE_STOP = re.compile(r"(?<=[。！？])(?=[0-9])")


def check(language: str) -> None:
    """Raises UserError unless sentences of `language` can be told apart."""
    if language not in LANGUAGES:
        hint = nearest(language, LANGUAGES)
        hint = hint if hint.startswith("did you mean") else "name the one of them that is nearest to it."
        raise UserError(
            f"Expected a language whose sentences can be split ({', '.join(LANGUAGES)}), found {quoted(language)}; "
            f"{hint}"
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
