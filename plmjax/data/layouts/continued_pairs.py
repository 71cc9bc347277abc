"""Rows that continue a text and end in a pair of segments, as in XLNet (zihangdai/xlnet data_utils.py).

The first half of a row continues the first half of the previous row. The pair begins where the first half ends: A is
the text up to the end of a random sentence, and B follows A or comes from elsewhere in the text. So the next row reads
the text of A again, as its first half.

Deviation: B comes from anywhere in the text. In the release it comes from the part of the text that one stream of a
batch reads.
Deviation: Python's `random` is replaced by counter-based draws; every distribution is the published one
(tests/data/layouts/test_continued_pairs.py compares with a transcription of the procedure).
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import order
from plmjax.data.layouts.joined_text import JoinedText, ReversedText
from plmjax.data.layouts.layout import Fields, Layout, LayoutRows, Shapes, int32
from plmjax.data.layouts.sentence_pairs import truncation
from plmjax.data.store import Dataset, Split
from plmjax.errors import PROBABILITY, UserError, check_ranges

SPECIAL_TOKENS = 3  # A [SEP] B [SEP] [CLS]
_EVALUATION_SEED = 0  # held-out rows are the same for every run

# Numbers of the draws from a row's key.
_IS_RANDOM, _CUT, _BEGIN = range(3)


@dataclasses.dataclass(frozen=True)
class ContinuedPairs(Layout):
    """T / 2 tokens of a text, then `A [SEP] B [SEP] [CLS]`; row b of a batch continues row b of the previous batch.

    Adds: token_type_ids int32 [B T], 0 up to the first [SEP], 1 up to the second, 2 for [CLS]; backwards bool [B], true
    for rows that read the text from its end to its beginning; is_first int32 [B], 1 where a row does not continue the
    previous batch; document_starts bool [B T], true in the first half of a row at the first token of every document, in
    the reading order of the row.
    """

    continues: ClassVar[bool] = True
    shortest: ClassVar[int] = 2 * (SPECIAL_TOKENS + 2)

    both_directions: bool = True
    """If true, the second half of a batch reads the text backwards."""
    random_probability: float = 0.5
    """Probability that B comes from elsewhere in the text. It always does if no sentence ends within the row."""

    def __post_init__(self) -> None:
        check_ranges("data.layout", self, random_probability=PROBABILITY)

    def check(self, sequence_length: int) -> None:
        """Raise UserError unless the length is valid and even."""
        super().check(sequence_length)
        if sequence_length % 2:
            raise UserError(
                f"Expected an even sequence length for the layout {type(self).__name__}, whose rows have two halves, "
                f"found {sequence_length}; change --data.sequence_length."
            )

    def rows(self, dataset: Dataset, split: str, length: int, *, vocabulary: Vocabulary, seed: int) -> LayoutRows:
        return ContinuedPairRows(dataset.split(split), self, length, vocabulary=vocabulary, seed=seed)

    def batch(self, batch_size: int, sequence_length: int) -> Shapes:
        flags = {
            "backwards": jax.ShapeDtypeStruct((batch_size,), jnp.bool_),
            "document_starts": jax.ShapeDtypeStruct((batch_size, sequence_length), jnp.bool_),
        }
        more = {"token_type_ids": int32(batch_size, sequence_length), "is_first": int32(batch_size)}
        return super().batch(batch_size, sequence_length) | more | flags

    def synthetic(self, batch_size: int, sequence_length: int, vocab_size: int, seed: int) -> Fields:
        """Return a random batch from the middle of documents, with segments of equal length."""
        batch = super().synthetic(batch_size, sequence_length, vocab_size, seed)
        first_end = sequence_length // 2 + (sequence_length - sequence_length // 2 - SPECIAL_TOKENS + 1) // 2
        places = np.arange(sequence_length)
        types = np.where(places < sequence_length - 1, places > first_end, 2).astype(np.int32)
        marks = Vocabulary.placeholder(vocab_size)
        batch["input_ids"][:, [first_end, -2, -1]] = marks.sep, marks.sep, marks.cls
        return batch | {
            "token_type_ids": np.broadcast_to(types, batch["input_ids"].shape).copy(),
            "backwards": self.both_directions & (np.arange(batch_size) >= batch_size - batch_size // 2),
            "is_first": np.zeros(batch_size, np.int32),
            "document_starts": np.zeros(batch["input_ids"].shape, bool),
        }


class ContinuedPairRows(LayoutRows):
    """Rows that read the text from its beginning, each T / 2 tokens after the one before, or likewise from its end.

    In training and in held-out text, a last row that is not full is dropped (see `ContinuedPairs`).
    """

    def __init__(self, split: Split, layout: ContinuedPairs, length: int, *, vocabulary: Vocabulary, seed: int):
        layout.check(length)
        if min(vocabulary.cls, vocabulary.sep, vocabulary.document_end) < 0:
            raise UserError(
                f"Expected a tokenizer with [CLS] and [SEP], or tokens that serve as them, for the layout "
                f"{type(layout).__name__}, found one without; use a sentencepiece-unigram tokenizer or another layout."
            )
        self._marks = vocabulary
        self._half, self._room = length // 2, length - length // 2 - SPECIAL_TOKENS
        self._random = layout.random_probability
        text = JoinedText(split, vocabulary.document_end)
        self._texts = (text, ReversedText(text)) if layout.both_directions else (text,)
        self._boundaries = _Boundaries(split, text)
        self._key = np.uint64(seed if split.name == "train" else _EVALUATION_SEED)
        self._of_direction = max((text.size - 1 - length) // self._half + 1, 0)
        self.count = self._of_direction * len(self._texts)

    def train(self, step: int, batch_size: int, places: np.ndarray, key: np.ndarray) -> np.ndarray:
        streams = self._streams(batch_size)
        steps = self._of_direction // streams
        return self._row(places, streams, places % streams * steps + step % steps)

    def is_first(self, step: int, batch_size: int) -> bool:
        return step % (self._of_direction // self._streams(batch_size)) == 0

    def evaluation_steps(self, batch_size: int) -> int:
        return -(-self._of_direction // self._streams(batch_size))

    def evaluation(self, step: int, batch_size: int, places: np.ndarray) -> np.ndarray:
        streams = self._streams(batch_size)
        numbers = places % streams * self.evaluation_steps(batch_size) + step
        return np.where(numbers < self._of_direction, self._row(places, streams, numbers), -1)

    def fields(self, rows: np.ndarray) -> Fields:
        directions, numbers = np.divmod(rows, max(self._of_direction, 1))
        half, length = self._half, self._half + self._room + SPECIAL_TOKENS
        ids, types = np.zeros((2, len(rows), length), np.int32)
        starts = np.zeros((len(rows), length), bool)
        keys = order.fold_in(order.fold_in(self._key, directions), numbers)
        is_random = order.bernoulli(order.fold_in(keys, _IS_RANDOM), self._random)
        draws = np.stack([order.fold_in(keys, _CUT), order.fold_in(keys, _BEGIN)], axis=1)
        for row, (direction, number) in enumerate(zip(directions.tolist(), numbers.tolist(), strict=True)):
            text, begin = self._texts[direction], number * half
            ends = self._pair(direction, begin + half, is_random[row], draws[row])
            (a_begin, a_end), (b_begin, b_end) = ends
            place = half + a_end - a_begin
            self._copy(text, begin, begin + half, ids[row])
            self._copy(text, a_begin, a_end, ids[row, half:])
            self._copy(text, b_begin, b_end, ids[row, place + 1 :])
            ids[row, [place, -2, -1]] = self._marks.sep, self._marks.sep, self._marks.cls
            types[row, place + 1 : -1], types[row, -1] = 1, 2
            _, offsets = text.starts_within(np.array([begin]), half)
            starts[row, offsets] = True
        return {
            "input_ids": ids,
            "token_type_ids": types,
            "segment_ids": np.ones_like(ids),
            "positions": np.broadcast_to(np.arange(length, dtype=np.int32), ids.shape).copy(),
            "backwards": directions > 0,
            "document_starts": starts,
        }

    def _streams(self, batch_size: int) -> int:
        """Return the number of rows of a batch that read forward."""
        return -(-batch_size // len(self._texts))

    def _row(self, places: np.ndarray, streams: int, numbers: np.ndarray) -> np.ndarray:
        return places // streams * self._of_direction + numbers

    def _copy(self, text: JoinedText | ReversedText, begin: int, end: int, out: np.ndarray) -> None:
        text.copy(np.array([begin]), np.array([end]), out[None])

    def _pair(
        self, direction: int, begin: int, is_random: bool, draws: np.ndarray
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return begin and end of A and of B in the text of a direction (`_split_a_and_b` of the release)."""
        size = self._texts[direction].size
        inside, end = self._boundaries.from_place(begin, begin + self._room, backwards=direction > 0)
        cut = int(inside[int(order.randint(draws[0], len(inside)))]) if len(inside) else end
        if len(inside) and not is_random:
            a_size, b_begin, b_size = cut - begin, cut, end - cut
        else:
            a_size, least = cut - begin, max(1, self._room - (cut - begin))
            b_begin = int(float(draws[1] >> np.uint64(11)) * 2.0**-53 * (size - least))  # may exceed 2**32
            b_end = self._boundaries.at_or_after(b_begin + least, backwards=direction > 0)
            b_begin = self._boundaries.at_or_before(b_begin, backwards=direction > 0)
            b_size = b_end - b_begin
        a_cut, b_cut = truncation(np.array(a_size), np.array(b_size), self._room)
        return (begin, begin + a_size - int(a_cut)), (b_begin, b_begin + b_size - int(b_cut))


class _Boundaries:
    """The positions of a joined text at which a sentence or a separator begins, and the end of the text."""

    def __init__(self, split: Split, text: JoinedText):
        self._sentences, self._documents, self._text = split.sentence_offsets, split.document_offsets, text

    def from_place(self, begin: int, least: int, *, backwards: bool) -> tuple[np.ndarray, int]:
        """Return (boundaries between `begin` and `goal`, `goal`); `goal` is the first boundary at `least` or later."""
        end = self.at_or_after(least, backwards=backwards)
        found = self._within(begin + 1, end, backwards)
        return found[found < end], end

    def at_or_after(self, place: int, *, backwards: bool) -> int:
        """Return the first boundary at or after a position. backwards: count positions from the end of the text."""
        return self._text.size - self._before(self._text.size - place) if backwards else self._after(place)

    def at_or_before(self, place: int, *, backwards: bool) -> int:
        """Return the last boundary at or before a position. backwards: as in `at_or_after`."""
        return self._text.size - self._after(self._text.size - place) if backwards else self._before(place)

    def _after(self, place: int) -> int:
        return int(self._near(place)[0])

    def _before(self, place: int) -> int:
        return int(self._near(place)[1])

    def _near(self, place: int) -> tuple[int, int]:
        """Return the first boundary at or after `place`, and the last one at or before it."""
        starts = self._text.starts
        if place >= self._text.size:
            return self._text.size, self._text.size
        document = int(np.searchsorted(starts, place, "right")) - 1
        end = int(starts[document + 1]) - 1  # the token after the document
        if place == end:
            return end, end
        token = place - document
        sentence = int(np.searchsorted(self._sentences, token, "right")) - 1
        before = int(self._sentences[sentence]) + document
        after = min(int(self._sentences[sentence + 1]) + document, end)
        return (before if before == place else after), before

    def _within(self, first: int, last: int, backwards: bool) -> np.ndarray:
        """Return the boundaries from `first` to `last` - 1, in ascending order.

        backwards: true if all positions are counted from the end of the text.
        """
        if backwards:
            first, last = self._text.size + 1 - last, self._text.size + 1 - first
        found, place = [], self._after(max(first, 0))
        while place < last:
            found.append(place)
            place = self._after(place + 1) if place < self._text.size else last
        places = np.array(found, np.int64)
        return self._text.size - places[::-1] if backwards else places
