"""The order of rows in two levels: pieces of the dataset in random order, and rows shuffled within a window of pieces.

A row of the full shuffle (`order.shuffled`) may lie anywhere, so every step would need the whole dataset. Here the rows
of a step lie in one window of pieces, or in two at its end. Every place of the order is a pure function of the seed: a
step reads nothing of the steps before it.

The order counts rows before any is cut from the text, because the number of rows of a piece is known only when it has
been read. So an epoch visits every piece once, and a visit takes a share of its rows that is proportional to its
tokens. A visit continues where the last one ended: every row of a piece is used once before one of them is used again.

Deviation: the full shuffle uses every row of an epoch once. Here an epoch takes one row for every `length` tokens of a
piece, and a layout that cuts more rows (such as several passes over the text) spreads them over several epochs.
"""

import functools
from typing import NamedTuple

import numpy as np

from plmjax.data import order

# Numbers of the draws from the key of the order.
_PIECES, _WINDOWS = range(2)


class Places(NamedTuple):
    """The rows at some places of the order, int64 [n] each.

    windows: the window, counted over all epochs. pieces: the piece. numbers: the number of the row among all rows that
    the piece gives, counted over all epochs; `order.shuffled` maps it to a row of the piece.
    """

    windows: np.ndarray
    pieces: np.ndarray
    numbers: np.ndarray


class TwoLevelOrder:
    """The order of the rows of pieces. It is infinite: epochs follow each other without a gap.

    Args:
        visits: int [P], the number of rows that a visit to each piece takes; pieces with 0 are left out.
        window: number of pieces whose rows are shuffled together. All windows of an epoch have as many, or one less.
        key: key of the order.

    Memory is about 50 bytes per piece. A place is found in O(log P) after one permutation of the pieces per epoch.
    """

    def __init__(self, visits: np.ndarray, window: int, key: np.ndarray):
        self._visited = np.flatnonzero(visits)
        self._visits = np.asarray(visits, np.int64)
        self._pieces_key, self._windows_key = order.fold(key, _PIECES), order.fold(key, _WINDOWS)
        self.rows = int(self._visits.sum())
        """Number of rows of an epoch."""
        self.windows = -(-len(self._visited) // window)
        """Number of windows of an epoch."""
        # Windows begin at these places of the permuted pieces.
        self._cuts = np.arange(self.windows + 1) * len(self._visited) // max(self.windows, 1)
        self._epoch = functools.lru_cache(2)(self._permuted)

    @property
    def window_pieces(self) -> int:
        """Number of pieces of the largest window."""
        return int(np.diff(self._cuts).max())

    @property
    def window_rows(self) -> int:
        """Least number of rows of a window."""
        fewest = int(np.diff(self._cuts).min())
        return int(np.sort(self._visits[self._visited])[:fewest].sum())

    def pieces(self, window: int) -> np.ndarray:
        """Return the pieces of a window, int64; windows are counted over all epochs."""
        epoch, within = divmod(window, self.windows)
        return self._epoch(epoch)[0][self._cuts[within] : self._cuts[within + 1]]

    def places(self, numbers: np.ndarray) -> Places:
        """Return the rows at these places of the order.

        numbers: int [n], 0 or more, in ascending order.
        """
        parts = []
        epochs, numbers = np.divmod(np.asarray(numbers, np.int64), self.rows)
        for epoch in np.unique(epochs).tolist():
            pieces, starts = self._epoch(epoch)
            begins = starts[self._cuts]
            here = numbers[epochs == epoch]
            windows = np.searchsorted(begins, here, "right") - 1
            for window in np.unique(windows).tolist():
                begin, end = int(begins[window]), int(begins[window + 1])
                key = order.fold(order.fold(self._windows_key, epoch), window)
                shuffled = begin + order.permute(here[windows == window] - begin, end - begin, key)
                place = np.searchsorted(starts, shuffled, "right") - 1
                piece = pieces[place]
                number = epoch * self._visits[piece] + shuffled - starts[place]
                parts.append(Places(np.full(len(piece), epoch * self.windows + window), piece, number))
        return Places(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def _permuted(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (pieces of an epoch in their order, int64 [P]; the place where each begins and the end, [P + 1])."""
        count = len(self._visited)
        pieces = self._visited[order.permute(np.arange(count), count, order.fold(self._pieces_key, epoch))]
        return pieces, np.concatenate([[0], np.cumsum(self._visits[pieces])])
