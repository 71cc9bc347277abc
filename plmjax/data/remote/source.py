"""Batches of a dataset that is read in pieces, for the training loop."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from plmjax.data import order
from plmjax.data.layouts import Layout
from plmjax.data.pipeline import Batch, Batches, DatasetSource
from plmjax.data.remote.dataset import Piece, RemoteDataset
from plmjax.data.remote.order import LaneOrder
from plmjax.data.remote.reader import Disk, Reader, check_limit
from plmjax.data.store import Dataset
from plmjax.errors import UserError
from plmjax.vocabulary import Vocabulary

# Numbers of the draws from the key of a phase.
_ORDER, _ROWS, _NAMES = range(3)


class RemoteBatches(Batches):
    """Batches whose pieces `Reader`s fetch, one for each lane. An error on the way is raised as it is.

    The error does not pass through tf.data, which would print it with its traceback and raise another one.
    """

    def __init__(
        self,
        make: Callable[[int], Batch],
        shapes: dict[str, Any],
        start: int,
        stop: int,
        readers: Sequence[Reader],
        disk: Disk,
    ) -> None:
        def attempt(step: int) -> Batch:
            try:
                return make(step)
            except Exception as error:
                readers[0].fail(error)
                return {name: np.empty(0, spec.dtype) for name, spec in shapes.items()}

        def close() -> None:
            for reader in readers:
                reader.close()
            disk.close()

        super().__init__(attempt, shapes, start, stop, ending=close)
        self.disk = disk
        self._readers = readers

    def __next__(self) -> Batch:
        batch = super().__next__()
        for reader in self._readers:
            reader.check()
        return batch


class RemoteSource(DatasetSource):
    """Reads a dataset in pieces for the training loop: batches in the order of `LaneOrder`.

    `row_ids` are 31 bits of a hash of the piece and of the row in it. They are the same whenever the row comes again.
    """

    def __init__(self, layout: Layout, dataset: RemoteDataset, vocabulary: Vocabulary, seed: int, window: int):
        super().__init__(layout, dataset, vocabulary, seed)
        check_layout(layout)
        self._window = window
        self._batches_of_phase: RemoteBatches | None = None

    def train(self, phase: Any, start: int, places: np.ndarray | None = None) -> RemoteBatches:
        """Return the phase's global batches start, start + 1, ... without end, or only the rows `places` of each.

        The pieces of the lanes of these rows are read. The batches of an earlier call end: the limit is that of all.

        places: rows in ascending order.

        Raises:
            UserError: a window does not fill its part of one batch, or the limit does not hold two windows.
        """
        if self._batches_of_phase is not None:
            self._batches_of_phase.close()
        places = np.arange(phase.batch_size) if places is None else places
        key = self._key(phase)
        rows_key, names_key = order.fold(key, _ROWS), order.fold(key, _NAMES)
        plan = self.order(phase)
        windows = [lane.window_rows if lane.windows else 0 for lane in plan.orders]
        if min(windows) * plan.lanes < phase.batch_size:
            raise UserError(
                f"Expected windows of at least {phase.batch_size} rows of {phase.sequence_length} tokens, a batch, "
                f"found {min(windows) * plan.lanes} in {self._window} pieces of {self.dataset.address}; raise "
                "--data.shuffle_window or make larger pieces with plmjax prepare --piece_tokens."
            )

        def cut(piece: Piece) -> Any:
            return self._layout.rows(piece, "train", phase.sequence_length, self.vocabulary, self._seed)

        lanes = np.unique(plan.lanes_of(places)).tolist()
        check_limit(self.dataset, [plan.orders[lane] for lane in lanes])
        disk, first = Disk(self.dataset), start * phase.batch_size // plan.lanes
        readers = {}
        for lane in lanes:
            window = int(plan.orders[lane].places(np.array([first])).windows[0])
            readers[lane] = Reader(self.dataset, plan.orders[lane], window, cut, disk)

        def make(step: int) -> Batch:
            lanes, (windows, pieces, numbers) = plan.places(step * phase.batch_size + places)
            batch: Batch = {}
            ids = np.empty(len(places), np.int32)
            for lane, reader in readers.items():
                for piece, rows in reader.rows(windows[lanes == lane], pieces[lanes == lane]).items():
                    here = np.flatnonzero(pieces == piece)
                    which = order.shuffled(numbers[here], rows.count, order.fold(rows_key, piece))
                    ids[here] = order.fold(order.fold(names_key, piece), which) >> np.uint64(33)
                    for name, array in rows.fields(which).items():
                        batch.setdefault(name, np.empty((len(places), *array.shape[1:]), array.dtype))[here] = array
            return batch | {"row_ids": ids, "begins": np.ones(len(places), np.int32)}

        stop = np.iinfo(np.int64).max
        self._batches_of_phase = RemoteBatches(make, self.batch(phase), start, stop, list(readers.values()), disk)
        return self._batches_of_phase

    def order(self, phase: Any) -> LaneOrder:
        """Return the order of the rows of a phase."""
        visits = [piece.tokens // phase.sequence_length for piece in self.dataset.pieces]
        key = order.fold(self._key(phase), _ORDER)
        return LaneOrder(np.array(visits, np.int64), self._window, key, phase.batch_size)


def check_layout(layout: Layout) -> None:
    """Raise UserError for a layout whose rows cannot be cut from a piece."""
    if layout.continues or not layout.in_pieces:
        raise UserError(
            f"Expected a layout whose rows are shuffled for --data.cache_limit, found {type(layout).__name__}, which "
            "needs the whole text; leave the option out or choose another layout."
        )


def source(layout: Layout, dataset: Dataset, vocabulary: Vocabulary, seed: int, window: int) -> DatasetSource:
    """Return the batches of a dataset. If it is read in pieces, rows are shuffled among `window` of them."""
    if isinstance(dataset, RemoteDataset):
        return RemoteSource(layout, dataset, vocabulary, seed, window)
    return DatasetSource(layout, dataset, vocabulary, seed)
