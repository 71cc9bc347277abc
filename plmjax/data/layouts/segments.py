"""Segments as in ELECTRA (google-research/electra build_pretraining_dataset.py, ExampleBuilder).

A sequence starts where the previous one of its document ended. It takes sentences until a target length is reached: the
row's length, or for a few sequences a shorter one. Its sentences go to the first segment until that is about half full,
and then to the second. A later sentence that still fits into the first segment goes there. All random draws of a
sequence depend on its first sentence only. So a record has 16 bytes, and no token is copied.

Deviation: in the release the first sequence of a file has the row's length as its target; here it is drawn like
all others.
Deviation: Python's `random` is replaced by counter-based draws; every distribution is the published one
(tests/data/layouts/test_segments.py compares with a transcription of the procedure).
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import order
from plmjax.data.layouts.layout import Fields, Layout, LayoutRows, Shapes, int32
from plmjax.data.layouts.sentence_pairs import SentencePairs
from plmjax.data.layouts.sequences import LONGEST, SHORTEST, SPECIAL_TOKENS, SequenceRows
from plmjax.data.store import Dataset
from plmjax.errors import PROBABILITY, UserError, check_ranges

SEQUENCE = np.dtype([("first", "<i8"), ("sentences", "<u4"), ("a_length", "<u2"), ("b_length", "<u2")])
"""Sentences first..first + sentences - 1 of the split, and the numbers of tokens that are kept in segments A and B."""

_SHORTEST_TARGET = 5
_WINDOW = 1 << 20

# Numbers of the draws from a sequence's key. From _COINS on there is one coin for each of its sentences.
_IS_SHORT, _LENGTH, _IS_SINGLE, _COINS = range(4)


@dataclasses.dataclass(frozen=True)
class SingleSegment(Layout):
    """[CLS] A [SEP] B [SEP], or [CLS] A [SEP], of consecutive sentences (ELECTRA's build_pretraining_dataset.py).

    Adds: token_type_ids int32 [B T]; cls_positions int32 [B K].
    """

    shortest, longest = SHORTEST, LONGEST
    single_probability: float = 0.1
    """Fraction of the sequences that are one segment."""
    short_probability: float = 0.05
    """Fraction of the sequences with a target length drawn uniformly from 5 to the length of a row."""
    pack: int = 1
    """Maximum number of sequences packed into one row."""

    def __post_init__(self) -> None:
        check_ranges("data.layout", self, single_probability=PROBABILITY, short_probability=PROBABILITY)
        if self.pack < 1:
            raise UserError(f"Expected --data.layout.pack of at least 1, found {self.pack}; change it.")

    def rows(self, dataset: Dataset, split: str, length: int, *, vocabulary: Vocabulary, seed: int) -> LayoutRows:
        return SegmentRows(dataset, split, self, length=length, vocabulary=vocabulary, seed=seed)

    def batch(self, batch_size: int, sequence_length: int) -> Shapes:
        return super().batch(batch_size, sequence_length) | {
            "token_type_ids": int32(batch_size, sequence_length),
            "cls_positions": int32(batch_size, self.pack),
        }

    def synthetic(self, batch_size: int, sequence_length: int, vocab_size: int, seed: int) -> Fields:
        """Return a random batch of sentence pairs, without labels."""
        pairs = SentencePairs(pack=self.pack).synthetic(batch_size, sequence_length, vocab_size, seed)
        return {name: pairs[name] for name in self.batch(batch_size, sequence_length)}


class SegmentRows(SequenceRows):
    """Two segments of consecutive sentences, or one (see `SingleSegment`)."""

    record = SEQUENCE

    def draw(self) -> Iterator[np.ndarray]:
        """Yield the records in the order of the text.

        The end of the sequence that would begin at each sentence is computed for a window of sentences at once. Then
        the real sequences are found by following these ends.
        """
        at, documents = np.asarray(self._split.sentence_offsets), np.asarray(self._split.document_offsets)
        place = 0
        for begin in range(0, self._split.sentences, _WINDOW):
            sentences = np.arange(begin, min(begin + _WINDOW, self._split.sentences))
            stops = np.searchsorted(at, at[sentences] + self._target(order.fold_in(self._seed, sentences)))
            stops = np.minimum(stops, documents[np.searchsorted(documents, sentences, "right")])
            following, chosen = stops.tolist(), []
            while place < begin + len(sentences):
                chosen.append(place - begin)
                place = following[place - begin]
            yield self._records_of(sentences[chosen], stops[chosen])

    def texts(self, records: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        at = self._split.sentence_offsets
        stops = records["first"] + records["sentences"]
        seconds, _, _ = self._sides(records["first"], stops)
        for record, stop, second in zip(records, stops, seconds, strict=True):
            offsets = at[record["first"] : stop + 1]
            tokens = self._split.tokens(int(offsets[0]), int(offsets[-1]))
            is_b = np.repeat(second[: record["sentences"]], np.diff(offsets))
            yield tokens[~is_b][: record["a_length"]], tokens[is_b][: record["b_length"]]

    def _target(self, key: np.ndarray) -> np.ndarray:
        """Return the target length of the sequence of each key, in tokens without special ones."""
        short = order.bernoulli(order.fold_in(key, _IS_SHORT), self._layout.short_probability)
        length = _SHORTEST_TARGET + order.randint(order.fold_in(key, _LENGTH), self._length - _SHORTEST_TARGET + 1)
        return np.where(short, length, self._length)

    def _sides(self, first: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (bool [n, sentences], true for those in B; tokens of A, int64 [n]; tokens of B) of n sequences."""
        at, key = np.asarray(self._split.sentence_offsets), order.fold_in(self._seed, first)
        single = order.bernoulli(order.fold_in(key, _IS_SINGLE), self._layout.single_probability)
        half = np.where(single, np.iinfo(np.int64).max, (self._target(key) - SPECIAL_TOKENS) // 2)
        second = np.zeros((len(first), int((stop - first).max(initial=0))), bool)
        a, b = np.zeros((2, len(first)), np.int64)
        for number in range(second.shape[1]):
            sentence = np.minimum(first + number, stop - 1)
            length = (at[sentence + 1] - at[sentence]) * (first + number < stop)
            coin = order.bernoulli(order.fold_in(key, _COINS + number), 0.5)
            to_a = (a == 0) | (a + length < half) | ((b == 0) & (a < half) & coin)
            second[:, number] = ~to_a
            a, b = a + length * to_a, b + length * ~to_a
        return second, a, b

    def _records_of(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        _, a, b = self._sides(first, stop)
        records = np.empty(len(first), SEQUENCE)
        records["first"], records["sentences"] = first, stop - first
        records["a_length"] = np.minimum(a, self._length - 2)
        records["b_length"] = np.clip(self._length - SPECIAL_TOKENS - records["a_length"].astype(np.int64), 0, b)
        return records
