"""Tokens as a person reads them: each kind of tokenizer has marks of its own for spaces, ends of words and bytes."""

import re
from collections.abc import Iterable

from plmjax.data.tokenizers import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def readable(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str]:
    """The text that every id stands for, spaces as spaces: " you" where the vocabulary has Ġyou or ▁you.

    A WordPiece keeps its ##, which is how the field writes it. Bytes that are no whole character and characters that
    cannot be printed are escaped as in Python (\\xe2, \\n); an id without a token is [id 123].
    """
    spell = _SPELLINGS.get(tokenizer.kind, str)
    ids = list(ids)
    pieces = (None if piece is None else spell(piece) for piece in tokenizer.tokens(ids))
    return [f"[id {number}]" if piece is None else _printed(piece) for number, piece in zip(ids, pieces, strict=True)]


def _byte_alphabet() -> dict[str, int]:
    """Character that stands for a byte in a byte-level vocabulary -> byte (openai/gpt-2 src/encoder.py)."""
    themselves = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in themselves]
    return {chr(byte): byte for byte in themselves} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def _of_bytes(piece: str) -> str:
    """Only the special tokens that a user adds have other characters."""
    if not all(character in _BYTES for character in piece):
        return piece
    return bytes(_BYTES[character] for character in piece).decode(errors="backslashreplace")


def _of_sentencepiece(piece: str) -> str:
    if byte := _BYTE.fullmatch(piece):
        return bytes.fromhex(byte[1]).decode(errors="backslashreplace")
    return piece.replace("▁", " ")


_SPELLINGS = {
    "byte-bpe": _of_bytes,
    "sentencepiece-unigram": _of_sentencepiece,
    "sentencepiece-bpe": _of_sentencepiece,
    "bpe": lambda piece: f"{piece.removesuffix('</w>')} " if piece.endswith("</w>") else piece,
}
"""Kind of tokenizer -> token to text; the tokens of the others are what they stand for."""


def _printed(text: str) -> str:
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
