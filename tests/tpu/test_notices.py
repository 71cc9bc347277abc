"""Notices of a metadata server, and what a worker makes of them."""

import os
import socket
import time
from collections.abc import Callable

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


def until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.005)


def looked(server: MetadataServer, times: int = 4) -> None:
    seen = len(server.asked)
    until(lambda: len(server.asked) > seen + 2 * times)


def test_every_announced_maintenance_is_heard_once(server: MetadataServer) -> None:
    heard = Heard()
    thread = heard.thread()
    looked(server)
    assert heard == []
    for event in ("TERMINATE_ON_HOST_MAINTENANCE", "NONE", "MIGRATE_ON_HOST_MAINTENANCE"):
        server.values["maintenance-event"] = event
        looked(server)
        server.failing = 6  # the event is still the same afterwards
        looked(server)
    assert heard == ["TERMINATE_ON_HOST_MAINTENANCE", "MIGRATE_ON_HOST_MAINTENANCE"]
    thread.end()
    thread.join(5)
    assert not thread.is_alive()


def test_a_preemption_is_heard_and_is_the_last_notice(server: MetadataServer) -> None:
    server.failing, heard = 5, Heard()
    del server.values["maintenance-event"]
    thread = heard.thread()
    looked(server)
    assert heard == []
    server.values["preempted"] = "TRUE"
    thread.join(5)
    assert heard == ["preempted"] and not thread.is_alive()


def test_without_a_metadata_server_nobody_looks_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{closed.getsockname()[1]}")
    heard = Heard()
    thread = heard.thread()
    thread.join(10)
    assert heard == ["missing"] and not thread.is_alive()


def test_a_server_that_is_gone_for_a_while_is_asked_again(server: MetadataServer) -> None:
    heard = Heard()
    thread = heard.thread()
    looked(server)
    os.environ["GCE_METADATA_HOST"] = "127.0.0.1:1"
    time.sleep(0.01 * notices.TRIES + 0.1)
    os.environ["GCE_METADATA_HOST"] = server.address
    server.values["preempted"] = "TRUE"
    thread.join(5)
    assert heard == ["preempted"]
