"""The properties of a tokenizer that a training step uses: its size, special ids, and which tokens begin a word."""

import dataclasses
from collections.abc import Mapping

import numpy as np

ROLES = ("pad", "unknown", "cls", "sep", "mask", "begin", "end")
"""Special tokens that many systems have."""


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """The numbers of a tokenizer. Ids that a tokenizer does not have are -1.

    `others` holds the ids of roles that few systems have, such as the start, delimiter and extract of GPT.

    `special` lists the ids that are never chosen for masking; `continuation` is bool [V], true where a token continues
    the word of the token before it (WordPiece's `##`, a SentencePiece piece that neither begins with the meta-space nor
    is a punctuation mark alone, ...).

    `sentinels` holds the ids that stand for hidden spans of a text, in the order in which they are used; each is one
    less than the id before it (T5's `<extra_id_0>` is the last id, `<extra_id_1>` the one before it, ...).

    `full_stop` is the id of a full stop behind a word, which ends a sentence.
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

    def id_of(self, role: str) -> int:
        """The id of a special token by its role: cls, sep, mask, begin, end, ..., document_end, or one of `others`.

        -1 for none.
        """
        if role in (*ROLES, "document_end"):
            return getattr(self, role)
        return self.others.get(role, -1)

    @property
    def document_end(self) -> int:
        """The token that stands between documents: the end token or, without one, the separator; -1 for neither."""
        return self.end if self.end >= 0 else self.sep

    @classmethod
    def placeholder(cls, size: int) -> "Vocabulary":
        """A vocabulary of `size` tokens laid out as BERT's, for programs that only need shapes (plan, bench)."""
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
