"""How one text or a pair of texts is laid out as a row of tokens, and which position stands for the row."""

import dataclasses
from collections.abc import Sequence
from typing import Self, TypeVar

from plmjax.errors import UserError
from plmjax.vocabulary import Vocabulary

T = TypeVar("T")

TEXTS = ("A", "B")
SUMMARIES = ("first", "last")


@dataclasses.dataclass(frozen=True)
class TokenRow:
    """One row. starts: where each of its texts begins. summary: the position that stands for the row.

    token_types: None where the template names no types.
    """

    tokens: list[int]
    token_types: list[int] | None
    starts: tuple[int, ...]
    summary: int


@dataclasses.dataclass(frozen=True)
class Template:
    """The layout of a model's rows, as the template of a TemplateProcessing of the library tokenizers.

    A and B are the texts, all other words are roles of special tokens (`Vocabulary.id_of`); `:1` behind one is its
    token type, which is 0 without it; a template without any has no types. By default BERT's: [CLS] A [SEP] and
    [CLS] A [SEP] B [SEP].
    """

    single: str = "cls A sep"
    """A row of one text."""
    pair: str = "cls A sep B:1 sep:1"
    """A row of two texts."""
    summary: str = "first"
    """Which position stands for the row: first or last."""
    both_orders: bool = False
    """Whether a pair makes two rows, one in each order."""
    backwards: bool = False
    """Whether texts stand from their last token to their first."""

    def __post_init__(self) -> None:
        """Raises ValueError for a template that is none."""
        for texts, written in enumerate((self.single, self.pair), start=1):
            found = tuple(name for name, _ in _parts(written) if name in TEXTS)
            if found != TEXTS[:texts]:
                raise ValueError(f"Expected a template with {' and '.join(TEXTS[:texts])}, found {written!r}.")
        if self.summary not in SUMMARIES:
            raise ValueError(f"Expected a summary of {' or '.join(SUMMARIES)}, found {self.summary!r}.")

    @property
    def typed(self) -> bool:
        """Whether the tokens of a row have types."""
        return ":" in self.single + self.pair

    def orders(self, texts: Sequence[T]) -> list[tuple[T, ...]]:
        """The rows' texts of one example: its own, and of a pair in both orders the same turned round."""
        own = tuple(texts)
        return [own, own[::-1]] if self.both_orders and len(own) == 2 else [own]

    def with_types(self, count: int) -> Self:
        """The same rows for a model with so many token types; where there is one, tokens have none."""
        if count > 1:
            return self
        single, pair = (" ".join(name for name, _ in self.parts(texts)) for texts in (1, 2))
        return dataclasses.replace(self, single=single, pair=pair)

    def specials(self, texts: int) -> int:
        """Special tokens in a row of so many texts, 1 or 2."""
        return len(self.parts(texts)) - texts

    def position(self, length: int) -> int:
        """The position that stands for a row of `length` tokens."""
        return 0 if self.summary == "first" else length - 1

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the special tokens in its rows, in the order of a pair."""
        return tuple(dict.fromkeys(name for row in (2, 1) for name, _ in self.parts(row) if name not in TEXTS))

    def missing(self, vocabulary: Vocabulary) -> list[str]:
        """The roles for which the tokenizer has no token."""
        return [role for role in self.roles if vocabulary.id_of(role) < 0]

    def check(self, vocabulary: Vocabulary) -> None:
        """Raises UserError where the tokenizer lacks a special token of the rows."""
        if missing := self.missing(vocabulary):
            raise UserError(
                f"Expected a tokenizer with the special tokens of the model's rows ({', '.join(self.roles)}), found "
                f"none for {', '.join(missing)}; use the tokenizer of such a model, or fine-tune this one, which adds "
                f"those of a decoder."
            )

    def lay_out(self, texts: Sequence[Sequence[int]], vocabulary: Vocabulary, length: int | None = None) -> TokenRow:
        """One or two texts as a row of at most `length` tokens; without a length nothing is cut."""
        parts = self.parts(len(texts))
        if length is not None:
            room = length - self.specials(len(texts))
            sizes = (room,) if len(texts) == 1 else longer_first(*map(len, texts), room)
            texts = [text[:size] for text, size in zip(texts, sizes, strict=True)]
        if self.backwards:
            texts = [text[::-1] for text in texts]
        tokens: list[int] = []
        token_types: list[int] = []
        starts = []
        for name, token_type in parts:
            if name in TEXTS:
                starts.append(len(tokens))
                tokens += texts[TEXTS.index(name)]
            else:
                tokens.append(vocabulary.id_of(name))
            token_types += [token_type] * (len(tokens) - len(token_types))
        return TokenRow(tokens, token_types if self.typed else None, tuple(starts), self.position(len(tokens)))

    def parts(self, texts: int) -> list[tuple[str, int]]:
        """(A, B or the role of a special token, token type) of every part of a row of so many texts, 1 or 2."""
        return _parts((self.single, self.pair)[texts - 1])


def _parts(written: str) -> list[tuple[str, int]]:
    """(name, token type) of every part of a template."""
    divided = (part.partition(":") for part in written.split())
    return [(name, int(token_type or 0)) for name, _, token_type in divided]


TEXT_ALONE = Template("A", "A B", "last")
"""The rows of a language model: no special token stands around a text."""


def longer_first(first: int, second: int, tokens: int) -> tuple[int, int]:
    """Lengths of two texts cut to `tokens` together, the longer one first, the second where they are equal.

    As google-research/bert run_classifier.py takes them away, one at a time.
    """
    kept = min(first, max(tokens - second, tokens - tokens // 2))
    return kept, min(second, tokens - kept)
