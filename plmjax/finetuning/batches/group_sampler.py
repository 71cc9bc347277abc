"""Sampling of the group of examples for each batch.

Each batch samples its group independently, with a probability proportional to the square root of the group's size, as
cross-view training samples a task (Clark et al. 2018; tensorflow/models research/cvt_text training/trainer.py). Small
tasks are sampled more often than their fraction of the examples.
"""

import numpy as np

from plmjax.data import mixing, order

TEMPERATURE = 2.0
"""T of the rates of groups (plmjax/data/mixing.py): rates are proportional to the square roots of the sizes."""
_BLOCK = 4096
"""Number of batches that are sampled together."""


class GroupSampler:
    """The group of every batch, a function of the batch's number and the key only.

    sizes: number of examples of every group. key: a key of `plmjax.data.order`.
    """

    def __init__(self, sizes: tuple[int, ...], key: np.ndarray) -> None:
        self._ends = np.cumsum(mixing.rates(sizes, temperature=TEMPERATURE))[:-1]
        self._key, self._groups = key, len(sizes)
        self._blocks: list[np.ndarray] = []
        self._before = [np.zeros(self._groups, np.int64)]

    def __call__(self, number: int) -> tuple[int, int]:
        """Return (group of a batch, number of earlier batches of the same group)."""
        block, within = divmod(number, _BLOCK)
        while len(self._blocks) <= block:
            numbers = len(self._blocks) * _BLOCK + np.arange(_BLOCK)
            drawn = (order.fold_in(self._key, numbers) >> np.uint64(11)).astype(np.float64) * 2.0**-53
            self._blocks.append(np.searchsorted(self._ends, drawn, side="right"))
            self._before.append(self._before[-1] + np.bincount(self._blocks[-1], minlength=self._groups))
        group = self._blocks[block][within]
        return int(group), int(self._before[block][group] + np.sum(self._blocks[block][:within] == group))
