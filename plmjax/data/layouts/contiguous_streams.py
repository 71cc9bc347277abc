"""Rows of consecutive tokens that continue from batch to batch, for models with a carried state or memory."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts.chunks import BlockRows, Chunks
from plmjax.data.layouts.layout import Fields, LayoutRows, Shapes, int32
from plmjax.data.store import Dataset


@dataclasses.dataclass(frozen=True)
class ContiguousStreams(Chunks):
    """Rows as in `Chunks`, but row b of a batch continues row b of the previous batch, for models with a carry.

    Adds the fields of `Chunks`; is_first int32 [B], 1 where a row does not continue the previous batch (the first batch
    of an epoch or of an evaluation), so its carry must be reset; document_starts bool [B T], true at the first token of
    every document.
    """

    continues: ClassVar[bool] = True

    def rows(self, dataset: Dataset, split: str, length: int, *, vocabulary: Vocabulary, seed: int) -> LayoutRows:
        return StreamRows(dataset.split(split), self, length, vocabulary)

    def batch(self, batch_size: int, sequence_length: int) -> Shapes:
        starts = jax.ShapeDtypeStruct((batch_size, sequence_length), jnp.bool_)
        return super().batch(batch_size, sequence_length) | {"is_first": int32(batch_size), "document_starts": starts}

    def synthetic(self, batch_size: int, sequence_length: int, vocab_size: int, seed: int) -> Fields:
        """Return a random batch from the middle of a document."""
        batch = super().synthetic(batch_size, sequence_length, vocab_size, seed)
        return batch | {
            "is_first": np.zeros(batch_size, np.int32),
            "document_starts": np.zeros((batch_size, sequence_length), bool),
        }


class InOrder(LayoutRows):
    """Rows in the order of the text: place b of a batch continues place b of the previous batch.

    The text is cut into streams of equal length, one for each row of a batch. Each epoch reads the same streams again.
    """

    def train(self, step: int, batch_size: int, places: np.ndarray, key: np.ndarray) -> np.ndarray:
        steps = self.count // batch_size
        return places * steps + step % steps

    def is_first(self, step: int, batch_size: int) -> bool:
        return step % (self.count // batch_size) == 0

    def evaluation(self, step: int, batch_size: int, places: np.ndarray) -> np.ndarray:
        numbers = places * self.evaluation_steps(batch_size) + step
        return np.where(numbers < self.count, numbers, -1)


class StreamRows(InOrder, BlockRows):
    """Rows of `Chunks` in the order of the text."""

    def fields(self, rows: np.ndarray) -> Fields:
        row, place = self._text.starts_within(rows * self._stride, self._length)
        starts = np.zeros((len(rows), self._length), bool)
        starts[row, place] = True
        return super().fields(rows) | {"document_starts": starts}
