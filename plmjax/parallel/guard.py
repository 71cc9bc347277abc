"""The guard of a host: a parent process that watches its trainer and exchanges messages with the other guards.

A collective that waits for a dead host never returns, and JAX's own coordination service ends every process with
SIGABRT and prints pages of addresses. The guard never starts JAX, so it keeps working when JAX hangs. It detects a dead
host at once. It detects a host that is silent or makes no progress after a time limit. Then it ends its trainer and
prints one sentence that names the host. All guards are connected to the guard of host 0
(`host_registry.HostRegistry`). A message is one line of JSON.
"""

import contextlib
import json
import os
import re
import selectors
import signal
import socket
import sys
import time
from typing import NoReturn

from plmjax.errors import CRASHED, SAVED, UNAVAILABLE, Unavailable, UserError
from plmjax.files import json_text
from plmjax.parallel import stopping
from plmjax.parallel.host_registry import HostRegistry, Message

BEAT_SECONDS = 1.0
RETRY_SECONDS = 0.5
LINGER_SECONDS = 5.0
"""Seconds that host 0 stays after a stop, so that every host receives the reason."""
ENDING_SECONDS = 60.0
"""Seconds that host 0 waits for the other trainers after its own trainer has ended without an error."""
SEND_SECONDS = 5.0


class JsonConnection:
    """A connection that sends and receives one JSON object per line."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(SEND_SECONDS)
        self.connection, self._read = connection, b""

    def send(self, message: Message) -> None:
        """Send a message. A closed connection is detected at the next `receive`."""
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[Message] | None:
        """Return the received messages, or None when the connection is closed."""
        try:
            read = self.connection.recv(1 << 16)
        except TimeoutError:
            return []
        except OSError:
            return None
        if not read:
            return None
        *lines, self._read = (self._read + read).split(b"\n")
        return [json_text.parse(line) for line in lines]


class Guard:
    """The guard of host `index` of `count` hosts. Host 0 is at `address` (NAME:PORT)."""

    def __init__(self, address: str, count: int, index: int, join_seconds: float) -> None:
        self.address, self.count, self.index, self.join_seconds = address, count, index, join_seconds
        self.registry: HostRegistry | None = None
        self.server: JsonConnection | None = None
        self.child: JsonConnection | None = None
        self.members: dict[int, JsonConnection] = {}
        self.started = ""
        self.stopped: Message | None = None
        self.sentence = "see its own output."
        self.alone = False
        self._server_message = time.monotonic()
        self._beaten = 0.0
        self._child_closed = False
        self._silent_seconds = 0.0
        self._selector = selectors.DefaultSelector()

    def join(self) -> str:
        """Wait until every host has joined; return the address for JAX's own coordination service.

        Raises:
            UserError: the address, the index or the number of hosts is invalid.
            Unavailable: hosts are missing, host 0 refuses this host, or the port is in use.
        """
        name, _, port = self.address.rpartition(":")
        if not name or not port.isdecimal() or not 0 <= self.index < self.count:
            raise UserError(
                f"Expected --coordinator NAME:PORT and --host from 0 to below --hosts, found {self.address}, "
                f"{self.index} and {self.count}; change them."
            )
        if self.index == 0:
            self._listen(int(port))
            while not (self.registry.complete or self.stopped):
                self._pump()
            if not self.stopped:
                # Host 0 chooses the port of JAX's service: the port of --coordinator is used by the guards.
                with socket.create_server(("", 0)) as free:
                    self.started = f"{name}:{free.getsockname()[1]}"
                for member in self.members.values():
                    member.send({"start": self.started})
        else:
            self._connect(name, int(port))
            while not (self.started or self.stopped):
                self._pump()
        if self.stopped:
            self._linger()
            raise (Unavailable if self.stopped["stop"] == UNAVAILABLE else UserError)(self.stopped["sentence"])
        return self.started

    def watch(self, pid: int, child: socket.socket, errors: int) -> int:
        """Watch the trainer until it ends or must be ended; return the exit code of the command.

        pid: process id of the trainer. child: socket for its messages. errors: file descriptor of its standard error.
        """
        self.child = JsonConnection(child)
        self._selector.register(child, selectors.EVENT_READ, self._from_child)
        relay = Relay(errors)
        self._selector.register(errors, selectors.EVENT_READ, relay.forward)
        signal.signal(signal.SIGTERM, lambda number, frame: _pass_on(pid, number))
        signal.signal(signal.SIGUSR1, lambda number, frame: self._show_stacks(pid))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the trainer as well
        signal.pthread_sigmask(signal.SIG_UNBLOCK, stopping.SIGNALS)  # they were blocked during the fork
        code = None
        while code is None and not self.stopped:
            self._pump()
            code = _exit_code(pid)
        if code is not None:  # its last message may not have arrived yet
            self._pump_until(lambda: self._child_closed, LINGER_SECONDS)
        # When a host dies, JAX fails in the other trainers or aborts them, perhaps before the stop message arrives.
        follows = code == CRASHED or (code == -signal.SIGABRT and self.index > 0)
        if follows:
            self._pump_until(lambda: self.stopped, LINGER_SECONDS)
        own = code is not None and not (follows and self.stopped)
        if code is None:
            if self.stopped["stacks"]:
                os.kill(pid, signal.SIGUSR1)
                self._pump_until(lambda: False, 1.0)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        relay.drain()
        if not own:
            print(f"plmjax: {self.stopped['sentence']}", file=sys.stderr, flush=True)
            self._linger()
            return self.stopped["stop"]
        if code < 0:
            self.sentence = f"its process was killed by {signal.Signals(-code).name}."
        if code < 0 or code == CRASHED:
            print(f"plmjax: This host stopped: {self.sentence}", file=sys.stderr, flush=True)
        self._report({"ended": code, "sentence": self.sentence, "alone": self.alone})
        if self.index == 0 and code in (0, SAVED):
            self._pump_until(lambda: self.stopped or self._all_ended(), ENDING_SECONDS)
        self._linger()
        return code if code >= 0 else UNAVAILABLE

    def _show_stacks(self, pid: int) -> None:
        print(f"plmjax: stacks of host {self.index}", file=sys.stderr, flush=True)
        _pass_on(pid, signal.SIGUSR1)

    def leave(self) -> None:
        """Close all connections, in the trainer process, which has inherited them."""
        self._selector.close()
        for lines in (*self.members.values(), self.server):
            if lines is not None:
                lines.connection.close()
        if self.index == 0:
            self._listener.close()

    # ----------------------------------------------------------------------------------------------- connections

    def _listen(self, port: int) -> None:
        try:
            self._listener = socket.create_server(("", port), backlog=self.count)
        except OSError as error:
            raise Unavailable(
                f"Expected port {port} of host 0 to be free for --coordinator, found: {error.strerror}; name another."
            ) from None
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self.registry = HostRegistry(self.count, self._send, time.monotonic(), self.join_seconds)
        self.registry.join(0, self.count, socket.gethostname(), time.monotonic())

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        lines = JsonConnection(connection)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._greet(lines))

    def _greet(self, lines: JsonConnection) -> None:
        """Handle the first message of a connection, which names the host."""
        messages = lines.receive()
        if messages == []:
            return
        self._selector.unregister(lines.connection)
        refused = "the connection closed" if messages is None else ""
        if messages:
            refused = self.registry.join(*(messages[0][key] for key in ("join", "hosts", "name")), time.monotonic())
        lines.send({"welcome": not refused, "why": refused})
        if refused:
            lines.connection.close()
            return
        host = messages[0]["join"]
        self.members[host] = lines
        self._selector.register(lines.connection, selectors.EVENT_READ, lambda: self._from_member(host))

    def _connect(self, name: str, port: int) -> None:
        deadline, last = time.monotonic() + self.join_seconds, "nobody answered"
        while self.server is None:
            try:
                lines = JsonConnection(socket.create_connection((name, port), timeout=SEND_SECONDS))
                lines.send({"join": self.index, "hosts": self.count, "name": socket.gethostname()})
                for message in lines.receive() or []:
                    last = message.get("why", last)
                    if message.get("welcome"):
                        self.server = lines
                    else:
                        self._receive(message)
            except OSError as error:
                last = error.strerror or str(error)
            if self.server is None:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"Expected host 0 at {self.address} to take this host within {self.join_seconds:g} s, found: "
                        f"{last}; start every host with the same --coordinator and --hosts, each with its own --host."
                    )
                time.sleep(RETRY_SECONDS)  # the host may still be ending an earlier run
        self._server_message = time.monotonic()
        self._selector.register(self.server.connection, selectors.EVENT_READ, self._from_server)

    # -------------------------------------------------------------------------------------------------- messages

    def _pump(self) -> None:
        """Handle the messages that arrive within a quarter of a beat, then check the time limits."""
        for key, _ in self._selector.select(BEAT_SECONDS / 4):
            key.data()
        now = time.monotonic()
        if self.registry is not None:
            self.registry.tick(now)
            if now - self._beaten > BEAT_SECONDS:
                self._beaten = now
                for member in self.members.values():
                    member.send({"here": True})
        elif self._silent_seconds and now - self._server_message > self._silent_seconds and not self.stopped:
            self.stopped = _host_0(f"has not been heard from for {self._silent_seconds:g} s")

    def _pump_until(self, reached, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not reached() and time.monotonic() < deadline:
            self._pump()

    def _from_child(self) -> None:
        messages = self.child.receive()
        if messages is None:
            self._selector.unregister(self.child.connection)
            self._child_closed = True
            return
        for message in messages:
            if "failed" in message:
                self.sentence, self.alone = message["failed"], message["alone"]
                continue
            self._silent_seconds = message.get("beat", {}).get("silent_seconds", self._silent_seconds)
            self._report(message)

    def _report(self, message: Message) -> None:
        """Send a message to the registry."""
        if self.registry is None:
            self.server.send(message)
        else:
            self.registry.handle(0, message, time.monotonic())

    def _from_member(self, host: int) -> None:
        member = self.members[host]
        messages = member.receive()
        if messages is None:
            self._selector.unregister(member.connection)
            del self.members[host]
            self.registry.lose(host)
            return
        for message in messages:
            self.registry.handle(host, message, time.monotonic())

    def _from_server(self) -> None:
        messages = self.server.receive()
        self._server_message = time.monotonic()
        if messages is None:
            self._selector.unregister(self.server.connection)
            self.stopped = self.stopped or _host_0("is gone (its connection closed)")
            return
        for message in messages:
            self._receive(message)

    def _receive(self, message: Message) -> None:
        """Handle a message from the registry to this host."""
        if "start" in message:
            self.started = message["start"]
        elif "stop" in message:
            self.stopped = self.stopped or message
        elif "agreed" in message or "met" in message:
            self.child.send(message)

    def _send(self, host: int, message: Message) -> None:
        if host == 0:
            self._receive(message)
        elif host in self.members:
            self.members[host].send(message)

    def _all_ended(self) -> bool:
        return all(host.ended is not None for host in self.registry.hosts.values())

    def _linger(self) -> None:
        if self.index == 0:
            self._pump_until(lambda: not self.members, LINGER_SECONDS)


class Relay:
    """A filter for a trainer's standard error, without the pages of JAX's coordination client when a host is gone.

    The guard prints one sentence instead. All other output is passed on, such as the last messages of libtpu. If
    TPU_LOG_DIR is set, the unfiltered output is also written there, to the file `stderr`.
    """

    NOISE = re.compile(rb"[EW]\d{4} [\d:.]+ +\d+ (coordination_service|coredump_hook|client\.cc|process_state)")
    LAST_NOISE = re.compile(rb"F\d{4} [\d:.]+ +\d+ (coordination_service|client)[\w.]*:\d+\]")
    """Line in which the client gives its reason to abort the process. It and all later lines are dropped."""

    def __init__(self, errors: int) -> None:
        self._errors, self._rest, self._aborting = errors, b"", False
        folder = os.environ.get("TPU_LOG_DIR")
        self._kept = open(os.path.join(folder, "stderr"), "ab", buffering=0) if folder else None  # noqa: SIM115
        os.set_blocking(errors, False)

    def forward(self) -> bool:
        """Pass on the available output. Return whether there was any output."""
        try:
            read = os.read(self._errors, 1 << 16)
        except BlockingIOError:
            return False
        if self._kept:
            self._kept.write(read)
        *lines, self._rest = (self._rest + read).split(b"\n")
        for line in lines:
            self._print(line + b"\n")
        sys.stderr.flush()
        if not read:
            time.sleep(BEAT_SECONDS / 4)  # a closed pipe is always ready to be read
        return bool(read)

    def drain(self) -> None:
        """Pass on the rest of the output of a trainer that has ended, including an incomplete last line."""
        while self.forward():
            pass
        self._print(self._rest)
        sys.stderr.flush()
        self._rest = b""

    def _print(self, line: bytes) -> None:
        self._aborting = self._aborting or bool(self.LAST_NOISE.match(line))
        if not (self._aborting or self.NOISE.match(line)):
            sys.stderr.buffer.write(line)


def _pass_on(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may have ended at this very moment
        os.kill(pid, number)


def _exit_code(pid: int) -> int | None:
    """Return the exit code of a child process, or None while it runs."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _host_0(what: str) -> Message:
    sentence = f"Host 0 {what}; run the same command on every host again to continue from the last checkpoint."
    return {"stop": UNAVAILABLE, "sentence": sentence, "stacks": False}


def supervise(guard: Guard, pid: int, child: socket.socket, errors: int) -> NoReturn:
    """Watch the trainer and end this process with its exit code."""
    sys.stdout.flush()
    os._exit(guard.watch(pid, child, errors))
