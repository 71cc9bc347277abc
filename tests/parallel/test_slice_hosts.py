"""A host finds its place among those of its TPU slices, as Kubernetes or the metadata server tell it."""

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from plmjax.errors import Unavailable, UserError
from plmjax.files import patience
from plmjax.parallel import slice_hosts
from plmjax.parallel.slice_hosts import SliceHost
from tests.tpu.metadata import MetadataServer

ENDPOINTS = "unknown:unknown:10.0.0.4,unknown:unknown:10.0.0.2,unknown:unknown:10.0.0.3"
SLICES = "ACCELERATOR_TYPE: 'v4-32'\nMEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '1'\n"
COORDINATED = f"{SLICES}MEGASCALE_COORDINATOR_ADDRESS: '10.0.1.9:8080'\n"
NOBODY = "127.0.0.1:9"


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataServer]:
    """The metadata server of a machine whose environment tells nothing."""
    for name in ("TPU_SKIP_MDS_QUERY", "TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID"):
        monkeypatch.delenv(name, raising=False)
    with MetadataServer() as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.address)
        yield server


def tell(metadata: MetadataServer, worker: str, endpoints: str = ENDPOINTS, settings: str = "") -> None:
    """Give attributes of a host to the metadata server."""
    told = {"agent-worker-number": worker, "worker-network-endpoints": endpoints, "tpu-env": settings}
    metadata.values |= {f"attributes/{name}": value for name, value in told.items() if value}


def test_a_machine_of_no_slice(metadata: MetadataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert slice_hosts.find() is None
    tell(metadata, "1")
    with monkeypatch.context() as patch:
        patch.setenv("TPU_SKIP_MDS_QUERY", "1")
        assert slice_hosts.find() is None

    def unknown(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert slice_hosts.find() is None


def test_a_metadata_server_that_does_not_answer_is_not_taken_for_no_slice(metadata, monkeypatch) -> None:
    """A host that went on would train alone, and so would all the others. The server's name comes before its address,
    as in Google's own libraries."""
    monkeypatch.setattr(patience, "FIRST_WAIT", 1e-3)
    tell(metadata, "1")
    metadata.failing = 10**9
    threading.Timer(0.3, lambda: setattr(metadata, "failing", 0)).start()
    assert slice_hosts.find() == SliceHost("10.0.0.4", 3, 1)
    monkeypatch.setattr(slice_hosts, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setenv("GCE_METADATA_IP", os.environ["GCE_METADATA_HOST"])
    monkeypatch.setenv("GCE_METADATA_HOST", NOBODY)
    with pytest.raises(Unavailable, match=r"metadata server 127\.0\.0\.1:9, found .*refused; try again"):
        slice_hosts.find()
    monkeypatch.delenv("GCE_METADATA_HOST")
    assert slice_hosts.find() == SliceHost("10.0.0.4", 3, 1)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (("2",), SliceHost("10.0.0.4", 3, 2)),
        (("2", "host-0,host-1,host-2"), SliceHost("host-0", 3, 2)),
        (("2", ENDPOINTS, SLICES), SliceHost("10.0.0.4", 6, 5)),
        (("2", ENDPOINTS, COORDINATED), SliceHost("10.0.1.9", 6, 5)),
        (("3",), "found worker 3 of 3 in slice 0 of 1"),
        (("0", ""), "Expected this TPU host among those that the metadata server lists"),
        (("one",), "as the worker number .* found 'one'"),
    ],
)
def test_the_metadata_server_tells(told: tuple, expected: SliceHost | str, metadata: MetadataServer) -> None:
    tell(metadata, *told)
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            slice_hosts.find()
    else:
        assert slice_hosts.find() == expected


def test_the_environment_goes_before_the_metadata_server(metadata: MetadataServer, monkeypatch) -> None:
    """On Compute Engine for the number of slices; in a pod of Kubernetes for all."""
    tell(metadata, "2", ENDPOINTS, COORDINATED)
    monkeypatch.setenv("MEGASCALE_NUM_SLICES", "4")
    monkeypatch.setenv("MEGASCALE_SLICE_ID", "3")
    assert slice_hosts.find() == SliceHost("10.0.1.9", 12, 11)
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "job-0-0.job,job-0-1.job")
    monkeypatch.setenv("TPU_WORKER_ID", "1")
    assert slice_hosts.find() == SliceHost("job-0-0.job", 8, 7)
    monkeypatch.setenv("MEGASCALE_COORDINATOR_ADDRESS", "job-0-9.job:8080")
    assert slice_hosts.find() == SliceHost("job-0-9.job", 8, 7)
    monkeypatch.setenv("TPU_PROCESS_ADDRESSES", "other-0:8476,other-1:8476")
    monkeypatch.delenv("MEGASCALE_COORDINATOR_ADDRESS")
    assert slice_hosts.find() == SliceHost("other-0", 8, 7)
    monkeypatch.setenv("MEGASCALE_SLICE_ID", "4")
    with pytest.raises(UserError, match="that the environment lists, found worker 1 of 2 in slice 4 of 4;"):
        slice_hosts.find()
