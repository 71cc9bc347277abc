"""Slices of Cloud TPU, requested as queued resources (google.cloud.tpu.v2) and deleted.

A queued resource goes through ACCEPTED, WAITING_FOR_RESOURCES and PROVISIONING to ACTIVE. When its slice is preempted
or breaks, it is SUSPENDED and never runs again: it has to be deleted and requested anew. FAILED is a late refusal,
because of a mistake or a lack of capacity. docs.cloud.google.com/tpu/docs/queued-resources.
"""

import contextlib
import dataclasses
import datetime
import json
import os
import re
import time
import uuid
from collections.abc import Iterator
from typing import Any

from plmjax.errors import Explained, Unavailable, UserError
from tpu import capacity, flex_start
from tpu.job import Job

ATTEMPT = "plmjax-attempt"
"""Label of a slice with the attempt for which it was requested."""
ENDPOINT = "TPU_API_ENDPOINT"
"""Environment variable with host:port of a service that replaces Google's in rehearsals, without encryption."""
WAITING = ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING")
LOST = ("SUSPENDING", "SUSPENDED")
CHANGING = ("DELETING", "SUSPENDING")
"""States in which a resource cannot be deleted."""
LOST_NODE = ("PREEMPTED", "TERMINATED", "STOPPING", "STOPPED")
"""States from which a node does not recover by itself."""
_CAPACITY = re.compile(r"capacity|stock-?\s?out|resources? (is|are|was|were)? ?(not|un)\s?available", re.IGNORECASE)
"""Words of a refusal for lack of capacity. Such refusals have different codes."""


class NoCapacity(Unavailable):
    """There is no quota or no capacity at this moment."""


class Exists(UserError):
    """There is a queued resource of that name already."""


@dataclasses.dataclass(frozen=True)
class State:
    """State of a queued resource, as reported by the service."""

    name: str
    """ABSENT, or one of the service's names, such as ACTIVE."""
    error: str = ""
    """Reason of the resource's failure."""
    mistaken: bool = False
    """True if the resource has FAILED because of its request, so that the same request would fail again."""
    nodes: tuple[str, ...] = ()
    """States of the resource's slices while it is ACTIVE."""
    by_user: bool = False
    """True if a person suspended the resource, not the service."""
    attempt: int = 0
    """Attempt of the job for which the resource was requested; 0 if it has no such label."""

    @property
    def lost(self) -> bool:
        """True if the resource has lost a slice for good."""
        return self.name in LOST or any(node in LOST_NODE for node in self.nodes)

    def __str__(self) -> str:
        nodes = sorted(set(self.nodes) - {"READY"})
        return " ".join([self.name, *(f"({', '.join(nodes)})" for _ in nodes[:1]), *filter(None, [self.error])])


def library() -> Any:
    """Return the module google.cloud.tpu_v2.

    Raises:
        UserError: it is not installed.
    """
    try:
        from google.cloud import tpu_v2
    except ImportError:
        raise UserError(
            "Expected google-cloud-tpu, the client of Cloud TPU, found none installed; run pip install 'plmjax[tpu]'."
        ) from None
    return tpu_v2


def parent(job: Job) -> str:
    """Return the project and zone of the job's resources in the service's form."""
    return f"projects/{job.project}/locations/{job.zone}"


def resource(job: Job) -> str:
    """Return the full name of the job's queued resource."""
    return f"{parent(job)}/queuedResources/{job.name}"


def nodes(job: Job) -> list[str]:
    """Return the full names of the job's slices."""
    names = [job.name] if job.slices == 1 else [f"{job.name}-{index}" for index in range(job.slices)]
    return [f"{parent(job)}/nodes/{name}" for name in names]


def create_request(job: Job, script: str) -> Any:
    """Return the CreateQueuedResourceRequest of the job's current attempt.

    A request for a slice of a reservation has reservation_name and no tier, as gcloud requests it. The terms of a
    flex-start slice are not in this version of the API; `flex_start.body` adds them.
    """
    tpu = library()
    node = tpu.Node(
        accelerator_type=job.slice.accelerator_type,
        runtime_version=job.runtime,
        description=f"{job.experiment}, attempt {job.attempt}",
        network_config=tpu.NetworkConfig(
            network=job.network or "default", subnetwork=job.subnetwork, enable_external_ips=not job.internal_ips
        ),
        service_account=tpu.ServiceAccount(
            email=job.service_account, scope=["https://www.googleapis.com/auth/cloud-platform"]
        ),
        labels=capacity.labels(job.labels) | {"plmjax-job": job.name, ATTEMPT: str(job.attempt)},
        data_disks=[
            tpu.AttachedDisk(source_disk=disk.source(job.project, job.zone), mode=capacity.MODES[disk.mode])
            for disk in map(capacity.Disk.parse, job.data_disks)
        ],
        metadata={"startup-script": script},
    )
    specification = tpu.QueuedResource.Tpu.NodeSpec(parent=parent(job), node=node)
    if job.slices == 1:
        specification.node_id = job.name
    else:
        specification.multislice_params = {"node_count": job.slices, "node_id_prefix": job.name}
    terms: dict[str, Any] = {"spot": tpu.QueuedResource.Spot()} if job.spot else {}  # without a tier it is on demand
    if job.reservation:
        terms["reservation_name"] = capacity.reservation(job.reservation, job.project, job.zone)
    if job.valid_until:
        limit = capacity.until(job.valid_until)
        kind = "valid_until_duration" if isinstance(limit, datetime.timedelta) else "valid_until_time"
        terms["queueing_policy"] = {kind: limit}
    return tpu.CreateQueuedResourceRequest(
        parent=parent(job),
        queued_resource_id=job.name,
        queued_resource=tpu.QueuedResource(tpu={"node_spec": [specification]}, **terms),
        # If the answer is lost and the request is sent again, it still creates only one resource.
        request_id=str(uuid.uuid4()),
    )


def delete_request(job: Job) -> Any:
    """Return the DeleteQueuedResourceRequest, which deletes the slices too."""
    return library().DeleteQueuedResourceRequest(name=resource(job), force=True)


def get_request(job: Job) -> Any:
    """Return the GetQueuedResourceRequest."""
    return library().GetQueuedResourceRequest(name=resource(job))


def show(request: Any) -> str:
    """Return a request as JSON, without unset fields."""
    return json.dumps(json.loads(type(request).to_json(request, always_print_fields_with_no_presence=False)), indent=2)


def connect(patience: float = 600.0) -> tuple[Any, dict[str, Any]]:
    """Return the client of Cloud TPU, and the options of its calls.

    patience: seconds during which calls to an unreachable service are repeated.

    Raises:
        UserError: there are no credentials.
    """
    tpu = library()
    from google.api_core import exceptions
    from google.api_core.retry import Retry, if_exception_type

    unreachable = if_exception_type(exceptions.ServiceUnavailable, exceptions.DeadlineExceeded)
    options = {"timeout": 60, "retry": Retry(unreachable, initial=1, maximum=30, timeout=patience)}
    if endpoint := os.environ.get(ENDPOINT):
        import grpc
        from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

        return tpu.TpuClient(transport=TpuGrpcTransport(channel=grpc.insecure_channel(endpoint))), options
    from google.auth.exceptions import DefaultCredentialsError

    try:
        return tpu.TpuClient(), options
    except DefaultCredentialsError:
        raise UserError(
            "Expected credentials for Google Cloud, found none on this machine; run gcloud auth "
            "application-default login."
        ) from None


class Queue:
    """Client of Cloud TPU for one job.

    Every refusal raises an error of one sentence: UserError for a mistake, Unavailable for a temporary refusal.
    """

    PATIENCE = 600.0
    """Seconds during which calls to an unreachable service are repeated."""

    def __init__(self, job: Job, patience: float | None = None) -> None:
        self.job = job
        self._client, self._call_options = connect(patience or self.PATIENCE)

    def create(self, script: str) -> None:
        """Request the job's slices.

        Raises:
            UserError: the request is refused.
            NoCapacity: there is no quota or no capacity.
            Unavailable: Cloud TPU does not answer.
        """
        self.wait_for(self.begin(script))

    def begin(self, script: str) -> Any:
        """Request the job's slices, and return the operation that creates them, or None if it is done.

        Raises the errors of `create`.
        """
        request = create_request(self.job, script)
        with self._refusals():
            if self.job.max_run_seconds:
                return flex_start.create(self.job, request)
            return self._client.create_queued_resource(request, **self._call_options)

    def wait_for(self, operation: Any) -> None:
        """Wait until an operation is done. Raises the errors of `create`."""
        if operation is not None:
            with self._refusals():
                _wait_for_operation(operation)

    def state(self) -> State:
        """Return the current state of the resource; ABSENT if there is no such resource."""
        from google.api_core import exceptions

        with self._refusals():
            try:
                found = self._client.get_queued_resource(get_request(self.job), **self._call_options)
            except exceptions.NotFound:
                return State("ABSENT")
            name, error = found.state.state.name, found.state.failed_data.error
            return State(
                name,
                error=error.message,
                mistaken=name == "FAILED" and _is_mistake(error),
                nodes=self._nodes() if name == "ACTIVE" else (),
                by_user=found.state.state_initiator.name == "USER",
                attempt=_attempt(found),
            )

    def _nodes(self) -> tuple[str, ...]:
        from google.api_core import exceptions

        states = []
        for name in nodes(self.job):
            try:
                states.append(self._client.get_node(name=name, **self._call_options).state.name)
            except exceptions.NotFound:
                states.append("TERMINATED")
        return tuple(states)

    def delete(self, every: float = 10, patience: float = 1800) -> None:
        """Delete the slices and wait until they are gone. Do nothing if there are none.

        Raises:
            UserError: the deletion is refused, or they still exist after `patience` seconds.
            Unavailable: Cloud TPU does not answer.
        """
        waited = 0.0
        while (state := self.state()).name != "ABSENT":
            if waited > patience:
                raise UserError(
                    f"Expected {resource(self.job)} to be gone, found it {state} after {patience:.0f} seconds; look at "
                    f"it in Cloud's console, it may still cost money."
                )
            if state.name not in CHANGING:
                self.ask_to_delete()
            time.sleep(every)
            waited += every

    def ask_to_delete(self) -> None:
        """Request the deletion of the slices without waiting for it.

        Nothing happens if somebody else is deleting them, or if their state is changing.
        """
        from google.api_core import exceptions

        busy = (exceptions.NotFound, exceptions.FailedPrecondition, exceptions.Aborted)
        with self._refusals(), contextlib.suppress(*busy):
            self._client.delete_queued_resource(delete_request(self.job), **self._call_options)

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        from google.api_core import exceptions
        from google.auth.exceptions import GoogleAuthError

        try:
            yield
        except exceptions.GoogleAPICallError as error:
            raise self._explain(error) from error
        except exceptions.RetryError as error:
            raise Unavailable(
                f"Expected an answer of Cloud TPU in {self.job.zone}, found none in time ({error.cause}); try again."
            ) from error
        except GoogleAuthError as error:
            raise Unavailable(
                f"Expected valid credentials for Google Cloud, found {_first_line(error)}; run gcloud auth "
                f"application-default login."
            ) from error

    def _explain(self, error: Any) -> Explained:
        job = self.job
        kind, sentence = _row(error)
        return kind(
            sentence.format(
                reason=_first_line(error.message),
                name=job.name,
                zone=job.zone,
                project=job.project,
                bucket=job.bucket,
                spot="spot " if job.spot else "",
                slices=f"{job.slices} x {job.slice.accelerator_type}" if job.slices > 1 else job.slice.accelerator_type,
                try_spot="" if job.spot else "try --spot, which has its own quota, ",
                named="--project and --reservation" if job.reservation else "--project",
                error=type(error).__name__,
            )
        )


_REFUSALS: tuple[tuple[tuple[str, ...], type[Explained], str], ...] = (
    (
        ("ResourceExhausted",),
        NoCapacity,
        "Expected quota and capacity for {spot}{slices} in {zone} of {project}, found too little ({reason}); "
        "{try_spot}request quota under IAM & Admin, Quotas, or choose another --zone or a smaller --topology.",
    ),
    (
        ("Unauthenticated",),  # which metadata servers cause for some seconds, when they refuse a new token
        Unavailable,
        "Expected valid credentials for Google Cloud, found {reason}; run gcloud auth application-default login.",
    ),
    (
        ("PermissionDenied",),
        UserError,
        "Expected permission to use Cloud TPU in {project}, found a refusal ({reason}); get the role roles/tpu.admin, "
        "and enable the API tpu.googleapis.com.",
    ),
    (
        ("AlreadyExists",),
        Exists,
        "Expected no queued resource named {name} in {zone}, found one; choose another --name, or delete that one with "
        "gcloud compute tpus queued-resources delete {name} --force.",
    ),
    (
        ("NotFound",),
        UserError,
        "Expected {slices} in {zone} of {project}, found none there ({reason}); correct {named}, or "
        "choose a --zone that has this --accelerator.",
    ),
    (
        ("InvalidArgument", "FailedPrecondition", "OutOfRange", "MethodNotImplemented"),
        UserError,
        "Expected a request for {slices} that Cloud TPU accepts, found it refused ({reason}); correct --zone, "
        "--topology, --runtime or --network.",
    ),
    (
        ("GoogleAPICallError",),  # all others: the service is unreachable, broken or overloaded
        Unavailable,
        "Expected an answer of Cloud TPU in {zone}, found {error} ({reason}); try again later, python -m tpu status "
        "{name} --bucket {bucket} shows the result.",
    ),
)
"""(exceptions of google.api_core, class and message of our error); the first row that matches an error explains it."""


def _row(error: Any) -> tuple[type[Explained], str]:
    from google.api_core import exceptions

    return next(
        (kind, sentence)
        for names, kind, sentence in _REFUSALS
        if isinstance(error, tuple(getattr(exceptions, name) for name in names))
    )


def _attempt(resource: Any) -> int:
    labels = [specification.node.labels.get(ATTEMPT, "") for specification in resource.tpu.node_spec]
    return next((int(label) for label in labels if label.isdecimal()), 0)


def _is_mistake(status: Any) -> bool:
    """Return whether a google.rpc.Status says that the same request would fail again."""
    from google.api_core import exceptions

    if not status.code or _CAPACITY.search(status.message):
        return False
    kind, _ = _row(exceptions.from_grpc_status(status.code, status.message))
    return issubclass(kind, UserError)


def _wait_for_operation(operation: Any, patience: float = 300) -> None:
    """Wait `patience` seconds for an operation, and raise its failure. Later, the resource's state shows the result."""
    import concurrent.futures

    with contextlib.suppress(concurrent.futures.TimeoutError):
        operation.result(timeout=patience)


def _first_line(error: Any) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0].rstrip(".")
