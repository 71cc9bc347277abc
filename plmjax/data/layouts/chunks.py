"""Rows of consecutive tokens from the joined documents, for causal language models."""

import dataclasses

import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts.joined_text import JoinedText, ReversedText
from plmjax.data.layouts.layout import Fields, Layout, LayoutRows, Shapes, float32, int32
from plmjax.data.store import Dataset, Split
from plmjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Chunks(Layout):
    """Rows of T consecutive tokens in shuffled order. Documents are joined by the end token.

    Adds: next_ids int32 [B T], the token after each; next_weights float32 [B T]. One segment, positions 0..T-1.
    """

    overlap: int = 0
    """Number of tokens at the start of a row that repeat the row before, as context. Their targets have weight 0."""
    backwards: bool = False
    """If true, the joined text runs from its last token to its first, for a model that reads backwards."""

    def __post_init__(self) -> None:
        if self.overlap < 0:
            raise UserError(f"Expected --data.layout.overlap of 0 or more, found {self.overlap}; change it.")

    def check(self, sequence_length: int) -> None:
        """Raise UserError if the length is invalid or not above `overlap`."""
        super().check(sequence_length)
        if self.overlap >= sequence_length:
            raise UserError(
                f"Expected --data.layout.overlap below the sequence length, found {self.overlap} tokens of "
                f"{sequence_length}; lower it."
            )

    def rows(self, dataset: Dataset, split: str, length: int, *, vocabulary: Vocabulary, seed: int) -> LayoutRows:
        return BlockRows(dataset.split(split), self, length, vocabulary)

    def batch(self, batch_size: int, sequence_length: int) -> Shapes:
        shape = (batch_size, sequence_length)
        return super().batch(batch_size, sequence_length) | {"next_ids": int32(*shape), "next_weights": float32(*shape)}

    def synthetic(self, batch_size: int, sequence_length: int, vocab_size: int, seed: int) -> Fields:
        """Return a random batch in which the next token of every token is known."""
        longer = super().synthetic(batch_size, sequence_length + 1, vocab_size, seed)
        batch = {name: array[:, :-1] if array.ndim == 2 else array for name, array in longer.items()}
        next_ids = np.ascontiguousarray(longer["input_ids"][:, 1:])
        return batch | {"next_ids": next_ids, "next_weights": np.ones_like(next_ids, np.float32)}


class BlockRows(LayoutRows):
    """Row r has the T tokens of the joined documents from token r*S on, with S = T - overlap (see `Chunks`).

    Every token but the first is a target once. In training, a last row that is not full is dropped. In held-out text it
    is padded, and padding is not a target.
    """

    def __init__(self, split: Split, layout: Chunks, sequence_length: int, vocabulary: Vocabulary):
        layout.check(sequence_length)
        if vocabulary.document_end < 0 and split.documents > 1:
            raise UserError(
                f"Expected a tokenizer with an end or separator token to join documents, for the layout "
                f"{type(layout).__name__}, found one with neither for {split.documents} documents; use another "
                f"tokenizer."
            )
        self._pad = max(vocabulary.pad, 0)
        text = JoinedText(split, vocabulary.document_end)
        self._text = ReversedText(text) if layout.backwards else text
        self._length = sequence_length
        self._overlap, self._stride = layout.overlap, sequence_length - layout.overlap
        targets = max(self._text.size - 1, 0)
        after_first = max(targets - sequence_length, 0)
        if split.name == "train":
            self.count = 1 + after_first // self._stride if targets >= sequence_length else 0
        else:
            self.count = 1 + -(-after_first // self._stride) if targets else 0

    def fields(self, rows: np.ndarray) -> Fields:
        length = self._length
        text = np.full((len(rows), length + 1), self._pad, np.int32)
        start = rows * self._stride
        stop = np.minimum(start + length + 1, self._text.size)
        self._text.copy(start, stop, text)
        real = np.arange(length) < (stop - start - 1)[:, None]
        is_target = (np.arange(length) >= self._overlap) | (rows == 0)[:, None]
        return {
            "input_ids": np.where(real, text[:, :-1], self._pad),
            "segment_ids": real.astype(np.int32),
            "positions": np.where(real, np.arange(length), 0).astype(np.int32),
            "next_ids": np.where(real, text[:, 1:], self._pad),
            "next_weights": (real & is_target).astype(np.float32),
        }
