"""The layout of one text or a pair of texts as a row of tokens, and the position that represents the row."""

import dataclasses
from collections.abc import Sequence
from typing import Self, TypeVar

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError

T = TypeVar("T")

TEXTS = ("A", "B")
SUMMARIES = ("first", "last")
SIDES = ("right", "left")


@dataclasses.dataclass(frozen=True)
class TokenRow:
    """One row of tokens.

    token_types: token type of each token; None if the template defines no types.
    starts: the first position of each text. summary: the position that represents the row.
    """

    tokens: list[int]
    token_types: list[int] | None
    starts: tuple[int, ...]
    summary: int


@dataclasses.dataclass(frozen=True)
class Template:
    """The layout of a model's rows, in the notation of a TemplateProcessing of the library tokenizers.

    A and B are the texts. All other words are roles of special tokens (`Vocabulary.id_of`). A suffix `:1` is the token
    type; without a suffix the type is 0. If no word has a suffix, the rows have no token types. The default is BERT's
    layout: [CLS] A [SEP] and [CLS] A [SEP] B [SEP].
    """

    single: str = "cls A sep"
    """Layout of a row of one text."""
    pair: str = "cls A sep B:1 sep:1"
    """Layout of a row of two texts."""
    summary: str = "first"
    """Position that represents the row: first or last."""
    both_orders: bool = False
    """True if a pair makes two rows, one in each order."""
    backwards: bool = False
    """True if each text is reversed, from its last token to its first."""
    padding: str = "right"
    """Side of the row that padding fills: right or left."""

    def __post_init__(self) -> None:
        """Raise ValueError for an invalid template."""
        for texts, written in enumerate((self.single, self.pair), start=1):
            found = tuple(name for name, _ in _parts(written) if name in TEXTS)
            if found != TEXTS[:texts]:
                raise ValueError(f"Expected a template with {' and '.join(TEXTS[:texts])}, found {written!r}.")
        if self.summary not in SUMMARIES:
            raise ValueError(f"Expected a summary of {' or '.join(SUMMARIES)}, found {self.summary!r}.")
        if self.padding not in SIDES:
            raise ValueError(f"Expected a padding side of {' or '.join(SIDES)}, found {self.padding!r}.")

    @property
    def typed(self) -> bool:
        """True if the tokens of a row have types."""
        return ":" in self.single + self.pair

    def orders(self, texts: Sequence[T]) -> list[tuple[T, ...]]:
        """Return the texts of each row of one example.

        The first row has the texts in their own order. A pair in both orders has a second row, with the order reversed.
        """
        own = tuple(texts)
        return [own, own[::-1]] if self.both_orders and len(own) == 2 else [own]

    def with_types(self, count: int) -> Self:
        """Return the same template for a model with `count` token types.

        With one type the tokens have no types.
        """
        if count > 1:
            return self
        single, pair = (" ".join(name for name, _ in self.parts(texts)) for texts in (1, 2))
        return dataclasses.replace(self, single=single, pair=pair)

    def specials(self, texts: int) -> int:
        """Return the number of special tokens in a row of 1 or 2 texts."""
        return len(self.parts(texts)) - texts

    def position(self, length: int) -> int:
        """Return the position that represents a row of `length` tokens."""
        return 0 if self.summary == "first" else length - 1

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the special tokens, in the order of a row of two texts, then those of rows of one text alone."""
        return tuple(dict.fromkeys(name for row in (2, 1) for name, _ in self.parts(row) if name not in TEXTS))

    def missing(self, vocabulary: Vocabulary) -> list[str]:
        """Return the roles for which the tokenizer has no token."""
        return [role for role in self.roles if vocabulary.id_of(role) < 0]

    def check(self, vocabulary: Vocabulary) -> None:
        """Raise UserError if the tokenizer lacks a special token of the template."""
        if missing := self.missing(vocabulary):
            raise UserError(
                f"Expected a tokenizer with the special tokens of the model's rows ({', '.join(self.roles)}), found "
                f"none for {', '.join(missing)}; use the tokenizer of such a model, or fine-tune this one, which adds "
                f"those of a decoder."
            )

    def lay_out(self, texts: Sequence[Sequence[int]], vocabulary: Vocabulary, length: int | None = None) -> TokenRow:
        """Return one or two texts as a row of at most `length` tokens. Without a length nothing is truncated."""
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
        """Return the name and the token type of every part of a row of 1 or 2 texts.

        A name is A, B or the role of a special token.
        """
        return _parts((self.single, self.pair)[texts - 1])


def _parts(written: str) -> list[tuple[str, int]]:
    """Return (name, token type) of every part of a template."""
    divided = (part.partition(":") for part in written.split())
    return [(name, int(token_type or 0)) for name, _, token_type in divided]


TEXT_ALONE = Template("A", "A B", "last")
"""The rows of a language model: a text without special tokens."""


def longer_first(first: int, second: int, tokens: int) -> tuple[int, int]:
    """Return the lengths of two texts after truncation to `tokens` tokens in total.

    Tokens are removed one at a time from the longer text, and from the second if both are equally long, as in
    google-research/bert run_classifier.py.
    """
    kept = min(first, max(tokens - second, tokens - tokens // 2))
    return kept, min(second, tokens - kept)
