"""The stacks of all hosts of a job, to see where it stands still.

`ask` writes jobs/NAME/ATTEMPT/requests/stacks.json, which every worker reads as often as the verdict. A worker sends
SIGUSR1 to its plmjax, which prints the stacks to its log. The worker copies that part of the log to
requests/stacks-ID/WORKER.
"""

import json
import os
import re
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from plmjax.errors import Unavailable, UserError
from plmjax.files import json_text
from tpu import job as jobs
from tpu.bucket import Bucket
from tpu.job import Job

REQUEST = "requests/stacks.json"
LATE_SECONDS = 600
"""Age in seconds from which a request is no longer answered."""
PRINT_SECONDS = 10.0
"""Longest time to wait for the stacks in the log."""
QUIET_SECONDS = 1.0
"""Time without further output after which the stacks are complete."""


def answer(job: Job, worker: int, process: int, *, log: Path, answered: str) -> str:
    """Answer a request for the stacks of this host, if there is a new one.

    Args:
        process: process id of the plmjax on this host.
        log: file of its output.
        answered: id of the request that was answered last.

    Returns:
        The id of the request that was answered last.
    """
    bucket = Bucket(job.bucket)
    text = bucket.read(f"{job.folder}/{REQUEST}")
    if text is None:
        return answered
    request = json_text.parse(text)
    json_text.check(request, {"id": str, "time": float})
    if request["id"] == answered or time.time() - request["time"] > LATE_SECONDS:
        return answered
    starting = not _catches(process, signal.SIGUSR1)
    found = b"plmjax is starting and has no stacks yet\n" if starting else _read_stacks(process, log)
    bucket.write(f"{job.folder}/requests/stacks-{request['id']}/{worker}", found)
    return request["id"]


def _catches(process: int, number: int) -> bool:
    """Return whether a process has a handler for a signal. Without a handler, the signal would end it."""
    try:
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", Path(f"/proc/{process}/status").read_text(), re.M)
    except OSError:  # it has just ended
        return False
    return bool(caught and int(caught[1], 16) >> (number - 1) & 1)


def _read_stacks(process: int, log: Path) -> bytes:
    """Ask a process for its stacks, and return its output."""
    start = size = log.stat().st_size
    os.kill(process, signal.SIGUSR1)
    end = quiet = time.monotonic() + PRINT_SECONDS
    while time.monotonic() < min(end, quiet):
        time.sleep(0.1)
        if (grown := log.stat().st_size) != size:
            size, quiet = grown, time.monotonic() + QUIET_SECONDS
    with log.open("rb") as file:
        file.seek(start)
        return file.read()


def ask(job: Job, limit: float = 90, every: float = 2) -> Iterator[str]:
    """Yield the stacks of each host as it answers, and at the end the hosts that did not.

    Raises:
        UserError: the job has ended.
        Unavailable: no host answers within `limit` seconds.
    """
    if ended := jobs.verdict(job):
        raise UserError(
            f"Expected a running job named {job.name}, found it {ended.state}; see python -m tpu logs {job.name}."
        )
    bucket, identity = Bucket(job.bucket), uuid.uuid4().hex[:12]
    bucket.write(f"{job.folder}/{REQUEST}", json.dumps({"id": identity, "time": time.time()}).encode())
    folder, shown, end = f"{job.folder}/requests/stacks-{identity}", set(), time.monotonic() + limit
    while len(shown) < job.workers:
        for name in sorted(set(bucket.names(folder)) - shown, key=int):
            text = (bucket.read(f"{folder}/{name}") or b"").decode("utf-8", "replace")
            shown.add(name)
            yield f"---- worker {name}\n{text.rstrip() or 'printed nothing'}"
        if time.monotonic() > end:
            break
        if len(shown) < job.workers:
            time.sleep(every)
    missing = [str(worker) for worker in range(job.workers) if str(worker) not in shown]
    if not shown:
        raise Unavailable(
            f"Expected an answer of the {job.workers} hosts of {job.name} within {limit:g} s, found none; they may be "
            f"installing or gone, see python -m tpu status {job.name} and python -m tpu logs {job.name}."
        )
    if missing:
        yield f"---- no answer of worker {', '.join(missing)} within {limit:g} s"
