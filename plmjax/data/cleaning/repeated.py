"""Finds keys that occurred before, in the order of reading: in a stream of documents, or in many documents at once.

Only equal keys are compared. So the keys of a corpus may be divided into parts by their values (`part_of`), and each
part compared separately.
"""

import numpy as np


class Seen:
    """All earlier keys of a stream of documents."""

    def __init__(self) -> None:
        self._keys: set[bytes] = set()

    def find_repeated(self, keys: np.ndarray) -> np.ndarray:
        """Return a mask of the next document's keys that occurred before, in any document, and add the keys.

        keys: hashes uint64 [N, width]; returns bool [N].
        """
        found = np.zeros(len(keys), bool)
        for at, key in enumerate(keys):
            found[at] = (name := key.tobytes()) in self._keys
            self._keys.add(name)
        return found


def find_repeated(keys: np.ndarray) -> np.ndarray:
    """Return a mask of the keys that are equal to an earlier one.

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
