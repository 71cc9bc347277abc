"""Rows of consecutive sentences that go on from batch to batch, in both directions of the text at once."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.data.layouts.layout import Fields, Layout, LayoutRows, Shapes, float32, int32
from plmjax.data.layouts.streams import InOrder
from plmjax.data.store import Dataset, Split
from plmjax.errors import UserError
from plmjax.vocabulary import Vocabulary

_OF_A_DIRECTION = ("input_ids", "segment_ids", "next_ids", "next_weights", "document_starts")


@dataclasses.dataclass(frozen=True)
class TwoWayStreams(Layout):
    """Every sentence between the begin and the end token; a row goes on where its place in the batch before ended.

    Forward, a row asks for the token after each: inputs begin w1 .. wn, targets w1 .. wn end. Backward it asks for the
    token before each: inputs end wn .. w1, targets wn .. w1 begin. No row asks for a token of the sentence after
    (allenai/bilm-tf bilm/data.py). The backward fields run from the end of the text to its beginning, so that a state
    can go on from batch to batch in that direction too: at the same place of the same batch they are of another text.

    Adds for the forward direction next_ids int32 [B T], next_weights float32 [B T] and document_starts bool [B T], the
    first input of every document; for the other one backward_input_ids, backward_segment_ids, backward_next_ids,
    backward_next_weights and backward_document_starts, in the order in which it reads; and begins int32 [B], 1 where a
    row does not go on from the batch before it.
    """

    def target_counts(self, dataset: Dataset, vocabulary: Vocabulary) -> np.ndarray:
        """Every token twice, and a begin and an end token for each sentence."""
        counts, sentences = 2 * dataset.unigram_counts(), dataset.split("train").sentences
        counts[vocabulary.begin] += sentences
        counts[vocabulary.end] += sentences
        return counts

    def rows(self, dataset: Dataset, split: str, length: int, vocabulary: Vocabulary, seed: int) -> LayoutRows:
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
        other = {f"backward_{name}": one[name] for name in _OF_A_DIRECTION}
        return one | other | {"begins": int32(batch_size)}

    def synthetic(self, batch_size: int, sequence_length: int, vocab_size: int, seed: int) -> Fields:
        """As the base, from the middle of a sentence, in both directions."""
        longer = super().synthetic(batch_size, sequence_length + 1, vocab_size, seed)
        batch = {name: array[:, :-1] if array.ndim == 2 else array for name, array in longer.items()}
        batch |= {
            "next_ids": np.ascontiguousarray(longer["input_ids"][:, 1:]),
            "next_weights": np.ones((batch_size, sequence_length), np.float32),
            "document_starts": np.zeros((batch_size, sequence_length), bool),
        }
        other = batch | {"input_ids": batch["next_ids"][:, ::-1], "next_ids": batch["input_ids"][:, ::-1]}
        backward = {f"backward_{name}": np.ascontiguousarray(other[name]) for name in _OF_A_DIRECTION}
        return batch | backward | {"begins": np.zeros(batch_size, np.int32)}


class TwoWayRows(InOrder):
    """Row r holds T gaps between neighbouring tokens, from gap r*T on, and backward those of row count - 1 - r.

    A sentence of n tokens and its two marks has n + 1 gaps. Forward, a gap gives the token before it and asks for the
    one after; backward it is the other way round. A last row that is not full is left out of training; of held-out
    text it is padded.
    """

    def __init__(self, split: Split, layout: TwoWayStreams, sequence_length: int, vocabulary: Vocabulary):
        layout.check(sequence_length)
        if vocabulary.begin < 0 or vocabulary.end < 0:
            raise UserError(
                "Expected a tokenizer with a begin and an end token to stand around sentences, for the layout "
                f"{type(layout).__name__}, found one without; use another tokenizer."
            )
        self._split, self._length = split, sequence_length
        self._begin, self._end, self._pad = vocabulary.begin, vocabulary.end, max(vocabulary.pad, 0)
        self._starts = split.sentence_offsets + np.arange(split.sentences + 1)  # the first gap of every sentence
        size = split.token_count + split.sentences
        self.count = size // sequence_length if split.name == "train" else -(-size // sequence_length)

    def fields(self, rows: np.ndarray) -> Fields:
        before, after, there, opens, _ = self._gaps(rows)
        forward = self._direction(before, after, there, opens)
        before, after, there, _, closes = (array[:, ::-1] for array in self._gaps(self.count - 1 - rows))
        backward = self._direction(after, before, there, closes)
        positions = np.broadcast_to(np.arange(self._length, dtype=np.int32), there.shape)
        return forward | {f"backward_{name}": field for name, field in backward.items()} | {"positions": positions}

    def _gaps(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        """Of the gaps of rows, [R T] each: the token before and after, whether it is there, opens or closes a document.

        A document is opened by its first gap and closed by its last.
        """
        gaps = rows[:, None] * self._length + np.arange(self._length)
        there = gaps < self._starts[-1]
        sentence = np.searchsorted(self._starts, np.minimum(gaps, self._starts[-1] - 1), "right") - 1
        place, last = gaps - self._starts[sentence], self._starts[sentence + 1] - 1 - self._starts[sentence]
        opens, closes = place == 0, place == last
        token = gaps - sentence  # the one after the gap, if it is no mark
        tokens = np.empty((*gaps.shape, 2), np.int64)
        for row, each in zip(tokens, token, strict=True):
            first = max(int(each[0]) - 1, 0)
            read = self._split.tokens(first, min(int(each[-1]) + 1, self._split.token_count))
            row[:] = read[np.clip(np.stack([each - 1, each], axis=1) - first, 0, len(read) - 1)]
        before = np.where(opens, self._begin, tokens[..., 0])
        after = np.where(closes, self._end, tokens[..., 1])
        documents = self._split.document_offsets
        begun, ended = (np.searchsorted(documents, number) for number in (sentence, sentence + 1))
        opens &= documents[np.minimum(begun, len(documents) - 1)] == sentence
        closes &= documents[np.minimum(ended, len(documents) - 1)] == sentence + 1
        return before, after, there, opens, closes

    def _direction(self, given: np.ndarray, asked: np.ndarray, there: np.ndarray, starts: np.ndarray) -> Fields:
        return {
            "input_ids": np.where(there, given, self._pad).astype(np.int32),
            "segment_ids": there.astype(np.int32),
            "next_ids": np.where(there, asked, self._pad).astype(np.int32),
            "next_weights": there.astype(np.float32),
            "document_starts": starts & there,
        }
