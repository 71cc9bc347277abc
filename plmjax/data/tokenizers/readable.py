"""Readable text of tokens, without the marks for spaces, ends of words and bytes of each kind of tokenizer."""

import re
from collections.abc import Iterable

from plmjax.data.tokenizers import Tokenizer
from plmjax.data.tokenizers.kinds import byte_alphabet

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def readable(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str]:
    """Return the text of every id, with plain spaces: " you" if the vocabulary has Ġyou or ▁you.

    A WordPiece keeps its ##, the usual notation. Bytes of an incomplete character, and characters that cannot be
    printed, are escaped as in Python (\\xe2, \\n). An id without a token is [id 123].
    """
    spell = _SPELLINGS.get(tokenizer.kind, str)
    ids = list(ids)
    pieces = (None if piece is None else spell(piece) for piece in tokenizer.tokens(ids))
    return [f"[id {number}]" if piece is None else _escape(piece) for number, piece in zip(ids, pieces, strict=True)]


_BYTES = byte_alphabet()


def _of_bytes(piece: str) -> str:
    """Return the text of a byte-level token; special tokens with other characters are unchanged."""
    if not all(character in _BYTES for character in piece):
        return piece
    return bytes(_BYTES[character] for character in piece).decode(errors="backslashreplace")


def _of_sentencepiece(piece: str) -> str:
    if byte := _BYTE.fullmatch(piece):
        return bytes.fromhex(byte[1]).decode(errors="backslashreplace")
    return piece.replace("▁", " ")


_SPELLINGS = {
    "byte-bpe": _of_bytes,
    "byte": _of_bytes,
    "sentencepiece-unigram": _of_sentencepiece,
    "sentencepiece-bpe": _of_sentencepiece,
    "bpe": lambda piece: f"{piece.removesuffix('</w>')} " if piece.endswith("</w>") else piece,
}
"""Kind of tokenizer -> function from token to text; other kinds have plain text as tokens."""


def _escape(text: str) -> str:
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
