"""Index of this machine among the hosts of a TPU slice.

Kubernetes sets environment variables in a pod: TPU_PROCESS_ADDRESSES or TPU_WORKER_HOSTNAMES, TPU_WORKER_ID, and
MEGASCALE_* for several slices. On Compute Engine the metadata server has the values: the attributes
`worker-network-endpoints` and `agent-worker-number`, and `tpu-env` for several slices.
"""

import dataclasses
import os
import socket
import urllib.error
import urllib.request

from plmjax.errors import Unavailable, UserError, quoted
from plmjax.files import patience

METADATA = "metadata.google.internal"
SECONDS = 10.0
"""Timeout of one request to the metadata server."""
PATIENCE_SECONDS = 60.0
"""Time for which a request that fails is repeated."""


@dataclasses.dataclass(frozen=True)
class SliceHost:
    """A host among all hosts of a run's slices.

    first: name or address of host 0. count: number of hosts of all slices. index: index of this host over all slices.
    """

    first: str
    count: int
    index: int


def find() -> SliceHost | None:
    """Return this machine's index and the number of hosts, or None if it does not belong to a slice.

    Raises:
        UserError: the environment or the metadata server has values that contradict each other.
        Unavailable: the metadata server does not answer.
    """
    workers = os.environ.get("TPU_PROCESS_ADDRESSES") or os.environ.get("TPU_WORKER_HOSTNAMES")
    if workers is not None:
        origin, settings = "the environment", dict(os.environ)
        worker = settings.get("TPU_WORKER_ID", "")
    elif "TPU_SKIP_MDS_QUERY" in os.environ or (worker := _attribute("agent-worker-number")) is None:
        return None
    else:
        origin, workers = "the metadata server", _attribute("worker-network-endpoints") or ""
        settings = _settings(_attribute("tpu-env") or "") | dict(os.environ)
    names = [_address(entry) for entry in workers.split(",")]
    numbers = {
        "worker number": worker,
        "number of slices": settings.get("MEGASCALE_NUM_SLICES") or "1",
        "slice number": settings.get("MEGASCALE_SLICE_ID") or "0",
    }
    for name, value in numbers.items():
        if not value.strip().isdecimal():
            raise UserError(
                f"Expected a whole number from {origin} as the {name} of this TPU host, found {quoted(value)}; name "
                f"the hosts with --coordinator, --hosts and --host."
            )
    within, slices, number = (int(value) for value in numbers.values())
    if not all(names) or within >= len(names) or number >= slices:
        raise UserError(
            f"Expected this TPU host among those that {origin} lists, found worker {within} of {len(names)} in slice "
            f"{number} of {slices}; name the hosts with --coordinator, --hosts and --host."
        )
    first = settings.get("MEGASCALE_COORDINATOR_ADDRESS", "").partition(":")[0] or names[0]
    return SliceHost(first, len(names) * slices, within + number * len(names))


def _address(entry: str) -> str:
    """Return the host name or address from an entry NAME, NAME:PORT or NAME:ID:ADDRESS."""
    parts = entry.strip().split(":")
    return parts[2] if len(parts) == 3 else parts[0]


def _settings(text: str) -> dict[str, str]:
    """Parse lines such as `MEGASCALE_NUM_SLICES: '2'`."""
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name.strip(): value.strip().strip("'") for name, _, value in pairs}


def _attribute(name: str) -> str | None:
    """Return an attribute of this machine; None if the machine lacks it or is not in Google Cloud.

    Raises:
        Unavailable: the metadata server does not answer. Without this error the host would train alone.
    """
    return patience.insist(lambda: _ask(f"instance/attributes/{name}"), "the metadata server", PATIENCE_SECONDS)


def _ask(path: str) -> str | None:
    host = os.environ.get("GCE_METADATA_HOST") or os.environ.get("GCE_METADATA_IP") or METADATA
    request = urllib.request.Request(f"http://{host}/computeMetadata/v1/{path}", headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        found = f"status {error.code}"
    except OSError as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, socket.gaierror) and reason.errno == socket.EAI_NONAME:
            return None  # the name is known on every machine of Google Cloud, and on no other
        found = str(reason)
    raise Unavailable(
        f"Expected an answer of the metadata server {host}, found {found}; try again, or name the hosts with "
        f"--coordinator, --hosts and --host."
    )
