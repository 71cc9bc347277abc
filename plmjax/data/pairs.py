"""Sentence pairs as BERT's and ALBERT's create_pretraining_data.py draw them, for a whole split at array speed.

Both parts of a pair are one run of tokens of the corpus, so a pair is five numbers (`PAIR`) and no token is copied. The
published procedure walks through one document after another; here many documents walk in step, one lane each, and every
lane draws from the key of its own (seed, pass, document). The pairs are therefore the same however the work is dealt.

Deviation: Python's `random` is replaced by counter-based draws; every distribution is the published one
(tests/data/test_pairs.py compares with a transcription of the procedure).
"""

import bisect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count

import numpy as np

from plmjax.data import order
from plmjax.data.layouts import SentencePairs
from plmjax.data.store import Split

PAIR = np.dtype([("a_start", "<i8"), ("b_start", "<i8"), ("a_length", "<u2"), ("b_length", "<u2"), ("label", "u1")])
"""Tokens a_start..a_start + a_length of the split, b likewise; label is 1 where B is from another document or, swapped,
from before A."""

SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]
_TRIES = 10
_LANES = 1 << 14
_TASK_PAIRS = 1 << 19

# Which draw of a pair's key is for what.
_SPLIT_AT, _IS_RANDOM, _START, _A_FRONT, _B_FRONT, _DOCUMENT = range(6)
_IS_SWAPPED = _DOCUMENT + _TRIES


def draw_pairs(
    split: Split, layout: SentencePairs, sequence_length: int, seed: int, passes: int
) -> Iterator[np.ndarray]:
    """Yields arrays of PAIR: all pairs of `passes` passes over the split, ordered by document, pass and place.

    Parts of the split are worked on by all cores at once; what is held in memory does not grow with the split.
    """
    walk = _Walk(split, layout, sequence_length, seed, passes)
    # About how many pairs come before each document: what a task holds in memory.
    before = (split.document_tokens / sequence_length + np.arange(split.documents + 1)) * passes
    cuts = np.searchsorted(before, np.arange(0, before[-1], _TASK_PAIRS))
    cuts = np.unique([*cuts, split.documents])
    with ThreadPoolExecutor(cpu_count()) as pool:
        yield from pool.map(walk.documents, cuts[:-1], cuts[1:])


class _Walk:
    def __init__(self, split: Split, layout: SentencePairs, sequence_length: int, seed: int, passes: int):
        self._sentences = np.asarray(split.sentence_offsets)
        self._documents = np.asarray(split.document_offsets)
        self._layout = layout
        self._longest = sequence_length - SPECIAL_TOKENS
        self._seed = seed
        self._passes = passes

    def documents(self, first: int, last: int) -> np.ndarray:
        """The pairs of documents first..last-1, all passes."""
        document, pass_ = np.divmod(np.arange(first * self._passes, last * self._passes), self._passes)
        begin, end = self._documents[document], self._documents[document + 1]
        waiting = np.argsort(begin - end, kind="stable")  # the longest first, so that none is left alone at the end
        key = order.fold(order.fold(self._seed, pass_), document)
        target = np.where(
            order.chance(order.fold(key, 0), self._layout.short_probability),
            2 + order.below(order.fold(key, 1), self._longest - 1),
            self._longest,
        )
        cursor, number = begin.copy(), np.full(len(begin), 2)
        lanes = np.empty(0, np.int64)
        pairs, owners = [np.empty(0, PAIR)], [lanes]
        while len(lanes) or len(waiting):
            free = _LANES - len(lanes)
            lanes, waiting = np.concatenate([lanes, waiting[:free]]), waiting[free:]
            drawn, cursor[lanes] = self._step(
                document[lanes], cursor[lanes], end[lanes], target[lanes], order.fold(key[lanes], number[lanes])
            )
            pairs.append(drawn)
            owners.append(lanes)
            number[lanes] += 1
            lanes = lanes[cursor[lanes] < end[lanes]]
        return np.concatenate(pairs)[np.argsort(np.concatenate(owners), kind="stable")]

    def _step(
        self, document: np.ndarray, cursor: np.ndarray, end: np.ndarray, target: np.ndarray, key: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The next pair of every lane, and the sentence at which it goes on."""
        at = self._sentences
        first = at[cursor]
        # A chunk: sentences until the target length is reached or the document ends.
        stop = np.minimum(np.searchsorted(at, first + target), end)
        single = stop - cursor == 1
        middle = cursor + 1 + np.where(single, 0, order.below(order.fold(key, _SPLIT_AT), stop - cursor - 1))
        random = single | order.chance(order.fold(key, _IS_RANDOM), self._layout.random_next_probability)
        swapped = ~random & order.chance(order.fold(key, _IS_SWAPPED), self._layout.swap_probability)
        a_start, a_stop, b_start, b_stop = first, at[middle], at[middle], at[stop]
        changed = np.flatnonzero(random)
        b_start[changed], b_stop[changed] = self._random_next(
            document[changed], (target - (a_stop - a_start))[changed], key[changed]
        )
        a_start, b_start = np.where(swapped, b_start, a_start), np.where(swapped, a_start, b_start)
        a_stop, b_stop = np.where(swapped, b_stop, a_stop), np.where(swapped, a_stop, b_stop)
        pairs = np.empty(len(cursor), PAIR)
        a_cut, b_cut = truncation(a_stop - a_start, b_stop - b_start, self._longest)
        pairs["a_start"] = a_start + order.heads(order.fold(key, _A_FRONT), a_cut)
        pairs["b_start"] = b_start + order.heads(order.fold(key, _B_FRONT), b_cut)
        pairs["a_length"] = a_stop - a_start - a_cut
        pairs["b_length"] = b_stop - b_start - b_cut
        pairs["label"] = random | swapped
        return pairs, np.where(random, middle, stop)  # the sentences a random B displaced are used again

    def _random_next(self, document: np.ndarray, target: np.ndarray, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First and last token (exclusive) of sentences of another document that reach the target length."""
        documents = len(self._documents) - 1
        other = order.below(order.fold(key, _DOCUMENT), documents)
        for attempt in range(1, _TRIES):
            same = np.flatnonzero(other == document)
            if not same.size:
                break
            other[same] = order.below(order.fold(key[same], _DOCUMENT + attempt), documents)
        begin, end = self._documents[other], self._documents[other + 1]
        begin = begin + order.below(order.fold(key, _START), end - begin)
        start = self._sentences[begin]
        stop = np.searchsorted(self._sentences, start + np.maximum(target, 1))
        return start, self._sentences[np.minimum(stop, end)]


def truncation(a_length: np.ndarray, b_length: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens to take from each part so that both hold `longest` at most: singly from the longer, from B in a tie."""
    excess = np.maximum(a_length + b_length - longest, 0)
    from_a = np.minimum(excess, np.maximum(a_length - b_length, 0))
    from_b = np.minimum(excess, np.maximum(b_length - a_length, 0))
    rest = excess - from_a - from_b
    return from_a + rest // 2, from_b + (rest + 1) // 2


def pack(lengths: np.ndarray, row_length: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Deals sequences to rows: the longest that is left, then again and again the longest that still fits.

    lengths: int [n], none above row_length. most: sequences a row may hold. Returns (order int64 [n], the sequences row
    after row; sizes int64 [rows], how many each row holds). Sequences of one length are alike, so a filling is worked
    out once and used for as many rows as it can serve: the cost grows with row_length, hardly with n.
    """
    by_length = np.argsort(lengths, kind="stable")
    counts = np.bincount(lengths, minlength=row_length + 1)
    taken = np.cumsum(counts) - counts
    counts = counts.tolist()
    present = [length for length, count in enumerate(counts) if count]
    rows, sizes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    while present:
        filling: dict[int, int] = {}
        space, size = row_length, 0
        while size < most:
            place = bisect.bisect_right(present, space) - 1
            while place >= 0 and counts[present[place]] == filling.get(present[place], 0):
                place -= 1
            if place < 0:
                break
            length = present[place]
            filling[length] = filling.get(length, 0) + 1
            space, size = space - length, size + 1
        repeat = min(counts[length] // used for length, used in filling.items())
        columns = []
        for length, used in filling.items():
            columns.append(by_length[taken[length] : taken[length] + repeat * used].reshape(repeat, used))
            taken[length] += repeat * used
            counts[length] -= repeat * used
            if not counts[length]:
                present.remove(length)
        rows.append(np.concatenate(columns, axis=1).ravel())
        sizes.append(np.full(repeat, size))
    return np.concatenate(rows), np.concatenate(sizes)
