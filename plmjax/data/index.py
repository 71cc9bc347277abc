"""The rows of a split: how many there are under a layout, which one stands where, and its fields.

Sentence pairs and segments are drawn once and kept as an index in a cache folder, as are the places where rows of full
sentences begin; blocks and streams are closed form.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from plmjax.data import pairs
from plmjax.data.full_sentences import FullSentenceRows
from plmjax.data.joined_text import JoinedText
from plmjax.data.layouts import Blocks, FullSentences, Layout, Segments, SentencePairs, Streams
from plmjax.data.rows import Fields, Rows
from plmjax.data.segments import SegmentRows
from plmjax.data.sequence_rows import SequenceRows
from plmjax.data.store import Dataset, Split
from plmjax.errors import UserError
from plmjax.vocabulary import Vocabulary


def open_rows(
    dataset: Dataset, split: str, layout: Layout, sequence_length: int, vocabulary: Vocabulary, seed: int
) -> Rows:
    """The rows of a split. Training is drawn from `seed`; the validation split is passed over once, always alike.

    Raises UserError when the tokenizer lacks a token that the layout needs or the rows are too short for it. A split
    with too little text has no rows: count is 0.
    """
    layout.check(sequence_length)
    if isinstance(layout, SentencePairs):
        return PairRows(dataset, split, layout, sequence_length, vocabulary, seed)
    if isinstance(layout, Segments):
        return SegmentRows(dataset, split, layout, sequence_length, vocabulary, seed)
    if isinstance(layout, FullSentences):
        return FullSentenceRows(dataset, split, sequence_length, vocabulary)
    if isinstance(layout, Streams):
        return StreamRows(dataset.split(split), sequence_length, vocabulary, whole=split == "train")
    if isinstance(layout, Blocks):
        return BlockRows(dataset.split(split), sequence_length, vocabulary, whole=split == "train")
    raise TypeError(f"no rows are defined for the layout {type(layout).__name__}.")


class PairRows(SequenceRows):
    """Sentence pairs and their labels (see `layouts.SentencePairs`)."""

    what = "Sentence pairs"
    record = pairs.PAIR

    def __init__(
        self, dataset: Dataset, split: str, layout: SentencePairs, length: int, vocabulary: Vocabulary, seed: int
    ):
        self._labels = layout.labels
        layout = layout if split == "train" else dataclasses.replace(layout, duplicates=1)
        super().__init__(dataset, split, layout, length, vocabulary, seed)

    def draw(self) -> Iterator[np.ndarray]:
        return pairs.draw_pairs(self._split, self._layout, self._length, self._seed, self._layout.duplicates)

    def texts(self, records: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        tokens = self._split.tokens
        names = ("a_start", "a_length", "b_start", "b_length")
        for a, a_length, b, b_length in zip(*(records[name].tolist() for name in names), strict=True):
            yield tokens(a, a + a_length), tokens(b, b + b_length)

    def labels(self, records: np.ndarray, present: np.ndarray) -> Fields:
        labels = np.where(present, records["label"], 0).astype(np.int32)
        return {f"{self._labels}_labels": labels, f"{self._labels}_weights": present.astype(np.float32)}


class BlockRows(Rows):
    """Row r holds tokens r*T..r*T+T of the documents joined by the end token (see `layouts.Blocks`).

    whole: leave out a last row that is not full. Otherwise it is padded and what follows its end is not asked for.
    """

    def __init__(self, split: Split, sequence_length: int, vocabulary: Vocabulary, *, whole: bool):
        end = vocabulary.end if vocabulary.end >= 0 else vocabulary.sep
        if end < 0:
            raise UserError(
                "Blocks of text need a tokenizer with an end or separator token between documents, but this one has "
                "neither; use another tokenizer."
            )
        self._pad = max(vocabulary.pad, 0)
        self._text = JoinedText(split, end)
        self._length = sequence_length
        targets = max(self._text.size - 1, 0)
        self.count = targets // sequence_length if whole else -(-targets // sequence_length)

    def fields(self, rows: np.ndarray) -> Fields:
        length = self._length
        text = np.full((len(rows), length + 1), self._pad, np.int32)
        start = rows * length
        stop = np.minimum(start + length + 1, self._text.size)
        self._text.copy(start, stop, text)
        real = np.arange(length) < (stop - start - 1)[:, None]
        return {
            "input_ids": np.where(real, text[:, :-1], self._pad),
            "segment_ids": real.astype(np.int32),
            "positions": np.where(real, np.arange(length), 0).astype(np.int32),
            "next_ids": np.where(real, text[:, 1:], self._pad),
            "next_weights": real.astype(np.float32),
        }


class StreamRows(BlockRows):
    """Blocks in the order of the text: place b of a batch goes on where place b of the batch before it ended.

    The text is cut into as many runs of equal length as the batch has places; each epoch begins the same runs again.
    """

    def train(self, step: int, batch_size: int, rows: np.ndarray, key: np.ndarray) -> np.ndarray:
        steps = self.count // batch_size
        return rows * steps + step % steps

    def evaluation(self, step: int, batch_size: int, rows: np.ndarray) -> np.ndarray:
        numbers = rows * self.evaluation_steps(batch_size) + step
        return np.where(numbers < self.count, numbers, -1)
