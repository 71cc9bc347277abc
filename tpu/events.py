"""Events of a job, one small object each: BUCKET/jobs/NAME/events/MILLISECONDS-KIND[-WORKER].json.

`python -m tpu submit` writes requested. `python -m tpu watch` writes created, active, lost, and done or failed. Worker
0 writes started and ended. No event is rewritten, so writers need no lock. The name of an event has its time, its kind
and its worker.
"""

import dataclasses
import json
import re
import time
from typing import Any

from plmjax.errors import UserError
from plmjax.files import json_text
from tpu.bucket import Bucket
from tpu.job import Job

KIND = re.compile(r"[a-z]+")
_NAME = re.compile(rf"(?P<time>\d{{13}})-(?P<kind>{KIND.pattern})(-(?P<worker>\d+))?\.json")


@dataclasses.dataclass(frozen=True)
class Event:
    """One event."""

    time: float
    """Seconds since 1970."""
    kind: str
    worker: int | None = None
    """Number of the host, or None for an event of the slice."""
    name: str = ""
    """Name of its object in the folder."""


def event(job: Job, kind: str, worker: int | None = None, **fields: Any) -> str:
    """Record that something happened now, and return the name of the event.

    Args:
        kind: a word of lower-case letters.
        worker: number of the host to which it happened.
        fields: further contents of the object, such as `code` and `step`; values of JSON.
    """
    if not KIND.fullmatch(kind):
        raise ValueError(f"an event is a word of lower-case letters, not {kind!r}")
    now = round(time.time(), 3)
    name = f"{round(now * 1000):013d}-{kind}{'' if worker is None else f'-{worker}'}.json"
    contents = {"kind": kind, "time": now, "attempt": job.attempt, "worker": worker} | fields
    Bucket(job.bucket).write(f"{_folder(job)}/{name}", (json.dumps(contents) + "\n").encode())
    return name


def events(job: Job) -> list[Event]:
    """Return all events of a job in the order of their times, from one listing of its folder.

    Objects with other names are left out.
    """
    found = (_NAME.fullmatch(name) for name in Bucket(job.bucket).names(_folder(job)))
    return [
        Event(int(name["time"]) / 1000, name["kind"], int(name["worker"]) if name["worker"] else None, name[0])
        for name in found
        if name
    ]


def contents(job: Job, one: Event) -> dict[str, Any]:
    """Return the contents of an event: `kind`, `time`, `attempt`, `worker` and its further fields.

    Raises:
        UserError: the object has other contents.
    """
    name = f"{_folder(job)}/{one.name}"
    try:
        fields = json_text.parse(Bucket(job.bucket).read(name) or b"")
        json_text.check(fields, {"kind": str, "time": float, "attempt": int})
    except ValueError as error:
        raise UserError(
            f"Expected an event of {job.name} in {job.bucket}/{name}, found another file ({json_text.reason(error)}); "
            f"remove it."
        ) from None
    return fields


def _folder(job: Job) -> str:
    return f"jobs/{job.name}/events"
