"""An upper bound for the growth of a text in the steps of a tokenizer.json.

A file of 2 KB with nine steps, each of which replaces one letter by ten, turns one letter into a gigabyte. The bound of
each character is computed from the last step to the first: a step replaces the character by others, each with the bound
of the later steps.
"""

import base64
import functools
import math
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from plmjax.data.tokenizers.kinds import byte_alphabet
from plmjax.errors import UserError
from plmjax.files import json_text

MOST = 2000
"""Maximum number of characters that one may become. Unicode's forms make up to 18 (U+FDFA), and some apply twice."""
FORMS = {"NFC": "NFD", "NFD": "NFD", "NFKC": "NFKD", "NFKD": "NFKD"}
"""Normalization form -> the decomposition with which it starts."""
_BYTES = {number: character for character, number in byte_alphabet().items()}
Bound = Callable[[str], float]


def check(file: Path) -> None:
    """Raise UserError if the steps of a tokenizer.json may make a text more than `MOST` times as long."""
    found = json_text.read_object(file, "a tokenizer", "fetch it again")
    normalizer, splitter, decoder = (_steps(found.get(place)) for place in ("normalizer", "pre_tokenizer", "decoder"))
    for steps in (normalizer + splitter, [step for step in decoder if step.get("type") == "Replace"]):
        longest = math.prod(map(_largest, steps))
        longest = longest if longest <= MOST else _bound(steps)
        if longest > MOST:
            raise UserError(
                f"Expected a tokenizer that makes a text at most {MOST:,} times as long, found steps that may make it "
                f"{longest:.2g} times as long in {file}; take another."
            )


def _steps(part: Any) -> list[dict[str, Any]]:
    """Return the steps of a part of a tokenizer, including those of nested sequences."""
    if not isinstance(part, dict):
        return []
    inner = next((part[name] for name in ("normalizers", "pretokenizers", "decoders") if name in part), None)
    return [step for one in inner for step in _steps(one)] if isinstance(inner, list) else [part]


def _replacements(step: dict[str, Any]) -> list[str]:
    """Return the texts that a step may insert."""
    if step.get("type") == "Precompiled":  # a trie with its size before it, then texts that end with a zero
        table = base64.b64decode(str(step.get("precompiled_charsmap") or ""))
        return table[4 + int.from_bytes(table[:4], "little") :].decode("utf-8", "replace").split("\0")
    return [step[name] for name in ("content", "prepend", "replacement") if isinstance(step.get(name), str)]


def _largest(step: dict[str, Any]) -> float:
    """Return a bound for a single step."""
    kind, written = step.get("type"), max(map(len, _replacements(step)), default=0)
    if kind in ("Replace", "Prepend", "Metaspace"):
        return max(1, written / max(1, len(_pattern(step)))) if _pattern(step) else 1 + written
    own = {"BertNormalizer": 12, "ByteLevel": 5, "Lowercase": 3, "Precompiled": written} | dict.fromkeys(FORMS, 18)
    return max(1, own.get(kind, 1))


def _pattern(step: dict[str, Any]) -> str:
    """Return the text that a step replaces; empty if it is not known."""
    pattern = step.get("pattern")
    text = pattern.get("String") if isinstance(pattern, dict) else None
    return text if isinstance(text, str) else ""


def _bound(steps: list[dict[str, Any]]) -> float:
    told = {*"".join(text for step in steps for text in (*_replacements(step), _pattern(step)))}
    characters = sorted(told.union(_decomposable(), _BYTES.values()))
    bound: Bound = lambda character: 1.0  # noqa: E731
    for step in reversed(steps):
        bound = functools.cache(functools.partial(_before, step, bound, _heaviest(step, bound, characters)))
    return max(map(bound, characters))


def _heaviest(step: dict[str, Any], later: Bound, characters: Iterable[str]) -> float:
    """Return the bound of the text that a step may insert at any character: its own text, or any composed character."""
    if step.get("type") in ("NFC", "NFKC"):
        return max(map(later, characters))
    return max((sum(map(later, text)) for text in _replacements(step)), default=0.0)


def _before(step: dict[str, Any], later: Bound, heaviest: float, character: str) -> float:
    """Return the bound of a character before a step."""
    kind, pattern = step.get("type"), _pattern(step)
    if kind == "Replace" and pattern:  # each match has the first character of the pattern
        return max(later(character), heaviest) if character == pattern[0] else later(character)
    if kind in ("Replace", "Prepend", "Metaspace"):
        return later(character) + heaviest
    if kind == "ByteLevel":
        return sum(later(_BYTES[byte]) for byte in character.encode()) + later(_BYTES[ord(" ")])
    if kind == "Precompiled":
        return max(later(character), heaviest)
    if kind in FORMS:
        return max(heaviest, sum(map(later, unicodedata.normalize(FORMS[kind], character))))
    if kind == "Lowercase":
        return sum(map(later, character.lower()))
    if kind == "BertNormalizer":  # it may do less, and puts spaces around Chinese characters
        forms = (character, character.lower(), unicodedata.normalize("NFD", character))
        forms += (unicodedata.normalize("NFD", character).lower(), " ")
        return max(sum(map(later, form)) for form in forms) + 2 * later(" ")
    return later(character)


@functools.cache
def _decomposable() -> frozenset[str]:
    """Return the characters that Unicode normalization decomposes or lowercasing changes."""
    every = (chr(code) for code in range(0x30000) if not 0xD800 <= code < 0xE000)
    return frozenset(one for one in every if unicodedata.normalize("NFKD", one) != one or one.lower() != one)
