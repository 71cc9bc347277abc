"""Watch over a job on Cloud TPU until it ends: request lost slices again, delete the last one, send notifications.

A job ends by the verdict of its hosts, by a mistake, after too many lost slices, if its hosts are silent, or if a
person deletes the job or suspends its slice. If there is no quota or capacity, or a service does not answer, the watch
waits without end.
"""

import dataclasses
import itertools
import re
import time
from collections.abc import Callable

from plmjax.errors import Unavailable, UserError
from plmjax.files import storage
from plmjax.files.patience import waits
from plmjax.training.progress import Progress
from tpu import events, follow, notes, notify, startup, worker
from tpu import job as jobs
from tpu.bucket import Bucket
from tpu.job import Job, Verdict
from tpu.machines import Machines
from tpu.notify import Notice
from tpu.queue import CHANGING, Exists, Queue, State

SILENCE = 3600.0
"""Seconds after which a job fails if no host of its ACTIVE slice has written a log to the bucket.

A host whose installation fails writes one, too.
"""
STILL_MINUTES = 60.0
"""Minutes without a new step after which a run stands still."""
EVERY, SOON = 30.0, 10.0
"""Seconds between two looks: usually, and while a slice is being deleted."""
FIRST_WAIT, LONGEST_WAIT = 30.0, 600.0
"""Seconds until a refused request is repeated: after the first refusal, and at most."""
MISTAKES = 3
"""Number of looks in a row with a mistake after which a watch ends. A short loss of permission looks like a mistake."""
LAST_NOTICE = 900.0
"""Seconds for which a watch whose job has ended tries to send its last notices."""
ONCE = 600.0
"""Seconds for which `once` waits for a slice to be deleted."""
_ABSENT = State("ABSENT")


class Watch:
    """A watch over one job. Its state is stored in the bucket (tpu/notes.py).

    Args:
        report: prints a line.
        target: webhook or command for events, or "".
        still: minutes without a new step after which the run stands still.
    """

    def __init__(self, job: Job, report: Callable[[str], None], target: str = "", still: float = STILL_MINUTES) -> None:
        self.job, self.report, self.target, self.still = job, report, target, still
        self.queue = Queue(job, patience=60) if job.queued else Machines(job)
        self.soon = False
        """True if the next look should be made soon."""
        self._notes: notes.Notes | None = None
        self._written = b""
        self._shown = self._warned = ""

    @property
    def unsent(self) -> int:
        """Number of notices that were not sent yet."""
        return len(self._notes.unsent) if self._notes and self.target else 0

    def look(self) -> Verdict | None:
        """Look at the job once, and take all due actions. Return its verdict if it has ended and its slice is gone.

        Raises:
            Unavailable: a service did not answer. The next look continues.
            UserError: a mistake, which only a person can correct.
        """
        self.soon = False
        job = jobs.read(self.job.bucket, self.job.name)
        if job is None:
            return self._abandon()
        self.job = self.queue.job = job
        found = self.queue.state()
        # Read the notes after the state, because another watch writes its notes before it acts. If no other watch has
        # written, the notes of this one are newer: it may have failed to write them.
        known = notes.read(job)
        if self._notes is None or not self._notes.are_about(job) or known.to_json() != self._written:
            self._notes, self._written = known, known.to_json()
        try:
            ended = self._look(self._notes, found)
            self._save()
            return ended
        finally:
            self._send(self._notes)

    def warn(self, error: Exception) -> None:
        """Report a temporary error, unless it was the last one that was reported."""
        if (gist := _gist(str(error))) != self._warned:
            self._warned = gist
            self.report(f"{error} It is tried again until it succeeds.")

    def report_recovery(self) -> None:
        """Report that the error is over, and forget it, so that it is reported if it occurs again."""
        self._warned = ""
        self.report("the services answer again")

    def _abandon(self) -> Verdict | None:
        """Delete the slice of a job that was deleted while its slice was requested again."""
        if self.job.queued and (found := self.queue.state()).name != "ABSENT":
            self._delete(found)
            return None
        return Verdict("failed", "The job was deleted.")

    def _look(self, noted: notes.Notes, found: State) -> Verdict | None:
        ended = jobs.verdict(self.job)  # read after the state: the hosts write it before they delete the slice
        progress = self._progress()
        deleting = noted.ended or (noted.wanted is not None and not noted.gone)
        if found.name not in ("ABSENT", "DELETING") and not deleting:
            self._show(f"{found}  {progress or ''}".rstrip())
        if noted.wanted is not None and ended is None:
            # Another watch may have requested the wanted slice already.
            old = found.attempt < noted.wanted or found.name in ("FAILED", *CHANGING)
            if not noted.gone and found.name != "ABSENT" and old:
                self._delete(found)
                return None
            noted.gone = True
            if found.name == "ABSENT":
                return self._request(noted)
            self._adopt(noted)
        self._observe(noted, found, progress)
        ended = ended or self._failure(noted, found)
        if ended is not None:
            return self._end(noted, found, ended)
        if found.name == "FAILED":
            noted.wanted, noted.gone = self.job.attempt, False
            self._note_refusal(noted, f"Cloud TPU could not provide the slice: {found.error or 'it gives no reason'}")
            self._delete(found)
        elif found.lost:
            self._lose(noted, progress)
            self._delete(found)
        return None

    def _observe(self, noted: notes.Notes, found: State, progress: Progress | None) -> None:
        """Note changes, and notify if the run stands still."""
        now = time.time()
        if found.name != "ACTIVE":
            noted.active = None
            return
        if noted.active is None:
            events.event(self.job, "active")
            noted.active, noted.waiting, noted.refusals = now, "", 0
        if progress is not None:
            if progress.step > noted.step:
                noted.stepped, noted.still = now, False
            noted.step = progress.step
        if not noted.still and now - max(noted.active, noted.stepped) > 60 * self.still:
            noted.still = True
            where = f"step {progress.step:,} of {progress.steps:,}" if progress else "its start"
            self._tell(
                noted, "still", f"{self.job.name} stands still: no step for {self.still:g} minutes after {where}."
            )

    def _failure(self, noted: notes.Notes, found: State) -> Verdict | None:
        """Return the verdict of a failed job, or None while it can continue."""
        silent = noted.active is not None and time.time() - noted.active > SILENCE
        if silent and not Bucket(self.job.bucket).names(f"{self.job.folder}/logs"):
            return Verdict("failed", f"No host of the slice has written a log within {SILENCE / 60:.0f} minutes.")
        if found.mistaken or (found.name == "FAILED" and self.job.valid_until):
            return Verdict("failed", f"Cloud TPU could not provide the slice: {found.error or 'it gives no reason'}")
        if found.name == "ABSENT" and not self._was_requested():
            return None  # it is being submitted at this moment
        if found.name in ("ABSENT", "DELETING"):
            return Verdict("failed", "The queued resource was deleted before the run was complete.")
        if not found.lost:
            return None
        if found.by_user:
            return Verdict("failed", "The queued resource was suspended by a user.")
        job = self.job.after_loss(worker.checkpoint(self.job.workdir))
        return Verdict("failed", job.lost_too_often(job.step)) if job.tries >= job.attempts else None

    def _was_requested(self) -> bool:
        """Return whether the slice of this attempt was ever requested."""
        known = (one for one in reversed(events.events(self.job)) if one.kind in ("requested", "created", "active"))
        return any(events.contents(self.job, one)["attempt"] == self.job.attempt for one in known)

    def _lose(self, noted: notes.Notes, progress: Progress | None) -> None:
        """Note that the slice was lost and that another one is wanted."""
        job = self.job.after_loss(worker.checkpoint(self.job.workdir))
        if job != self.job:
            jobs.save(job)
            self.job = job
        events.event(job, "lost", step=progress.step if progress else None)
        tried = f"attempt {job.tries + 1} of {job.attempts}"
        self.report(f"the slice is lost; requesting another one, {tried}")
        at = f" at step {progress.step:,} of {progress.steps:,}" if progress else ""
        self._tell(noted, "lost", f"{job.name} lost its slice{at}; another one is requested, {tried}.")
        noted.wanted, noted.gone, noted.again, noted.active = job.attempt + 1, False, 0.0, None
        self._save()

    def _request(self, noted: notes.Notes) -> Verdict | None:
        """Request the wanted slice if it is time."""
        if time.time() < noted.again:
            return None
        if noted.refused_in == self.job.zone and self.job.zones:
            self.job = self.job.in_next_zone()
            jobs.save(self.job)
        self._save()  # if this watch is killed now, the next one knows whose slice it finds
        job = self.queue.job = dataclasses.replace(self.job, attempt=noted.wanted)
        try:
            try:
                operation = self.queue.begin(startup.render(job))
            except Exists:  # requested by a watch that was killed, or that is a little faster
                operation = None
            self._record_created(job)
            if operation is not None:
                self.queue.wait_for(operation)
        except Unavailable as error:
            self._note_refusal(noted, str(error))
        except UserError as error:
            return self._end(noted, _ABSENT, Verdict("failed", str(error)))
        return None

    def _record_created(self, job: Job) -> None:
        if job != self.job:
            jobs.save(job)
            self.job = job
            events.event(job, "created")

    def _adopt(self, noted: notes.Notes) -> None:
        """Continue with the slice that was requested."""
        self._record_created(dataclasses.replace(self.job, attempt=noted.wanted))
        noted.attempt, noted.wanted, noted.gone, noted.active = self.job.attempt, None, False, None

    def _note_refusal(self, noted: notes.Notes, reason: str) -> None:
        """Note that there is no slice at this moment, and when to request it again."""
        noted.refusals += 1
        noted.refused_in = self.job.zone
        rounds, left = divmod(noted.refusals, max(len(self.job.zones), 1))
        noted.again = 0.0 if left else time.time() + _wait(rounds)  # every zone is asked before the next wait
        gist = _gist(reason)
        if gist != noted.waiting:
            noted.waiting = gist
            text = f"{reason.rstrip('.')}. It is requested again until there is one."
            self.report(text)
            self._tell(noted, "waiting", f"{self.job.name} waits for a slice. {text}")
        self._save()

    def _end(self, noted: notes.Notes, found: State, ended: Verdict) -> Verdict | None:
        """End the job: save its verdict, notify, and delete its slice. Return the verdict once the slice is gone."""
        jobs.decide(self.job, ended)
        if not noted.ended:
            noted.ended = True
            events.event(self.job, ended.state)
            self._tell(noted, ended.state, f"{self.job.name} {_sentence(ended)}")
            self._save()
        if found.name == "ABSENT" or not self.job.queued:
            return ended
        self._delete(found)
        return None

    def _delete(self, found: State) -> None:
        self.soon = True
        if found.name not in CHANGING:
            self._show("deleting the slice")
            self.queue.ask_to_delete()

    def _progress(self) -> Progress | None:
        try:
            return follow.progress(self.job.workdir)
        except UserError as error:  # the watch can continue without this record
            self.warn(error)
            return None

    def _show(self, line: str) -> None:
        if line != self._shown:
            self._shown = line
            self.report(line)

    def _tell(self, noted: notes.Notes, event: notify.Kind, text: str) -> None:
        if self.target:
            noted.unsent.append(dataclasses.asdict(Notice(self.job.name, event, text)))

    def _send(self, noted: notes.Notes) -> None:
        """Send the notices. One that fails is kept, and sent again at a later look."""
        while self.target and noted.unsent and time.time() >= noted.resend:
            try:
                notify.send(self.target, Notice(**noted.unsent[0]))
            except Unavailable as error:
                if not noted.failures:
                    self.report(f"{error} It is sent again later.")
                # The first repetition is at the next look.
                noted.resend = time.time() + (_wait(noted.failures) if noted.failures else 0)
                noted.failures += 1
                self._save()
                return
            noted.unsent.pop(0)
            noted.failures, noted.resend = 0, 0.0
            self._save()

    def _save(self) -> None:
        text = self._notes.to_json()
        if text != self._written:
            notes.write(self.job, self._notes)
            self._written = text


def until_ended(one: Watch) -> Verdict:
    """Look at a job until it has ended, and return its verdict.

    Raises:
        UserError: a mistake that only a person can correct. The job continues.
    """
    mistakes, failing, last = 0, False, None
    while True:
        try:
            ended, mistakes = one.look(), 0
            if failing:
                one.report_recovery()
            failing = False
        except Exception as error:
            explained = storage.explain(error) or error
            mistakes = mistakes + 1 if isinstance(explained, UserError) else 0
            if not isinstance(explained, UserError | Unavailable) or mistakes == MISTAKES:
                raise
            ended, failing = None, True
            one.warn(explained)
        if ended is not None:
            last = last or time.time() + LAST_NOTICE
            if not one.unsent or time.time() > last:
                return ended
        time.sleep(SOON if one.soon else EVERY)


def once(one: Watch) -> Verdict | None:
    """Look at a job once, and take all due actions. Return its verdict if it has ended, else None.

    Raises:
        Unavailable: a service did not answer.
        UserError: a mistake that only a person can correct.
    """
    end = time.time() + ONCE
    while (ended := one.look()) is None and one.soon and time.time() < end:
        time.sleep(SOON)
    return ended


def _wait(refusals: int) -> float:
    """Return the seconds to wait after `refusals` refusals."""
    return next(itertools.islice(waits(FIRST_WAIT, LONGEST_WAIT), refusals - 1, None))


def _gist(text: str) -> str:
    """Return a text without words that differ at every try, such as the number of an operation."""
    return " ".join(word for word in text.split() if not re.search(r"\d", word))


def _sentence(ended: Verdict) -> str:
    return "is done." if ended.state == "done" else f"failed: {ended.reason or 'no reason is known.'}"
