"""Request a profile of a running job, from any step, and wait for its trace (plmjax.training.profiling)."""

import time
from collections.abc import Callable
from pathlib import Path

from plmjax.errors import Unavailable, UserError
from plmjax.files import storage
from plmjax.training import profiling, progress
from plmjax.training.profiling import Done, Request
from tpu import job as jobs
from tpu.job import Job


def profile(
    job: Job, steps: int, first: int, *, report: Callable[[str], None], limit: float, every: float = 2
) -> tuple[Done, str]:
    """Ask a job for a profile and wait for it. Return the answer and the full name of the trace's folder.

    Args:
        first: first step; 0 for the next one.
        limit: seconds to wait.

    Raises:
        UserError: the job has ended, the steps are not in the run, or another profile is already requested.
        Unavailable: there is no trace in time, or it could not be recorded.
    """
    workdir = storage.path(job.workdir)
    _check(job, workdir, steps, first)
    request = profiling.ask(workdir, steps, first)
    try:
        done = _wait(job, workdir, request, report=report, limit=limit, every=every)
    except BaseException:
        storage.remove(workdir / profiling.REQUEST)  # nobody waits for it now, and it would block the next one
        raise
    if done.error:
        raise Unavailable(f"Expected a trace of {job.name}, found that its profiler failed ({done.error}); try again.")
    return done, f"{job.workdir}/{done.folder}"


def _check(job: Job, workdir: Path, steps: int, first: int) -> None:
    total = job.resolved["training"]["steps"]
    if not 1 <= steps <= profiling.LONGEST:
        raise UserError(f"Expected --steps from 1 to {profiling.LONGEST}, found {steps}; change it.")
    if not 0 <= first <= total:
        raise UserError(f"Expected --from a step of the run, 1 to {total}, found {first}; change it.")
    if ended := jobs.verdict(job):
        raise UserError(
            f"Expected a running job named {job.name}, found it {ended.state}; name one that runs, or "
            f"submit it again with python -m tpu submit --training.profile_steps."
        )
    try:
        pending, done = Request.read(workdir), Done.read(workdir)
    except ValueError:
        return  # a file of another kind is replaced
    if pending is not None and (done is None or done.id != pending.id):
        raise UserError(
            f"Expected no other profile of {job.name}, found one of {pending.steps} steps asked for "
            f"{max(0, time.time() - pending.time):.0f} s ago; wait for it, or remove {workdir}/{profiling.REQUEST}."
        )


def _wait(
    job: Job, workdir: Path, request: Request, *, report: Callable[[str], None], limit: float, every: float
) -> Done:
    end, shown, said = time.monotonic() + limit, "", False
    while time.monotonic() < end:
        done = Done.read(workdir)
        if done is not None and done.id == request.id:
            if done.error or _has_trace(workdir / done.folder):
                return done
            if not said:
                report(f"steps {done.first} to {done.last} are recorded, waiting for the trace in the bucket")
                said = True
        elif jobs.verdict(job):
            raise UserError(f"Expected a trace of {job.name}, found that the job has ended; submit it again.")
        elif (line := _step(workdir)) != shown:
            report(line)
            shown = line
        time.sleep(every)
    raise Unavailable(
        f"Expected a trace of {job.name} within {limit:g} s, found none; the run may stand still, be starting or be "
        f"before --from, see python -m tpu status {job.name}; then ask again."
    )


def _has_trace(folder: Path) -> bool:
    return folder.is_dir() and any(entry.name.endswith(".xplane.pb") for entry in folder.iterdir())


def _step(workdir: Path) -> str:
    """Return a line about the progress of the run."""
    found = progress.read(workdir)
    return f"the run is at step {found.step:,} of {found.steps:,}" if found else "the run has not begun"
