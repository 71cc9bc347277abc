"""Rows of consecutive sentences that continue from batch to batch, in both directions of the text."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts.contiguous_streams import InOrder
from plmjax.data.layouts.layout import Fields, Layout, LayoutRows, Shapes, float32, int32
from plmjax.data.store import Dataset, Split
from plmjax.errors import UserError

_DIRECTION_FIELDS = ("input_ids", "segment_ids", "next_ids", "next_weights", "document_starts")


@dataclasses.dataclass(frozen=True)
class BidirectionalStreams(Layout):
    """All sentences, each between a begin and an end token. Row b of a batch continues row b of the previous batch.

    Forward, the target is the token after each input: inputs begin w1 .. wn, targets w1 .. wn end. Backward, the target
    is the token before each input: inputs end wn .. w1, targets wn .. w1 begin. An input and its target are always in
    the same sentence (allenai/bilm-tf bilm/data.py). The backward fields run from the end of the text to its beginning,
    so that a state can be carried from batch to batch in that direction too. So the two directions of a row have
    different text.

    Adds for the forward direction: next_ids int32 [B T]; next_weights float32 [B T]; document_starts bool [B T], true
    at the first input of every document. Adds for the backward direction, in its reading order: backward_input_ids,
    backward_segment_ids, backward_next_ids, backward_next_weights, backward_document_starts. Adds for both: is_first
    int32 [B], 1 where a row does not continue the previous batch.
    """

    continues: ClassVar[bool] = True

    def target_counts(self, dataset: Dataset, vocabulary: Vocabulary) -> np.ndarray:
        """Return the counts of targets: every token twice, and a begin and an end token for each sentence."""
        counts, sentences = 2 * dataset.unigram_counts(), dataset.split("train").sentences
        counts[vocabulary.begin] += sentences
        counts[vocabulary.end] += sentences
        return counts

    def rows(self, dataset: Dataset, split: str, length: int, *, vocabulary: Vocabulary, seed: int) -> LayoutRows:
        return TwoWayRows(dataset.split(split), self, length, vocabulary)

    def tokens(self, batch_size: int, sequence_length: int) -> int:
        return 2 * batch_size * sequence_length

    def batch(self, batch_size: int, sequence_length: int) -> Shapes:
        row = int32(batch_size, sequence_length)
        one = super().batch(batch_size, sequence_length) | {
            "next_ids": row,
            "next_weights": float32(batch_size, sequence_length),
            "document_starts": jax.ShapeDtypeStruct((batch_size, sequence_length), jnp.bool_),
        }
        other = {f"backward_{name}": one[name] for name in _DIRECTION_FIELDS}
        return one | other | {"is_first": int32(batch_size)}

    def synthetic(self, batch_size: int, sequence_length: int, vocab_size: int, seed: int) -> Fields:
        """Return a random batch from the middle of a sentence, in both directions."""
        longer = super().synthetic(batch_size, sequence_length + 1, vocab_size, seed)
        batch = {name: array[:, :-1] if array.ndim == 2 else array for name, array in longer.items()}
        batch |= {
            "next_ids": np.ascontiguousarray(longer["input_ids"][:, 1:]),
            "next_weights": np.ones((batch_size, sequence_length), np.float32),
            "document_starts": np.zeros((batch_size, sequence_length), bool),
        }
        other = batch | {"input_ids": batch["next_ids"][:, ::-1], "next_ids": batch["input_ids"][:, ::-1]}
        backward = {f"backward_{name}": np.ascontiguousarray(other[name]) for name in _DIRECTION_FIELDS}
        return batch | backward | {"is_first": np.zeros(batch_size, np.int32)}


class TwoWayRows(InOrder):
    """Row r has the gaps r*T .. r*T + T - 1 forward, and the gaps of row count - 1 - r backward.

    A gap is a place between neighboring tokens. A sentence of n tokens with its begin and end tokens has n + 1 gaps.
    Forward, the token before a gap is the input and the token after it is the target. Backward it is the other way
    round. In training, a last row that is not full is dropped; in held-out text it is padded.
    """

    def __init__(self, split: Split, layout: BidirectionalStreams, sequence_length: int, vocabulary: Vocabulary):
        layout.check(sequence_length)
        if vocabulary.begin < 0 or vocabulary.end < 0:
            raise UserError(
                "Expected a tokenizer with a begin and an end token for sentences, for the layout "
                f"{type(layout).__name__}, found one without; use another tokenizer."
            )
        self._split, self._length = split, sequence_length
        self._begin, self._end, self._pad = vocabulary.begin, vocabulary.end, max(vocabulary.pad, 0)
        self._starts = split.sentence_offsets + np.arange(split.sentences + 1)  # the first gap of every sentence
        size = split.token_count + split.sentences
        self.count = size // sequence_length if split.name == "train" else -(-size // sequence_length)

    def fields(self, rows: np.ndarray) -> Fields:
        before, after, exists, opens, _ = self._gaps(rows)
        forward = self._direction(before, after, exists, opens)
        before, after, exists, _, closes = (array[:, ::-1] for array in self._gaps(self.count - 1 - rows))
        backward = self._direction(after, before, exists, closes)
        positions = np.broadcast_to(np.arange(self._length, dtype=np.int32), exists.shape)
        return forward | {f"backward_{name}": field for name, field in backward.items()} | {"positions": positions}

    def _gaps(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return arrays [R T] of the gaps of rows.

        Returns:
            The token before and after each gap, and three bool arrays: true if the gap exists, if it opens a document,
                and if it closes a document. The first gap of a document opens it and the last gap closes it.
        """
        gaps = rows[:, None] * self._length + np.arange(self._length)
        exists = gaps < self._starts[-1]
        sentence = np.searchsorted(self._starts, np.minimum(gaps, self._starts[-1] - 1), "right") - 1
        place, last = gaps - self._starts[sentence], self._starts[sentence + 1] - 1 - self._starts[sentence]
        opens, closes = place == 0, place == last
        token = gaps - sentence  # the token after the gap, unless it is a begin or end token
        tokens = np.empty((*gaps.shape, 2), np.int64)
        for row, each in zip(tokens, token, strict=True):
            first = max(int(each[0]) - 1, 0)
            read = self._split.tokens(first, min(int(each[-1]) + 1, self._split.token_count))
            row[:] = read[np.clip(np.stack([each - 1, each], axis=1) - first, 0, len(read) - 1)]
        before = np.where(opens, self._begin, tokens[..., 0])
        after = np.where(closes, self._end, tokens[..., 1])
        documents = self._split.document_offsets
        opened, closed = (np.searchsorted(documents, number) for number in (sentence, sentence + 1))
        opens &= documents[np.minimum(opened, len(documents) - 1)] == sentence
        closes &= documents[np.minimum(closed, len(documents) - 1)] == sentence + 1
        return before, after, exists, opens, closes

    def _direction(self, inputs: np.ndarray, targets: np.ndarray, exists: np.ndarray, starts: np.ndarray) -> Fields:
        return {
            "input_ids": np.where(exists, inputs, self._pad).astype(np.int32),
            "segment_ids": exists.astype(np.int32),
            "next_ids": np.where(exists, targets, self._pad).astype(np.int32),
            "next_weights": exists.astype(np.float32),
            "document_starts": starts & exists,
        }
