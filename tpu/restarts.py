"""The decision whether and when a command that ended is run again, from its exit code."""

import dataclasses

from plmjax.errors import DONE, MISTAKE, SAVED, UNAVAILABLE
from plmjax.files import patience
from tpu.job import Verdict

HOUR = 3600.0
FIRST_WAIT, LONGEST_WAIT = 10.0, HOUR / 6
"""Seconds before the command is run again, from a job's first failure to its last.

Every host waits by itself, at most 15 minutes with the random factor. That is half of `tpu.job.JOIN_SECONDS`, which the
first host that is back waits for the others: longer waits could miss each other without end.
"""
LEAST = 3
"""Number of failures of a kind that a job has at least. Two may be hours apart without a checkpoint between them."""
UNKNOWN = -1
"""The newest checkpoint while the bucket has not answered yet. A run that may have one has the time of one that has."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of failure, and the hours without a new checkpoint after which it fails the job."""

    said: str
    hours: float
    """Hours if the run has a checkpoint."""
    hours_without: float
    """Hours if it has none: what fails from the beginning is rarely something that passes."""


# An outage lasts hours. A machine that is stopped again and again is broken, or its job is preempted all the time.
# A traceback is usually a mistake in the program, but may be the consequence of a fault that passes.
STOPPED = Kind("was stopped", 24, 2)
WAITED = Kind("could not continue", 24, 2)
CRASHED = Kind("crashed", 3, 0.25)


def kind_of(code: int) -> Kind:
    """Return the kind of an exit code other than `DONE` and `MISTAKE`: -n and 128 + n are those of a signal."""
    if code < 0 or code > 128 or code == SAVED:
        return STOPPED
    return WAITED if code == UNAVAILABLE else CRASHED


class Restarts:
    """Counts the consecutive failures since the last checkpoint, and their time."""

    def __init__(self) -> None:
        self.step: int | None = UNKNOWN
        """Newest checkpoint when the command last ended."""
        self._begin()

    def _begin(self) -> None:
        self._waits = patience.waits(FIRST_WAIT, LONGEST_WAIT)
        self._counts = dict.fromkeys((STOPPED, WAITED, CRASHED), 0)
        self._seconds = dict.fromkeys(self._counts, 0.0)
        self._last: float | None = None

    def after(self, code: int, step: int | None, last_line: str, now: float) -> Verdict | float:
        """Return the verdict of the job, or the seconds to wait before the command is run again.

        Args:
            step: newest checkpoint, None if there is none, or UNKNOWN.
            last_line: the last line that the command printed.
            now: any clock's seconds. The time since the failure before this one counts for the kind of this one, so
                that a crash after hours without the bucket is a first crash.
        """
        if code == DONE:
            return Verdict("done")
        if code == MISTAKE:
            return Verdict("failed", last_line)
        if step != self.step:
            self.step = step
            self._begin()
        kind = kind_of(code)
        self._counts[kind] += 1
        self._seconds[kind] += 0 if self._last is None else now - self._last
        self._last = now
        limit = HOUR * (kind.hours_without if step is None else kind.hours)
        if self._counts[kind] >= LEAST and self._seconds[kind] >= limit:
            where = "without a checkpoint" if step is None else f"with no checkpoint after step {step}"
            where = "and its checkpoints could not be listed" if step == UNKNOWN else where
            return Verdict(
                "failed",
                f"The run {kind.said} {self._counts[kind]} times within {_duration(self._seconds[kind])} {where}, the "
                f"last time with exit code {code}: {last_line}",
            )
        # Whoever stopped it is done, unless it is stopped again.
        return 0.0 if kind is STOPPED and self._counts[kind] == 1 else next(self._waits)


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds < 2 * HOUR else f"{seconds / HOUR:.1f} hours"
