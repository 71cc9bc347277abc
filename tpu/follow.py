"""Follow a job from outside: its progress, its status and its logs. tpu/watch.py requests lost slices again."""

import time
from collections.abc import Callable, Iterator

from plmjax.errors import UserError
from plmjax.files import storage
from plmjax.training import metrics
from plmjax.training import progress as records
from plmjax.training.progress import Progress
from tpu import goodput, machines, notes
from tpu import job as jobs
from tpu.bucket import Bucket
from tpu.job import Job
from tpu.queue import Queue


def progress(workdir: str) -> Progress | None:
    """Return the progress of a run, or None before there is any."""
    return records.read(storage.path(workdir))


def state(job: Job) -> str:
    """Return the state of a job as text: its verdict and the state of its slices."""
    ended = jobs.verdict(job)
    slices = str(Queue(job).state()) if job.queued else "on Kubernetes"
    if job.tpu_vm:
        slices = f"on {job.tpu_vm} ({machines.state(job)})"
    if ended is None:
        if slices != "ABSENT":
            return slices
        waiting = "waiting: python -m tpu watch requests a slice again"
        return "not running: no slice is requested" if notes.read(job).wanted is None else waiting
    rest = "" if slices == "ABSENT" or not job.queued else f"; its slice is {slices}, see python -m tpu delete"
    return f"{ended.state}{rest}" + (f": {ended.reason}" if ended.reason else "")


def status(job: Job) -> Iterator[str]:
    """Yield the full status of a job, line by line."""
    kind = "spot, " if job.spot else ""
    yield f"job         {job.name}: {job.experiment} {' '.join(job.overrides)}".rstrip()
    yield f"slice       {job.slice.name} ({job.slice.accelerator_type}, {kind}{job.workers} hosts)"
    tried = f"attempt {job.tries} of {job.attempts}"
    yield f"state       {state(job)}; {tried}" if job.queued else f"state       {state(job)}"
    found = progress(job.workdir)
    yield f"progress    {found if found else 'nothing logged yet'}"
    if found and found.checkpoint is not None:
        yield f"checkpoint  step {found.checkpoint:,} in {job.workdir}"
    if found and found.time is not None:
        yield f"logged      {metrics.duration(max(0, time.time() - found.time))} ago"
    spent = goodput.compute(job, jobs.verdict(job), time.time())
    if spent is not None:
        yield f"goodput     {spent}"


def summary(job: Job) -> str:
    """Return a one-line status of a job."""
    return f"{job.name:<24} {job.slice.name:<10} {state(job):<12} {progress(job.workdir) or 'nothing logged yet'}"


def primary(job: Job) -> int:
    """Return the number of the host that prints the losses, which is 0 before the run has recorded any progress."""
    found = progress(job.workdir)
    return found.worker if found else 0


def logs(
    find: Callable[[], Job], number: int | None, follow: bool, *, say: Callable[[str], None], every: float = 5
) -> Iterator[str]:
    """Yield the output of a worker over all attempts. With `follow`, continue until the job has ended.

    Args:
        find: function that reads the job, which changes with every attempt.
        number: the worker, or None for the one that prints the losses, which can be another one in each attempt.
        say: prints which worker is shown, if `number` is None.

    Raises:
        UserError: the job has no such worker.
    """
    read: dict[str, int] = {}
    chosen = number
    while True:
        job = find()
        if number is None and (found := primary(job)) != chosen:
            chosen = found
            say(f"worker {chosen} of {job.workers}, which prints the losses; --worker J shows another one")
        if not 0 <= chosen < job.workers:
            raise UserError(f"Expected a worker from 0 to {job.workers - 1}, found {chosen}; correct --worker.")
        ended = jobs.verdict(job) is not None
        bucket, home = Bucket(job.bucket), f"jobs/{job.name}"
        for attempt in sorted(int(name) for name in bucket.names(home) if name.isdigit()):
            folder = f"{home}/{attempt}/logs/{chosen}"
            for name in bucket.names(folder):
                contents = bucket.read(f"{folder}/{name}") or b""
                yield contents[read.get(f"{folder}/{name}", 0) :].decode("utf-8", "replace")
                read[f"{folder}/{name}"] = len(contents)
        if ended or not follow:
            return
        time.sleep(every)
