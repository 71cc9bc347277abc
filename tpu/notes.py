"""The state of `python -m tpu watch` for a job: BUCKET/jobs/NAME/watch.json.

A watch writes each action here before it takes it. So if it is killed at any moment, another watch continues, on any
machine: one that follows the job until it ends, or single looks that a scheduler starts.
"""

import dataclasses
import json
from typing import Any

from plmjax.errors import UserError
from plmjax.files import json_text
from tpu.bucket import Bucket
from tpu.job import Job


@dataclasses.dataclass
class Notes:
    """The contents of watch.json. Times are in seconds since 1970."""

    attempt: int
    """Attempt of the job that the notes are about."""
    wanted: int | None = None
    """Attempt whose slice has to be requested, if the slice was lost or was not provided."""
    gone: bool = False
    """True if the lost slice is gone. A resource that is found afterwards is the wanted one."""
    refusals: int = 0
    """Number of requests in a row that were refused for a temporary reason."""
    refused_in: str = ""
    """Zone of the last refusal; the next request goes to the next zone of the job."""
    again: float = 0.0
    """Time of the next request."""
    waiting: str = ""
    """Reason of the last refusal, without its numbers; empty while there is a slice."""
    active: float | None = None
    """Time at which the slice was first seen ACTIVE; None while it is not."""
    step: int = -1
    """Last step that was seen."""
    stepped: float = 0.0
    """Time at which a new step was last seen."""
    still: bool = False
    """True after the notice that the run stands still."""
    ended: bool = False
    """True after the notice that the job has ended."""
    unsent: list[dict[str, str]] = dataclasses.field(default_factory=list)
    """Notices that have to be sent, oldest first."""
    failures: int = 0
    """Number of failures in a row to send the oldest notice."""
    resend: float = 0.0
    """Time of the next try to send the oldest notice."""

    def to_json(self) -> bytes:
        """Return the contents of watch.json."""
        return (json.dumps(dataclasses.asdict(self)) + "\n").encode()

    def are_about(self, job: Job) -> bool:
        """Return whether the job is still at an attempt of the notes. It is not if it was submitted again."""
        return job.attempt == self.attempt or (self.gone and job.attempt == self.wanted)


_SHAPE: dict[str, Any] = {
    "attempt": range(1, 2**31),
    "wanted": (range(1, 2**31), type(None)),
    **dict.fromkeys(("gone", "still", "ended"), bool),
    **dict.fromkeys(("refusals", "failures"), json_text.COUNT),
    **dict.fromkeys(("again", "stepped", "resend"), float),
    **dict.fromkeys(("waiting", "refused_in"), str),
    "active": (float, type(None)),
    "step": int,
    "unsent": [{"job": str, "event": str, "text": str}],
}


def read(job: Job) -> Notes:
    """Return the notes about a job; new ones if there are none, or if the job was submitted again.

    Raises:
        UserError: watch.json is of another version.
    """
    name = _name(job)
    text = Bucket(job.bucket).read(name)
    if text is None:
        return Notes(job.attempt)
    try:
        fields = json_text.parse(text)
        json_text.check(fields, {name: shape for name, shape in _SHAPE.items() if name in fields})
        found = Notes(**fields)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"Expected the notes of python -m tpu watch in {job.bucket}/{name}, found another file "
            f"({json_text.reason(error)}); remove it, and watch starts afresh."
        ) from None
    return found if found.are_about(job) else Notes(job.attempt, unsent=found.unsent)


def write(job: Job, notes: Notes) -> None:
    """Write watch.json."""
    Bucket(job.bucket).write(_name(job), notes.to_json())


def _name(job: Job) -> str:
    return f"jobs/{job.name}/watch.json"
