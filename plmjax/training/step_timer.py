"""Step time: the steps that the devices compute, their metrics, and the time that they take."""

import math
import time
from collections.abc import Iterator
from typing import Any

import jax

from plmjax.training.step_metrics import StepMetrics


class StepTimer:
    """Keeps the device at most two steps behind the host, and measures the time of a step.

    The time between `drain` and `resume` (logging, evaluation, checkpoints) is not counted.
    """

    def __init__(self) -> None:
        self._pending: list[StepMetrics] = []
        self._mark = time.perf_counter()
        self.restart()

    def restart(self) -> None:
        """Start a new measurement."""
        self._waited, self._elapsed, self._steps = 0.0, 0.0, 0

    def throttle(self) -> StepMetrics | None:
        """Wait until at most one step is pending, and return the metrics of the last finished step.

        Return None if fewer than two steps have been started since `drain`.
        """
        if len(self._pending) < 2:
            return None
        jax.block_until_ready(self._pending[-2])
        return self._pending[-2]

    def next_batch(self, batches: Iterator[Any]) -> Any:
        """Return the next batch. The wait for it is counted if no step is pending on the device."""
        asked = time.perf_counter()
        batch = next(batches)
        if not self._pending or self._pending[-1].array.is_ready():
            self._waited += time.perf_counter() - asked
        return batch

    def add(self, metrics: StepMetrics) -> None:
        """Add the metrics of a step that was started."""
        self._pending.append(metrics)

    def drain(self) -> list[dict[str, float]]:
        """Wait for all started steps, and return their metrics as floats, in order."""
        values = [step.floats() for step in jax.device_get(self._pending)]
        self._elapsed += time.perf_counter() - self._mark
        self._steps += len(self._pending)
        self._pending = []
        return values

    def resume(self) -> None:
        """Continue the measurement after `drain`."""
        self._mark = time.perf_counter()

    @property
    def steps(self) -> int:
        """Return the number of finished steps since `restart`."""
        return self._steps + max(len(self._pending) - 1, 0)

    @property
    def seconds(self) -> float:
        """Return the mean seconds of a step since `restart`."""
        running = time.perf_counter() - self._mark if self._pending else 0.0
        return (self._elapsed + running) / max(self.steps, 1)

    @property
    def input_wait(self) -> float:
        """Return the fraction of the time in which the device waited for batches."""
        return self._waited / self._elapsed if self._elapsed else 0.0


class MetricsWindow:
    """The mean metrics of the steps since the last logged line.

    sums: name -> (sum, number of steps). A checkpoint saves them, so that a resumed run logs the same line.
    """

    def __init__(self, sums: dict[str, tuple[float, int]]) -> None:
        self.sums = dict(sums)

    def add(self, metrics: dict[str, float]) -> None:
        """Add the metrics of one step, without the learning rate; a NaN is counted only for the loss."""
        for name, value in metrics.items():
            if name != "learning_rate" and (name == "loss" or not math.isnan(value)):
                total, count = self.sums.get(name, (0.0, 0))
                self.sums[name] = (total + value, count + 1)

    def means(self) -> dict[str, float]:
        """Return the means by their names in metrics.jsonl, and empty the window."""
        means = {f"train/{name}": total / count for name, (total, count) in self.sums.items()}
        self.sums = {}
        return means
