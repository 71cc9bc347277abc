"""Follow a job from outside: show its status and logs, and request lost slices again."""

import dataclasses
import time
from collections.abc import Callable, Iterator

from plmjax import experiment as experiments
from plmjax import storage
from plmjax.errors import UserError
from plmjax.training import metrics, phases
from tpu import job as jobs
from tpu import machines, startup, worker
from tpu.bucket import Bucket
from tpu.job import Job, Verdict
from tpu.queue import Queue, State


@dataclasses.dataclass(frozen=True)
class Progress:
    """Progress of a run, from its metrics."""

    step: int
    steps: int
    loss: float | None = None
    tokens_per_second: float | None = None
    seconds_left: float | None = None
    checkpoint: int | None = None
    age: float | None = None
    """Seconds since the last logged step."""

    def __str__(self) -> str:
        parts = [f"step {self.step:,} of {self.steps:,}"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        if self.tokens_per_second:
            parts.append(f"{metrics.compact(self.tokens_per_second)} tok/s")
        if self.seconds_left is not None and self.step < self.steps:
            parts.append(f"ETA {metrics.duration(self.seconds_left)}")
        return "  ".join(parts)


def progress(workdir: str) -> Progress | None:
    """Return the progress in a run directory's experiment.json and metrics.jsonl, or None before the first exists."""
    folder = storage.path(workdir)
    if not (folder / "experiment.json").exists():
        return None
    run = experiments.read(folder / "experiment.json")
    newest = worker.checkpoint(workdir)
    logged = metrics.read(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
    lines = [line for line in logged if "tokens_per_second" in line]
    if not lines:
        return Progress(0, run.training.steps, checkpoint=newest)
    last = lines[-1]
    left = sum(
        max(0, phase.last_step - max(phase.first_step, last["step"]))
        * run.data.tokens(phase.batch_size, phase.sequence_length)
        for phase in phases.resolve(run)
    )
    rate = last["tokens_per_second"]
    return Progress(
        last["step"], run.training.steps, last.get("train/loss"), rate, left / rate if rate else None, newest,
        time.time() - last["time"],
    )  # fmt: skip


def state(job: Job) -> str:
    """Return the state of a job as text: its verdict and the state of its slices."""
    ended = jobs.verdict(job)
    slices = str(Queue(job).state()) if job.queued else "on Kubernetes"
    if job.tpu_vm:
        slices = f"on {job.tpu_vm} ({machines.state(job)})"
    if ended is None:
        return "not running: no slice is requested" if slices == "ABSENT" else slices
    rest = "" if slices == "ABSENT" or not job.queued else f"; its slice is {slices}, see python -m tpu delete"
    return f"{ended.state}{rest}" + (f": {ended.reason}" if ended.reason else "")


def status(job: Job) -> Iterator[str]:
    """Yield the full status of a job, line by line."""
    kind = "spot, " if job.spot else ""
    yield f"job         {job.name}: {job.experiment} {' '.join(job.overrides)}".rstrip()
    yield f"slice       {job.slice.name} ({job.slice.accelerator_type}, {kind}{job.workers} hosts)"
    tried = f"attempt {job.attempt - job.first + 1} of {job.attempts}"
    yield f"state       {state(job)}; {tried}" if job.queued else f"state       {state(job)}"
    found = progress(job.workdir)
    yield f"progress    {found if found else 'nothing logged yet'}"
    if found and found.checkpoint is not None:
        yield f"checkpoint  step {found.checkpoint:,} in {job.workdir}"
    if found and found.age is not None:
        yield f"logged      {metrics.duration(found.age)} ago"


def summary(job: Job) -> str:
    """Return a one-line status of a job."""
    return f"{job.name:<24} {job.slice.name:<10} {state(job):<12} {progress(job.workdir) or 'nothing logged yet'}"


def logs(find: Callable[[], Job], number: int, follow: bool, every: float = 5) -> Iterator[str]:
    """Yield the output of a worker over all attempts. With `follow`, continue until the job has ended.

    find: function that reads the job, which changes with every attempt.
    """
    read: dict[str, int] = {}
    while True:
        job = find()
        if not 0 <= number < job.workers:
            raise UserError(f"Expected a worker from 0 to {job.workers - 1}, found {number}; correct --worker.")
        ended = jobs.verdict(job) is not None
        bucket, home = Bucket(job.bucket), f"jobs/{job.name}"
        for attempt in sorted(int(name) for name in bucket.names(home) if name.isdigit()):
            folder = f"{home}/{attempt}/logs/{number}"
            for name in bucket.names(folder):
                contents = bucket.read(f"{folder}/{name}") or b""
                yield contents[read.get(f"{folder}/{name}", 0) :].decode("utf-8", "replace")
                read[f"{folder}/{name}"] = len(contents)
        if ended or not follow:
            return
        time.sleep(every)


SILENCE = 3600.0
"""Seconds without any report from the hosts of an ACTIVE slice after which the job fails. Installation is reported
too."""


def watch(job: Job, report: Callable[[str], None], every: float = 30) -> Verdict:
    """Follow a job until it ends, request lost slices again, and delete everything at the end.

    Raises:
        UserError: Cloud TPU refuses a request.
    """
    if job.tpu_vm:
        return machines.follow(job, report, progress, every)
    shown, active = "", None
    while True:
        queue = Queue(job)
        found = queue.state()
        ended = jobs.verdict(job)
        line = f"{found}  {progress(job.workdir) or ''}".rstrip()
        if line != shown:
            report(line)
            shown = line
        active = (active or time.monotonic()) if found.name == "ACTIVE" else None
        if ended is None:
            ended = _failure(job, found, time.monotonic() - active if active else 0)
        if ended is not None:
            if found.name != "ABSENT":
                report("deleting the slice")
                queue.delete(every)
            jobs.decide(job, ended)
            return ended
        if found.lost:
            report(
                f"the slice is lost; requesting another one, attempt {job.attempt - job.first + 2} of {job.attempts}"
            )
            queue.delete(every)
            job = job.next_attempt()
            jobs.save(job)
            Queue(job).create(startup.render(job))
        else:
            time.sleep(every)


def _failure(job: Job, found: State, seconds: float) -> Verdict | None:
    """Return the verdict of a failed job, or None while it can continue.

    seconds: time for which its slice has been ACTIVE.
    """
    if seconds > SILENCE and not Bucket(job.bucket).names(f"{job.folder}/logs"):
        return Verdict("failed", f"No host of the slice has written a log within {SILENCE / 60:.0f} minutes.")
    if found.name == "FAILED":
        return Verdict("failed", f"Cloud TPU could not provide the slice: {found.error or 'it gives no reason'}")
    if found.name in ("ABSENT", "DELETING"):
        return Verdict("failed", "The queued resource was deleted before the run was complete.")
    if found.lost and found.by_user:
        return Verdict("failed", "The queued resource was suspended by a user.")
    if found.lost and job.attempt - job.first + 1 >= job.attempts:
        return Verdict(
            "failed",
            f"The slice was lost {job.attempts} times, the maximum that python -m tpu submit --attempts allows.",
        )
    return None
