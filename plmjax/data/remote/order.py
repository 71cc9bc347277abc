"""The order of rows in two levels: pieces of the dataset in random order, and rows shuffled within a window of pieces.

A row of the full shuffle (`order.shuffle`) may be anywhere, so every step would need all of the dataset. Here the rows
of a step are in one window of pieces, or in two where one window ends. Every place of the order is a pure function of
the seed, so a step does not depend on earlier steps.

The rows of a batch are divided into lanes, each with pieces and an order of its own. A host that builds a part of the
batch reads only the pieces of the lanes in that part. With as many hosts as lanes, every piece is read by one host.

The order counts rows before any is cut from the text, because the number of rows of a piece is known only when it has
been read. So an epoch visits every piece once, and a visit takes a number of its rows that is proportional to its
tokens. A visit continues where the last one ended: every row of a piece is used once before any row is used again.

Deviation: the full shuffle uses every row of an epoch once. Here an epoch takes one row for every `length` tokens of a
piece, and a layout that cuts more rows (such as several passes over the text) spreads them over several epochs.
"""

import functools
import heapq
from typing import NamedTuple

import numpy as np

from plmjax.data import order

# Numbers of the draws from the key of the order.
_PIECES, _WINDOWS, _LANES = range(3)


class Places(NamedTuple):
    """The rows at some places of the order, int64 [n] each.

    windows: the window, counted over all epochs. pieces: the piece. numbers: the number of the row among all rows of
        the piece, counted over all epochs; `order.shuffle` maps it to a row of the piece.
    """

    windows: np.ndarray
    pieces: np.ndarray
    numbers: np.ndarray


class Spans(NamedTuple):
    """The windows of some places of an order, int64 [n] each, and a key for each place, uint64 [n].

    epochs, windows: the window. begins: the first place of the window in its epoch. offsets: the place in the window.
    sizes: number of rows of the window.
    """

    epochs: np.ndarray
    windows: np.ndarray
    begins: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    keys: np.ndarray

    def permute(self) -> np.ndarray:
        """Shuffle the places within their windows, int64 [n]."""
        return order.permute(self.offsets, self.sizes, self.keys)


class TwoLevelOrder:
    """The infinite order of the rows of pieces: epochs follow each other without a gap.

    Args:
        visits: int [P], the number of rows that a visit to each piece takes; pieces with 0 are left out.
        window: maximum number of pieces whose rows are shuffled together. The windows of an epoch have equally many
            pieces, or numbers that differ by one.
        key: key of the order.

    Memory is about 50 bytes per piece. A place is found in O(log P) after one permutation of the pieces per epoch.
    """

    def __init__(self, visits: np.ndarray, window: int, key: np.ndarray):
        self.visited = np.flatnonzero(visits)
        """The pieces of the order, int64."""
        self._visits = np.asarray(visits, np.int64)
        self._pieces_key, self._windows_key = order.fold_in(key, _PIECES), order.fold_in(key, _WINDOWS)
        self.rows = int(self._visits.sum())
        """Number of rows of an epoch."""
        self.windows = -(-len(self.visited) // window)
        """Number of windows of an epoch."""
        # Windows begin at these places of the permuted pieces.
        self._cuts = np.arange(self.windows + 1) * len(self.visited) // max(self.windows, 1)
        self._epoch = functools.lru_cache(2)(self._permuted_pieces)

    @property
    def window_pieces(self) -> int:
        """Number of pieces of the largest window."""
        return int(np.diff(self._cuts).max())

    @property
    def window_rows(self) -> int:
        """Number of rows of the smallest window."""
        fewest = int(np.diff(self._cuts).min())
        return int(np.sort(self._visits[self.visited])[:fewest].sum())

    def pieces(self, window: int) -> np.ndarray:
        """Return the pieces of a window, int64; windows are counted over all epochs."""
        epoch, within = divmod(window, self.windows)
        return self._epoch(epoch)[0][self._cuts[within] : self._cuts[within + 1]]

    def places(self, numbers: np.ndarray) -> Places:
        """Return the rows at these places of the order.

        numbers: int [n], 0 or more.
        """
        spans = self.spans(numbers)
        return self.rows_at(spans, spans.permute())

    def spans(self, numbers: np.ndarray) -> "Spans":
        """Return the windows of places of the order. numbers: as in `places`."""
        epochs, numbers = np.divmod(np.asarray(numbers, np.int64), self.rows)
        windows, begins, sizes = (np.empty(len(numbers), np.int64) for _ in range(3))
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            edges = self._epoch(epoch)[1][self._cuts]
            windows[here] = window = np.searchsorted(edges, numbers[here], "right") - 1
            begins[here], sizes[here] = edges[window], edges[window + 1] - edges[window]
        keys = order.fold_in(order.fold_in(self._windows_key, epochs), windows)
        return Spans(epochs, windows, begins, numbers - begins, sizes, keys)

    def rows_at(self, spans: "Spans", permuted: np.ndarray) -> Places:
        """Return the rows at places of the order. permuted: result of `spans.permute`, int64 [n]."""
        shuffled = spans.begins + permuted
        pieces, numbers = np.empty_like(shuffled), np.empty_like(shuffled)
        for epoch in np.unique(spans.epochs).tolist():
            here = spans.epochs == epoch
            of_epoch, starts = self._epoch(epoch)
            place = np.searchsorted(starts, shuffled[here], "right") - 1
            pieces[here] = piece = of_epoch[place]
            numbers[here] = epoch * self._visits[piece] + shuffled[here] - starts[place]
        return Places(spans.epochs * self.windows + spans.windows, pieces, numbers)

    def _permuted_pieces(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (pieces of an epoch in their order, int64 [P]; the place where each begins and the end, [P + 1])."""
        count = len(self.visited)
        pieces = self.visited[order.permute(np.arange(count), count, order.fold_in(self._pieces_key, epoch))]
        return pieces, np.concatenate([[0], np.cumsum(self._visits[pieces])])


class LaneOrder:
    """The order of the rows of batches, in lanes.

    The rows of a batch are `lanes` parts of the same size, one after another. The rows of a part follow the order of
    two levels over the pieces of its lane. The pieces are assigned to lanes so that all lanes have about equally many
    rows, and stay in their lane.

    Args:
        visits: int [P], the number of rows that a visit to each piece takes; pieces with 0 are left out.
        window: maximum number of pieces, of all lanes together, whose rows are mixed.
        key: key of the order.
        batch_size: number of rows of a batch. The number of lanes is its largest divisor that is at most `window` and
            at most the number of pieces.
    """

    def __init__(self, visits: np.ndarray, window: int, key: np.ndarray, batch_size: int):
        visits = np.asarray(visits, np.int64)
        most = max(1, min(window, np.count_nonzero(visits)))
        self.lanes = max(count for count in range(1, most + 1) if batch_size % count == 0)
        """Number of lanes."""
        self._batch_size, self._share = batch_size, batch_size // self.lanes
        lanes_key = order.fold_in(key, _LANES)
        lane = _assign_lanes(visits, self.lanes, order.fold_in(lanes_key, self.lanes))
        self.orders = [
            TwoLevelOrder(np.where(lane == own, visits, 0), window // self.lanes, order.fold_in(lanes_key, own))
            for own in range(self.lanes)
        ]
        """The order of each lane."""
        self.rows = sum(one.rows for one in self.orders)
        """Number of rows of the epochs of all lanes."""

    def lanes_of(self, places: np.ndarray) -> np.ndarray:
        """Return the lanes of these rows of a batch, int64 [n]."""
        return np.asarray(places, np.int64) // self._share

    def places(self, numbers: np.ndarray) -> tuple[np.ndarray, Places]:
        """Return the lanes of rows, int64 [n], and the rows in the orders of these lanes.

        numbers: int [n], row numbers over all batches, 0 or more.
        """
        steps, rows = np.divmod(np.asarray(numbers, np.int64), self._batch_size)
        lanes = self.lanes_of(rows)
        own = steps * self._share + rows % self._share
        found = Places(*(np.empty(len(lanes), np.int64) for _ in Places._fields))
        masks = {lane: lanes == lane for lane in np.unique(lanes).tolist()}
        spans = {lane: self.orders[lane].spans(own[here]) for lane, here in masks.items()}
        # One call for all lanes: its time hardly depends on the number of lanes.
        permuted = np.empty(len(lanes), np.int64)
        every = Spans(*(np.concatenate(arrays) for arrays in zip(*spans.values(), strict=True)))
        permuted[np.concatenate([np.flatnonzero(here) for here in masks.values()])] = every.permute()
        for lane, here in masks.items():
            for array, values in zip(found, self.orders[lane].rows_at(spans[lane], permuted[here]), strict=True):
                array[here] = values
        return lanes, found


def _assign_lanes(visits: np.ndarray, lanes: int, key: np.ndarray) -> np.ndarray:
    """Return the lane of each piece, int64 [P]: the largest first, each to the lane with the fewest rows so far."""
    lane = np.zeros(len(visits), np.int64)
    if not len(visits):
        return lane
    rows = [(0, own) for own in range(lanes)]
    drawn = order.permute(np.arange(len(visits)), len(visits), key)  # a random order for pieces of the same size
    for piece in np.lexsort((drawn, -visits)).tolist():
        total, own = heapq.heappop(rows)
        lane[piece] = own
        heapq.heappush(rows, (total + int(visits[piece]), own))
    return lane
