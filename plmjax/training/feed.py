"""Sources of batches, and the transfer of batches to the devices of a mesh."""

import collections
import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, runtime_checkable

import jax
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.mixing import Portion
from plmjax.experiment.phases import ResolvedPhase
from plmjax.training.initial_state import Shapes

HostBatch = dict[str, np.ndarray]


class BatchSource(Protocol):
    """A source of batches: a prepared dataset, or the examples of a downstream task.

    vocabulary: the vocabulary of the tokenizer.
    unigram_counts: int64 [V], occurrences of every token in the training text; None in fine-tuning.
    fingerprint: digest of the data. A run cannot be resumed with data of another fingerprint.
    """

    vocabulary: Vocabulary
    unigram_counts: np.ndarray | None
    fingerprint: str

    def batch(self, phase: ResolvedPhase) -> dict[str, jax.ShapeDtypeStruct]:
        """Return a dict from field to shape and dtype of the phase's global batch."""

    def train(self, phase: ResolvedPhase, start: int, places: np.ndarray) -> Iterator[HostBatch]:
        """Yield the rows `places` (those of this host) of the phase's global batches `start`, `start` + 1, ..."""

    def evaluation(self, phase: ResolvedPhase, places: np.ndarray) -> Iterator[HostBatch]:
        """Yield the rows `places` of the held-out batches, once and in order; padding rows have weight 0."""


@runtime_checkable
class HasPhases(Protocol):
    """A source of batches whose phases read texts of their own."""

    def in_phase(self, phase: ResolvedPhase) -> BatchSource:
        """Return the source of the phase's text."""


def source_in_phase(source: BatchSource, phase: ResolvedPhase) -> BatchSource:
    """Return the source of the text that a phase reads."""
    return source.in_phase(phase) if isinstance(source, HasPhases) else source


@runtime_checkable
class Mixes(Protocol):
    """A source of batches that mixes several named sources: datasets, or tasks."""

    def portions(self, phases: Sequence[ResolvedPhase], step: int) -> dict[str, Portion]:
        """Return source -> portion after `step` steps of a run with these phases; empty if there is only one source."""


def mixture_metrics(source: BatchSource, phases: Sequence[ResolvedPhase], step: int) -> dict[str, float]:
    """Return mixture/NAME/share and mixture/NAME/epochs of each source that a batch source mixes."""
    portions = source.portions(phases, step) if isinstance(source, Mixes) else {}
    return {
        f"mixture/{name}/{what}": value
        for name, portion in portions.items()
        for what, value in (("share", portion.fraction), ("epochs", portion.epochs))
    }


def local_rows(shapes: Shapes) -> np.ndarray:
    """Return the rows of global batches of these shapes on the devices of this host, int64, ascending."""
    spec = next(iter(shapes.values()))
    shards = spec.sharding.addressable_devices_indices_map(spec.shape).values()
    return np.unique(np.concatenate([np.arange(spec.shape[0])[shard[0]] for shard in shards]))


def on_device(batches: Iterator[HostBatch], shapes: Shapes, ahead: int = 2) -> Iterator[dict[str, jax.Array]]:
    """Yield batches as global arrays with the shardings of `shapes`; a thread transfers each batch `ahead` steps early.

    batches: batches of the rows `local_rows(shapes)`.
    """
    own_rows, size = local_rows(shapes), next(iter(shapes.values())).shape[0]

    def place(batch: HostBatch) -> dict[str, jax.Array]:
        def shard(rows: np.ndarray, index: tuple[slice, ...]) -> np.ndarray:
            start, stop, _ = index[0].indices(size)
            first = np.searchsorted(own_rows, start)  # the rows of a device are contiguous, here and in the batch
            return rows[first : first + stop - start]

        return {
            name: jax.make_array_from_callback(spec.shape, spec.sharding, functools.partial(shard, batch[name]))
            for name, spec in shapes.items()
        }

    def fetch() -> dict[str, jax.Array] | None:
        batch = next(batches, None)
        return None if batch is None else place(batch)

    try:
        with ThreadPoolExecutor(1, "batches") as thread:  # one, so that batches stay in order
            pending = collections.deque(thread.submit(fetch) for _ in range(ahead))
            while (batch := pending.popleft().result()) is not None:
                pending.append(thread.submit(fetch))
                yield batch
    finally:
        getattr(batches, "close", lambda: None)()
