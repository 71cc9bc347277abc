"""The hours of a job, told apart by its events and its logged steps."""

import json
from pathlib import Path

import pytest

from plmjax import experiment as experiments
from plmjax.training import metrics
from tests.tpu.jobs import job_of
from tpu import goodput
from tpu.events import Event
from tpu.goodput import Goodput, Line
from tpu.job import Verdict

HOUR = 3600.0


def measured(marks: list[tuple[float, str]], lines: list[tuple[float, float]], now: float | None) -> list[float]:
    """Hours of a job whose events and lines have these hours: productive, restarting, waiting, lost."""
    known = [Event(hour * HOUR, kind) for hour, kind in marks]
    logged = [Line(hour * HOUR, spent * HOUR) for hour, spent in lines]
    found = goodput.measure(known, logged, None if now is None else now * HOUR)
    return [round(value / HOUR, 6) for value in (found.productive, found.restarting, found.waiting, found.lost)]


BEGIN = [(100.0, "requested"), (102.0, "active"), (102.1, "started")]


@pytest.mark.parametrize(
    ("marks", "lines", "now", "hours"),
    [
        (BEGIN[:1], [], 101, [0, 0, 1, 0]),
        (BEGIN, [], 102.5, [0, 0.5, 2, 0]),  # installs, starts, compiles
        (BEGIN, [(103, 0.25)], 103.4, [0.25, 0.75, 2, 0]),
        (BEGIN, [(103, 0.25), (104, 0.75)], 104.4, [1.25, 0.75, 2, 0]),  # a checkpoint is a part of the hour
        # Stopped at 104.5 after a checkpoint at 104, which is the last kept line; a slice again at 106.
        ([*BEGIN, (104.5, "lost"), (106, "active")], [(103, 0.25), (104, 1)], 106.5, [1.25, 1.25, 3.5, 0.5]),
        ([*BEGIN, (104.5, "lost"), (106, "active")], [(103, 0.25), (104, 1), (107, 0.5)], 107, [1.75, 1.25, 3.5, 0.5]),
        # A crash on the same slice.
        ([*BEGIN, (104.5, "ended"), (104.6, "started")], [(103, 0.25), (104, 1), (105, 0.3)], 105,
         [1.55, 0.95, 2, 0.5]),
        # The last hour of a run that is done is no loss; what comes after the end is not its time.
        ([*BEGIN, (104.1, "ended"), (104.2, "done")], [(103, 0.25), (104, 1)], None, [1.25, 0.95, 2, 0]),
        # Failed, and submitted again ten hours later.
        ([*BEGIN, (104, "failed"), (114, "requested"), (115, "active")], [(103, 0.25)], 115.5, [0.25, 1.25, 3, 1]),
        ([*BEGIN, (104, "failed")], [(103, 0.25)], None, [0.25, 0.75, 2, 1]),
        ([], [(103, 0.25), (104, 1)], None, [1.25, 0, 0, 0]),  # on Kubernetes, before there were events
    ],
)  # fmt: skip
def test_each_hour_has_one_kind(marks: list, lines: list, now: float | None, hours: list[float]) -> None:
    assert measured(marks, lines, now) == hours


def test_the_line_of_status() -> None:
    spent = Goodput(productive=107.5 * HOUR, restarting=3.1 * HOUR, waiting=12.4 * HOUR, lost=9.4 * HOUR)
    assert str(spent) == "81.2 % of 132.4 h: 107.5 h productive, 3.1 h restarting, 12.4 h waiting, 9.4 h lost"


def test_hours_of_steps_come_from_the_rates_of_the_run(bucket: Path) -> None:
    """Two phases have rows of different lengths; the lines before a restored step are kept, and one is half written."""
    job = job_of(bucket)
    assert goodput.of(job, None, 9.0) is None
    folder = bucket / "run"
    folder.mkdir()
    run = experiments.load("experiments/bert_large_8x8.py")
    experiments.write(run, folder / "experiment.json")
    rows = 256 * 128 * 100
    records = [{"step": 100, "time": 1000.0, "tokens_per_second": rows / 50}, {"step": 100, "time": 1001.0}]
    records += [{"step": 200, "time": 1100.0, "tokens_per_second": rows / 60}]
    records += [{"step": 900_100, "time": 2000.0, "tokens_per_second": 1e9}]
    (folder / "metrics.jsonl").write_text("".join(map(metrics.to_line, records)) + json.dumps({"step": 900_200})[:-3])
    first, second, third = goodput._lines(job)
    assert (first, second) == (Line(1000.0, 50), Line(1100.0, 60))
    assert third.seconds == pytest.approx((899_800 * 256 * 128 + 100 * 256 * 512) / 1e9)
    assert goodput.of(job, Verdict("done"), 0.0) == Goodput(productive=1050.0, restarting=0.0, waiting=0.0, lost=0.0)
