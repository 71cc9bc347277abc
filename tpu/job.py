"""A job, and its state in the bucket.

    BUCKET/packages/DIGEST.tar.gz                      the project, packed
    BUCKET/compilation/                                compiled programs, for the next start
    BUCKET/runs/NAME/                                  the run directory, unless --workdir names another
    BUCKET/jobs/NAME/job.json                          the job, as last submitted
    BUCKET/jobs/NAME/watch.json                        what `python -m tpu watch` has seen and has to do
    BUCKET/jobs/NAME/events/TIME-KIND.json             what happened, one object per event
    BUCKET/jobs/NAME/ATTEMPT/logs/WORKER/TIME.log      output of a worker, in parts
    BUCKET/jobs/NAME/ATTEMPT/crashes/WORKER/TIME/FILE  files about a run that failed: libtpu's, and standard error
    BUCKET/jobs/NAME/ATTEMPT/workers/WORKER.json       report of a worker's machine at the end
    BUCKET/jobs/NAME/ATTEMPT/requests/                 requests for the stacks of the hosts, and the answers
    BUCKET/jobs/NAME/ATTEMPT/verdict.json              how the attempt ended; absent while it runs
    BUCKET/jobs/NAME/selfcheck/ATTEMPT.json            what plmjax selfcheck found, with submit --selfcheck

An attempt is one slice, or all slices of one request. A new attempt begins when another slice is created after a loss,
or when the job is submitted again. A request that is refused for lack of capacity begins no attempt.
"""

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any, Literal

from plmjax.errors import UserError, nearest, quoted
from plmjax.files import json_text
from tpu.bucket import Bucket

if TYPE_CHECKING:
    from plmjax.parallel import topologies

NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
"""Names that both Cloud TPU and Kubernetes accept, short enough for the suffixes that both append."""
JOIN_SECONDS = 1800
"""Seconds that a host waits for the others, because some machines start late, install slowly or are repaired first.

It is more than the longest wait before a host runs the command again (`tpu.restarts.LONGEST_WAIT`).
"""


@dataclasses.dataclass(frozen=True)
class Job:
    """A run and its slices."""

    name: str
    experiment: str
    """FILE or FILE:FUNCTION, where FILE is a path in the package or the name of an experiment of plmjax."""
    overrides: tuple[str, ...]
    resolved: dict[str, Any]
    """The experiment with its overrides, as JSON, with the paths of its class files on the submitting machine."""
    accelerator: str
    topology: str
    slices: int
    spot: bool
    bucket: str
    workdir: str
    package: str
    """Name of the packed files in the bucket."""
    jax: str
    """Version of JAX on the submitting machine, which is also installed on the slice."""
    attempts: int
    """Maximum number of slices that are lost in a row, without a new checkpoint between them, before the job fails."""
    verb: str = "pretrain"
    """Command of plmjax that the hosts run: pretrain, or finetune for an experiment on a task."""
    init_from: str = ""
    """Value of the command's --from; empty for none."""
    library: str = ".[tpu]"
    """Requirement that pip installs in the folder of the unpacked files: plmjax of the submitting machine."""
    python: str = "3.12"
    """Version of Python on the submitting machine, which the hosts have too where they can get it."""
    project: str = ""
    """Project of Google Cloud; empty for a job on Kubernetes."""
    zone: str = ""
    """Zone of the slice requested last."""
    zones: tuple[str, ...] = ()
    """Zones to try in turn, if there are several."""
    tpu_vm: str = ""
    """Name of a TPU VM that exists, on which the job runs; empty for slices that are requested for it."""
    reservation: str = ""
    """Name of the reservation that provides the slice; "-" for any of the project, empty for none."""
    max_run_seconds: int = 0
    """Longest duration of a flex-start slice; 0 for other slices."""
    valid_until: str = ""
    """Time, or duration since a request, after which the slice is no longer wanted; empty for no limit."""
    internal_ips: bool = False
    """True if the machines have no external addresses."""
    labels: tuple[str, ...] = ()
    """Labels of the slice, KEY=VALUE."""
    data_disks: tuple[str, ...] = ()
    """Persistent disks of the machines, as `tpu.capacity.Disk.parse` reads them."""
    runtime: str = ""
    network: str = ""
    subnetwork: str = ""
    service_account: str = ""
    attempt: int = 1
    """Number of the slice created last, counted from the job's first submission."""
    first: int = 1
    """First attempt that `tries` counts: the first of the last submission, or the first lost since a new checkpoint."""
    step: int | None = None
    """Step of the newest checkpoint when a slice was last lost."""
    notify: str = ""
    """Webhook or command that is told about events (tpu/notify.py)."""
    selfcheck: bool = False
    """True if plmjax selfcheck must pass on every slice before the run."""

    @property
    def slice(self) -> "topologies.Slice":
        """All slices of the job, as a plmjax.parallel.topologies.Slice."""
        from plmjax.parallel import topologies  # this imports JAX, which a host that only watches a run does not need

        count = f"*{self.slices}" if self.slices > 1 else ""
        return topologies.parse(f"{self.accelerator}:{self.topology}{count}")

    @property
    def workers(self) -> int:
        """Number of hosts of all slices."""
        return self.slice.hosts

    @property
    def hosts(self) -> int:
        """Number of hosts of one slice."""
        return self.workers // self.slices

    @property
    def file(self) -> str:
        """Full name of job.json."""
        return f"{self.bucket}/jobs/{self.name}/job.json"

    @property
    def folder(self) -> str:
        """Folder of the current attempt in the bucket."""
        return f"jobs/{self.name}/{self.attempt}"

    @property
    def queued(self) -> bool:
        """True if the job's slices are queued resources, which are requested for it and deleted at its end."""
        return bool(self.project) and not self.tpu_vm

    @property
    def tries(self) -> int:
        """Number of slices since the newest checkpoint, the current one included."""
        return self.attempt - self.first + 1

    def after_loss(self, step: int | None) -> "Job":
        """Return the job after the loss of its slice. step: the newest checkpoint; a new one sets `tries` to 1."""
        new = step is not None and (self.step is None or step > self.step)
        return dataclasses.replace(self, first=self.attempt, step=step) if new else self

    def in_next_zone(self) -> "Job":
        """Return the job in the next zone; after the last zone comes the first one."""
        if len(self.zones) < 2:
            return self
        following = (self.zones.index(self.zone) + 1) % len(self.zones)
        return dataclasses.replace(self, zone=self.zones[following])

    def lost_too_often(self, step: int | None) -> str:
        """Return why a job fails that has used up its attempts. step: its newest checkpoint."""
        where = "without a checkpoint" if step is None else f"without a checkpoint after step {step:,}"
        return f"The slice was lost {self.attempts} times {where}, the limit of python -m tpu submit --attempts."

    def to_json(self) -> bytes:
        """Return the contents of job.json."""
        return (json.dumps(dataclasses.asdict(self), indent=2) + "\n").encode()

    def command(self) -> list[str]:
        """Return the command that every worker runs."""
        waiting = ["--join_seconds", str(JOIN_SECONDS)] if self.workers > 1 else []
        start = ["--from", self.init_from] if self.init_from else []
        return ["plmjax", self.verb, self.experiment, *start, "--workdir", self.workdir, *waiting, *self.overrides]

    @property
    def selfcheck_report(self) -> str:
        """Name of the object with the findings of the current attempt's selfcheck."""
        return f"jobs/{self.name}/selfcheck/{self.attempt}.json"

    def selfcheck_command(self) -> list[str]:
        """Return the command that every worker runs before the job if `selfcheck` is true."""
        waiting = ["--join_seconds", str(JOIN_SECONDS)] if self.workers > 1 else []
        return ["plmjax", "selfcheck", "--output", f"{self.bucket}/{self.selfcheck_report}", *waiting]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Outcome of an attempt."""

    state: Literal["done", "failed"]
    reason: str = ""
    """A sentence, if it failed."""

    def to_json(self) -> bytes:
        """Return the contents of verdict.json."""
        return (json.dumps(dataclasses.asdict(self)) + "\n").encode()


_SHAPE = {field.name: str for field in dataclasses.fields(Job)} | {
    "overrides": [str],
    "resolved": {str: object},
    **{name: [str] for name in ("zones", "labels", "data_disks")},
    **dict.fromkeys(("spot", "internal_ips", "selfcheck"), bool),
    "max_run_seconds": range(2**31),
    **dict.fromkeys(("slices", "attempts", "attempt", "first"), range(1, 2**31)),
    "step": (range(2**62), type(None)),
}
"""Shape of job.json."""


def save(job: Job) -> None:
    """Write job.json."""
    Bucket(job.bucket).write(f"jobs/{job.name}/job.json", job.to_json())


def read(bucket: str, name: str) -> Job | None:
    """Return the job of that name, or None.

    Raises:
        UserError: its job.json is of another version.
    """
    text = Bucket(bucket).read(f"jobs/{name}/job.json")
    if text is None:
        return None
    try:
        fields = json_text.parse(text)
        json_text.check(fields, {name: shape for name, shape in _SHAPE.items() if name in fields})
        return Job(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"Expected a job that this version wrote in {bucket}/jobs/{name}/job.json, found another "
            f"({json_text.reason(error)}); submit under another --name."
        ) from None


def find(bucket: str, name: str) -> Job:
    """Return the job of that name.

    Raises:
        UserError: there is no such job; the message has the nearest name.
    """
    job = read(bucket, name)
    if job is None:
        known = names(bucket)
        hint = nearest(name, known) if known else "the bucket holds no job at all; see python -m tpu submit --help."
        raise UserError(f"Expected a job in {bucket}, found none named {name!r}; {hint}")
    return job


def names(bucket: str) -> list[str]:
    """Return the names of all jobs of the bucket."""
    return Bucket(bucket).names("jobs")


def verdict(job: Job) -> Verdict | None:
    """Return the verdict of the current attempt, or None while it runs.

    Raises:
        UserError: verdict.json has other contents.
    """
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
            f"Expected the outcome of an attempt in {job.bucket}/{job.folder}/verdict.json, found another "
            f"({json_text.reason(error)}); remove it, and the attempt continues."
        ) from None


def decide(job: Job, ended: Verdict) -> None:
    """Write the verdict of the current attempt. The first verdict counts."""
    if verdict(job) is None:
        Bucket(job.bucket).write(f"{job.folder}/verdict.json", ended.to_json())
