"""Pairs of words encoded as numbers, and the pairs inside the windows of a text.

Pair numbers are scrambled by a bijection, so that pairs sorted by number are shuffled. So the external sort that sums a
large count also gives the order in which its cells are read.
"""

from collections.abc import Iterator

import numpy as np

DISTANCE_BITS = 5
LARGEST_VOCABULARY = 1 << (64 - DISTANCE_BITS) // 2
_FACTORS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9)
"""Odd factors, so that multiplication modulo a power of two has an inverse."""


class Numbering:
    """Bijection between pairs of words 0..size-1 and numbers of `bits` bits."""

    def __init__(self, size: int):
        self._half = np.uint64(max((size - 1).bit_length(), 1))
        self.bits = 2 * int(self._half)
        self._mask = np.uint64((1 << self.bits) - 1)

    def numbers(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the numbers of pairs, uint64 [N], from words, uint64 [N]."""
        x = rows << self._half
        x |= columns
        for factor in _FACTORS:
            x ^= x >> self._half
            x *= np.uint64(factor)
            x &= self._mask
        x ^= x >> self._half
        return x

    def pairs(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (rows, columns), int32 [N], from numbers, uint64 [N]."""
        x = numbers ^ numbers >> self._half  # a shift by half of the bits is its own inverse
        for factor in reversed(_FACTORS):
            x *= np.uint64(pow(factor, -1, 1 << self.bits))
            x &= self._mask
            x ^= x >> self._half
        low = np.uint64((1 << int(self._half)) - 1)
        return (x >> self._half).astype(np.int32), (x & low).astype(np.int32)


def window_pairs(
    words: np.ndarray, documents: np.ndarray, first: int, *, window: int, symmetric: bool, numbering: Numbering
) -> Iterator[np.ndarray]:
    """Yield for each distance up to `window` the pairs at that distance, uint64: number << DISTANCE_BITS | distance.

    words: uint64 [N], the counted words, in the order of the text.
    documents: int [N], the document of each word.
    first: pairs whose right word is before this index are left out.

    The row of a pair is the smaller word id in a symmetric count, and the right word in other counts.
    """
    for distance in range(1, min(window, len(words) - 1) + 1):
        begin = max(first, distance)
        right, left = words[begin:], words[begin - distance : len(words) - distance]
        rows, columns = (np.minimum(left, right), np.maximum(left, right)) if symmetric else (right, left)
        found = numbering.numbers(rows, columns)
        found <<= np.uint64(DISTANCE_BITS)
        found |= np.uint64(distance)
        yield found[documents[begin:] == documents[begin - distance : len(words) - distance]]
