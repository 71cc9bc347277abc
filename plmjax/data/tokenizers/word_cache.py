"""Ids of a text found word by word, each word's once: several times the tokenizers library's speed, the same ids.

It rests on what a tokenizer's normaliser and splitter cannot see: where neither looks over a space (nor, in BERT's
splitter, over a punctuation mark), the ids of a text are those of its parts, one after another.
"""

import re
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

CACHED = 300_000
"""Entries of a cache; with two levels about 100 MB a process."""
LONGEST_CACHED = 32
"""Characters of a word worth remembering; Chinese sentences have no spaces."""

_UNEVEN_SPACE = re.compile(r"[^\S ]|  | $")
_WORD_WITH_SPACE = re.compile(r" ?[^ ]+")
# Characters that BERT's splitter always makes words of their own, and the runs between them.
_MARK = r"!-/:-@\[-`{-~‘’“”–—…、。《》「」『』！（），：；？"
_MARKS_AND_RUNS = re.compile(rf"[{_MARK}]|[^{_MARK}]+")
_MARKS_CHINESE_AND_RUNS = re.compile(rf"[{_MARK}\u4e00-\u9fff]|[^{_MARK}\u4e00-\u9fff]+")


class _Cache(dict):
    """Text -> its ids as the bytes of an int32 array; emptied when full, so that memory is bounded."""

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
    """Encodes with a tokenizers.Tokenizer; `description` is its JSON."""

    def __init__(self, engine, description: dict):
        self._engine = engine
        self._cut, parts = _separation(description)
        words = _Cache(self._library)
        if parts is not None:
            self._words = _Cache(lambda word: b"".join(map(words.__getitem__, parts.findall(word))))
        else:
            self._words = words
        # Special tokens that a text may spell out and that must not be cut, such as [MASK]; RoBERTa's <mask> takes
        # the space before it with it.
        self._uncut = [
            token["content"]
            for token in description["added_tokens"]
            if token["lstrip"]
            or token["rstrip"]
            or " " in token["content"]
            or (parts is not None and len(parts.findall(token["content"])) > 1)
        ]

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all texts back to back, int32 [N], and how many each has, int32 [texts]."""
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
    """How a text is cut into words (None: it is not known to be possible), and a word into parts (None: it is not)."""
    kinds = [part["type"] for part in components(description, "pre_tokenizer")]
    normalizers = components(description, "normalizer")
    # These work on a character and what combines with it, or replace a string that holds no space.
    if not {n["type"] for n in normalizers} <= {
        *("BertNormalizer", "Lowercase", "StripAccents", "NFKD", "NFC", "NFD", "Precompiled", "Replace"),
    }:
        return None, None
    if kinds == ["BertPreTokenizer"]:
        chinese = any(n.get("handle_chinese_chars") for n in normalizers)
        # A replacement could join what a punctuation mark parts.
        plain = {n["type"] for n in normalizers} <= {"BertNormalizer"}
        return _at_spaces, (_MARKS_CHINESE_AND_RUNS if chinese else _MARKS_AND_RUNS) if plain else None
    if kinds == ["WhitespaceSplit", "Metaspace"]:
        return _at_spaces, None
    by_character = kinds == ["Split"] and description["model"]["type"] == "WordLevel"
    if by_character or (kinds == ["ByteLevel"] and description["pre_tokenizer"]["use_regex"]):
        return _before_spaces, None
    return None, None


def components(description: dict, name: str) -> list[dict]:
    """The steps of a tokenizer's normalizer or pre_tokenizer."""
    component = description[name]
    if component is None:
        return []
    steps = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}[name]
    return component[steps] if component["type"] == "Sequence" else [component]
