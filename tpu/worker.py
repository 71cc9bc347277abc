"""The program of every host after the installation: run the job, restart it where that helps, and report.

Each host decides by the exit code of its own `plmjax`. When one host writes a verdict to the bucket, the job ends on
all hosts. Worker 0 deletes the slice after all others have reported. If worker 0 cannot, another worker does it. So no
slice is left running.
"""

import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plmjax import storage
from plmjax.errors import CRASHED, DONE, MISTAKE, SAVED, UNAVAILABLE, UserError
from tpu import job as jobs
from tpu.bucket import Bucket
from tpu.job import Job, Verdict
from tpu.queue import Queue

CRASHES = 3
"""Number of crashes in a row, without a new checkpoint between them, after which a job fails."""
STOPS = 20
"""The same limit for runs that were stopped from outside. So many stops happen only on a broken slice."""


def checkpoint(workdir: str) -> int | None:
    """Return the step of the newest finished checkpoint of a run directory, or None."""
    return max(storage.finished_steps(storage.path(workdir) / "checkpoints"), default=None)


@dataclasses.dataclass
class Restarts:
    """Decides if a command that ended is run again."""

    step: int | None = None
    """Newest checkpoint when the command last ended."""
    crashes: int = 0
    stops: int = 0

    def after(self, code: int, step: int | None, last_line: str) -> Verdict | None:
        """Return the verdict of the job, or None to run the command again. `last_line` is the last line it printed."""
        if code == DONE:
            return Verdict("done")
        if code == MISTAKE:
            return Verdict("failed", last_line)
        if step != self.step:
            self.step, self.crashes, self.stops = step, 0, 0
        if code < 0 or code > 128 or code in (UNAVAILABLE, SAVED):
            self.stops += 1
            kind, number, limit = "was stopped", self.stops, STOPS
        else:
            self.crashes += 1
            kind, number, limit = "crashed", self.crashes, CRASHES
        if number < limit:
            return None
        where = "without a checkpoint" if step is None else f"with no checkpoint after step {step}"
        return Verdict(
            "failed", f"The run {kind} {number} times {where}, the last time with exit code {code}: {last_line}"
        )


class Log:
    """A local log that is copied to the bucket in parts, so that the cost of a copy does not grow with the log."""

    PART = 1 << 20
    """Number of bytes after which a part is closed and the next one begins."""

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
        """Return the last line that is not blank."""
        with self.path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 4096))
            lines = file.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")


class Worker:
    """One machine of a job."""

    def __init__(self, job: Job, number: int, log: Path, every: float, patience: float) -> None:
        self.job, self.number, self.every, self.patience = job, number, every, patience
        self.bucket = Bucket(job.bucket)
        self.log = Log(log, self.bucket, f"{job.folder}/logs/{number}")
        self.stopping, self.checked = False, not job.selfcheck
        self.child: subprocess.Popen | None = None

    def _decide(self, ended: jobs.Verdict) -> None:
        """End the attempt as soon as the bucket answers."""
        while not self._try(lambda: jobs.decide(self.job, ended) or True) and not self.stopping:
            time.sleep(self.every)

    def run(self) -> int:
        """Work until the job has ended or this machine is stopped.

        Return the exit code: 0 done, 2 failed, 75 stopped.
        """
        signal.signal(signal.SIGTERM, self._stop)
        restarts = Restarts()
        while (ended := self._verdict()) is None:
            code = self._once(self.job.command()) if self.checked else self._check()
            if self.stopping and code != DONE:
                self._log(f"this machine is stopped, plmjax ended with {code}")
                self._try(self.log.upload)
                return SAVED
            if code is None:
                continue
            step = self._try(lambda: checkpoint(self.job.workdir))
            decided = restarts.after(code, step, self.log.last_line())
            if decided is not None and (self.number == 0 or decided.state == "failed"):
                self._decide(decided)
                continue
            if decided is not None:
                # Worker 0 may have crashed at the very end. It then needs all other workers again.
                self._wait(lambda: self._verdict() is not None, self.patience)
                continue
            self._log(f"plmjax ended with {code}, newest checkpoint {step}: starting it again")
            self._try(self.log.upload)
            time.sleep(self.every)
        self._finish(ended)
        return DONE if ended.state == "done" else MISTAKE

    def _check(self) -> int | None:
        """Run the selfcheck, unless the slice has passed it. Return None if it has passed, or has ended the job.

        Otherwise return the exit code of a check that was stopped, or crashed, and must be run again.
        """
        code = DONE if self._found().get("verdict") == "passed" else self._once(self.job.selfcheck_command())
        if code == DONE:
            self.checked = True
            return None
        found = self._found()
        if code != CRASHED or found.get("verdict") != "failed":
            return code
        where = self.bucket.url(self.job.selfcheck_report)
        self._decide(Verdict("failed", f"The selfcheck found {', '.join(found['wrong'])}; see {where}."))
        return None

    def _found(self) -> dict[str, Any]:
        """Return what a selfcheck of this attempt has found so far."""
        return self._try(lambda: json.loads(self.bucket.read(self.job.selfcheck_report) or b"{}")) or {}

    def _once(self, command: list[str]) -> int | None:
        """Run a command. Return its exit code, or None if the verdict of another worker ended it."""
        command = [sys.executable, "-m", *command]
        with self.log.path.open("ab") as output:
            self.child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        if self.stopping:
            self.child.terminate()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.child.wait(timeout=self.every)
            self._try(self.log.upload)
            if self._verdict() is not None:
                self.child.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.child.wait(timeout=self.patience)
                self.child.kill()
                self.child.wait()
                return None

    def _finish(self, ended: Verdict) -> None:
        """Report, and delete the slice. Worker 0 does it when all have reported, and the others if it does not."""
        self._log(f"job {ended.state}{': ' if ended.reason else ''}{ended.reason}")
        self._try(self.log.upload)
        if self.number == 0:
            self._wait(lambda: len(self._reported()) >= self.job.workers - 1, self.patience)
        self._try(lambda: self.bucket.write(f"{self.job.folder}/workers/{self.number}.json", self._mark(ended)))
        if self.number > 0 and self._wait(lambda: "0.json" in self._reported(), 4 * self.patience):
            return
        if not self.job.project:
            return
        try:
            Queue(self.job).ask_to_delete()
        except UserError as error:
            self._log(f"the slice could not be deleted and continues to cost money: {error}")
            self._try(self.log.upload)

    def _mark(self, ended: Verdict) -> bytes:
        return json.dumps({"state": ended.state, "time": round(time.time())}).encode()

    def _reported(self) -> list[str]:
        return self._try(lambda: self.bucket.names(f"{self.job.folder}/workers")) or []

    def _verdict(self) -> Verdict | None:
        return self._try(lambda: jobs.verdict(self.job))

    def _wait(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Wait until `ready()` is true, at most for the given number of seconds."""
        end = time.monotonic() + seconds
        while not (found := ready()) and time.monotonic() < end:
            time.sleep(min(self.every, 1))
        return found

    def _try(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call, or None if it fails.

        A short failure of the bucket must not end days of training.
        """
        try:
            return call()
        except Exception as error:
            self._log(f"the bucket did not answer: {error}")
            return None

    def _log(self, text: str) -> None:
        self.log.add(f"worker {self.number}: {text}")

    def _stop(self, *signal: Any) -> None:
        self.stopping = True
        if self.child is not None and self.child.poll() is None:
            self.child.terminate()
