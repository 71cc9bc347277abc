"""Metrics of a run: those of a step as one array, the means and times of a line, the files and words of a report."""

import io
import json
import math
import re
import threading
import time
import types
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from plmjax.errors import UserError
from plmjax.experiment import Mesh
from plmjax.files import json_text
from plmjax.parallel import mesh as meshes
from plmjax.training import metrics
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


def test_a_resume_takes_back_the_lines_it_will_write_again(tmp_path):
    """A line is on disk as soon as it is written, and a number that JSON cannot write is null."""
    path, file = tmp_path / "metrics.jsonl", metrics.MetricsFile(tmp_path, 0)
    for step in (2, 4, 6):
        file.write(step, {"train/loss": 0.1 * step})
        assert json.loads(path.read_text().splitlines()[-1])["train/loss"] == 0.1 * step
    file.close()
    with path.open("a") as lines:
        lines.write('{"step": 8, "train/lo')  # a kill cut this short
    file = metrics.MetricsFile(tmp_path, 4)
    file.write(6, {"train/loss": float("inf")})
    file.close()
    found = metrics.read(path)
    assert [(line["step"], line["train/loss"]) for line in found] == [(2, 0.2), (4, 0.4), (6, None)]
    assert all(line["time"] > 1.7e9 for line in found)


def test_tensorboard_reads_what_each_start_wrote_while_the_run_goes_on(tmp_path):
    """The records are read by hand here: TensorBoard's reader loads for 6 s."""
    from tensorboard.compat.proto.event_pb2 import Event

    before = time.time()
    metrics.MetricsFile(tmp_path, 0).close()
    file = metrics.MetricsFile(tmp_path, 4)
    file.write(6, {"train/loss": 0.5, "learning_rate": 0.25})
    _, path = sorted((tmp_path / "tensorboard").glob("events.out.tfevents.*"))
    records, found = path.read_bytes(), []
    while records:  # each has its length, a checksum of it, and one behind
        size = int.from_bytes(records[:8], "little")
        found, records = [*found, Event.FromString(records[12 : 12 + size])], records[16 + size :]
    version, session, event = found
    assert version.file_version == "brain.Event:2" and (session.step, session.session_log.status) == (5, 1)  # START
    assert all(before <= one.wall_time <= time.time() for one in found)
    values = {value.tag: value.simple_value for value in event.summary.value}
    assert (event.step, values) == (6, {"train/loss": 0.5, "learning_rate": 0.25})
    file.close()


@pytest.mark.parametrize(
    ("damaged", "sentence"),
    [
        (b"step 2\n", r"Expected JSON in line 2 of "),
        (b'{"step": "2"}\n', r"Expected a record with its step in line 2 of .*; remove that line"),
        (b"[2]\n", "Expected a record with its step in line 2"),
        (metrics.to_line({"step": 2, "train/loss": 4.5}).replace("4.5", "4.6").encode(),
         r"Expected line 2 of .* as it was written, found another checksum"),
        (b'{"step": 2\xff}\n', "Expected UTF-8 text"),
        (None, "found no such file"),
    ],
)  # fmt: skip
def test_what_is_no_metrics_file_is_named(damaged, sentence, tmp_path):
    first, last = (metrics.to_line({"step": step, "train/loss": 4.5}).encode() for step in (1, 3))
    if damaged is not None:
        (tmp_path / "metrics.jsonl").write_bytes(first + damaged + last)
    with pytest.raises(UserError, match=sentence):
        metrics.read(tmp_path / "metrics.jsonl")


def test_numbers_that_json_cannot_write_become_null():
    """A perplexity beyond a float is infinite."""
    nested = {"mean": {"a": float("nan")}, "rows": [{"b": [float("-inf"), 1.5]}], "c": metrics.perplexity(3000.0)}
    assert json_text.parse(metrics.to_json(nested)) == {"mean": {"a": None}, "rows": [{"b": [None, 1.5]}], "c": None}
    assert metrics.perplexity(0.0) == 1.0 and metrics.perplexity(3000.0) == float("inf")


def test_a_terminal_of_any_width_shows_step_and_numbers(monkeypatch):
    shown = io.StringIO()
    shown.isatty = lambda: True
    monkeypatch.setattr("sys.stdout", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    terminal = metrics.Terminal(1_000_000, 0)
    terminal.print("devices  8 x cpu")
    values = {"train/loss": 2.5, "train/accuracy": 0.5, "train/next_sentence_accuracy": 0.75}
    terminal.show_logged(123_456, values | {"learning_rate": 1e-4, "tokens_per_second": 5e4, "mfu": 0.4}, 184.0)
    terminal.close()
    words = " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue()).split())
    assert "123456/1000000" in words and "devices 8 x cpu" in words
    assert "loss 2.5000 acc 50.00% next sentence acc 75.00% lr 1.00e-04 50.0k tok/s mfu 40.0% eta 3:04 min" in words


def test_steps_between_two_logged_ones_are_told_by_time(capsys, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(metrics.time, "monotonic", lambda: clock[0])
    terminal = metrics.Terminal(900, 0)

    for step in range(1, 42):  # a second each
        terminal.show_unlogged(step, {"loss": 2.5}, None if step == 1 else (5e4, 184.0))
        if step == 25:
            values = {"train/loss": 3.5, "learning_rate": 1e-4, "tokens_per_second": 5e4, "mfu": 0.4}
            terminal.show_logged(step, values, 184.0)
        clock[0] += 1
    terminal.close()
    told = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    assert told == ["1/900", "11/900", "21/900", "25/900", "35/900"]  # the first at once, then after ten silent seconds


def test_what_takes_long_is_told_again_and_again(capsys, monkeypatch):
    monkeypatch.setattr(metrics, "QUIET_SECONDS", 0.02)
    terminal = metrics.Terminal(900, 0)
    terminal.set_activity("compiling")
    said = ""
    while said.count("compiling, 0 s so far") < 2:
        said += capsys.readouterr().out
    terminal.close()
    assert "terminal" not in [thread.name for thread in threading.enumerate()]


def test_numbers_and_durations_fit_their_column():
    numbers = {0.0: "0", 2.34567: "2.346", 0.00003: "3.0e-05", 9999.0: "9999", 10000.0: "10.0k", 42150.0: "42.1k",
               4.215e6: "4.2M", 9.9e12: "9.9T", float("nan"): "nan"}  # fmt: skip
    assert [metrics.compact(value) for value in numbers] == [*numbers.values()]
    seconds = {12: "12 s", 59.4: "59 s", 59.9: "1:00 min", 184: "3:04 min", 3599: "59:59 min", 3600: "1:00 h",
               18360: "5:06 h"}  # fmt: skip
    assert [metrics.duration(value) for value in seconds] == [*seconds.values()]


def test_an_activity_that_fails_is_announced_no_more() -> None:
    with pytest.raises(ValueError), metrics.announced("reading"):
        raise ValueError
    assert "announced" not in {thread.name for thread in threading.enumerate()}
