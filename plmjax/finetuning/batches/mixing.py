"""The examples of a mixture of tasks in each epoch (Raffel et al., JMLR 2020, section 3.5.2).

The rates of the tasks follow from weights or from numbers of examples e_m (plmjax/data/mixing.py). For any rates, the
number of examples of an epoch is the sum over tasks m of min(e_m, K). The examples of a task are taken from an endless
order of its examples. In this order every example occurs once before any example occurs again. Each epoch continues
where the last epoch ended.
"""

import dataclasses

import numpy as np

from plmjax.data import mixing, order
from plmjax.data.mixing import Portion

_ORDERS = 1 << 32
"""A number above the number of any epoch, so that the keys of the orders of tasks differ from the keys of epochs."""


@dataclasses.dataclass(frozen=True)
class Mixing:
    """The rates of tasks whose examples are stored one task after the other.

    sizes: number of examples of each task, by its name. limit: K. temperature: T, from 1 to infinity.
    weights: weight of each task, by its name, which sets the rates in place of the sizes; empty for none.
    """

    sizes: dict[str, int]
    limit: int
    temperature: float
    weights: dict[str, float] = dataclasses.field(default_factory=dict)

    def rates(self) -> np.ndarray:
        """Return the rates of the tasks, float64 [tasks]."""
        if self.weights:
            weights = np.array([self.weights[name] for name in self.sizes])
            return weights / weights.sum()
        return mixing.rates(tuple(self.sizes.values()), self.limit, self.temperature)

    def counts(self) -> np.ndarray:
        """Return the number of examples of each task in an epoch before rounding, float64 [tasks]."""
        return self.rates() * np.minimum(tuple(self.sizes.values()), self.limit).sum()

    def sample_epoch(self, epoch: int, key: np.ndarray) -> np.ndarray:
        """Return the examples of an epoch, int64, task after task.

        The number of examples of each task is rounded over all epochs so far, so that no rate drifts.

        key: key of the orders of all epochs (`plmjax.data.order`).
        """
        sizes = tuple(self.sizes.values())
        firsts = np.cumsum([0, *sizes[:-1]])
        parts = []
        for task, (first, size, count) in enumerate(zip(firsts, sizes, self.counts().tolist(), strict=True)):
            numbers = np.arange(round(epoch * count), round((epoch + 1) * count))
            parts.append(first + order.shuffle(numbers, size, order.fold_in(key, _ORDERS + task)))
        return np.concatenate(parts)

    def portions(self, epochs: float) -> dict[str, Portion]:
        """Return the rate of each task, and the number of passes over its examples in `epochs` epochs."""
        parts = zip(self.sizes.items(), self.rates().tolist(), self.counts().tolist(), strict=True)
        return {name: Portion(rate, epochs * count / size) for (name, size), rate, count in parts}
