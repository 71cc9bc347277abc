"""Batches of a dataset that is read in pieces, for the training loop."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import Layout, LayoutRows
from plmjax.data.order import fold_in, shuffle
from plmjax.data.pipeline import Batch, Batches, DatasetSource
from plmjax.data.remote.dataset import Piece, RemoteDataset
from plmjax.data.remote.order import LaneOrder
from plmjax.data.remote.reader import Disk, Reader, check_limit
from plmjax.data.store import Dataset
from plmjax.errors import UserError

# Numbers of the draws from the key of a phase.
_ORDER, _ROWS, _NAMES = range(3)


class PieceRows:
    """Rows of a dataset by their numbers in an order. Their pieces are fetched in the background from the start.

    Args:
        source: the dataset, and the layout of its rows.
        phase: the phase of the rows.
        order: the order of the rows.
        key: key of the rows within a piece.
        lanes: the lanes of the order to read.
        first: number of rows that were read before from each of these lanes. Later batches never have earlier rows.

    Raises:
        UserError: a window does not fill its part of one batch, or the limit is too small for two windows.
    """

    def __init__(
        self, source: "RemoteSource", phase: Any, order: LaneOrder, *, key: np.ndarray, lanes: Sequence[int], first: int
    ):
        dataset = source.dataset
        rows = min(lane.window_rows if lane.windows else 0 for lane in order.orders) * order.lanes
        if rows < phase.batch_size:
            raise UserError(
                f"Expected windows of at least {phase.batch_size} rows of {phase.sequence_length} tokens, a batch, "
                f"found {rows} in {source.window} pieces of {dataset.address}; raise --data.shuffle_window or make "
                "larger pieces with plmjax prepare --piece_tokens."
            )
        check_limit(dataset, [order.orders[lane] for lane in lanes])
        self.disk = Disk(dataset)
        self._order, self._rows_key, self._names_key = order, fold_in(key, _ROWS), fold_in(key, _NAMES)
        cut = functools.partial(source.rows_of_piece, sequence_length=phase.sequence_length)
        self._readers = {}
        for lane in lanes:
            window = int(order.orders[lane].places(np.array([first])).windows[0])
            self._readers[lane] = Reader(dataset, order.orders[lane], window, rows=cut, disk=self.disk)

    def batch(self, numbers: np.ndarray) -> Batch:
        """Return the fields of rows, with `row_ids` and `is_first`. numbers: int [n], at least one."""
        lanes, (windows, pieces, numbers) = self._order.places(numbers)
        batch: Batch = {"row_ids": np.empty(len(lanes), np.int32), "is_first": np.ones(len(lanes), np.int32)}
        for lane, reader in self._readers.items():
            own = lanes == lane
            if not own.any():
                continue
            for piece, rows in reader.rows(windows[own], pieces[own]).items():
                here = np.flatnonzero(pieces == piece)
                which = shuffle(numbers[here], rows.count, fold_in(self._rows_key, piece))
                batch["row_ids"][here] = fold_in(fold_in(self._names_key, piece), which) >> np.uint64(33)
                for name, array in rows.fields(which).items():
                    batch.setdefault(name, np.empty((len(lanes), *array.shape[1:]), array.dtype))[here] = array
        return batch

    def fail(self, error: Exception) -> None:
        """End the reading with an error."""
        next(iter(self._readers.values())).fail(error)

    def check(self) -> None:
        """Raise the error that ended the reading, if there is one."""
        for reader in self._readers.values():
            reader.check()

    def close(self) -> None:
        """End the reading, and remove the pieces."""
        for reader in self._readers.values():
            reader.close()
        self.disk.close()


class RemoteBatches(Batches):
    """Batches with rows of `parts`, which fetch their pieces. Errors are raised unchanged.

    Errors do not pass through tf.data, which would print them with a traceback and raise another error.
    """

    def __init__(
        self, make: Callable[[int], Batch], shapes: dict[str, Any], start: int, *, stop: int, parts: Sequence[PieceRows]
    ) -> None:
        def attempt(step: int) -> Batch:
            try:
                return make(step)
            except Exception as error:
                parts[0].fail(error)
                return {name: np.empty(0, spec.dtype) for name, spec in shapes.items()}

        def close() -> None:
            for part in parts:
                part.close()

        super().__init__(attempt, shapes, start, stop=stop, ending=close)
        self.parts = parts

    def __next__(self) -> Batch:
        batch = super().__next__()
        for part in self.parts:
            part.check()
        return batch


class RemoteSource(DatasetSource):
    """Reads a dataset in pieces for the training loop: batches in the order of `LaneOrder`.

    `row_ids` are 31 bits of a hash of the piece and of the row in it, so a row has the same id in every epoch.
    """

    def __init__(self, layout: Layout, dataset: RemoteDataset, vocabulary: Vocabulary, *, seed: int, window: int):
        super().__init__(layout, dataset, vocabulary, seed)
        check_layout(layout)
        self.window = window
        self._batches_of_phase: RemoteBatches | None = None

    def train(self, phase: Any, start: int, places: np.ndarray | None = None) -> RemoteBatches:
        """Return the phase's global batches start, start + 1, ... without end, or only the rows `places` of each.

        Only the lanes that contain these rows are read. The batches of an earlier call end, because all calls share the
        limit.

        places: rows in ascending order.

        Raises:
            UserError: an error of `PieceRows`.
        """
        if self._batches_of_phase is not None:
            self._batches_of_phase.close()
        places = np.arange(phase.batch_size) if places is None else places
        order = self.order(phase)
        lanes = np.unique(order.lanes_of(places)).tolist()
        first = start * phase.batch_size // order.lanes
        rows = PieceRows(self, phase, order, key=self._key(phase), lanes=lanes, first=first)

        def make(step: int) -> Batch:
            return rows.batch(step * phase.batch_size + places)

        stop = np.iinfo(np.int64).max
        self._batches_of_phase = RemoteBatches(make, self.batch(phase), start, stop=stop, parts=[rows])
        return self._batches_of_phase

    def rows_from(self, phase: Any, key: np.ndarray, first: int) -> PieceRows:
        """Return the rows of a phase from number `first` on, in an order of one lane. key: key of the order."""
        return PieceRows(self, phase, self._order(phase, key, 1), key=key, lanes=[0], first=first)

    def order(self, phase: Any) -> LaneOrder:
        """Return the order of the rows of a phase."""
        return self._order(phase, self._key(phase), phase.batch_size)

    def epoch_rows(self, sequence_length: int) -> int:
        return int(self._visits(sequence_length).sum())

    def rows_of_piece(self, piece: Piece, sequence_length: int) -> LayoutRows:
        """Return the rows that the layout cuts from a piece."""
        return self._layout.rows(piece, "train", sequence_length, vocabulary=self.vocabulary, seed=self._seed)

    def _order(self, phase: Any, key: np.ndarray, batch_size: int) -> LaneOrder:
        """Return the order of the rows of batches; a batch of one row gives a single lane."""
        return LaneOrder(self._visits(phase.sequence_length), self.window, fold_in(key, _ORDER), batch_size)

    def _visits(self, sequence_length: int) -> np.ndarray:
        """Return the number of rows that a visit to each piece takes, int64."""
        return np.array([piece.tokens // sequence_length for piece in self.dataset.pieces], np.int64)


def check_layout(layout: Layout) -> None:
    """Raise UserError for a layout whose rows cannot be cut from a piece."""
    if layout.continues or not layout.in_pieces:
        raise UserError(
            f"Expected a layout whose rows are shuffled for --data.cache_limit, found {type(layout).__name__}, which "
            "needs the whole text; leave the option out or choose another layout."
        )


def source(layout: Layout, dataset: Dataset, vocabulary: Vocabulary, *, seed: int, window: int) -> DatasetSource:
    """Return the source of a dataset's batches. If it is read in pieces, rows are shuffled within `window` of them."""
    if isinstance(dataset, RemoteDataset):
        return RemoteSource(layout, dataset, vocabulary, seed=seed, window=window)
    return DatasetSource(layout, dataset, vocabulary, seed)
