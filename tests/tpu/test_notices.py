"""Notices of a metadata server, and what a worker makes of them."""

import os
import socket
import time

import pytest

from tests.tpu.metadata import MetadataServer
from tpu import notices
from tpu.notices import Notices


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch):
    with MetadataServer() as running:
        monkeypatch.setenv("GCE_METADATA_HOST", running.address)
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # not for this server
        yield running


class Heard(list):
    """The calls of a thread of notices."""

    def thread(self) -> Notices:
        started = Notices(lambda: self.append("preempted"), self.append, lambda: self.append("missing"), every=0.005)
        started.start()
        return started


def looked(server: MetadataServer, times: int = 4) -> None:
    """Waits until the thread has looked so often."""
    seen, end = len(server.asked), time.monotonic() + 10
    while len(server.asked) <= seen + 2 * times:
        assert time.monotonic() < end
        time.sleep(0.005)


def test_every_maintenance_is_heard_once_and_a_preemption_is_the_last_notice(server: MetadataServer) -> None:
    heard = Heard()
    thread = heard.thread()
    for event in ("NONE", "TERMINATE_ON_HOST_MAINTENANCE", "NONE", "MIGRATE_ON_HOST_MAINTENANCE"):
        server.values["maintenance-event"] = event
        looked(server)
        server.failing = 6  # the event is still the same afterwards
        looked(server)
    assert heard == ["TERMINATE_ON_HOST_MAINTENANCE", "MIGRATE_ON_HOST_MAINTENANCE"]
    del server.values["maintenance-event"]
    os.environ["GCE_METADATA_HOST"] = "127.0.0.1:1"
    time.sleep(0.01 * notices.TRIES + 0.1)
    os.environ["GCE_METADATA_HOST"] = server.address
    server.values["preempted"] = "TRUE"
    thread.join(5)
    assert heard[2:] == ["preempted"] and not thread.is_alive()


def test_without_a_metadata_server_nobody_looks_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{closed.getsockname()[1]}")
    heard = Heard()
    thread = heard.thread()
    thread.join(10)
    assert heard == ["missing"] and not thread.is_alive()
