"""Sentence pairs as in create_pretraining_data.py of BERT and ALBERT, drawn for all documents of a split at once.

Both parts of a pair are one run of tokens of the corpus, so a pair is five numbers (`PAIR`) and no token is copied. The
published procedure processes one document after another. Here many documents are processed in parallel, one lane each,
and every lane draws from its own key (seed, pass, document). So the pairs do not depend on the division of the work.

Deviation: Python's `random` is replaced by counter-based draws; every distribution is the published one
(tests/data/layouts/test_sentence_pairs.py compares with a transcription of the procedure).
"""

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from typing import ClassVar

import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import order
from plmjax.data.layouts.layout import Fields, Layout, LayoutRows, Shapes, float32, int32
from plmjax.data.layouts.sequences import LONGEST, SHORTEST, SPECIAL_TOKENS, SequenceRows
from plmjax.data.store import Dataset, Split
from plmjax.errors import PROBABILITY, UserError, check_ranges

PAIR = np.dtype([("a_start", "<i8"), ("b_start", "<i8"), ("a_length", "<u2"), ("b_length", "<u2"), ("label", "u1")])
"""A has tokens a_start..a_start + a_length - 1 of the split, and B likewise. label is 1 if B is from another document,
or if the parts are swapped, so that B is from before A.
"""

MANY_SINGLE = 0.5
"""Fraction of documents with only one sentence from which on a run reports it."""
_TRIES = 10
_LANES = 1 << 14
_TASK_PAIRS = 1 << 19

# Numbers of the draws from a pair's key.
_SPLIT_AT, _IS_RANDOM, _START, _A_FRONT, _B_FRONT, _DOCUMENT = range(6)
_IS_SWAPPED = _DOCUMENT + _TRIES


@dataclasses.dataclass(frozen=True)
class SentencePairs(Layout):
    """[CLS] A [SEP] B [SEP] as in BERT's create_pretraining_data.py.

    Adds: token_type_ids int32 [B T]; cls_positions int32 [B K]; next_sentence_labels int32 [B K] (0 = B follows A, 1 =
    B is from another document); next_sentence_weights float32 [B K] (0 where a row holds fewer sequences).
    """

    shortest, longest = SHORTEST, LONGEST
    labels: ClassVar[str] = "next_sentence"
    swap_probability: ClassVar[float] = 0.0

    short_probability: float = 0.1
    """Fraction of the passes over a document with a target length drawn uniformly from 2 to the maximum."""
    random_next_probability: float = 0.5
    """Probability that the second part comes from another document. It always does if only one sentence is left."""
    duplicates: int = 10
    """Number of passes over the text, each with its own random draws, in one epoch."""
    pack: int = 1
    """Maximum number of pairs packed into one row."""

    def __post_init__(self) -> None:
        names = ("short_probability", "random_next_probability", "swap_probability")
        check_ranges("data.layout", self, **dict.fromkeys(names, PROBABILITY))
        if self.pack < 1 or self.duplicates < 1:
            raise UserError(
                f"Expected --data.layout.pack and --data.layout.duplicates of at least 1, found {self.pack} and "
                f"{self.duplicates}; change them."
            )

    def prepare(self, dataset: Dataset, vocabulary: Vocabulary) -> None:
        """Check that the training text gives pairs with both labels. No index is built.

        Raises:
            UserError: all pairs of the training text would have the same label.
        """
        documents = dataset.documents("train")
        if documents == dataset.sentences("train") > 0:
            raise UserError(
                f"Expected documents of several sentences for pairs of sentences, found {documents:,} of one sentence "
                f"each in {dataset.directory}, whose pairs are all random; prepare text with an empty line between "
                f"documents alone, or take another layout."
            )

    def remarks(self, dataset: Dataset) -> Iterator[str]:
        """Yield a line for each split that has only one document, or mostly documents with one sentence."""
        for split, text in (("train", "training"), ("validation", "held-out")):
            documents = dataset.documents(split)
            if documents == 1 and self.random_next_probability:
                yield (
                    f"pairs      the {text} text has one document, so that random pairs are of it too; an empty line "
                    f"ends a document"
                )
            if split == "train" and dataset.in_pieces:
                continue
            if documents and (single := _single_fraction(dataset, split)) >= MANY_SINGLE:
                yield (
                    f"pairs      {single:.0%} of the documents of the {text} text have one sentence, whose pairs are "
                    f"all random; an empty line ends a document"
                )

    def rows(self, dataset: Dataset, split: str, length: int, *, vocabulary: Vocabulary, seed: int) -> LayoutRows:
        return PairRows(dataset, split, self, length=length, vocabulary=vocabulary, seed=seed)

    def batch(self, batch_size: int, sequence_length: int) -> Shapes:
        sequences = int32(batch_size, self.pack)
        return super().batch(batch_size, sequence_length) | {
            "token_type_ids": int32(batch_size, sequence_length),
            "cls_positions": sequences,
            f"{self.labels}_labels": sequences,
            f"{self.labels}_weights": float32(batch_size, self.pack),
        }

    def synthetic(self, batch_size: int, sequence_length: int, vocab_size: int, seed: int) -> Fields:
        """Return a random batch. Rows have `pack` pairs of equal length, with sentences of equal length."""
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


def _single_fraction(dataset: Dataset, split: str) -> float:
    """Return the fraction of the documents of a split that have one sentence."""
    return float(np.mean(np.diff(np.asarray(dataset.split(split).document_offsets)) == 1))


class PairRows(SequenceRows):
    """Sentence pairs and their labels (see `SentencePairs`)."""

    record = PAIR

    def __init__(
        self, dataset: Dataset, split: str, layout: SentencePairs, *, length: int, vocabulary: Vocabulary, seed: int
    ):
        self._labels = layout.labels
        layout = layout if split == "train" else dataclasses.replace(layout, duplicates=1)
        super().__init__(dataset, split, layout, length=length, vocabulary=vocabulary, seed=seed)

    def draw(self) -> Iterator[np.ndarray]:
        return draw_pairs(self._split, self._layout, self._length, seed=self._seed, passes=self._layout.duplicates)

    def texts(self, records: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        tokens = self._split.tokens
        names = ("a_start", "a_length", "b_start", "b_length")
        for a, a_length, b, b_length in zip(*(records[name].tolist() for name in names), strict=True):
            yield tokens(a, a + a_length), tokens(b, b + b_length)

    def labels(self, records: np.ndarray, present: np.ndarray) -> Fields:
        labels = np.where(present, records["label"], 0).astype(np.int32)
        return {f"{self._labels}_labels": labels, f"{self._labels}_weights": present.astype(np.float32)}


def draw_pairs(
    split: Split, layout: SentencePairs, sequence_length: int, *, seed: int, passes: int
) -> Iterator[np.ndarray]:
    """Yield arrays of PAIR: all pairs of `passes` passes over the split, ordered by document, pass and place.

    All cores work on parts of the split at once. The memory in use does not grow with the split.
    """
    walk = _Walk(split, layout, sequence_length, seed=seed, passes=passes)
    # Approximate number of pairs before each document, which bounds the memory of a task.
    before = (split.document_tokens / sequence_length + np.arange(split.documents + 1)) * passes
    cuts = np.searchsorted(before, np.arange(0, before[-1], _TASK_PAIRS))
    cuts = np.unique([*cuts, split.documents])
    with ThreadPoolExecutor(cpu_count()) as pool:
        yield from pool.map(walk.documents, cuts[:-1], cuts[1:])


class _Walk:
    def __init__(self, split: Split, layout: SentencePairs, sequence_length: int, *, seed: int, passes: int):
        self._sentences = np.asarray(split.sentence_offsets)
        self._documents = np.asarray(split.document_offsets)
        self._layout = layout
        self._longest = sequence_length - SPECIAL_TOKENS
        self._seed = seed
        self._passes = passes

    def documents(self, first: int, last: int) -> np.ndarray:
        """Return the pairs of documents first..last-1, for all passes."""
        document, pass_ = np.divmod(np.arange(first * self._passes, last * self._passes), self._passes)
        begin, end = self._documents[document], self._documents[document + 1]
        waiting = np.argsort(begin - end, kind="stable")  # the longest first, so that lanes stay busy to the end
        key = order.fold_in(order.fold_in(self._seed, pass_), document)
        target = np.where(
            order.bernoulli(order.fold_in(key, 0), self._layout.short_probability),
            2 + order.randint(order.fold_in(key, 1), self._longest - 1),
            self._longest,
        )
        cursor, number = begin.copy(), np.full(len(begin), 2)
        lanes = np.empty(0, np.int64)
        pairs, owners = [np.empty(0, PAIR)], [lanes]
        while len(lanes) or len(waiting):
            free = _LANES - len(lanes)
            lanes, waiting = np.concatenate([lanes, waiting[:free]]), waiting[free:]
            drawn, cursor[lanes] = self._step(
                document[lanes],
                cursor[lanes],
                end[lanes],
                target=target[lanes],
                key=order.fold_in(key[lanes], number[lanes]),
            )
            pairs.append(drawn)
            owners.append(lanes)
            number[lanes] += 1
            lanes = lanes[cursor[lanes] < end[lanes]]
        return np.concatenate(pairs)[np.argsort(np.concatenate(owners), kind="stable")]

    def _step(
        self, document: np.ndarray, cursor: np.ndarray, end: np.ndarray, *, target: np.ndarray, key: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the next pair of every lane, and the sentence at which the lane continues."""
        at = self._sentences
        first = at[cursor]
        # A chunk: sentences until the target length is reached or the document ends.
        stop = np.minimum(np.searchsorted(at, first + target), end)
        single = stop - cursor == 1
        middle = cursor + 1 + np.where(single, 0, order.randint(order.fold_in(key, _SPLIT_AT), stop - cursor - 1))
        random = single | order.bernoulli(order.fold_in(key, _IS_RANDOM), self._layout.random_next_probability)
        swapped = ~random & order.bernoulli(order.fold_in(key, _IS_SWAPPED), self._layout.swap_probability)
        a_start, a_stop, b_start, b_stop = first, at[middle], at[middle], at[stop]
        changed = np.flatnonzero(random)
        b_start[changed], b_stop[changed] = self._random_next(
            document[changed], (target - (a_stop - a_start))[changed], key[changed]
        )
        a_start, b_start = np.where(swapped, b_start, a_start), np.where(swapped, a_start, b_start)
        a_stop, b_stop = np.where(swapped, b_stop, a_stop), np.where(swapped, a_stop, b_stop)
        pairs = np.empty(len(cursor), PAIR)
        a_cut, b_cut = truncation(a_stop - a_start, b_stop - b_start, self._longest)
        pairs["a_start"] = a_start + order.binomial(order.fold_in(key, _A_FRONT), a_cut)
        pairs["b_start"] = b_start + order.binomial(order.fold_in(key, _B_FRONT), b_cut)
        pairs["a_length"] = a_stop - a_start - a_cut
        pairs["b_length"] = b_stop - b_start - b_cut
        pairs["label"] = random | swapped
        return pairs, np.where(random, middle, stop)  # the sentences a random B displaced are used again

    def _random_next(self, document: np.ndarray, target: np.ndarray, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first and last token (exclusive) of sentences of another document that reach the target length."""
        documents = len(self._documents) - 1
        other = order.randint(order.fold_in(key, _DOCUMENT), documents)
        for attempt in range(1, _TRIES):
            same = np.flatnonzero(other == document)
            if not same.size:
                break
            other[same] = order.randint(order.fold_in(key[same], _DOCUMENT + attempt), documents)
        begin, end = self._documents[other], self._documents[other + 1]
        begin = begin + order.randint(order.fold_in(key, _START), end - begin)
        start = self._sentences[begin]
        stop = np.searchsorted(self._sentences, start + np.maximum(target, 1))
        return start, self._sentences[np.minimum(stop, end)]


def truncation(a_length: np.ndarray, b_length: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of tokens to remove from each part so that both together have at most `longest`.

    Tokens are removed one at a time from the longer part, and from B in a tie.
    """
    excess = np.maximum(a_length + b_length - longest, 0)
    from_a = np.minimum(excess, np.maximum(a_length - b_length, 0))
    from_b = np.minimum(excess, np.maximum(b_length - a_length, 0))
    rest = excess - from_a - from_b
    return from_a + rest // 2, from_b + (rest + 1) // 2
