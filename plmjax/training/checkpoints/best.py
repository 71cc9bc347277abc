"""The best evaluation of a run: comparison of evaluations, and early stopping."""

import dataclasses
import math
from collections.abc import Mapping

from plmjax.experiment import Experiment

Record = tuple[float, int]
"""(best score so far, number of evaluations since then)."""


@dataclasses.dataclass(frozen=True)
class Best:
    """The comparison of a run's evaluations.

    Attributes:
        metric: a metric of the evaluation, such as eval/loss. A leading `-` means that larger is better; the empty
            string compares nothing.
        patience: number of evaluations without improvement after which the run ends; 0 never ends it.
    """

    metric: str
    patience: int = 0

    @classmethod
    def of(cls, run: Experiment) -> "Best":
        """Return the settings of an experiment."""
        return cls(run.checkpoint.best, run.training.patience)

    @property
    def name(self) -> str:
        """Return the metric without its sign."""
        return self.metric.removeprefix("-")

    def score(self, metrics: Mapping[str, float] | None) -> float | None:
        """Return a number that is smallest for the best evaluation, or None if the metric was not computed.

        NaN, such as the correlation of a constant, is the worst score.
        """
        value = (metrics or {}).get(self.name)
        if value is None:
            return None
        return math.inf if math.isnan(value) else -value if self.metric.startswith("-") else value

    def after(self, record: Record | None, metrics: Mapping[str, float]) -> Record | None:
        """Return the record after one more evaluation."""
        score = self.score(metrics)
        if score is None:
            return record
        best, since = record or (math.inf, 0)
        return (score, 0) if score < best else (best, since + 1)

    def exhausted(self, record: Record | None) -> bool:
        """Return whether the last `patience` evaluations did not improve on the best one."""
        return bool(self.patience and record and record[1] >= self.patience)
