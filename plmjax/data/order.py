"""Counter-based random numbers, and the order of rows as a computed permutation.

Every random number is a hash of a key and a counter (the finalizer of SplitMix64, Steele et al. 2014, Stafford's
variant 13). So a value does not depend on the process that computes it or on earlier values. The permutation is a
Feistel network over Z_a x Z_b with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
The row at any position of any epoch is found in O(1).
"""

import math

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = 4


def _mix(bits: np.ndarray) -> np.ndarray:
    bits = (bits ^ bits >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ bits >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return bits ^ bits >> np.uint64(31)


def fold_in(key: np.ndarray | int, number: np.ndarray | int) -> np.ndarray:
    """Return a key made of `key` and `number`, uint64 of their broadcast shape. It can be used as 64 random bits."""
    key, number = (np.atleast_1d(np.asarray(value)).astype(np.uint64) for value in (key, number))
    return _mix(_mix(key + _GOLDEN) + (number + np.uint64(1)) * _GOLDEN)


def randint(bits: np.ndarray, size: np.ndarray | int) -> np.ndarray:
    """Return uniform int64 in 0..size-1 from random bits, for sizes up to 2**32."""
    return ((bits >> np.uint64(32)) * np.asarray(size).astype(np.uint64) >> np.uint64(32)).astype(np.int64)


def bernoulli(bits: np.ndarray, probability: float) -> np.ndarray:
    """Return bools that are true with `probability`, from random bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53 < probability


def binomial(key: np.ndarray, tosses: np.ndarray) -> np.ndarray:
    """Return the number of heads among `tosses` fair coin tosses, int64. Each toss is one random bit."""
    count = np.zeros(len(tosses), np.int64)
    left = tosses.astype(np.int64)
    active = np.flatnonzero(left > 0)
    word = 0
    while active.size:
        used = np.minimum(left[active], 64)
        count[active] += np.bitwise_count(fold_in(key[active], word) >> (64 - used).astype(np.uint64))
        left[active] -= used
        active = active[left[active] > 0]
        word += 1
    return count


def permute(places: np.ndarray, size: np.ndarray | int, key: np.ndarray | int) -> np.ndarray:
    """Return the image of positions 0..size-1 under a permutation of 0..size-1 that depends on the key, int64.

    size: one size, or one for each position (for positions of several permutations). Sizes up to 2**62.
    key: one key, or one for each position (for positions of several epochs).
    """
    out = np.asarray(places).astype(np.uint64)
    distinct, which = (np.array([size]), 0) if np.ndim(size) == 0 else np.unique(size, return_inverse=True)
    sides = [(columns := math.isqrt(one - 1) + 1, -(-one // columns), one) for one in distinct.tolist()]
    sides = np.array(sides, np.uint64).reshape(-1, 3)[which]
    all_columns, all_rows, sizes = np.broadcast_to(sides, (*out.shape, 3)).T
    key = np.broadcast_to(fold_in(key, 0), out.shape)
    walking = np.arange(len(out))
    while walking.size:
        columns, rows = all_columns[walking], all_rows[walking]
        row, column = np.divmod(out[walking], columns)
        for round_ in range(_ROUNDS):
            keys = fold_in(key[walking], round_)
            row = (row + _mix(keys + column * _GOLDEN) % rows) % rows
            column = (column + _mix(~keys + row * _GOLDEN) % columns) % columns
        out[walking] = row * columns + column
        walking = walking[out[walking] >= sizes[walking]]
    return out.astype(np.int64)


def shuffle(numbers: np.ndarray, size: int, key: np.ndarray | int) -> np.ndarray:
    """Map row numbers that count over all epochs (0, 1, ... without end) to rows 0..size-1, int64.

    Each epoch has its own permutation, and the next epoch follows at once. So every `size` numbers that start at a
    multiple of `size` give every row once.
    """
    epoch, place = np.divmod(np.asarray(numbers, np.int64), size)
    return permute(place, size, fold_in(key, epoch))
