"""Cached tokenization: the ids of each word are computed once. It is several times as fast as the tokenizers library.

The ids are the same, because many normalizers and pre-tokenizers do not look across a space (nor, in BERT's splitter,
across a punctuation mark). Then the ids of a text are the concatenated ids of its parts.
"""

import re
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from plmjax.data.tokenizers.spelling import ACCENTS

CACHED = 300_000
"""Number of entries of a cache. With two levels this takes about 100 MB per process."""
LONGEST_CACHED = 32
"""Maximum number of characters of a cached word. Chinese sentences have no spaces."""

_UNEVEN_SPACE = re.compile(r"[^\S ]|  | $")
_WORD_WITH_SPACE = re.compile(r" ?[^ ]+")
# Characters that are always words of their own in BERT's splitter, and the runs between them.
_MARK = r"!-/:-@\[-`{-~‘’“”–—…、。《》「」『』！（），：；？"
_MARKS_AND_RUNS = re.compile(rf"[{_MARK}]|[^{_MARK}]+")
_CHARACTER = {"Regex": r"[\s\S]"}
_WORDS_AND_SPACES = re.compile(r"\S+|\s+")
_MARKS_CHINESE_AND_RUNS = re.compile(rf"[{_MARK}\u4e00-\u9fff]|[^{_MARK}\u4e00-\u9fff]+")


class _Cache(dict):
    """Text -> its ids as the bytes of an int32 array. It is cleared when full, so that memory is bounded."""

    def __init__(self, find: Callable[[str], bytes]):
        self._find = find

    def __missing__(self, text: str) -> bytes:
        ids = self._find(text)
        if len(text) <= LONGEST_CACHED:
            if len(self) >= CACHED:
                self.clear()
            self[text] = ids
        return ids


class WordCache:
    """Encodes with a tokenizers.Tokenizer. `description` is its JSON."""

    def __init__(self, engine, description: dict):
        self._engine = engine
        self._cut, parts = _separation(description)
        words = _Cache(self._library)
        if parts is not None:
            self._words = _Cache(lambda word: b"".join(map(words.__getitem__, parts.findall(word))))
        else:
            self._words = words
        # Special tokens that may occur in a text and must not be split, such as [MASK]. RoBERTa's <mask> includes the
        # space before it.
        self._uncut = [
            token["content"]
            for token in description["added_tokens"]
            if token["lstrip"]
            or token["rstrip"]
            or " " in token["content"]
            or (parts is not None and len(parts.findall(token["content"])) > 1)
        ]

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all texts, concatenated, int32 [N], and the number of ids of each text, int32 [texts]."""
        if self._cut is None:
            ids = [encoding.ids for encoding in self._engine.encode_batch_fast(texts, add_special_tokens=False)]
            lengths = np.fromiter(map(len, ids), np.int32, len(ids))
            return np.fromiter(chain.from_iterable(ids), np.int32, lengths.sum()), lengths
        parts = list(map(self._encode, texts))
        lengths = np.fromiter(map(len, parts), np.int32, len(parts)) // 4
        return np.frombuffer(b"".join(parts), np.int32), lengths

    def _encode(self, text: str) -> bytes:
        for token in self._uncut:
            if token in text:
                return self._library(text)
        words = self._cut(text)
        return self._library(text) if words is None else b"".join(map(self._words.__getitem__, words))

    def _library(self, text: str) -> bytes:
        return np.array(self._engine.encode(text, add_special_tokens=False).ids, np.int32).tobytes()


def _at_spaces(text: str) -> list[str]:
    return text.split(" ")


def _before_spaces(text: str) -> list[str] | None:
    return None if _UNEVEN_SPACE.search(text) else _WORD_WITH_SPACE.findall(text)


def _separation(description: dict) -> tuple[Callable[[str], list[str] | None] | None, re.Pattern | None]:
    """Return a function that splits a text into words and a pattern that splits a word into parts.

    The function is None if splitting is not known to be safe. The pattern is None if words cannot be split.
    """
    kinds = [part["type"] for part in components(description, "pre_tokenizer")]
    normalizers = components(description, "normalizer")
    # These work on a character and its combining marks, or replace a string without a space.
    if not {n["type"] for n in normalizers} <= {
        *("BertNormalizer", "Lowercase", "StripAccents", "NFKD", "NFC", "NFD", "Precompiled", "Replace"),
    }:
        return None, None
    if kinds == ["BertPreTokenizer"]:
        chinese = any(n.get("handle_chinese_chars") for n in normalizers)
        # A replacement could join the parts on both sides of a punctuation mark. The replacement of accents does not.
        accents = {"type": "Replace", "pattern": {"Regex": ACCENTS}, "content": ""}
        kinds_left = {n["type"] for n in normalizers if n != accents}
        plain = kinds_left <= {"BertNormalizer", *(("NFD", "Lowercase", "NFC") if accents in normalizers else ())}
        return _at_spaces, (_MARKS_CHINESE_AND_RUNS if chinese else _MARKS_AND_RUNS) if plain else None
    if kinds in (["WhitespaceSplit", "Metaspace"], ["WhitespaceSplit"], ["WhitespaceSplit", "Split"]):
        return _at_spaces, None
    if kinds == ["ByteLevel", "Split"]:
        return _WORDS_AND_SPACES.findall, None
    by_character = kinds == ["Split"] and components(description, "pre_tokenizer")[0]["pattern"] == _CHARACTER
    if by_character or (kinds == ["ByteLevel"] and description["pre_tokenizer"]["use_regex"]):
        return _before_spaces, None
    return None, None


def components(description: dict, name: str) -> list[dict]:
    """Return the steps of a tokenizer's normalizer or pre_tokenizer."""
    component = description[name]
    if component is None:
        return []
    steps = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}[name]
    return component[steps] if component["type"] == "Sequence" else [component]
