"""Decide from the exit code of a command whether and when it is run again."""

import dataclasses

from plmjax.errors import DONE, MISTAKE, SAVED, UNAVAILABLE
from plmjax.files import patience
from tpu.job import Verdict

HOUR = 3600.0
FIRST_WAIT, LONGEST_WAIT = 10.0, HOUR / 6
"""Seconds before the command is run again: after the first failure, and at most.

Every host waits by itself, at most 15 minutes with the random factor. That is half of `tpu.job.JOIN_SECONDS`, for which
the first host that is back waits for the others. With longer waits, the hosts could miss each other without end.
"""
LEAST = 3
"""Minimum number of failures of a kind that fail a job. Two may be hours apart without a checkpoint between them."""
UNKNOWN = -1
"""Newest checkpoint while the bucket has not answered yet. The limit is then that of a run with a checkpoint."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of failure, and the hours without a new checkpoint after which such failures fail the job."""

    said: str
    hours: float
    """Hours if the run has a checkpoint."""
    hours_without: float
    """Hours if the run has no checkpoint: a failure from the beginning is rarely temporary."""


# An outage lasts hours. A machine that is stopped again and again is broken, or its job is preempted all the time.
# A traceback is usually a mistake in the program, but may be the consequence of a temporary fault.
STOPPED = Kind("was stopped", 24, 2)
WAITED = Kind("could not continue", 24, 2)
CRASHED = Kind("crashed", 3, 0.25)


def kind_of(code: int) -> Kind:
    """Return the kind of an exit code other than `DONE` and `MISTAKE`. Codes -n and 128 + n mean the signal n."""
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
            now: seconds of any clock. The time between two failures is added to the total of the second
                failure's kind. For example, the time before a preemption is not added to the total of crashes.
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
        # After a first stop the command can run again at once: whoever stopped it is done.
        return 0.0 if kind is STOPPED and self._counts[kind] == 1 else next(self._waits)


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds < 2 * HOUR else f"{seconds / HOUR:.1f} hours"
