"""Fetches the pieces of the next steps in the background, to a folder that never exceeds its limit."""

import contextlib
import fcntl
import itertools
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from plmjax.data.layouts import LayoutRows
from plmjax.data.remote import ranges
from plmjax.data.remote.dataset import Piece, RemoteDataset
from plmjax.data.remote.order import TwoLevelOrder
from plmjax.errors import UserError
from plmjax.files import storage

AHEAD = 1
"""Number of windows that are fetched before they are needed."""


class Disk:
    """The pieces of a run on the disk, and the number of bytes that they and the copy of the held-out text take.

    bytes: the current number. most_bytes: the maximum so far.
    """

    def __init__(self, dataset: RemoteDataset) -> None:
        self._limit = dataset.limit
        self.bytes = self.most_bytes = dataset.copied_bytes
        self._folder = _Folder(storage.cache("pieces", dataset.fingerprint))
        self._lock = threading.Lock()

    def add(self, piece: int, data: bytes) -> np.ndarray:
        """Write a piece, and return it memory-mapped, uint8 [bytes]."""
        with self._lock:
            if self.bytes + len(data) > self._limit:
                raise AssertionError(f"{self.bytes + len(data)} bytes would exceed the limit {self._limit}.")
            self.bytes += len(data)
            self.most_bytes = max(self.most_bytes, self.bytes)
        return self._folder.add(piece, data)

    def remove(self, piece: int, size: int) -> None:
        """Remove a piece of `size` bytes."""
        self._folder.remove(piece)
        with self._lock:
            self.bytes -= size

    def close(self) -> None:
        """Remove all pieces."""
        self._folder.close()


def check_limit(dataset: RemoteDataset, orders: Sequence[TwoLevelOrder]) -> None:
    """Raise UserError if the limit is too small for the largest windows of each order that are needed at once.

    The message gives the number of bytes that is enough.
    """
    sizes = np.array([piece.range.size for piece in dataset.pieces])
    copied, window = dataset.copied_bytes, sum(order.window_pieces for order in orders)
    least = copied + sum(
        int(np.sort(sizes[order.visited])[::-1][: (1 + AHEAD) * order.window_pieces].sum()) for order in orders
    )
    if least > dataset.limit:
        raise UserError(
            f"Expected a --data.cache_limit of at least {least:,} bytes for the held-out text ({copied:,}) and two "
            f"windows of {window} pieces (the largest has {int(sizes.max()):,}), found {dataset.limit:,}; raise it, "
            f"lower --data.shuffle_window, or make smaller pieces with plmjax prepare --piece_tokens."
        )


class Reader:
    """Fetches the pieces of a lane from window `first` on, and cuts their rows, on its own thread.

    The disk has the pieces of the current window and of the next `AHEAD`. The rows of a batch in a lane are in at most
    two windows, so at most two windows are needed at once. A piece is removed when none of these windows needs it.

    Args:
        order: the order of the lane.
        rows: function that cuts the rows of a piece.
    """

    def __init__(
        self,
        dataset: RemoteDataset,
        order: TwoLevelOrder,
        first: int,
        *,
        rows: Callable[[Piece], LayoutRows],
        disk: Disk,
    ):
        self._dataset, self._order, self._cut, self._disk = dataset, order, rows, disk
        self._state = threading.Condition()
        self._rows: dict[int, LayoutRows] = {}
        self._last: dict[int, int] = {}  # piece on the disk -> the last window so far that needs it
        self._window = first
        self._error: Exception | None = None
        self._closing = threading.Event()
        threading.Thread(target=self._fetch_all, name="pieces", daemon=True).start()

    def rows(self, windows: np.ndarray, pieces: np.ndarray) -> dict[int, LayoutRows]:
        """Return a dict from piece to its rows; wait for pieces that are not there yet.

        Pieces are removed if only windows before the first of `windows` need them.

        windows, pieces: int64 [n], of the rows of a batch. Windows never go back from call to call.

        Raises:
            UserError: a piece cannot be read.
        """
        wanted = np.unique(pieces).tolist()
        with self._state:
            self._window = int(windows.min())
            self._drop()
            self._state.notify_all()
            self._state.wait_for(
                lambda: self._error or self._closing.is_set() or all(piece in self._rows for piece in wanted)
            )
            self.check()
            if self._closing.is_set():
                raise ranges.Stopped
            return {piece: self._rows[piece] for piece in wanted}

    def fail(self, error: Exception) -> None:
        """End the reading with an error. Only the first error is kept, and no error after `close`."""
        with self._state:
            if self._error is None and not self._closing.is_set():
                self._error = error
            self._state.notify_all()

    def check(self) -> None:
        """Raise the error that ended the reading, if there is one."""
        if self._error:
            raise self._error

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        with self._state:
            self._rows.clear()
            self._state.notify_all()

    def _fetch_all(self) -> None:
        try:
            for window in itertools.count(self._window):
                self._wait_for_turn(window)
                for piece in self._order.pieces(window).tolist():
                    if self._closing.is_set():
                        return
                    if window >= self._window:
                        self._fetch(piece, window)
        except ranges.Stopped:
            return
        except Exception as error:
            self.fail(error)

    def _wait_for_turn(self, window: int) -> None:
        with self._state:
            self._state.wait_for(lambda: self._closing.is_set() or window <= self._window + AHEAD)

    def _fetch(self, piece: int, window: int) -> None:
        """Fetch a piece that `window` needs, unless it is on the disk."""
        with self._state:
            self._drop()
            if piece in self._last:
                self._last[piece] = window
                return
        part = self._dataset.pieces[piece].range
        data = ranges.read(os.fspath(self._dataset.address), part, self._closing.wait)
        with self._state:
            self._last[piece] = window
        rows = self._cut(self._dataset.piece(piece, self._disk.add(piece, data)))
        if not rows.count:
            raise UserError(
                f"Expected text for a row in every piece of {self._dataset.address}, found none in bytes "
                f"{part.start:,} to {part.start + part.size:,} of {part.file}; make larger ones with plmjax prepare "
                "--piece_tokens."
            )
        with self._state:
            self._rows[piece] = rows
            self._state.notify_all()

    def _drop(self) -> None:
        """Remove the pieces that no window needs any more. The caller holds the lock."""
        for piece in [piece for piece in self._rows if self._last[piece] < self._window]:
            del self._last[piece], self._rows[piece]
            self._disk.remove(piece, self._dataset.pieces[piece].range.size)


class _Folder:
    """A folder of pieces that one process owns. Folders that killed processes left beside it are removed."""

    def __init__(self, parent: Path):
        parent.mkdir(parents=True, exist_ok=True)
        with open(parent / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for folder in parent.iterdir():
                if folder.is_dir() and (owner := _try_lock(folder)):
                    owner.close()
                    shutil.rmtree(folder)
            self.path = Path(tempfile.mkdtemp(dir=parent))
            self._owner = _try_lock(self.path)

    def add(self, piece: int, data: bytes) -> np.ndarray:
        """Write a piece, and return it memory-mapped, uint8 [bytes]."""
        path = self.path / str(piece)
        path.write_bytes(data)
        return np.memmap(path, np.uint8, "r").view(np.ndarray)

    def remove(self, piece: int) -> None:
        (self.path / str(piece)).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._owner.close()


def _try_lock(folder: Path) -> IO[str] | None:
    """Return the open lock file of a folder, or None if another process holds the lock."""
    lock = open(folder / "lock", "w")  # noqa: SIM115 (the lock is held while the file is open)
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return lock
    lock.close()
    return None
