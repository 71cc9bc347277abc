"""The choice of the best evaluation, and the end of a run that has waited long enough."""

import math

import pytest

from plmjax.training.checkpoints.best import Best


@pytest.mark.parametrize(("metric", "sign"), [("eval/loss", 1), ("-eval/f1", -1)])
def test_only_a_better_score_ends_the_waiting(metric: str, sign: int) -> None:
    """An equal one does not; nor does an evaluation without the metric count, and NaN is the worst score."""
    best, record, found = Best(metric, patience=2), None, []
    for value in (3.0, 2.0, 2.0, None, math.nan, 1.0):
        record = best.after(record, {} if value is None else {best.name: sign * value})
        found.append((*record, best.exhausted(record)))
    assert found == [(3, 0, False), (2, 0, False), (2, 1, False), (2, 1, False), (2, 2, True), (1, 0, False)]


def test_without_patience_no_run_is_exhausted() -> None:
    assert not Best("eval/loss").exhausted((1.0, 99)) and not Best("eval/loss", patience=1).exhausted(None)
