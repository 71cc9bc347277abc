"""The status and the logs of a job, its events, and its hours, told apart by its events and its logged steps."""

import json
import re
import shutil
import time
from pathlib import Path

import pytest

from plmjax import experiment as experiments
from plmjax.errors import UserError
from plmjax.training import metrics
from tests.tpu.jobs import job_of
from tpu import events, follow, goodput
from tpu import job as jobs
from tpu.events import Event
from tpu.goodput import Goodput, Line
from tpu.job import Verdict

pytestmark = pytest.mark.usefixtures("checked_once")


def record(folder: Path, **fields: object) -> None:
    """Writes the progress of a run, as its process that prints does."""
    usual = {"step": 6, "steps": 9, "loss": 2.5, "tokens_per_second": 1e6, "seconds_left": 90.0, "checkpoint": 5}
    folder.mkdir(exist_ok=True)
    (folder / "progress.json").write_text(json.dumps(usual | {"time": time.time(), "worker": 0} | fields))


def test_progress_is_one_small_record(tmp_path: Path) -> None:
    assert follow.progress(str(tmp_path)) is None
    record(tmp_path)
    assert str(follow.progress(str(tmp_path))) == "step 6 of 9  loss 2.5000  1.0M tok/s  ETA 1:30 min"
    record(tmp_path, loss=None, tokens_per_second=None, seconds_left=None, checkpoint=None)
    assert str(follow.progress(str(tmp_path))) == "step 6 of 9"
    for damaged in ("", "[]", '{"step": 1}'):
        (tmp_path / "progress.json").write_text(damaged)
        with pytest.raises(UserError, match=r"Expected the progress of a run in .*progress\.json, found another file"):
            follow.progress(str(tmp_path))


def test_status_and_logs_read_the_bucket(tpu, submit, service, bucket: Path, small_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_run, run)
    record(run, steps=6, checkpoint=6)
    assert submit("--detach", "--workdir", run)[0] == 0
    printed = tpu("status", "tiny")[1]
    assert "v5e:4x4 (v5litepod-16, 4 hosts)" in printed and "ACCEPTED; attempt 1 of 5" in printed
    assert "step 6 of 6  loss 2.5000  1.0M tok/s" in printed and f"step 6 in {run}" in printed
    assert re.search(r"^logged +\d+ s ago$", printed, re.M)
    (bucket / "jobs" / "gone" / "events").mkdir(parents=True)  # of a job that was deleted
    assert re.search(r"^tiny +v5e:4x4 +WAITING_FOR_RESOURCES +step 6 of 6", tpu("status")[1], re.M)
    for attempt, part, text in (("2", "a-0000", "one\n"), ("2", "a-0001", "two\n"), ("10", "b-0000", "three\n")):
        file = bucket / "jobs" / "tiny" / attempt / "logs" / "3" / f"{part}.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert tpu("logs", "tiny", "--worker", 3) == (0, "one\ntwo\nthree\n", "")
    assert tpu("logs", "tiny")[1:] == ("", "worker 0 of 4, which prints the losses; --worker J shows another one")
    record(run, worker=3)  # JAX's numbers of the hosts are others
    code, printed, said = tpu("logs", "tiny")
    assert (code, printed) == (0, "one\ntwo\nthree\n") and said.startswith("worker 3 of 4, which prints the losses")
    assert "worker from 0 to 3, found 4" in tpu("logs", "tiny", "--worker", 4)[2]


def test_logs_are_followed_until_the_job_has_ended(tpu, submit, bucket: Path, monkeypatch) -> None:
    assert submit("--detach")[0] == 0
    file = bucket / "jobs" / "tiny" / "1" / "logs" / "0" / "a-0000.log"
    file.parent.mkdir(parents=True)
    file.write_text("one\n")
    lines = iter(["two\n", "three\n"])

    def more(seconds: float) -> None:
        line = next(lines, None)
        if line is None:
            jobs.decide(jobs.find(str(bucket), "tiny"), Verdict("done"))
        else:
            file.write_text(file.read_text() + line)

    monkeypatch.setattr("time.sleep", more)
    assert tpu("logs", "tiny", "--follow")[1] == "one\ntwo\nthree\n"


def test_events_are_read_in_the_order_in_which_they_happened(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(bucket, attempt=2)
    assert events.events(job) == []
    for moment, kind, worker in ((1.7e9 + 2.5, "active", None), (1.7e9, "requested", None), (1.7e9 + 3, "ended", 11)):
        monkeypatch.setattr("time.time", lambda moment=moment: moment)
        events.event(job, kind, worker, **({"code": 69} if worker else {}))
    (bucket / "jobs" / "tiny" / "events" / "notes.txt").write_text("of somebody else")
    found = events.events(job)
    assert [(one.time, one.kind, one.worker) for one in found] == [
        (1.7e9, "requested", None), (1.7e9 + 2.5, "active", None), (1.7e9 + 3, "ended", 11)
    ]  # fmt: skip
    assert found[2].name == "1700000003000-ended-11.json"
    ended = {"kind": "ended", "time": 1.7e9 + 3, "attempt": 2, "worker": 11, "code": 69}
    assert events.contents(job, found[2]) == ended
    (bucket / "jobs" / "tiny" / "events" / found[0].name).write_text('{"kind"')
    with pytest.raises(UserError, match=r"Expected an event of tiny in .*-requested\.json, found another file"):
        events.contents(job, found[0])
    with pytest.raises(ValueError, match="lower-case letters"):  # it would not be found again
        events.event(job, "lost-again")


HOUR = 3600.0


BEGIN = [(100.0, "requested"), (102.0, "active"), (102.1, "started")]


@pytest.mark.parametrize(
    ("marks", "lines", "now", "hours"),
    [
        (BEGIN[:1], [], 101, [0, 0, 1, 0]),
        (BEGIN, [], 102.5, [0, 0.5, 2, 0]),  # installs, starts, compiles
        (BEGIN, [(103, 0.25), (104, 0.75)], 104.4, [1.25, 0.75, 2, 0]),  # a checkpoint is a part of the hour
        # Stopped at 104.5 after a checkpoint at 104, which is the last kept line; a slice again at 106.
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
    """Productive, restarting, waiting and lost hours of a job whose events and lines have these hours."""
    known = [Event(hour * HOUR, kind) for hour, kind in marks]
    logged = [Line(hour * HOUR, spent * HOUR) for hour, spent in lines]
    found = goodput.measure(known, logged, None if now is None else now * HOUR)
    spent = (found.productive, found.restarting, found.waiting, found.lost)
    assert [round(value / HOUR, 6) for value in spent] == hours


def test_hours_of_steps_come_from_the_rates_of_the_run(bucket: Path) -> None:
    """Two phases have rows of different lengths; the lines before a restored step are kept, and one is half written."""
    job = job_of(bucket)
    assert goodput.compute(job, None, 9.0) is None
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
    assert str(goodput.compute(job, Verdict("done"), 0.0)).startswith("100.0 % of 0.3 h: 0.3 h productive, 0.0 h rest")
    spent = Goodput(productive=107.5 * HOUR, restarting=3.1 * HOUR, waiting=12.4 * HOUR, lost=9.4 * HOUR)
    assert str(spent) == "81.2 % of 132.4 h: 107.5 h productive, 3.1 h restarting, 12.4 h waiting, 9.4 h lost"
