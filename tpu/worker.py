"""The program of every host after the installation: run the job, restart it where that helps, and report.

Each host decides by the exit code of its own `plmjax`. When one host writes a verdict to the bucket, the job ends on
all hosts. Worker 0 deletes the slice after all others have reported. If worker 0 cannot, another worker does it. So no
slice is left running.
"""

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plmjax.errors import CRASHED, DONE, MISTAKE, SAVED
from plmjax.files import json_text, patience, storage
from tpu import crashes, events, stacks
from tpu import job as jobs
from tpu.bucket import Bucket
from tpu.job import Job, Verdict
from tpu.notices import Notices
from tpu.queue import Queue
from tpu.restarts import LONGEST_WAIT, UNKNOWN, Restarts

DELETE_SECONDS = 24 * 3600.0
"""Seconds for which the deletion of the slice is retried. A slice costs money as long as it exists."""
SILENT = "the bucket did not answer"
STEP_SECONDS = 1.0
"""Longest sleep in seconds. After each sleep, a worker checks whether its machine is stopped."""


def checkpoint(workdir: str) -> int | None:
    """Return the step of the newest finished checkpoint of a run directory, or None."""
    return max(storage.finished_steps(storage.path(workdir) / "checkpoints"), default=None)


class Log:
    """A local log that is copied to the bucket in parts, so that the cost of a copy does not grow with the log."""

    PART = 1 << 20
    """Number of bytes after which a part is closed and the next one begins."""
    OWN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ worker \d+: ")
    """Beginning of the lines that a `Worker` writes. All other lines are output of the command."""

    def __init__(self, path: Path, bucket: Bucket, folder: str) -> None:
        self.path, self._bucket, self._folder = path, bucket, folder
        self._began = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        self._part, self._start, self._copied = 0, 0, 0

    def add(self, text: str) -> None:
        """Append a line to the log."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n")

    def upload(self) -> None:
        """Copy the text that was added since the last copy."""
        with self.path.open("rb") as file:
            file.seek(self._start)
            contents = file.read()
        if len(contents) == self._copied:
            return
        self._bucket.write(f"{self._folder}/{self._began}-{self._part:04d}.log", contents)
        self._copied = len(contents)
        if len(contents) >= self.PART:
            self._part, self._start, self._copied = self._part + 1, self._start + len(contents), 0

    def last_line(self) -> str:
        """Return the last line of the command's output that is not blank, or "nothing"."""
        with self.path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 8192))
            lines = file.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip() and not self.OWN.match(line)), "nothing")


class Worker:
    """One machine of a job."""

    def __init__(self, job: Job, number: int, log: Path, *, every: float, patience: float) -> None:
        self.job, self.number, self.every, self.patience = job, number, every, patience
        self.bucket = Bucket(job.bucket)
        self.log = Log(log, self.bucket, f"{job.folder}/logs/{number}")
        self.restarts = Restarts()
        self.stopping = False
        self.saving = False
        """True from a maintenance event to the end of the command, which saves for it."""
        self.checked = not job.selfcheck
        self.answered = ""
        self.child: subprocess.Popen | None = None
        self._asked: subprocess.Popen | None = None
        self._ended: Verdict | None = None
        self._failures: dict[str, str] = {}

    def run(self) -> int:
        """Work until the job has ended or this machine is stopped.

        Return the exit code: 0 done, 2 failed, 75 stopped.
        """
        signal.signal(signal.SIGTERM, lambda *_: self._stop("SIGTERM"))
        notices = Notices(lambda: self._stop("its preemption"), self._save, self._note_no_notices)
        if "TPU_SKIP_MDS_QUERY" not in os.environ:
            notices.start()
        try:
            while not self.stopping and self._verdict() is None:
                self._once()
            if self._ended is None:
                self._try(self.log.upload)
                return SAVED
            self._finish(self._ended)
            return DONE if self._ended.state == "done" else MISTAKE
        finally:
            notices.end()

    # ------------------------------------------------------------------------------------------------- the command

    def _once(self) -> None:
        """Run the command once. Then decide the verdict, or wait for the next run."""
        self._event("started")
        folder = self._try(
            lambda: crashes.folder(self.log.path.parent / "tpu_logs"), "no folder for the logs of libtpu could be made"
        )
        checking = not self._has_passed()
        code = self._code(self.job.selfcheck_command() if checking else self.job.command(), folder)
        if code is None:
            return
        step = self._newest()
        self._event("ended", code=code, step=step if step != UNKNOWN else None)
        if code not in (DONE, SAVED) and folder is not None:
            self._keep(folder)
        saved_for_maintenance, self.saving = self.saving and code == SAVED, False
        if self.stopping and code != DONE:
            self._log(f"this machine is stopped, plmjax ended with {code}")
            return
        if saved_for_maintenance:
            self._log(f"saved before the maintenance, newest checkpoint {step}: starting it again")
            return
        if checking and code == DONE:
            return
        if checking and code == CRASHED and self._selfcheck_findings().get("verdict") == "failed":
            where = self.bucket.url(self.job.selfcheck_report)
            wrong = ", ".join(self._selfcheck_findings()["wrong"])
            self._decide(Verdict("failed", f"The selfcheck found {wrong}; see {where}."), MISTAKE)
            return
        decided = self.restarts.after(code, step, self.log.last_line(), time.monotonic())
        if isinstance(decided, Verdict):
            self._decide(decided, code)
            return
        when = f"in {decided:.0f} s" if decided else "now"
        self._log(f"plmjax ended with {code}, newest checkpoint {step}: starting it again {when}")
        self._try(self.log.upload)
        self._rest(decided)

    def _has_passed(self) -> bool:
        """Return whether the job needs no selfcheck, or this slice has passed it."""
        self.checked = self.checked or self._selfcheck_findings().get("verdict") == "passed"
        return self.checked

    def _selfcheck_findings(self) -> dict[str, Any]:
        """Return the findings of the selfcheck of this attempt so far."""
        return self._try(lambda: json_text.parse(self.bucket.read(self.job.selfcheck_report) or b"{}")) or {}

    def _code(self, command: list[str], folder: Path | None) -> int | None:
        """Run a command. Return its exit code, or None if the verdict of another worker ended it.

        folder: where libtpu and plmjax write files about a crash.
        """
        command = [sys.executable, "-m", *command]
        environment = dict(os.environ) | ({} if folder is None else {"TPU_LOG_DIR": str(folder)})
        with self.log.path.open("ab") as output:
            self.child = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, process_group=0
            )
        if self.stopping:
            self._terminate()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self.child.wait(timeout=self.every)
                self._sweep()
                return code
            self._try(self.log.upload)
            self._try(self._answer)
            if self._verdict() is not None:
                self._terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.child.wait(timeout=self.patience)
                self._sweep()
                self.child.wait()
                return None

    def _answer(self) -> None:
        """Answer a new request for the stacks of this host, and copy the log with them."""
        before = self.answered
        self.answered = stacks.answer(self.job, self.number, self.child.pid, log=self.log.path, answered=before)
        if self.answered != before:
            self.log.upload()

    def _sweep(self) -> None:
        """Kill remaining processes of the command: a trainer without its guard would keep the chips occupied."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)

    def _terminate(self) -> None:
        """Ask the command once to save and end. The system and the metadata server may both announce an end."""
        if self.child is not None and self.child is not self._asked and self.child.poll() is None:
            self._asked = self.child
            self.child.terminate()

    def _stop(self, reason: str) -> None:
        if not self.stopping:
            self.stopping = True
            self._log(f"this machine is stopped by {reason}")
        self._terminate()

    def _save(self, event: str) -> None:
        """Have the command save before a maintenance, which may end this machine."""
        self._log(f"the maintenance of this machine is announced ({event})")
        self.saving = self.child is not None and self.child.poll() is None
        self._terminate()

    def _note_no_notices(self) -> None:
        self._log("no metadata server answers, so that preemption and maintenance come without a notice")

    def _keep(self, folder: Path) -> None:
        """Copy the files about a crash to the bucket."""
        target = f"{self.job.folder}/crashes/{self.number}/{folder.name}"
        failing = "the last words of the run could not be copied"
        if names := self._try(lambda: crashes.copy(folder, self.bucket, target), failing):
            self._log(f"the last words of the run are in {self.bucket.url(target)}: {', '.join(names)}")

    # ----------------------------------------------------------------------------------------------------- the job

    def _decide(self, ended: Verdict, code: int) -> None:
        """Write the verdict, which ends the attempt. A worker that is done, except worker 0, waits for it instead."""
        if self.number > 0 and ended.state == "done":
            # Worker 0 may have crashed at the very end. It then needs all other workers again.
            self._wait(lambda: self._verdict() is not None, self.patience)
            return

        def decide() -> bool:
            jobs.decide(self.job, ended)
            return True

        if code in (DONE, MISTAKE):
            self._insist(decide)
        elif not self._try(decide):
            # The run may have failed because the bucket does not answer. Wait, so that the next run can succeed.
            self._rest(LONGEST_WAIT)

    def _finish(self, ended: Verdict) -> None:
        """Report, and delete the slice: worker 0 after all others have reported, another worker if worker 0 has not."""
        self._log(f"job {ended.state}{': ' if ended.reason else ''}{ended.reason}")
        self._insist(self.log.upload, self.patience)
        if self.number == 0:
            self._wait(lambda: len(self._workers_that_reported()) >= self.job.workers - 1, self.patience)
        mark = json.dumps({"state": ended.state, "time": round(time.time())}).encode()
        self._insist(lambda: self.bucket.write(f"{self.job.folder}/workers/{self.number}.json", mark), self.patience)
        if self.number > 0 and self._wait(lambda: "0.json" in self._workers_that_reported(), 4 * self.patience):
            return
        if self.job.queued:
            failing = "the slice could not be deleted and continues to cost money"
            self._insist(lambda: Queue(self.job).ask_to_delete(), DELETE_SECONDS, failing)

    def _workers_that_reported(self) -> list[str]:
        return self._try(lambda: self.bucket.names(f"{self.job.folder}/workers")) or []

    def _verdict(self) -> Verdict | None:
        """Return the verdict of the attempt, which does not change again; None while there is none."""
        self._ended = self._ended or self._try(lambda: jobs.verdict(self.job))
        return self._ended

    def _newest(self) -> int | None:
        """Return the step of the newest checkpoint, or the last known step if the bucket does not answer."""
        known = self.restarts.step
        return self._try(lambda: checkpoint(self.job.workdir), otherwise=known)

    def _event(self, kind: str, **fields: Any) -> None:
        if self.number == 0:
            self._try(lambda: events.event(self.job, kind, worker=self.number, **fields))

    # ------------------------------------------------------------------------------------------------------ waiting

    def _rest(self, seconds: float) -> None:
        """Wait for the given seconds, or until the job has ended or this machine is stopped."""
        end = time.monotonic() + seconds
        while not self.stopping and (left := end - time.monotonic()) > 0 and self._verdict() is None:
            self._sleep(min(self.every, left))

    def _wait(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Wait until `ready()` is true, `seconds` have passed or this machine is stopped. Return the last result."""
        end = time.monotonic() + seconds
        while not (found := ready()) and time.monotonic() < end and not self.stopping:
            self._sleep(min(self.every, STEP_SECONDS))
        return found

    def _sleep(self, seconds: float) -> None:
        """Sleep, at most until this machine is stopped."""
        end = time.monotonic() + seconds
        while not self.stopping and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, STEP_SECONDS))

    def _insist(self, call: Callable[[], Any], seconds: float = math.inf, failing: str = SILENT) -> None:
        """Repeat a call until it succeeds, this machine is stopped, or it has failed for `seconds`."""
        end = time.monotonic() + seconds
        for pause in patience.waits():
            if self._try(call, failing, otherwise=self) is not self or self.stopping or time.monotonic() >= end:
                return
            self._try(self.log.upload)
            self._sleep(pause)

    def _try(self, call: Callable[[], Any], failing: str = SILENT, otherwise: Any = None) -> Any:
        """Return the result of a call, or `otherwise` if it fails.

        A failure of the bucket must not end days of training, nor fill the log while it lasts.

        failing: what fails, for the log.
        """
        try:
            found = call()
        except Exception as error:
            if self._failures.get(failing) != str(error):
                self._failures[failing] = str(error)
                self._log(f"{failing}: {error}")
            return otherwise
        self._failures.pop(failing, None)
        return found

    def _log(self, text: str) -> None:
        self.log.add(f"worker {self.number}: {text}")
