"""The times and the means that a line of the log has, and the metrics of a step as one array."""

import math
import types
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from plmjax.experiment import Mesh
from plmjax.parallel import mesh as meshes
from plmjax.training import step_timer as pace
from plmjax.training.step_metrics import StepMetrics
from plmjax.training.step_timer import MetricsWindow, StepTimer


def test_a_mean_is_that_of_the_steps_that_have_the_metric() -> None:
    """A resumed run begins with the sums of its checkpoint. A loss that is no number shows: a mean over the other
    steps would hide that the training has failed."""
    window = MetricsWindow({"loss": (4.0, 2)})
    window.add({"loss": 8.0, "accuracy": math.nan, "learning_rate": 1.0})
    window.add({"loss": 3.0, "accuracy": 0.5, "learning_rate": 1.0})
    assert window.means() == {"train/loss": pytest.approx(15 / 4), "train/accuracy": 0.5}
    assert window.means() == {}
    for loss in (1.0, math.nan):
        window.add({"loss": loss})
    assert math.isnan(window.means()["train/loss"])


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], float]:
    """Lets seconds pass on the clock of the timer."""
    now = [50.0]

    def wait(seconds: float) -> float:
        now[0] += seconds
        return seconds

    monkeypatch.setattr(pace, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))
    return wait


def test_the_seconds_of_a_step_leave_out_what_is_done_between_steps(passes: Callable[[float], float]) -> None:
    """An evaluation of 100 seconds takes no time of a step, nor do the steps before a line."""
    measured, metrics = StepTimer(), StepMetrics.join({"loss": jnp.float32(2)})
    assert measured.throttle() is None and measured.next_batch(iter(range(1))) == 0
    passes(3)
    measured.add(metrics)
    assert measured.steps == 0 and measured.seconds == 3 and measured.throttle() is None
    measured.add(StepMetrics.join({"loss": jnp.float32(1)}))
    passes(2)
    assert measured.steps == 1 and measured.seconds == 5 and measured.throttle() is metrics
    assert measured.drain() == [{"loss": 2}, {"loss": 1}]
    assert (measured.steps, measured.seconds, measured.input_wait) == (2, 2.5, 0)
    passes(100)
    measured.resume()
    for _ in range(2):
        measured.next_batch(passes(4) for _ in range(1))  # while nothing is computed
        measured.add(metrics)
        passes(1)
        measured.drain()
        measured.resume()
    assert (measured.steps, measured.seconds, measured.input_wait) == (4, (5 + 2 * 5) / 4, 8 / 15)
    measured.restart()
    measured.add(metrics)
    passes(7)
    measured.drain()
    assert (measured.steps, measured.seconds, measured.input_wait) == (1, 7, 0)


def test_a_wait_for_a_batch_counts_once_the_last_of_two_steps_has_ended(passes: Callable[[float], float]) -> None:
    """Two steps are computed for 4 seconds, one of them for 1 second more. In the last 3 seconds none is computed."""

    class Values(list):
        """The metrics of a step that is being computed until it is ready."""

        ready = False

        def is_ready(self) -> bool:
            return self.ready

    def batches(seconds: float) -> Iterator[float]:
        yield passes(seconds)

    measured, steps = StepTimer(), (Values([2]), Values([1]))
    for values in steps:
        measured.add(StepMetrics(values, ("loss",)))
    assert measured.next_batch(batches(4)) == 4
    for values, seconds in zip(steps, (1, 3), strict=True):
        values.ready = True
        measured.next_batch(batches(seconds))
    measured.drain()
    assert measured.input_wait == 3 / 8


def test_joined_metrics_are_those_of_the_scalars_to_the_bit() -> None:
    """On eight devices, of every dtype that a step may return, in the order of the names. What float32 would round,
    such as a count above 2**24, is refused."""
    scalars = {
        "loss": jnp.float32(math.pi),
        "accuracy": jnp.float32(np.nan),
        "gradient_norm": jnp.float32(np.finfo(np.float32).smallest_normal),
        "half": jnp.bfloat16(1 / 3),
        "other_half": jnp.float16(1 / 3),
    }
    whole = NamedSharding(meshes.make(Mesh(), jax.devices()), PartitionSpec())
    metrics = jax.jit(StepMetrics.join, out_shardings=whole)(scalars)
    assert len(jax.tree.leaves(metrics)) == 1 and metrics.array.dtype == jnp.float32
    timer = StepTimer()
    timer.add(metrics)
    (found,) = timer.drain()
    assert [*found] == [*metrics] == sorted(scalars) and "targets" not in metrics
    for name, value in scalars.items():
        assert type(found[name]) is float
        np.testing.assert_array_equal([found[name], metrics[name]], float(value))
    for value in (jnp.int32(2**24 + 1), jnp.ones(2)):
        with pytest.raises(TypeError, match="Expected a float32 scalar as the metric targets, found"):
            StepMetrics.join({"loss": jnp.float32(1), "targets": value})
