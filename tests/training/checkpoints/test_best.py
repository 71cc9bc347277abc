"""The choice of the best evaluation, and the end of a run that has waited long enough."""

import dataclasses
import math

import pytest

from plmjax import experiment
from plmjax.training.checkpoints import checkpoints
from plmjax.training.checkpoints.best import Best
from tests.training.checkpoints.test_checkpoints import describe, make_state


@pytest.mark.parametrize(("metric", "sign"), [("eval/loss", 1), ("-eval/f1", -1)])
def test_only_a_better_score_ends_the_waiting(metric: str, sign: int) -> None:
    """An equal one does not; nor does an evaluation without the metric count, and NaN is the worst score."""
    best, record, found = Best(metric, patience=2), None, []
    for value in (3.0, 2.0, 2.0, None, math.nan, 1.0):
        record = best.after(record, {} if value is None else {best.name: sign * value})
        found.append((*record, best.out_of_patience(record)))
    assert found == [(3, 0, False), (2, 0, False), (2, 1, False), (2, 1, False), (2, 2, True), (1, 0, False)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("metric", "best"), [("eval/f1", 4), ("-eval/f1", 6)])
def test_a_value_that_is_not_finite_is_never_the_best(metric: str, best: int, value: float) -> None:
    chosen = Best(metric, patience=2)
    assert chosen.score({"eval/f1": value}) == math.inf
    found = {2: {"eval/f1": value}, 4: {"eval/f1": -0.5}, 6: {"eval/f1": 0.5}, 8: {}, 10: {"eval/f1": value}, 12: None}
    assert chosen.step(found) == best
    assert chosen.step({2: {"eval/f1": value}, 8: {}}) is None
    record = chosen.after(chosen.after(None, {"eval/f1": value}), {"eval/f1": value})
    assert chosen.out_of_patience(record)
    assert chosen.describe_wait(record) == "eval/f1 has not had a finite value for 2 evaluations"


@pytest.mark.parametrize(("metric", "value"), [("eval/loss", -0.25), ("eval/loss", 0.25), ("-eval/f1", -0.25)])
def test_the_best_value_is_told_with_its_sign(metric: str, value: float) -> None:
    best = Best(metric, patience=1)
    record = best.after(best.after(None, {best.name: value}), {best.name: value})
    assert best.describe_wait(record) == f"{best.name} has not been better than {value:.4f} for 1 evaluations"


def test_without_patience_no_run_is_exhausted() -> None:
    assert not Best("eval/loss").out_of_patience((1.0, 99)) and not Best("eval/loss", patience=1).out_of_patience(None)


def test_the_best_checkpoint_is_the_one_of_the_metric_that_a_run_prefers(tmp_path) -> None:
    """The earliest of equals; one without an evaluation is none; the last one where nothing was evaluated."""
    losses = {1: 3.0, 2: 1.0, 3: 1.0, 4: None}
    writer = checkpoints.Checkpoints(tmp_path / "checkpoints", experiment.Checkpoint(every=1, keep=0, best="eval/loss"))
    for step, loss in losses.items():
        writer.save(make_state(step), describe(step, metrics={} if loss is None else {"eval/loss": loss}))
    writer.close()
    for best, prefer, chosen in (
        ("eval/loss", "best", "2"),
        ("-eval/loss", "best", "1"),
        ("eval/loss", "last", "4"),
        ("eval/f1", "best", "4"),
    ):
        settings = experiment.Checkpoint(best=best, prefer=prefer)
        run = dataclasses.replace(describe(0).experiment, checkpoint=settings)
        experiment.write(run, tmp_path / "experiment.json")
        assert checkpoints.find(tmp_path).name == chosen
