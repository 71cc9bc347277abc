"""What a job is, and what the bucket remembers of it.

    BUCKET/packages/DIGEST.tar.gz                      the project, packed
    BUCKET/compilation/                                compiled programs, for the next start
    BUCKET/runs/NAME/                                  the run directory, unless --workdir names another
    BUCKET/jobs/NAME/job.json                          the job, as last submitted
    BUCKET/jobs/NAME/ATTEMPT/logs/WORKER/TIME.log      what a worker printed, in parts
    BUCKET/jobs/NAME/ATTEMPT/workers/WORKER.json       how a worker's machine ended
    BUCKET/jobs/NAME/ATTEMPT/verdict.json              how the attempt ended; there is none while it goes on

An attempt is one slice that was asked for. A new one begins when a slice is lost, or when the job is submitted again.
"""

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any, Literal

from plmjax import json_text
from plmjax.errors import UserError, nearest, quoted
from tpu.bucket import Bucket

if TYPE_CHECKING:
    from plmjax.parallel import topologies

NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
"""Names that Cloud TPU and Kubernetes both take, short enough for the suffixes that both append."""
JOIN_SECONDS = 1800
"""Seconds that a host waits for the others: some machines start late, install slowly or are repaired first."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A run and the slices it runs on."""

    name: str
    experiment: str
    """FILE or FILE:FUNCTION, FILE is a path in the package."""
    overrides: tuple[str, ...]
    resolved: dict[str, Any]
    """The experiment with its overrides, as JSON."""
    accelerator: str
    topology: str
    slices: int
    spot: bool
    bucket: str
    workdir: str
    package: str
    """Name of the packed project in the bucket."""
    jax: str
    """Version of JAX on the machine that submitted it, installed on the slice too."""
    attempts: int
    """Most attempts of a job, each on a slice of its own, before it fails."""
    project: str = ""
    """Project of Google Cloud; empty for a job on Kubernetes."""
    zone: str = ""
    runtime: str = ""
    network: str = ""
    subnetwork: str = ""
    service_account: str = ""
    attempt: int = 1
    """Number of the slice requested last, counted from the job's first submission."""
    first: int = 1
    """Attempt that its last submission began with."""

    @property
    def slice(self) -> "topologies.Slice":
        """All its slices, as plmjax.parallel.topologies describes them."""
        from plmjax.parallel import topologies  # imports JAX, which a host that only watches a run does not need

        count = f"*{self.slices}" if self.slices > 1 else ""
        return topologies.parse(f"{self.accelerator}:{self.topology}{count}")

    @property
    def workers(self) -> int:
        """Hosts of all its slices."""
        return self.slice.hosts

    @property
    def hosts(self) -> int:
        """Hosts of one slice."""
        return self.workers // self.slices

    @property
    def folder(self) -> str:
        """Folder of the current attempt in the bucket."""
        return f"jobs/{self.name}/{self.attempt}"

    def again(self) -> "Job":
        """The job with another slice."""
        return dataclasses.replace(self, attempt=self.attempt + 1)

    def to_json(self) -> bytes:
        """The contents of job.json."""
        return (json.dumps(dataclasses.asdict(self), indent=2) + "\n").encode()

    def command(self) -> list[str]:
        """What every worker runs."""
        waiting = ["--join_seconds", str(JOIN_SECONDS)] if self.workers > 1 else []
        return ["plmjax", "pretrain", self.experiment, "--workdir", self.workdir, *waiting, *self.overrides]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """How an attempt ended."""

    state: Literal["done", "failed"]
    reason: str = ""
    """A sentence, where it failed."""

    def to_json(self) -> bytes:
        """The contents of verdict.json."""
        return (json.dumps(dataclasses.asdict(self)) + "\n").encode()


_SHAPE = {field.name: str for field in dataclasses.fields(Job)} | {
    "overrides": [str],
    "resolved": {str: object},
    "spot": bool,
    **dict.fromkeys(("slices", "attempts", "attempt", "first"), range(1, 2**31)),
}
"""Of job.json."""


def save(job: Job) -> None:
    """Writes job.json."""
    Bucket(job.bucket).write(f"jobs/{job.name}/job.json", job.to_json())


def read(bucket: str, name: str) -> Job | None:
    """The job of that name, or None.

    Raises:
        UserError: its job.json is of another version.
    """
    text = Bucket(bucket).read(f"jobs/{name}/job.json")
    if text is None:
        return None
    try:
        fields = json_text.parse(text)
        json_text.check(fields, {name: shape for name, shape in _SHAPE.items() if name in fields})
        return Job(**fields | {"overrides": tuple(fields["overrides"])})
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"Expected a job that this version wrote in {bucket}/jobs/{name}/job.json, found another "
            f"({json_text.reason(error)}); submit under another --name."
        ) from None


def find(bucket: str, name: str) -> Job:
    """The job of that name.

    Raises:
        UserError: there is none; the message has the nearest name.
    """
    job = read(bucket, name)
    if job is None:
        known = names(bucket)
        hint = nearest(name, known) if known else "the bucket holds no job at all; see python -m tpu submit --help."
        raise UserError(f"Expected a job in {bucket}, found none named {name!r}; {hint}")
    return job


def names(bucket: str) -> list[str]:
    """Every job of the bucket."""
    return Bucket(bucket).names("jobs")


def verdict(job: Job) -> Verdict | None:
    """How the current attempt ended; None while it goes on."""
    text = Bucket(job.bucket).read(f"{job.folder}/verdict.json")
    if text is None:
        return None
    try:
        fields = json_text.parse(text)
        json_text.check(fields, {"state": str, "reason": str})
        if fields["state"] not in ("done", "failed"):
            raise ValueError(f"state is {quoted(fields['state'])}")
        return Verdict(**fields)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"Expected how an attempt ended in {job.bucket}/{job.folder}/verdict.json, found another "
            f"({json_text.reason(error)}); remove it, and the attempt goes on."
        ) from None


def decide(job: Job, ended: Verdict) -> None:
    """Ends the current attempt; the first verdict stands."""
    if verdict(job) is None:
        Bucket(job.bucket).write(f"{job.folder}/verdict.json", ended.to_json())
