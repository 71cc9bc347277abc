"""Base class of every layout: settings that define a batch, and rows that are cut from a prepared dataset.

Fields of a batch (B rows, T tokens, K sequences packed in a row):

    input_ids               int32 [B T]
    segment_ids             int32 [B T]   0 padding, 1.. the packed sequence a token belongs to
    positions               int32 [B T]   from 0 in every packed sequence
    row_ids                 int32 [B]     index of the row in the epoch; -1 for a row that only fills the batch
"""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import order
from plmjax.data.store import Dataset
from plmjax.errors import UserError

Shapes = dict[str, jax.ShapeDtypeStruct]
Fields = dict[str, np.ndarray]


class LayoutRows:
    """Rows 0..count-1 of a split under one layout."""

    count: int

    def train(self, step: int, batch_size: int, places: np.ndarray, key: np.ndarray) -> np.ndarray:
        """Return the rows at `places` of global batch `step`, int64.

        Every epoch has a new order, and epochs follow each other without a gap.
        """
        return order.shuffle(step * batch_size + places, self.count, key)

    def is_first(self, step: int, batch_size: int) -> bool:
        """Return whether the rows of training batch `step` do not continue the rows of the previous batch.

        It is always true except for streams. Among held-out batches it is true for the first only.
        """
        return True

    def evaluation_steps(self, batch_size: int) -> int:
        """Return the number of batches that hold every row once."""
        return -(-self.count // batch_size)

    def evaluation(self, step: int, batch_size: int, places: np.ndarray) -> np.ndarray:
        """Return the rows at `places` of evaluation batch `step`, int64.

        Every row occurs once, in order; -1 where no row is left.
        """
        numbers = step * batch_size + places
        return np.where(numbers < self.count, numbers, -1)

    def fields(self, rows: np.ndarray) -> Fields:
        """Return the fields of these rows, without row_ids. Every row must exist."""
        raise NotImplementedError(f"{type(self).__name__} must define `fields`.")


@dataclasses.dataclass(frozen=True)
class Layout:
    """Base class of every layout: a frozen dataclass of its settings."""

    continues: ClassVar[bool] = False
    """True if row b of a batch continues row b of the previous batch, so that rows cannot be shuffled."""
    backwards: ClassVar[bool] = False
    """True if rows hold the text from its end to its beginning."""
    in_pieces: ClassVar[bool] = True
    """True if rows can be cut from one piece of the text, unless `continues`; false if they need all of the text."""
    shortest: ClassVar[int] = 1
    longest: ClassVar[int] = np.iinfo(np.int32).max
    """Number of tokens of the shortest and of the longest possible row."""

    def prepare(self, dataset: Dataset, vocabulary: Vocabulary) -> None:
        """Build the index that `rows` needs, once per dataset. Does nothing by default."""

    def remarks(self, dataset: Dataset) -> Iterator[str]:
        """Yield a line about each property of the text that makes the task of the rows easier than intended."""
        yield from ()

    def target_counts(self, dataset: Dataset, vocabulary: Vocabulary) -> np.ndarray:
        """Return the number of times that each token is a target in the training text, int64 [V]."""
        return dataset.unigram_counts()

    def rows(self, dataset: Dataset, split: str, length: int, *, vocabulary: Vocabulary, seed: int) -> LayoutRows:
        """Return the rows of a split, `length` tokens each.

        Training rows are sampled with `seed`. The validation split is read once, the same for every seed. A split with
        too little text has no rows: count is 0.

        Raises:
            UserError: the tokenizer lacks a token that the layout needs, or rows cannot have that length.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `rows`.")

    def check(self, sequence_length: int) -> None:
        """Raise UserError for rows that are too short or too long."""
        if not self.shortest <= sequence_length <= self.longest:
            raise UserError(
                f"Expected rows of {self.shortest} to {self.longest} tokens for the layout {type(self).__name__}, "
                f"found a sequence length of {sequence_length}; change --data.sequence_length."
            )

    def tokens(self, batch_size: int, sequence_length: int) -> int:
        """Return the number of tokens of one global batch, over all its streams."""
        return batch_size * sequence_length

    def batch(self, batch_size: int, sequence_length: int) -> Shapes:
        """Return a dict from field to shape and dtype of one global batch."""
        row = int32(batch_size, sequence_length)
        return {"input_ids": row, "segment_ids": row, "positions": row, "row_ids": int32(batch_size)}

    def synthetic(self, batch_size: int, sequence_length: int, vocab_size: int, seed: int) -> Fields:
        """Return a global batch of random tokens in full rows of one sequence, for benchmarks without a dataset."""
        shape = (batch_size, sequence_length)
        return {
            "input_ids": np.random.default_rng(seed).integers(min(5, vocab_size - 1), vocab_size, shape, np.int32),
            "segment_ids": np.ones(shape, np.int32),
            "positions": np.broadcast_to(np.arange(sequence_length, dtype=np.int32), shape).copy(),
            "row_ids": np.arange(batch_size, dtype=np.int32),
        }


def int32(*shape: int) -> jax.ShapeDtypeStruct:
    """Return an int32 field of a batch."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def float32(*shape: int) -> jax.ShapeDtypeStruct:
    """Return a float32 field of a batch."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)
