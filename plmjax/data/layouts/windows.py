"""Overlapping rows, for models trained on windows of varying length."""

import dataclasses

import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts.contiguous_streams import ContiguousStreams, StreamRows
from plmjax.data.layouts.layout import Fields, LayoutRows, Shapes, int32
from plmjax.data.store import Dataset
from plmjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Windows(ContiguousStreams):
    """Rows as in `ContiguousStreams`, but a row repeats the last `overlap` tokens of the previous row.

    An objective that is trained on windows (`AwdLstmPretraining`) ends each window among the tokens that the next row
    repeats, and starts the next window there. The mean length of a window is `sequence_length - overlap` tokens.

    Adds the fields of `ContiguousStreams`, and overlap int32 [B], the same in every row.
    """

    overlap: int = 20
    """Number of tokens at the start of a row that repeat the row before."""

    def __post_init__(self) -> None:
        if self.overlap < 1:
            raise UserError(
                f"Expected --data.layout.overlap of at least 1 for windows of varying length, found {self.overlap}; "
                "change it, or take the layout ContiguousStreams for windows of one length."
            )

    def check(self, sequence_length: int) -> None:
        """Raise UserError if the length is invalid or at most twice `overlap`, so that a window could be empty."""
        super().check(sequence_length)
        if 2 * self.overlap >= sequence_length:
            raise UserError(
                f"Expected --data.layout.overlap below half the sequence length, found {self.overlap} tokens of "
                f"{sequence_length}; lower it."
            )

    def rows(self, dataset: Dataset, split: str, length: int, *, vocabulary: Vocabulary, seed: int) -> LayoutRows:
        return WindowRows(dataset.split(split), self, length, vocabulary)

    def batch(self, batch_size: int, sequence_length: int) -> Shapes:
        return super().batch(batch_size, sequence_length) | {"overlap": int32(batch_size)}

    def synthetic(self, batch_size: int, sequence_length: int, vocab_size: int, seed: int) -> Fields:
        batch = super().synthetic(batch_size, sequence_length, vocab_size, seed)
        return batch | {"overlap": np.full(batch_size, self.overlap, np.int32)}


class WindowRows(StreamRows):
    """Rows of `Windows`, with the number of tokens that each row repeats."""

    def fields(self, rows: np.ndarray) -> Fields:
        return super().fields(rows) | {"overlap": np.full(len(rows), self._overlap, np.int32)}
