"""Counter-based random numbers, and the order of rows as a permutation that is computed rather than stored.

Every draw is a hash of a key and a counter (the finaliser of SplitMix64, Steele et al. 2014, Stafford's variant 13), so
that a value does not depend on which process asks for it or on what was drawn before. The permutation is a Feistel
network over Z_a x Z_b with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002): the row at
any place of any epoch is found in O(1).
"""

import math

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = 4


def _mix(bits: np.ndarray) -> np.ndarray:
    bits = (bits ^ bits >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ bits >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return bits ^ bits >> np.uint64(31)


def fold(key: np.ndarray | int, number: np.ndarray | int) -> np.ndarray:
    """The key that `key` and `number` name together, uint64 of their broadcast shape; also a draw of 64 random bits."""
    key, number = (np.atleast_1d(np.asarray(value)).astype(np.uint64) for value in (key, number))
    return _mix(_mix(key + _GOLDEN) + (number + np.uint64(1)) * _GOLDEN)


def below(bits: np.ndarray, size: np.ndarray | int) -> np.ndarray:
    """Random bits -> uniform int64 in 0..size-1, for sizes up to 2**32."""
    return ((bits >> np.uint64(32)) * np.asarray(size).astype(np.uint64) >> np.uint64(32)).astype(np.int64)


def chance(bits: np.ndarray, probability: float) -> np.ndarray:
    """Random bits -> bool, true with `probability`."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53 < probability


def heads(key: np.ndarray, tosses: np.ndarray) -> np.ndarray:
    """How many of `tosses` fair coins fall heads, int64: as many random bits, counted."""
    count = np.zeros(len(tosses), np.int64)
    left = tosses.astype(np.int64)
    active = np.flatnonzero(left > 0)
    word = 0
    while active.size:
        used = np.minimum(left[active], 64)
        count[active] += np.bitwise_count(fold(key[active], word) >> (64 - used).astype(np.uint64))
        left[active] -= used
        active = active[left[active] > 0]
        word += 1
    return count


def permute(places: np.ndarray, size: int, key: np.ndarray | int) -> np.ndarray:
    """Places 0..size-1 -> what stands there, int64: a permutation of 0..size-1 for every key.

    `key` is one key or one for each place (places of several epochs at once); sizes up to 2**62.
    """
    columns = math.isqrt(size - 1) + 1
    rows = -(-size // columns)
    columns, rows = np.uint64(columns), np.uint64(rows)
    out = np.asarray(places).astype(np.uint64)
    key = np.broadcast_to(fold(key, 0), out.shape)
    walking = np.arange(len(out))
    while walking.size:
        row, column = np.divmod(out[walking], columns)
        for round_ in range(_ROUNDS):
            keys = fold(key[walking], round_)
            row = (row + _mix(keys + column * _GOLDEN) % rows) % rows
            column = (column + _mix(~keys + row * _GOLDEN) % columns) % columns
        out[walking] = row * columns + column
        walking = walking[out[walking] >= np.uint64(size)]
    return out.astype(np.int64)


def shuffled(numbers: np.ndarray, size: int, key: np.ndarray | int) -> np.ndarray:
    """Row numbers counted on over epochs (0, 1, ... without end) -> rows 0..size-1, int64.

    Each epoch has a permutation of its own and the next one starts right after it, so every `size` numbers from a
    multiple of `size` on hold every row once.
    """
    epoch, place = np.divmod(np.asarray(numbers, np.int64), size)
    return permute(place, size, fold(key, epoch))
