"""Goodput of a job: the fraction of its time in which it computed steps that it kept.

The time of a job begins with its first request and ends with the job, or now. The time between an end and another
submission does not count. Times come from events (tpu/events.py) and from metrics.jsonl. Each moment has one of four
kinds:

productive  between two logged steps that the run kept, with the evaluations and checkpoints between them. If the run
            was interrupted between the two, only the time to compute the steps counts, by their rate.
waiting     no slice is ACTIVE: from the request or the loss of a slice until the watch or a host sees the next one.
lost        from the last kept step to an interruption: the steps after it are computed again, or never used.
restarting  the rest: the slice is ACTIVE, but the run is installed, started, restored or compiled.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from plmjax import experiment as experiments
from plmjax.files import storage
from plmjax.training import metrics
from tpu import events
from tpu.events import Event
from tpu.job import Job, Verdict

NEEDED = ("requested", "lost")
"""Events after which there is no slice."""
RUNNING = ("active", "started")
"""Events after which there is a slice."""
OVER = ("done", "failed")
STOPPED = ("ended", "lost", "failed")
"""Events that interrupt the run."""


@dataclasses.dataclass(frozen=True)
class Goodput:
    """Seconds of a job by kind; see the module."""

    productive: float
    restarting: float
    waiting: float
    lost: float

    @property
    def total(self) -> float:
        """Sum of all seconds."""
        return self.productive + self.restarting + self.waiting + self.lost

    def __str__(self) -> str:
        hours = {field.name: getattr(self, field.name) / 3600 for field in dataclasses.fields(self)}
        parts = ", ".join(f"{spent:.1f} h {name}" for name, spent in hours.items())
        return f"{self.productive / self.total:.1%} of {self.total / 3600:.1f} h: {parts}".replace("%", " %", 1)


@dataclasses.dataclass(frozen=True)
class Line:
    """A logged step."""

    time: float
    seconds: float
    """Time to compute the steps since the previous line."""


def compute(job: Job, ended: Verdict | None, now: float) -> Goodput | None:
    """Return the goodput of a job, or None before anything was recorded. metrics.jsonl is read once.

    ended: verdict of the job; None while it runs.
    """
    known, lines = events.events(job), list(_lines(job))
    if not known and not lines:
        return None
    found = measure(known, lines, None if ended else now)
    return found if found.total else None


def measure(known: Sequence[Event], lines: Sequence[Line], now: float | None) -> Goodput:
    """Return the goodput from events and logged steps, both in the order of their times.

    now: the time, or None if the job has ended.
    """
    marks = [(one.time, one.kind) for one in known]
    start = min([time for time, _ in marks[:1]] + [line.time - line.seconds for line in lines[:1]])
    productive = lost = 0.0
    for before, line in itertools.pairwise([Line(start, 0), *lines]):
        between = _between(marks, before.time, line.time)
        kept = before.time > start and not any(kind in (*NEEDED, *RUNNING, *STOPPED) for _, kind in between)
        passed = line.time - before.time
        productive += passed if kept else min(line.seconds, passed)
        if before.time > start:
            lost += _until_stop(between, before.time)
    end = last = lines[-1].time if lines else start
    after = _between(marks, last, float("inf"))
    if after or not lines:  # otherwise the run computes the steps of the next line
        end = max([last] + [time for time, _ in after]) if now is None else now
    if lines and not any(kind == "done" for _, kind in after):
        lost += _until_stop(after, last)
    waiting = _waiting(marks, end)
    rest = end - start - _idle(marks, lines) - productive - waiting - lost
    return Goodput(productive, max(rest, 0.0), waiting, lost)


def _between(marks: list[tuple[float, str]], first: float, last: float) -> list[tuple[float, str]]:
    """Return the events after the time `first`, up to and including `last`."""
    begin, end = (bisect.bisect_right(marks, time, key=lambda mark: mark[0]) for time in (first, last))
    return marks[begin:end]


def _until_stop(marks: list[tuple[float, str]], since: float) -> float:
    """Return the seconds from `since` to the first event that interrupts the run, or 0."""
    return next((time - since for time, kind in marks if kind in STOPPED), 0.0)


def _waiting(marks: list[tuple[float, str]], end: float) -> float:
    """Return the seconds without a slice."""
    seconds, since = 0.0, None
    for time, kind in marks:
        if kind in NEEDED and since is None:
            since = time
        elif kind in (*RUNNING, *OVER) and since is not None:
            seconds, since = seconds + time - since, None
    return seconds + (max(end - since, 0.0) if since is not None else 0.0)


def _idle(marks: list[tuple[float, str]], lines: Sequence[Line]) -> float:
    """Return the seconds between the last event or step of a submission and the next submission."""
    seconds, logged = 0.0, [line.time for line in lines]
    for (before, _), (time, kind) in itertools.pairwise(marks):
        if kind == "requested":
            last = max([before, *logged[: bisect.bisect_right(logged, time)][-1:]])
            seconds += time - last
    return seconds


def _lines(job: Job) -> Iterator[Line]:
    """Yield the logged steps of a run."""
    folder = storage.path(job.workdir)
    if not (folder / "metrics.jsonl").is_file():
        return
    experiments.class_files.restore(job.resolved, job.file)  # its hosts recorded paths of their own
    run = experiments.read(folder / "experiment.json")
    parts = [(phase, run.data.tokens(phase.batch_size, phase.sequence_length)) for phase in run.resolved_phases]

    def tokens(step: int) -> int:
        return sum(min(max(step - phase.first_step, 0), phase.steps) * each for phase, each in parts)

    done = 0
    for record in metrics.read(folder / "metrics.jsonl"):
        if record.get("tokens_per_second"):
            until = tokens(record["step"])
            yield Line(record["time"], (until - done) / record["tokens_per_second"])
            done = until
