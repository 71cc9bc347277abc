"""The best evaluation of a run: how evaluations are compared, and when a run stops without a better one."""

import dataclasses
import math
from collections.abc import Mapping

from plmjax.experiment import Experiment

Record = tuple[float, int]
"""The best score so far, and how many evaluations have come after it."""


@dataclasses.dataclass(frozen=True)
class Best:
    """The comparison of a run's evaluations.

    metric: a metric of the evaluation, such as eval/loss; with a leading `-` larger is better. Empty: none.
    patience: evaluations without a better one after which the run ends; 0: never.
    """

    metric: str
    patience: int = 0

    @classmethod
    def of(cls, run: Experiment) -> "Best":
        """The settings of an experiment."""
        return cls(run.checkpoint.best, run.training.patience)

    @property
    def name(self) -> str:
        """The metric without its sign."""
        return self.metric.removeprefix("-")

    def score(self, metrics: Mapping[str, float] | None) -> float | None:
        """A number that is smallest for the best evaluation; None where the metric was not computed.

        NaN, such as the correlation of a constant, is the worst score.
        """
        value = (metrics or {}).get(self.name)
        if value is None:
            return None
        return math.inf if math.isnan(value) else -value if self.metric.startswith("-") else value

    def after(self, record: Record | None, metrics: Mapping[str, float]) -> Record | None:
        """The record after one more evaluation."""
        score = self.score(metrics)
        if score is None:
            return record
        best, since = record or (math.inf, 0)
        return (score, 0) if score < best else (best, since + 1)

    def exhausted(self, record: Record | None) -> bool:
        """Return whether the run has waited for `patience` evaluations without a better one."""
        return bool(self.patience and record and record[1] >= self.patience)
