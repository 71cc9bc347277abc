"""Batches of a dataset that is read in pieces, for the training loop."""

from collections.abc import Callable
from typing import Any

import numpy as np

from plmjax.data import order
from plmjax.data.layouts import Layout
from plmjax.data.pipeline import Batch, Batches, DatasetSource
from plmjax.data.remote.dataset import Piece, RemoteDataset
from plmjax.data.remote.order import TwoLevelOrder
from plmjax.data.remote.reader import Reader
from plmjax.data.store import Dataset
from plmjax.errors import UserError
from plmjax.vocabulary import Vocabulary

# Numbers of the draws from the key of a phase.
_ORDER, _ROWS, _NAMES = range(3)


class RemoteBatches(Batches):
    """Batches whose pieces a `Reader` fetches. An error on the way is raised as it is.

    The error does not pass through tf.data, which would print it with its traceback and raise another one.
    """

    def __init__(
        self, make: Callable[[int], Batch], shapes: dict[str, Any], start: int, stop: int, reader: Reader
    ) -> None:
        def attempt(step: int) -> Batch:
            try:
                return make(step)
            except Exception as error:
                reader.fail(error)
                return {name: np.empty(0, spec.dtype) for name, spec in shapes.items()}

        super().__init__(attempt, shapes, start, stop, ending=reader.close)
        self.reader = reader

    def __next__(self) -> Batch:
        batch = super().__next__()
        self.reader.check()
        return batch


class RemoteSource(DatasetSource):
    """Reads a dataset in pieces for the training loop: batches in the order of `TwoLevelOrder`.

    `row_ids` are 31 bits of a hash of the piece and of the row in it. They are the same whenever the row comes again.
    Every host fetches all pieces of a window, because their rows are shuffled over the whole batch.
    """

    def __init__(self, layout: Layout, dataset: RemoteDataset, vocabulary: Vocabulary, seed: int, window: int):
        super().__init__(layout, dataset, vocabulary, seed)
        check_layout(layout)
        self._window = window
        self._batches_of_phase: RemoteBatches | None = None

    def train(self, phase: Any, start: int, places: np.ndarray | None = None) -> RemoteBatches:
        """Return the phase's global batches start, start + 1, ... without end, or only the rows `places` of each.

        The batches of an earlier call end: the limit is that of all.

        places: rows in ascending order.

        Raises:
            UserError: a window does not fill one batch, or the limit does not hold two windows.
        """
        if self._batches_of_phase is not None:
            self._batches_of_phase.close()
        places = np.arange(phase.batch_size) if places is None else places
        key = self._key(phase)
        rows_key, names_key = order.fold(key, _ROWS), order.fold(key, _NAMES)
        plan = self.order(phase)
        if plan.windows == 0 or plan.window_rows < phase.batch_size:
            found = plan.window_rows if plan.windows else 0
            raise UserError(
                f"Expected windows of at least {phase.batch_size} rows of {phase.sequence_length} tokens, a batch, "
                f"found {found} in {self._window} pieces of {self.dataset.address}; raise --data.shuffle_window or "
                "make larger pieces with plmjax prepare --piece_tokens."
            )

        def cut(piece: Piece) -> Any:
            return self._layout.rows(piece, "train", phase.sequence_length, self.vocabulary, self._seed)

        first = int(plan.places(np.array([start * phase.batch_size])).windows[0])
        reader = Reader(self.dataset, plan, first, cut)

        def make(step: int) -> Batch:
            windows, pieces, numbers = plan.places(step * phase.batch_size + places)
            batch: Batch = {}
            ids = np.empty(len(places), np.int32)
            for piece, rows in reader.rows(windows, pieces).items():
                here = np.flatnonzero(pieces == piece)
                which = order.shuffled(numbers[here], rows.count, order.fold(rows_key, piece))
                ids[here] = order.fold(order.fold(names_key, piece), which) >> np.uint64(33)
                for name, array in rows.fields(which).items():
                    batch.setdefault(name, np.empty((len(places), *array.shape[1:]), array.dtype))[here] = array
            return batch | {"row_ids": ids, "begins": np.ones(len(places), np.int32)}

        stop = np.iinfo(np.int64).max
        self._batches_of_phase = RemoteBatches(make, self.batch(phase), start, stop, reader)
        return self._batches_of_phase

    def order(self, phase: Any) -> TwoLevelOrder:
        """Return the order of the rows of a phase."""
        visits = [piece.tokens // phase.sequence_length for piece in self.dataset.pieces]
        return TwoLevelOrder(np.array(visits, np.int64), self._window, order.fold(self._key(phase), _ORDER))


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
