"""What the rows of a split are to the pipeline, whatever their layout."""

import numpy as np

from plmjax.data import order

Fields = dict[str, np.ndarray]


class Rows:
    """Rows 0..count-1 of a split under one layout."""

    count: int

    def train(self, step: int, batch_size: int, rows: np.ndarray, key: np.ndarray) -> np.ndarray:
        """Which rows the places `rows` of global batch `step` hold, int64: a new order every epoch, without a seam."""
        return order.shuffled(step * batch_size + rows, self.count, key)

    def evaluation_steps(self, batch_size: int) -> int:
        """Batches that hold every row once."""
        return -(-self.count // batch_size)

    def evaluation(self, step: int, batch_size: int, rows: np.ndarray) -> np.ndarray:
        """As `train`, every row once and in order; -1 where none is left."""
        numbers = step * batch_size + rows
        return np.where(numbers < self.count, numbers, -1)

    def fields(self, rows: np.ndarray) -> Fields:
        """The fields of these rows, without row_ids; every row must exist."""
        raise NotImplementedError(f"{type(self).__name__} must say what a row holds.")
