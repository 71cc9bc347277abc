"""Batches for the training loop: tf.data over global steps. Each batch depends on (seed, step) only.

A batch is a pure function of its step. So a run resumes at any step as fast as at the first, and every host builds only
its own rows of the same global batches, for any number of hosts. If TensorFlow is not installed, a Python thread makes
the same batches.
"""

import abc
import collections
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import order, tensorflow_runtime
from plmjax.data.layouts import Layout, LayoutRows
from plmjax.data.store import Dataset
from plmjax.errors import UserError

Batch = dict[str, np.ndarray]

_PREFETCHED = 4
_TOKENS = ("input_ids", "decoder_input_ids", "next_ids")


class Batches(Iterator[Batch]):
    """Batches `make(step)` of the steps start..stop-1, prefetched on a thread. `close` ends the thread.

    ending: function that ends any wait in `make`; `close` calls it.
    """

    def __init__(
        self,
        make: Callable[[int], Batch],
        shapes: dict[str, Any],
        start: int,
        *,
        stop: int,
        ending: Callable[[], None] = lambda: None,
    ):
        made = _of_python if by_python() else _of_tensorflow
        iterator = made(make, shapes, start, stop)
        self._state = {"iterator": iterator}
        # Threads that still call Python while the interpreter ends would hang it; `finalize` also runs at exit.
        self.close = weakref.finalize(self, _end, ending, self._state)

    def __next__(self) -> Batch:
        if "iterator" not in self._state:
            raise StopIteration
        return next(self._state["iterator"])


def by_python() -> bool:
    """Return whether a Python thread makes the batches, because TensorFlow is not installed."""
    return not tensorflow_runtime.is_installed()


def _of_tensorflow(make: Callable[[int], Batch], shapes: dict[str, Any], start: int, stop: int) -> Iterator[Batch]:
    """Yield the batches from a tf.data pipeline."""
    tf = tensorflow_runtime.tensorflow()
    names = tuple(shapes)

    def produce(step: np.ndarray) -> list[np.ndarray]:
        batch = make(int(step))
        return [batch[name] for name in names]

    dtypes = [tf.as_dtype(shapes[name].dtype) for name in names]
    options = tf.data.Options()
    # One thread: the cores belong to the training step.
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    options.autotune.enabled = False
    steps = tf.data.Dataset.range(start, stop)
    batches = steps.map(lambda step: tf.numpy_function(produce, [step], dtypes)).prefetch(_PREFETCHED)
    iterator = batches.with_options(options).as_numpy_iterator()
    return (dict(zip(names, fields, strict=True)) for fields in iterator)


def _of_python(make: Callable[[int], Batch], shapes: dict[str, Any], start: int, stop: int) -> Iterator[Batch]:
    """Yield the batches from a thread of this process."""

    def produce(step: int) -> Batch:
        batch = make(step)
        return {name: batch[name] for name in shapes}

    thread = ThreadPoolExecutor(1, "batches")
    try:
        steps = iter(range(start, stop))
        pending = collections.deque(thread.submit(produce, step) for step in itertools.islice(steps, _PREFETCHED))
        while pending:
            batch = pending.popleft().result()
            pending.extend(thread.submit(produce, step) for step in itertools.islice(steps, 1))
            yield batch
    finally:
        thread.shutdown(cancel_futures=True)


def _end(ending: Callable[[], None], state: dict[str, Any]) -> None:
    ending()
    state.clear()


class RowSource(abc.ABC):
    """Reads rows of a layout for the training loop, from one dataset or several."""

    def __init__(self, layout: Layout, vocabulary: Vocabulary, seed: int):
        self.vocabulary = vocabulary
        self._layout = layout
        self._seed = seed
        self.rows = functools.cache(self._open_rows)

    @abc.abstractmethod
    def _open_rows(self, split: str, sequence_length: int) -> LayoutRows:
        """Open the rows of that length of "train" or "validation"; `rows` caches them."""

    def batch(self, phase: Any) -> dict[str, Any]:
        """Return a dict from field to shape and dtype of the phase's global batches."""
        return self._layout.batch(phase.batch_size, phase.sequence_length)

    def held_out(self, sequence_length: int) -> int:
        """Return the number of rows of that length in the held-out text."""
        return self.rows("validation", sequence_length).count

    def evaluation(self, phase: Any, places: np.ndarray | None = None) -> Batches:
        """Return the held-out batches, or only the rows `places` of each.

        Every row occurs once, in the same order for every seed. Unused positions of the last batch have row_ids -1 and
        segment_ids 0. Without held-out text there are no batches.
        """
        rows = self.rows("validation", phase.sequence_length)
        places = np.arange(phase.batch_size) if places is None else places

        def make(step: int) -> Batch:
            return self._batch(rows, rows.evaluation(step, phase.batch_size, places), step == 0)

        return self._batches(make, phase, 0, rows.evaluation_steps(phase.batch_size))

    def _key(self, phase: Any) -> np.ndarray:
        """Return the key of the order of a phase's rows."""
        return order.fold_in(order.fold_in(self._seed, 1), phase.index)

    def _batches(self, make: Callable[[int], Batch], phase: Any, start: int, stop: int) -> Batches:
        return Batches(make, self.batch(phase), start, stop=stop)

    def _batch(self, rows: LayoutRows, which: np.ndarray, is_first: bool) -> Batch:
        exists = which >= 0
        fields = rows.fields(which[exists])
        if not exists.all():
            fields = {name: self._spread(name, array, exists) for name, array in fields.items()}
        return fields | {"row_ids": which.astype(np.int32), "is_first": (exists & is_first).astype(np.int32)}

    def _spread(self, name: str, array: np.ndarray, exists: np.ndarray) -> np.ndarray:
        """Return the rows of `array` at the positions in `exists`, and empty rows at the others."""
        empty = max(self.vocabulary.pad, 0) if name in _TOKENS else 0
        out = np.full((len(exists), *array.shape[1:]), empty, array.dtype)
        out[exists] = array
        return out


class DatasetSource(RowSource):
    """Reads a prepared dataset for the training loop."""

    def __init__(self, layout: Layout, dataset: Dataset, vocabulary: Vocabulary, seed: int):
        super().__init__(layout, vocabulary, seed)
        self.dataset = dataset

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the prepared dataset, the same in any folder."""
        return self.dataset.fingerprint

    @property
    def unigram_counts(self) -> np.ndarray:
        """Number of times that each token is a target in the training text, int64 [V]."""
        return self._layout.target_counts(self.dataset, self.vocabulary)

    def epoch_rows(self, sequence_length: int) -> int:
        """Return the number of rows of that length in one pass over the training text."""
        return self.rows("train", sequence_length).count

    def train(self, phase: Any, start: int, places: np.ndarray | None = None) -> Batches:
        """Return the phase's global batches start, start + 1, ... without end, or only the rows `places` of each.

        The order of the rows depends on the seed, the phase and the epoch.

        phase: object with sequence_length, batch_size and index (0 for the first phase).

        Raises:
            UserError: the text does not fill one batch.
        """
        rows = self.rows("train", phase.sequence_length)
        places = np.arange(phase.batch_size) if places is None else places
        if rows.count < phase.batch_size:
            raise UserError(
                f"Expected text for a batch of {phase.batch_size} rows of {phase.sequence_length} tokens, found that "
                f"{self.dataset.directory} fills {rows.count}; prepare more text or lower --training.batch_size."
            )
        key = self._key(phase)

        def make(step: int) -> Batch:
            which = rows.train(step, phase.batch_size, places, key)
            return self._batch(rows, which, rows.is_first(step, phase.batch_size))

        return self._batches(make, phase, start, np.iinfo(np.int64).max)

    def _open_rows(self, split: str, sequence_length: int) -> LayoutRows:
        rows = self._layout.rows(self.dataset, split, sequence_length, vocabulary=self.vocabulary, seed=self._seed)
        if rows.count > np.iinfo(np.int32).max:
            raise UserError(
                f"Expected at most {np.iinfo(np.int32).max} rows, found that {self.dataset.directory} gives "
                f"{rows.count} of {sequence_length} tokens; lower --data.layout.duplicates or split the text."
            )
        return rows
