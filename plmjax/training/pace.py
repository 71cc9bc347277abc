"""The speed of a run: the steps that are being computed, their metrics, and their time."""

import math
import time
from collections.abc import Iterator
from typing import Any

import jax

Metrics = dict[str, jax.Array]


class Pace:
    """Keeps the device two steps ahead of the host, and measures.

    The time between `drain` and `resume` (logging, evaluating, saving) is not counted.
    """

    def __init__(self) -> None:
        self._pending: list[Metrics] = []
        self._mark = time.perf_counter()
        self.restart()

    def restart(self) -> None:
        """Begins a new series of steps to measure."""
        self._waited, self._elapsed, self._steps = 0.0, 0.0, 0

    def throttle(self) -> Metrics | None:
        """Waits until at most one step is being computed; returns the metrics of the last step done.

        None where the host is not ahead.
        """
        if len(self._pending) < 2:
            return None
        jax.block_until_ready(self._pending[-2])
        return self._pending[-2]

    def next_batch(self, batches: Iterator[Any]) -> Any:
        """The next batch; waiting for it is counted while the device is idle."""
        asked = time.perf_counter()
        batch = next(batches)
        if not self._pending or self._pending[-1]["loss"].is_ready():
            self._waited += time.perf_counter() - asked
        return batch

    def add(self, metrics: Metrics) -> None:
        """Adds a step that has been started."""
        self._pending.append(metrics)

    def drain(self) -> list[dict[str, float]]:
        """Waits for all started steps; returns their metrics as floats, in order."""
        values = [{name: float(value) for name, value in step.items()} for step in jax.device_get(self._pending)]
        self._elapsed += time.perf_counter() - self._mark
        self._steps += len(self._pending)
        self._pending = []
        return values

    def resume(self) -> None:
        """Measures again after `drain`."""
        self._mark = time.perf_counter()

    @property
    def steps(self) -> int:
        """Steps done since `restart`."""
        return self._steps + max(len(self._pending) - 1, 0)

    @property
    def seconds(self) -> float:
        """Mean seconds of a step since `restart`."""
        running = time.perf_counter() - self._mark if self._pending else 0.0
        return (self._elapsed + running) / max(self.steps, 1)

    @property
    def input_wait(self) -> float:
        """Share of the time that the device waited for batches."""
        return self._waited / self._elapsed if self._elapsed else 0.0


class Window:
    """The mean metrics of the steps since the last logged line.

    sums: name -> (sum, steps); a checkpoint saves them, so that a resume logs the same line.
    """

    def __init__(self, sums: dict[str, tuple[float, int]]) -> None:
        self.sums = dict(sums)

    def add(self, metrics: dict[str, float]) -> None:
        """Adds the metrics of one step; those that are no numbers were not in its batch, but for the loss."""
        for name, value in metrics.items():
            if name != "learning_rate" and (name == "loss" or not math.isnan(value)):
                total, count = self.sums.get(name, (0.0, 0))
                self.sums[name] = (total + value, count + 1)

    def means(self) -> dict[str, float]:
        """The means, named as in metrics.jsonl; the window is empty afterwards."""
        means = {f"train/{name}": total / count for name, (total, count) in self.sums.items()}
        self.sums = {}
        return means
