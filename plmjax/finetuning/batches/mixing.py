"""The rates at which the tasks of a mixture are drawn (Raffel et al., JMLR 2020, section 3.5.2).

Of e_m examples of task m at most K count. The rate of the task is

    r_m = min(e_m, K)^(1 / T) / sum over n of min(e_n, K)^(1 / T)

With a temperature T of 1 this is examples-proportional mixing; a higher one draws small tasks more often, up to equal
mixing where T is infinite.

An epoch has as many examples as count, sum over m of min(e_m, K), whatever T is. The share of a task is drawn from an
endless order of its examples in which each of them comes once before any comes again, and goes on where the last epoch
ended.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from plmjax.data import order

_ORDERS = 1 << 32
"""Above the number of any epoch: keys of the orders of tasks are not those of epochs."""


def rates(sizes: Sequence[int], limit: float = math.inf, temperature: float = 1.0) -> np.ndarray:
    """The rates of tasks with so many examples, float64 [tasks], which sum to 1.

    limit: K. temperature: T, from 1 to infinity.
    """
    shares = np.minimum(sizes, limit) ** (1 / temperature)
    return shares / shares.sum()


@dataclasses.dataclass(frozen=True)
class Mixing:
    """The rates of tasks whose examples stand one after the other.

    sizes: examples of each task. limit: K. temperature: T, from 1 to infinity.
    """

    sizes: tuple[int, ...]
    limit: int
    temperature: float

    def rates(self) -> np.ndarray:
        """The rates of the tasks, float64 [tasks]."""
        return rates(self.sizes, self.limit, self.temperature)

    def drawn(self, epoch: int, key: np.ndarray) -> np.ndarray:
        """The examples of an epoch, int64, task after task.

        The number of each task's examples is rounded over all epochs so far, so that no rate drifts.

        key: of the orders of all epochs (`plmjax.data.order`).
        """
        counts = self.rates() * np.minimum(self.sizes, self.limit).sum()
        firsts = np.cumsum([0, *self.sizes[:-1]])
        parts = []
        for task, (first, size, count) in enumerate(zip(firsts, self.sizes, counts.tolist(), strict=True)):
            numbers = np.arange(round(epoch * count), round((epoch + 1) * count))
            parts.append(first + order.shuffled(numbers, size, order.fold(key, _ORDERS + task)))
        return np.concatenate(parts)
