"""Keys that occurred before, in the order of reading: of a stream of documents, and of many documents at once.

Keys are compared with equal ones alone. So the keys of a corpus may be divided into parts by their values (`part_of`),
and each part compared by itself.
"""

import numpy as np


class Seen:
    """The keys of a stream of documents so far."""

    def __init__(self) -> None:
        self._keys: set[bytes] = set()

    def repeated(self, keys: np.ndarray) -> np.ndarray:
        """Return which keys of the next document occurred before, in it or in an earlier one, and remember all.

        keys: hashes uint64 [N, width]; returns bool [N].
        """
        found = np.zeros(len(keys), bool)
        for at, key in enumerate(keys):
            found[at] = (name := key.tobytes()) in self._keys
            self._keys.add(name)
        return found


def repeated(keys: np.ndarray) -> np.ndarray:
    """Return which keys are equal to an earlier one.

    keys: hashes uint64 [N, width], in the order of reading; returns bool [N]. Memory is 16 + 16 * width bytes a key.
    """
    order = np.lexsort(keys.T)  # stable: equal keys stay in the order of reading
    keys = keys[order]
    found = np.zeros(len(keys), bool)
    found[order[1:]] = (keys[1:] == keys[:-1]).all(axis=1)
    return found


def part_of(keys: np.ndarray, parts: int) -> np.ndarray:
    """Return the part of each key, from 0 to parts - 1. Equal keys are in the same part.

    keys: hashes uint64 [N, width]; returns int64 [N].
    """
    return (keys[:, 0] % np.uint64(parts)).astype(np.int64)
