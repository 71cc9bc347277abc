"""Conversion of units by processes of this machine, or on a cluster."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from plmjax.data.preparation.conversion import Conversion
from plmjax.data.preparation.progress import Progress
from plmjax.data.preparation.units import Unit
from plmjax.data.workers import WAITING, Workers


class Pool:
    """Converts units with `processes` processes, or with a runner of Apache Beam.

    If there are fewer units than processes, as with one large compressed file, this process reads the units one after
    another, and the others convert batches of documents.

    output: folder of the dataset. runner, runner_options: see `plmjax.data.beam`; "" uses processes.
    """

    def __init__(
        self,
        conversion: Conversion,
        output: Path,
        processes: int,
        *,
        runner: str = "",
        runner_options: Sequence[str] = (),
    ) -> None:
        self._conversion, self._processes = conversion, processes
        self._on_cluster = bool(runner)
        fields = [getattr(conversion, name) for name in conversion.__dataclass_fields__]
        if runner:
            from plmjax.data.beam import Beam

            self._workers = Beam(runner, runner_options, Conversion, *fields, output=output)
        else:
            advice = "run it again with fewer processes (plmjax prepare --processes): what is finished is kept"
            self._workers = Workers(processes, Conversion, *fields, doing="preparing", advice=advice)

    def __enter__(self) -> Self:
        self._workers.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._workers.__exit__(*error)

    def run(
        self, method: Callable, units: Sequence[Unit], arguments: tuple, *, progress: Progress, reads: bool
    ) -> Iterator[Unit]:
        """Call method(conversion, unit, *arguments) for every unit. Yield the units in order, when each is done.

        reads: whether the method reads the input.
        """
        if not self._on_cluster and (self._processes == 1 or len(units) < self._processes):
            for unit in units:
                method(self._conversion, unit, *arguments, progress=progress, results=self._results)
                yield unit
            return
        done = self._workers.results(method, ((unit, *arguments) for unit in units))
        for unit, _ in zip(units, done, strict=True):
            progress.advance(unit.bytes * reads)
            yield unit

    def compare(self, tasks: Sequence[tuple]) -> None:
        """Call conversion.compare(*task) for every task. A single task is done here, without starting a process."""
        if len(tasks) == 1:
            self._conversion.compare(*tasks[0])
            return
        for _ in self._workers.results(Conversion.compare, tasks):
            pass

    def _results(self, function: Callable, tasks: Iterable[tuple]) -> Iterator[Any]:
        """Call a method on batches. A few batches are done here, without starting processes."""
        tasks = iter(tasks)
        first = list(itertools.islice(tasks, WAITING * self._processes))
        if self._processes == 1 or len(first) < WAITING * self._processes:
            yield from (function(self._conversion, *task) for task in itertools.chain(first, tasks))
        else:
            yield from self._workers.results(function, itertools.chain(first, tasks))
