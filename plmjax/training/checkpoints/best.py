"""The best evaluation of a run: comparison of evaluations, and early stopping."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from plmjax.errors import UserError, nearest, quoted
from plmjax.experiment import Checkpoint, Experiment

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
        """Return the comparison that the settings of an experiment describe."""
        return cls(run.checkpoint.best, run.training.patience)

    @property
    def name(self) -> str:
        """Return the metric without its sign."""
        return self.metric.removeprefix("-")

    def score(self, metrics: Mapping[str, float] | None) -> float | None:
        """Return a number that is smallest for the best evaluation, or None if the metric was not computed.

        A value that is not finite, such as the correlation of a constant, has the worst score, inf.
        """
        value = (metrics or {}).get(self.name)
        if value is None:
            return None
        return math.inf if not math.isfinite(value) else -value if self.metric.startswith("-") else value

    def step(self, metrics: Mapping[int, Mapping[str, float] | None]) -> int | None:
        """Return the step with the best evaluation, the first of equals; None if no evaluation has a finite value.

        metrics: step -> metrics of its evaluation.
        """
        scores = {step: self.score(found) for step, found in metrics.items()}
        finite = [(score, step) for step, score in scores.items() if score is not None and math.isfinite(score)]
        return min(finite)[1] if finite else None

    def after(self, record: Record | None, metrics: Mapping[str, float]) -> Record | None:
        """Return the record after one more evaluation. It is unchanged if the metric was not computed."""
        score = self.score(metrics)
        if score is None:
            return record
        best, since = record or (math.inf, 0)
        return (score, 0) if score < best else (best, since + 1)

    def describe_wait(self, record: Record) -> str:
        """Return a sentence about the evaluations since the best one."""
        score, since = record
        value = -score if self.metric.startswith("-") else score
        than = f"been better than {value:.4f}" if math.isfinite(value) else "had a finite value"
        return f"{self.name} has not {than} for {since} evaluations"

    def out_of_patience(self, record: Record | None) -> bool:
        """Return whether the last `patience` evaluations did not improve on the best one."""
        return bool(self.patience and record and record[1] >= self.patience)


def check_metric(settings: Checkpoint, metrics: Sequence[str]) -> None:
    """Raise UserError unless `checkpoint.best` is empty or names a metric of the evaluation.

    metrics: names of the metrics of an evaluation, without "eval/".
    """
    name, known = Best(settings.best).name, [f"eval/{metric}" for metric in metrics]
    if name and not known:
        raise UserError(
            f"--checkpoint.best {name} needs held-out documents, found none; hold a larger fraction of several "
            f"documents out (--data.held_out; a blank line divides documents), or set --checkpoint.best '' "
            f"--checkpoint.prefer last."
        )
    if name and name not in known:
        raise UserError(
            f"Expected --checkpoint.best to name a metric of the evaluation, found {quoted(name)}; "
            f"{nearest(name, known)}"
        )
