"""The rates at which the tasks of a mixture are sampled (Raffel et al., JMLR 2020, section 3.5.2).

At most K of the e_m examples of task m count. The rate of the task is

    r_m = min(e_m, K)^(1 / T) / sum over n of min(e_n, K)^(1 / T)

A temperature T of 1 is examples-proportional mixing. A higher T samples small tasks more often, up to equal mixing for
an infinite T.

The number of examples of an epoch is the sum over m of min(e_m, K) for every T. The share of a task is taken from an
endless order of its examples. In this order every example occurs once before any example occurs again. Each epoch
continues where the last epoch ended.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from plmjax.data import order

_ORDERS = 1 << 32
"""A number above that of any epoch: keys of the orders of tasks differ from keys of epochs."""


def rates(sizes: Sequence[int], limit: float = math.inf, temperature: float = 1.0) -> np.ndarray:
    """Return the rates of tasks with these numbers of examples, float64 [tasks]. Their sum is 1.

    limit: K. temperature: T, from 1 to infinity.
    """
    shares = np.minimum(sizes, limit) ** (1 / temperature)
    return shares / shares.sum()


@dataclasses.dataclass(frozen=True)
class Mixing:
    """The rates of tasks whose examples are stored one task after the other.

    sizes: number of examples of each task. limit: K. temperature: T, from 1 to infinity.
    """

    sizes: tuple[int, ...]
    limit: int
    temperature: float

    def rates(self) -> np.ndarray:
        """Return the rates of the tasks, float64 [tasks]."""
        return rates(self.sizes, self.limit, self.temperature)

    def drawn(self, epoch: int, key: np.ndarray) -> np.ndarray:
        """Return the examples of an epoch, int64, task after task.

        The number of examples of each task is rounded over all epochs so far. So no rate drifts.

        key: key of the orders of all epochs (`plmjax.data.order`).
        """
        counts = self.rates() * np.minimum(self.sizes, self.limit).sum()
        firsts = np.cumsum([0, *self.sizes[:-1]])
        parts = []
        for task, (first, size, count) in enumerate(zip(firsts, self.sizes, counts.tolist(), strict=True)):
            numbers = np.arange(round(epoch * count), round((epoch + 1) * count))
            parts.append(first + order.shuffled(numbers, size, order.fold(key, _ORDERS + task)))
        return np.concatenate(parts)
