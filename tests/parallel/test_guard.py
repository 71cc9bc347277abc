"""A guard: how it joins the others, what that of host 0 decides, and how a command ends after its trainer or another
host does."""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from plmjax.errors import CRASHED, SAVED, UNAVAILABLE, Explained, Unavailable, UserError
from plmjax.parallel import guard as guards
from plmjax.parallel import stopping
from plmjax.parallel.guard import Guard, JsonConnection
from plmjax.parallel.host_registry import HostRegistry
from tests.parallel.test_hosts import free_port

STOP = {"stop": 7, "sentence": "Host 0 stopped: it had enough.", "stacks": False}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Short waits; the handlers and the mask of signals are as before afterwards."""
    monkeypatch.setattr(guards, "LINGER_SECONDS", 0.4)
    monkeypatch.setattr(guards, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(guards, "RETRY_SECONDS", 0.02)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def joined(*some: Guard) -> list[str]:
    """The address, or the sentence, of each of the guards, which join at the same time."""

    def join(guard: Guard) -> str:
        try:
            return guard.join()
        except Explained as error:
            return str(error)

    with ThreadPoolExecutor(len(some)) as threads:
        return list(threads.map(join, some))


def guards_of(count: int, seconds: float = 20) -> list[Guard]:
    """The guards of all hosts of a run, which have joined: they have one address of a port of its own."""
    address = f"localhost:{free_port()}"
    some = [Guard(address, count, index, seconds) for index in range(count)]
    start, *others = joined(*some)
    assert others == [start] * (count - 1) and start.startswith("localhost:") and start != address
    assert sorted(some[0].members) == [*range(1, count)] and some[0].registry.complete
    return some


def test_hosts_of_another_run_are_refused_and_those_that_wait_are_told_who_is_missing() -> None:
    """A host that waits may go before host 0."""

    class Second(Guard):
        def join(self) -> str:
            try:
                return super().join()
            finally:
                self.leave()

    address = f"localhost:{free_port()}"
    first = Guard(address, 3, 0, 1.5)
    some = (first, Second(address, 3, 1, 20), Guard(address, 2, 1, 0.7), Guard(address, 9, 8, 0.7))
    missing, told, *refused = joined(*some)
    for host, said in zip(("1 of 2", "8 of 9"), refused, strict=True):
        assert f"within 0.7 s, found: host 0 waits for hosts 0 to 2, found host {host};" in said
    assert told == missing and "Expected 3 hosts within 1.5 s, found none for 2;" in missing
    assert not first.members
    first.leave()


def test_an_address_that_is_none_and_a_port_that_is_taken_are_named() -> None:
    for address, index in ((":5", 0), ("localhost:x", 0), ("localhost:5", 2), ("localhost:5", -1)):
        with pytest.raises(UserError, match="--coordinator NAME:PORT and --host from 0 to below --hosts, found"):
            Guard(address, 2, index, 1).join()
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"Expected port {port} of host 0 to be free for --coordinator, found: "):
            Guard(f"localhost:{port}", 2, 0, 1).join()


class Watched:
    """A guard, that of host 0 if one is given, with its ends: those of its trainer, of host 0 or of the other host."""

    def __init__(self, first: Guard | None = None) -> None:
        self.guard = first or Guard(f"localhost:{free_port()}", 2, 1, 5)
        self.trainer, self.child = socket.socketpair()
        self.server, ours = socket.socketpair()
        self.lines = {"trainer": JsonConnection(self.trainer), "server": JsonConnection(self.server)}
        if first is None:
            self.guard.server = JsonConnection(ours)
            self.guard._selector.register(ours, guards.selectors.EVENT_READ, self.guard._from_server)
        self.said: list[Any] = []

    def watch(self, script: str, *messages: Any, to: str = "trainer") -> int:
        """Watch a shell script after these messages have come from the trainer or the server."""
        for message in messages:
            self.lines[to].send(message)
        self.trainer.close()
        read, write = os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, write, 2)]
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", script], os.environ, file_actions=actions, setsigmask=())
        os.close(write)
        try:
            return self.guard.watch(pid, self.child, read)
        finally:
            os.close(read)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            self.server.settimeout(0.01)
            while found := self.lines["server"].receive():
                self.said += found
            self.guard.leave()
            self.child.close()
            self.server.close()


@pytest.mark.parametrize(
    ("script", "code", "sentence"),
    [
        ("exit 0", 0, None),
        (f"exit {SAVED}", SAVED, None),
        ("exit 2", 2, None),
        (f"exit {CRASHED}", CRASHED, "see its own output."),
        ("kill -SEGV $$", UNAVAILABLE, "its process was killed by SIGSEGV."),
    ],
)
@pytest.mark.parametrize("index", [0, 1])
def test_a_command_ends_as_its_trainer_does(
    index: int, script: str, code: int, sentence: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    watched = Watched(*([] if index else guards_of(1)))
    assert watched.watch(f"echo one >&2; {script}") == code
    last = "" if sentence is None else f"plmjax: This host stopped: {sentence}\n"
    assert capfd.readouterr().err == f"one\n{last}"
    if index:
        (said,) = watched.said
        assert said["ended"] == (code if code != UNAVAILABLE else -signal.SIGSEGV) and not said["alone"]
        assert said["sentence"] == (sentence or "see its own output.")
    else:
        assert watched.guard.registry.hosts[0].ended is not None


def test_the_last_messages_of_a_trainer_and_the_stop_that_follows_may_come_after_its_end(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Host 0 is told the sentence, and whether the trainer failed alone."""
    monkeypatch.setattr(guards, "LINGER_SECONDS", 5.0)

    def fail(open_end: socket.socket, server: JsonConnection) -> None:
        time.sleep(0.2)
        for message in ({"agree": "a", "value": "b"}, {"failed": "Too large.", "alone": True}, {"agree": "c"}):
            JsonConnection(open_end).send(message)
        open_end.close()
        time.sleep(0.2)
        server.send(STOP)

    said = [{"agree": "a", "value": "b"}, {"agree": "c"}, {"ended": 2, "sentence": "Too large.", "alone": True}]
    for ended, code, printed in ((2, 2, ""), (CRASHED, 7, f"plmjax: {STOP['sentence']}\n")):
        watched = Watched()
        thread = threading.Thread(target=fail, args=(watched.trainer.dup(), watched.lines["server"]))
        thread.start()
        assert watched.watch(f"exit {ended}") == code
        assert capfd.readouterr().err == printed
        assert watched.said == (said if ended == 2 else said[:2])
        thread.join()


@pytest.mark.parametrize("script", ["sleep 30", f"exit {CRASHED}", "kill -ABRT $$"])
def test_a_trainer_follows_the_stop_of_the_run(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Its own end, if it fails because another host did, is not what is said."""
    watched = Watched()
    assert watched.watch(script, STOP, {"stop": 8, "sentence": "Later.", "stacks": False}, to="server") == 7
    assert capfd.readouterr().err == f"plmjax: {STOP['sentence']}\n" and watched.said == []


def test_every_stack_is_asked_for_before_a_trainer_that_hangs_is_killed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    watched, ready = Watched(), tmp_path / "ready"

    def stop() -> None:
        while not ready.exists():
            time.sleep(0.01)
        watched.lines["server"].send(STOP | {"stacks": True})

    threading.Thread(target=stop).start()
    assert watched.watch(f"trap 'echo stacks >&2' USR1; touch {ready}; while :; do sleep 0.05; done") == 7
    assert capfd.readouterr().err == f"stacks\nplmjax: {STOP['sentence']}\n"


def test_a_host_0_that_is_gone_or_silent_is_named_and_one_that_is_there_is_not(
    capfd: pytest.CaptureFixture[str],
) -> None:
    beat = {"beat": {"silent_seconds": 0.6, "count": 1}}
    watched, start = Watched(), time.monotonic()

    def here() -> None:
        for _ in range(20):
            watched.lines["server"].send({"here": True})
            time.sleep(0.05)

    threading.Thread(target=here).start()
    assert watched.watch("sleep 30", beat) == UNAVAILABLE and time.monotonic() - start > 1.5
    assert "Host 0 has not been heard from for 0.6 s; run the same command" in capfd.readouterr().err
    assert watched.said == [beat]
    watched = Watched()
    watched.server.shutdown(socket.SHUT_RDWR)
    assert watched.watch("sleep 30") == UNAVAILABLE
    assert "Host 0 is gone (its connection closed); run the same command" in capfd.readouterr().err


def test_host_0_stays_until_every_trainer_has_ended_and_every_guard_is_gone() -> None:
    first, second = guards_of(2)

    def end() -> None:
        time.sleep(0.7)
        second.server.send({"ended": SAVED, "sentence": "", "alone": False})
        time.sleep(0.1)
        second.leave()

    thread = threading.Thread(target=end)
    thread.start()
    assert Watched(first).watch(f"exit {SAVED}") == SAVED
    assert first.registry.hosts[1].ended == SAVED and not first.members
    thread.join()


def test_what_is_agreed_reaches_the_trainer_alone() -> None:
    watched = Watched()
    copy = watched.trainer.dup()
    assert watched.watch("sleep 0.2", {"here": True}, {"agreed": "a"}, {"start": "x:1"}, to="server") == 0
    copy.settimeout(0.1)
    assert JsonConnection(copy).receive() == [{"agreed": "a"}] and watched.guard.started == "x:1"
    copy.close()


def test_host_0_tells_every_other_host_that_it_is_here_and_that_one_is_gone(capfd: pytest.CaptureFixture[str]) -> None:
    first, second, third = guards_of(3)
    threading.Timer(0.5, third.server.connection.close).start()
    assert Watched(first).watch("sleep 30") == UNAVAILABLE
    assert "of 3 is gone (its connection closed)" in capfd.readouterr().err
    second.server.connection.settimeout(0.1)
    found = second.server.receive()
    assert found[0] == {"here": True} and found.count({"here": True}) >= 2
    (stop,) = [message for message in found if "stop" in message]
    here = socket.gethostname()
    assert stop["stop"] == UNAVAILABLE and stop["sentence"].startswith(f"Host 2 (worker 2, {here}) of 3 is gone")
    second.leave()


def test_a_stop_from_outside_is_passed_to_the_trainer_alone() -> None:
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, stopping.SIGNALS)
    watched = Watched(*guards_of(1))
    assert watched.watch(f"trap 'exit {SAVED}' TERM; sleep 0.2; kill -TERM $PPID; sleep 0.5; sleep 0.5") == SAVED
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(stopping.SIGNALS)


class Run(HostRegistry):
    """A registry of `count` hosts and the messages that it has sent to each."""

    def __init__(self, count: int, joined: int | None = None) -> None:
        self.said: dict[int, list[dict]] = {host: [] for host in range(count)}
        super().__init__(count, lambda host, message: self.said[host].append(message), now=0.0, join_seconds=30)
        for host in range(count if joined is None else joined):
            assert self.join(host, count, f"t1v-{host}", 0.0) == ""

    def beat(
        self, host: int, now: float, *, count: int = 1, doing: str = "computing step 1", limit: float = 600
    ) -> None:
        limits = {"silent_seconds": 60, "limit_seconds": limit}
        self.handle(host, {"beat": {"count": count, "doing": doing} | limits}, now)


def test_hosts_that_do_not_come_or_belong_are_named_to_those_that_did():
    run = Run(4, joined=1)
    for host, count, why in ((1, 3, "host 1 of 3"), (4, 4, "host 4 of 4"), (0, 4, "a host 0")):
        assert why in run.join(host, count, "t1v", 1.0)
    assert run.join(1, 4, "t1v", 29.0) == "" and not run.complete  # late, but not too late
    run.tick(30.0)
    assert run.stopped is None
    run.tick(30.5)
    assert "Expected 4 hosts within 30 s, found none for 2, 3;" in run.stopped["sentence"]
    assert run.said[0] == run.said[1] == [run.stopped] and not run.said[2]


def test_a_host_that_dies_is_named_at_once_and_one_that_has_ended_is_not_waited_for():
    """Neither for its connection nor for its beats and its progress."""
    run = Run(3)
    for host in range(3):
        run.beat(host, 0.0)
    run.handle(2, {"ended": 0, "sentence": ""}, 5.0)
    run.lose(2)
    for now in range(30, 1800, 30):
        for host in (0, 1):
            run.beat(host, now, count=now)
        run.tick(now)
    assert run.stopped is None
    run.lose(1)
    assert "Host 1 (worker 1, t1v-1) of 3 is gone" in run.stopped["sentence"]
    assert run.stopped["stop"] == UNAVAILABLE and all(said[-1] == run.stopped for said in run.said.values())


def test_a_silent_host_is_named_after_its_seconds():
    run = Run(2)
    for host in (0, 1):
        run.beat(host, 0.0)
    run.beat(0, 60.0)
    run.tick(60.0)
    assert run.stopped is None
    run.tick(60.5)
    assert "Host 1 (worker 1, t1v-1) of 2 has not been heard from for 60 s" in run.stopped["sentence"]
    assert run.stopped["stacks"]


@pytest.mark.parametrize(("limit", "pace", "seconds"), [(600, 0, 600), (3600, 0, 3600), (0, 0, None), (600, 1, None)])
def test_a_stall_names_the_host_that_is_behind_after_the_longest_limit(limit, pace, seconds):
    """A host that works without a limit, such as on its text, may take as long as it needs. As long as one makes
    progress there is no stall: whoever waits for it in a collective cannot."""
    run = Run(2)
    for now in range(0, 7200, 30):
        run.beat(0, now, count=7, doing="computing step 3")
        run.beat(1, now, count=6 + pace * (now // 300), doing="restoring", limit=limit)
        run.tick(now)
        assert (run.stopped is not None) == (seconds is not None and now > seconds)
    if seconds:
        assert "host 1 (worker 1, t1v-1) (restoring)" in run.stopped["sentence"]
        assert "host 0" not in run.stopped["sentence"] and run.stopped["stacks"]


def test_a_barrier_lets_all_hosts_pass_or_says_that_one_does_not_come():
    run = Run(3)
    for host in (0, 2, 1):
        assert not any(run.said.values())
        run.handle(host, {"meet": "save 4"}, 1.0)
    assert all(said == [{"met": "save 4", "all": True}] for said in run.said.values())
    for host in (0, 1):
        run.handle(host, {"meet": "save 6"}, 2.0)
    run.handle(2, {"abandon": "save"}, 3.0)
    run.handle(1, {"meet": "save 6 done"}, 4.0)  # one that comes later need not wait
    assert run.said[0][1:] == [{"met": "save 6", "all": False}]
    assert run.said[1][1:] == [{"met": name, "all": False} for name in ("save 6", "save 6 done")]
    assert len(run.said[2]) == 1
    run.handle(0, {"meet": "load"}, 5.0)
    assert len(run.said[0]) == 2 and run.stopped is None


def test_hosts_go_on_when_all_of_them_agree():
    run = Run(4)
    for host in (2, 0, 3):
        run.handle(host, {"agree": "the data", "value": "abc"}, 1.0)
        assert not any(run.said.values())
    run.handle(1, {"agree": "the data", "value": "abc"}, 2.0)
    assert all(said == [{"agreed": "the data"}] for said in run.said.values())
    for host, value in enumerate(("abc", "abc", "abc", "abd")):  # once more: the others are waited for again
        assert run.stopped is None
        run.handle(host, {"agree": "the data", "value": value}, 3.0)
    assert "abd on host 3 and abc on host 0" in run.stopped["sentence"]
    assert all(said == [{"agreed": "the data"}, run.stopped] for said in run.said.values())


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"training.seed": 3, "a": 1}, "training.seed = 3 on host 1 and 0 on host 0"),
        ({"training.seed": 0, "a": 1, "b": None}, "b = None on host 1 and absent on host 0"),
        ({"training.seed": 0, "a": 1.0}, "a = 1.0 on host 1 and 1 on host 0"),
        ({"a": 1, "training.seed": 0}, '{"a": 1, "training.seed": 0} on host 1 and {"training.seed": 0, "a": 1} on'),
    ],
)
def test_another_experiment_is_named_with_its_host_and_field(other, named):
    run = Run(2)
    for host, value in enumerate(({"training.seed": 0, "a": 1}, other)):
        run.handle(host, {"agree": "the experiment", "value": json.dumps(value)}, 1.0)
    assert named in run.stopped["sentence"] and run.stopped["stop"] == 2  # the same command would fail again


@pytest.mark.parametrize(("ended", "code"), [(2, 2), (-9, UNAVAILABLE), (SAVED, SAVED)])
def test_a_host_that_fails_tells_the_others_why(ended, code):
    """So does one that was stopped before there was anything to save; where all save, each ends by itself."""
    run, together = Run(2), Run(2)
    run.handle(1, {"ended": ended, "sentence": "no text.", "alone": ended == SAVED}, 1.0)
    assert run.said[0] == [{"stop": code, "sentence": "Host 1 (worker 1, t1v-1) stopped: no text.", "stacks": False}]
    together.handle(1, {"ended": SAVED, "sentence": "", "alone": False}, 1.0)
    together.lose(1)
    assert together.stopped is None
