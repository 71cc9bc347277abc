"""The properties of a tokenizer that a training step uses: size, special ids, and the tokens that start a word."""

import dataclasses
from collections.abc import Mapping

import numpy as np

ROLES = ("pad", "unknown", "cls", "sep", "mask", "begin", "end")
"""Roles of special tokens that many systems have."""


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """Size, ids and token properties of a tokenizer. The id of a missing token is -1.

    special: ids that are never selected for masking.
    continuation: bool [V], true if a token continues the word of the previous token (WordPiece's `##`, a SentencePiece
        piece that neither starts with the meta-space nor is a single punctuation mark, ...).
    others: dict from role to id, for roles that few systems have, such as GPT's start, delimiter and extract tokens and
        XLNet's token between documents.
    sentinels: ids of the sentinels for masked spans of a text, in the order of their use. Each id is the previous one
        minus 1 (T5's `<extra_id_0>` is the last id, `<extra_id_1>` the id before it, ...).
    full_stop: id of a full stop after a word, which ends a sentence.
    bytes: true if every token is one byte.
    """

    size: int
    pad: int = -1
    unknown: int = -1
    cls: int = -1
    sep: int = -1
    mask: int = -1
    begin: int = -1
    end: int = -1
    special: tuple[int, ...] = ()
    continuation: np.ndarray | None = None
    others: Mapping[str, int] = dataclasses.field(default_factory=dict)
    sentinels: tuple[int, ...] = ()
    full_stop: int = -1
    bytes: bool = False

    def id_of(self, role: str) -> int:
        """Return the id of a special token by its role, or -1.

        role: cls, sep, mask, begin, end, ..., document_end, or one of `others`.
        """
        if role in (*ROLES, "document_end"):
            return getattr(self, role)
        return self.others.get(role, -1)

    @property
    def gaps(self) -> tuple[int, ...]:
        """Return the ids of the tokens that stand for masked text: the mask and the sentinels, if they exist."""
        return (*([self.mask] if self.mask >= 0 else []), *self.sentinels)

    @property
    def document_end(self) -> int:
        """Return the id of the token between documents: the role "between", the end token, the separator, or -1."""
        return self.others.get("between", self.end if self.end >= 0 else self.sep)

    @classmethod
    def placeholder(cls, size: int) -> "Vocabulary":
        """Return a vocabulary of `size` tokens with the special ids of BERT, for use without a tokenizer."""
        ids = {"pad": 0, "unknown": 1, "cls": 2, "sep": 3, "mask": 4}
        return cls(
            size=size,
            begin=2,
            end=3,
            special=tuple(range(5)),
            continuation=np.arange(size) % 4 == 3,
            sentinels=tuple(range(size - 1, size - 1 - min(100, size // 4), -1)),
            full_stop=min(5, size - 1),
            **ids,
        )
