"""How rows are cut from a prepared dataset: what a batch holds, as settings and shapes.

Building the rows lives in `plmjax.data.index`; this file imports neither TensorFlow nor a dataset, so that a plan or a
benchmark can know a batch's shapes without either.

Fields of a batch (B rows, T tokens, K sequences packed in a row):

    input_ids               int32 [B T]
    segment_ids             int32 [B T]   0 padding, 1.. the packed sequence a token belongs to
    positions               int32 [B T]   from 0 in every packed sequence
    row_ids                 int32 [B]     which row of the epoch this is; -1 for a row that only fills the batch
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import UserError

Shapes = dict[str, jax.ShapeDtypeStruct]

_OF_TWO_SEGMENTS = (5, 2**16 + 2)
"""Tokens of a row that holds [CLS] A [SEP] B [SEP], each segment a token at least, its length 16 bits in an index."""


def _int32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Base of every layout."""

    shortest: ClassVar[int] = 1
    longest: ClassVar[int] = np.iinfo(np.int32).max
    """Tokens of the shortest and of the longest row that it can be cut into."""

    def check(self, sequence_length: int) -> None:
        """Raises UserError for a row that is too short or too long."""
        if not self.shortest <= sequence_length <= self.longest:
            raise UserError(
                f"Expected rows of {self.shortest} to {self.longest} tokens for the layout {type(self).__name__}, "
                f"found a sequence length of {sequence_length}; change --data.sequence_length."
            )

    def batch(self, batch_size: int, sequence_length: int) -> Shapes:
        """Field -> shape and dtype of one global batch."""
        row = _int32(batch_size, sequence_length)
        return {"input_ids": row, "segment_ids": row, "positions": row, "row_ids": _int32(batch_size)}

    def synthetic(self, batch_size: int, sequence_length: int, vocab_size: int, seed: int) -> dict[str, np.ndarray]:
        """A global batch of random tokens in full rows of one sequence, for measuring without a dataset."""
        shape = (batch_size, sequence_length)
        return {
            "input_ids": np.random.default_rng(seed).integers(min(5, vocab_size - 1), vocab_size, shape, np.int32),
            "segment_ids": np.ones(shape, np.int32),
            "positions": np.broadcast_to(np.arange(sequence_length, dtype=np.int32), shape).copy(),
            "row_ids": np.arange(batch_size, dtype=np.int32),
        }


@dataclasses.dataclass(frozen=True)
class SentencePairs(Layout):
    """[CLS] A [SEP] B [SEP] as BERT's create_pretraining_data.py draws them.

    Adds: token_type_ids int32 [B T]; cls_positions int32 [B K]; next_sentence_labels int32 [B K] (0 = B follows A,
    1 = B is from another document); next_sentence_weights float32 [B K] (0 where a row holds fewer sequences).
    """

    shortest, longest = _OF_TWO_SEGMENTS
    labels: ClassVar[str] = "next_sentence"
    swap_probability: ClassVar[float] = 0.0

    short_probability: float = 0.1
    """Share of the passes over a document that make pairs for a shorter target length, drawn uniformly from 2."""
    random_next_probability: float = 0.5
    """How often the second part comes from another document; it always does where one sentence is left."""
    duplicates: int = 10
    """Passes over the text, each with draws of its own, that make up one epoch."""
    pack: int = 1
    """Most pairs packed into one row."""

    def __post_init__(self) -> None:
        """Checks the counts."""
        if self.pack < 1 or self.duplicates < 1:
            raise UserError(
                f"Sentence pairs need data.layout.pack and data.layout.duplicates of at least 1, but they are "
                f"{self.pack} and {self.duplicates}; change them."
            )

    def batch(self, batch_size: int, sequence_length: int) -> Shapes:
        sequences = _int32(batch_size, self.pack)
        return super().batch(batch_size, sequence_length) | {
            "token_type_ids": _int32(batch_size, sequence_length),
            "cls_positions": sequences,
            f"{self.labels}_labels": sequences,
            f"{self.labels}_weights": jax.ShapeDtypeStruct((batch_size, self.pack), jnp.float32),
        }

    def synthetic(self, batch_size: int, sequence_length: int, vocab_size: int, seed: int) -> dict[str, np.ndarray]:
        """As the base, the second half of every row the second sentence; rows hold `pack` pairs of equal length."""
        batch = super().synthetic(batch_size, sequence_length, vocab_size, seed)
        place = np.arange(sequence_length, dtype=np.int32) * self.pack
        pair, within = place // sequence_length, place % sequence_length
        starts = -(-np.arange(self.pack, dtype=np.int32) * sequence_length // self.pack)
        shape = (batch_size, self.pack)
        labels = np.random.default_rng(seed).integers(0, 2, shape, np.int32)
        return batch | {
            "segment_ids": np.broadcast_to(pair + 1, batch["input_ids"].shape).astype(np.int32),
            "positions": np.broadcast_to(np.arange(sequence_length) - starts[pair], batch["input_ids"].shape).astype(
                np.int32
            ),
            "token_type_ids": np.broadcast_to(within * 2 >= sequence_length, batch["input_ids"].shape).astype(np.int32),
            "cls_positions": np.broadcast_to(starts, shape).astype(np.int32),
            f"{self.labels}_labels": labels,
            f"{self.labels}_weights": np.ones(shape, np.float32),
        }


@dataclasses.dataclass(frozen=True)
class SentenceOrder(SentencePairs):
    """Sentence pairs whose parts are consecutive, in their order or swapped, as ALBERT's create_pretraining_data.py.

    Adds what sentence pairs do, but sentence_order_labels (0 = in order; 1 = swapped, or B is from another document)
    and sentence_order_weights instead of those of the next sentence.
    """

    labels: ClassVar[str] = "sentence_order"

    random_next_probability: float = 0.0
    """How often the second part comes from another document; it always does where one sentence is left."""
    swap_probability: float = 0.5
    """How often the parts of the other pairs are swapped."""
    duplicates: int = 40
    """Passes over the text, each with draws of its own, that make up one epoch."""


@dataclasses.dataclass(frozen=True)
class FullSentences(Layout):
    """<s> sentence sentence ... </s>, as many whole sentences as a row holds (RoBERTa section 4.2, FULL-SENTENCES).

    Sentences stand in the order of the text and go on across the ends of documents, between which a further </s>
    stands. A row is one sequence and adds no fields.
    """

    shortest = 3  # <s> token </s>


@dataclasses.dataclass(frozen=True)
class Segments(Layout):
    """[CLS] A [SEP] B [SEP], or [CLS] A [SEP], of consecutive sentences as ELECTRA's build_pretraining_dataset.py cuts.

    Adds: token_type_ids int32 [B T]; cls_positions int32 [B K].
    """

    shortest, longest = _OF_TWO_SEGMENTS
    single_probability: float = 0.1
    """Share of the sequences that are one segment."""
    short_probability: float = 0.05
    """Share of the sequences that are made for a shorter target length, drawn uniformly from 5."""
    pack: int = 1
    """Most sequences packed into one row."""

    def __post_init__(self) -> None:
        """Checks the count."""
        if self.pack < 1:
            raise UserError(f"Segments need data.layout.pack of at least 1, but it is {self.pack}; change it.")

    def batch(self, batch_size: int, sequence_length: int) -> Shapes:
        return super().batch(batch_size, sequence_length) | {
            "token_type_ids": _int32(batch_size, sequence_length),
            "cls_positions": _int32(batch_size, self.pack),
        }

    def synthetic(self, batch_size: int, sequence_length: int, vocab_size: int, seed: int) -> dict[str, np.ndarray]:
        """As sentence pairs, without labels."""
        pairs = SentencePairs(pack=self.pack).synthetic(batch_size, sequence_length, vocab_size, seed)
        return {name: pairs[name] for name in self.batch(batch_size, sequence_length)}


@dataclasses.dataclass(frozen=True)
class Blocks(Layout):
    """Rows of T consecutive tokens, documents joined by the end token, in shuffled order (causal language models).

    Adds: next_ids int32 [B T], the token after each; next_weights float32 [B T]. One segment, positions 0..T-1.
    """

    def batch(self, batch_size: int, sequence_length: int) -> Shapes:
        shape = (batch_size, sequence_length)
        next_fields = {"next_ids": _int32(*shape), "next_weights": jax.ShapeDtypeStruct(shape, jnp.float32)}
        return super().batch(batch_size, sequence_length) | next_fields

    def synthetic(self, batch_size: int, sequence_length: int, vocab_size: int, seed: int) -> dict[str, np.ndarray]:
        """As the base, every token's successor known."""
        longer = super().synthetic(batch_size, sequence_length + 1, vocab_size, seed)
        batch = {name: array[:, :-1] if array.ndim == 2 else array for name, array in longer.items()}
        next_ids = np.ascontiguousarray(longer["input_ids"][:, 1:])
        return batch | {"next_ids": next_ids, "next_weights": np.ones_like(next_ids, np.float32)}


@dataclasses.dataclass(frozen=True)
class Streams(Blocks):
    """As blocks, but row b of a batch goes on where row b of the batch before it ended, for models with a carry."""
