"""The hosts of a run: join them, run code on host 0 first, agree on values, and watch for stalls.

Every host runs the same command, and prints the index of its JAX process once. On TPUs libtpu numbers the processes:
process 0, which writes the files and prints, need not be worker 0 of the slice. The hosts of a TPU slice find each
other through the metadata of the slice. Elsewhere the address of host 0 must be given. On several hosts each command
becomes two processes, the trainer and its `guard`, which exchange messages over a socket pair (`host_registry` lists
the messages). A run on one host has no guard, and watches itself.
"""

import contextlib
import dataclasses
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from plmjax import platform
from plmjax.errors import UNAVAILABLE, UserError, quoted
from plmjax.files import locks
from plmjax.parallel import guard, slice_hosts, stopping

if TYPE_CHECKING:  # plmjax.experiment imports JAX, before which commands set the environment
    import numpy as np

    from plmjax.experiment import Hosts

LOOK_SECONDS = 0.5
"""Seconds between two checks of the progress of a run on one host."""
GUARD_PORT = 8479
"""Port of host 0's guard on a TPU slice. JAX's own services use ports up to 8478."""


STEP, ACTIVITY, UNLIMITED = "step", "activity", "unlimited"
"""Kinds of time limits: `Hosts.stall_minutes` for a step, `Hosts.activity_minutes` for all other activities, and no
limit for work that grows with the user's text."""


class _Here:
    """The state of this process, shared by its connection to the guard and its stall watch."""

    def __init__(self) -> None:
        self.guard: guard.JsonConnection | None = None
        self.settings: Hosts | None = None
        self.worker = 0
        self.count, self.doing, self.pace = 0, "starting", ACTIVITY
        self.progressed = time.monotonic()
        self._agreed: set[str] = set()
        self._met: dict[str, bool] = {}
        self._news = threading.Condition()

    def beat(self) -> None:
        """Send the progress of this process to the guard."""
        limits = {"silent_seconds": self.settings.silent_seconds, "limit_seconds": self.limit()}
        self.guard.send({"beat": {"count": self.count, "doing": self.doing} | limits})

    def limit(self) -> float:
        """Return the seconds that the current activity may take without progress; 0 for no limit."""
        minutes = {STEP: self.settings.stall_minutes, ACTIVITY: self.settings.activity_minutes}
        return minutes.get(self.pace, 0.0) * 60

    def send_beats(self) -> None:
        """Send beats for as long as the process lives."""
        while True:
            self.beat()
            time.sleep(guard.BEAT_SECONDS)

    def receive_messages(self) -> None:
        """Receive the guard's messages. If the guard is gone, end this process, because nothing else could end it."""
        while (messages := self.guard.receive()) is not None:
            with self._news:
                self._agreed.update(message["agreed"] for message in messages if "agreed" in message)
                self._met.update({message["met"]: message["all"] for message in messages if "met" in message})
                self._news.notify_all()
        os._exit(UNAVAILABLE)

    def agree(self, name: str, value: str) -> None:
        self.guard.send({"agree": name, "value": value})
        with self._news:
            self._news.wait_for(lambda: name in self._agreed)
            self._agreed.remove(name)

    def meet(self, name: str) -> bool:
        self.guard.send({"meet": name})
        with self._news:
            self._news.wait_for(lambda: name in self._met)
            return self._met.pop(name)


_here = _Here()


@dataclasses.dataclass(frozen=True)
class JoinOptions:
    """The address of host 0, the number of hosts, and the index of this one. A TPU slice sets all of them."""

    coordinator: str | None = None
    """NAME:PORT of host 0, to which all hosts connect; none takes $JAX_COORDINATOR_ADDRESS."""
    hosts: int | None = None
    """Number of hosts; none takes $JAX_NUM_PROCESSES."""
    host: int | None = None
    """Index of this host, from 0; none takes $JAX_PROCESS_ID."""
    join_seconds: float = 300.0
    """Seconds to wait until all hosts have joined."""


def join(joining: JoinOptions) -> None:
    """Join the hosts of the run and start JAX on them. Do nothing on a single host.

    Must be called before JAX has been used, because the process forks. The call returns in the trainer process.

    Raises:
        UserError: a setting is missing or wrong.
        Unavailable: not every host joined, a port is in use, or the metadata server does not answer.
    """
    options = {
        "--coordinator": joining.coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS"),
        "--hosts": joining.hosts if joining.hosts is not None else os.environ.get("JAX_NUM_PROCESSES"),
        "--host": joining.host if joining.host is not None else os.environ.get("JAX_PROCESS_ID"),
    }
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    missing = [name for name, value in options.items() if value is None]
    if len(missing) == 3:
        found = slice_hosts.find() if platform.has_tpu() else None
        if found is None:
            return
        options = dict(zip(options, (f"{found.first}:{GUARD_PORT}", found.count, found.index), strict=True))
    elif missing:
        raise UserError(
            f"Expected --coordinator, --hosts and --host together, found no {' and no '.join(missing)}; give all "
            f"three on every host."
        )
    address, count, index = (options[name] for name in ("--coordinator", "--hosts", "--host"))
    try:
        count, index = int(count), int(index)
    except ValueError:
        raise UserError(
            f"Expected whole numbers for --hosts and --host, found {quoted(count)} and {quoted(index)}; change them."
        ) from None
    if count == 1:
        return
    watcher = guard.Guard(str(address), count, index, joining.join_seconds)
    service = watcher.join()
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    sys.stdout.flush()
    watched = stopping.is_watched()
    with stopping.block_signals(*stopping.SIGNALS):
        stopping.unwatch()
        if pid := os.fork():
            theirs.close()
            os.close(write)
            guard.supervise(watcher, pid, ours, read)
        if watched:
            stopping.watch(report=lambda sentence: report_failure(sentence, alone=True))
    ours.close()
    os.close(read)
    watcher.leave()
    os.dup2(write, sys.stderr.fileno())
    from plmjax import experiment

    _here.guard, _here.settings, _here.worker = guard.JsonConnection(theirs), experiment.Hosts(), index
    theirs.settimeout(None)
    threading.Thread(target=_here.receive_messages, name="guard", daemon=True).start()
    threading.Thread(target=_here.send_beats, name="beat", daemon=True).start()
    import jax

    # The guards detect failures, so the limits of JAX's own heartbeats and barriers are made very long.
    jax.config.update("jax_enable_preemption_service", False)
    one_day = 24 * 3600
    jax.distributed.initialize(
        service,
        count,
        index,
        cluster_detection_method="deactivate",
        initialization_timeout=int(joining.join_seconds),
        heartbeat_timeout_seconds=one_day,
        shutdown_timeout_seconds=one_day,
    )
    print(
        f"plmjax: process {jax.process_index()} of {jax.process_count()} is worker {index}", file=sys.stderr, flush=True
    )
    if not is_primary():
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def worker() -> int:
    """Return the index with which this host joined; on a TPU slice its worker number, counted over all slices."""
    return _here.worker


def agree(name: str, value: str = "") -> None:
    """Wait until every host has called this function.

    If the values differ, the run ends with a message that names a host with another value than host 0.
    """
    if _here.guard is not None:
        _here.agree(name, value)


def are_guarded() -> bool:
    """Return whether this process is one of several hosts that `join` has joined."""
    return _here.guard is not None


def meet(name: str) -> bool:
    """Wait until every host has called this function. Return false if one host does not come (`abandon`).

    Several threads may wait at barriers of different names. There must be several hosts (`are_guarded`).
    """
    return _here.meet(name)


def abandon(prefix: str) -> None:
    """Declare that this host does not come to barriers whose names begin with `prefix`: no host waits there."""
    if _here.guard is not None:
        _here.guard.send({"abandon": prefix})


def all_gather(array: "np.ndarray") -> "np.ndarray":
    """Return the arrays of all hosts, [hosts ...], on every host.

    Every host must call this with the same shapes and dtypes; it waits for all hosts.
    """
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(array[None], tiled=True)


@contextlib.contextmanager
def host_0_first(name: str) -> Iterator[None]:
    """Run the body on JAX's process 0 first, then on the other hosts, which find the files of process 0."""
    import jax

    if jax.process_index():
        agree(name)
        yield
    else:
        yield
        agree(name)


def report_failure(sentence: str, alone: bool = False) -> None:
    """Send the guard the reason why this host stops; it sends it to the other hosts when this process ends.

    alone: true if only this host stops, so the guards must end the others. It is false where every host saves the same
        step and stops.
    """
    if _here.guard is not None:
        _here.guard.send({"failed": sentence, "alone": alone})


def leave(code: int) -> None:
    """End this process without waiting for the other hosts, which their guards end. Do nothing on one host."""
    if _here.guard is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def report_progress(doing: str, pace: str = STEP) -> None:
    """Report progress and the next activity. Every host must make the same number of calls.

    doing: the next activity, for messages. pace: STEP, ACTIVITY or UNLIMITED, its time limit.
    """
    _here.count, _here.doing, _here.pace, _here.progressed = _here.count + 1, doing, pace, time.monotonic()


def still_here() -> None:
    """Report that the current activity makes progress."""
    report_progress(_here.doing, _here.pace)


@contextlib.contextmanager
def watch_for_stalls(settings: "Hosts") -> Iterator[None]:
    """Watch the body for a stall. The body must call `report_progress`.

    If there is no progress for the time that `settings` allows, the stacks of all threads are printed to standard error
    and the process ends with UNAVAILABLE. On several hosts the guards do this, and name the host that is behind.
    """
    _here.settings = settings
    report_progress("starting", ACTIVITY)
    done = threading.Event()

    def look() -> None:
        seen, idle, last = -1, 0.0, time.monotonic()
        while not done.wait(LOOK_SECONDS):
            # A process that was stopped for a while (Ctrl-Z, a suspended laptop) has not been idle.
            now = time.monotonic()
            idle, last = idle + min(now - last, 2 * LOOK_SECONDS), now
            if _here.count != seen:
                seen, idle = _here.count, 0.0
            if (limit := _here.limit()) and idle > limit:
                print(
                    f"plmjax: No progress for {limit:g} s ({_here.doing}); the stacks of all threads follow. Run the "
                    f"same command again to continue from the last checkpoint.",
                    file=sys.stderr,
                    flush=True,
                )
                faulthandler.dump_traceback(file=2, all_threads=True)
                os._exit(UNAVAILABLE)

    if _here.guard is None:
        threading.Thread(target=look, name="watch", daemon=True).start()
    try:
        yield
    finally:
        report_progress("ending", ACTIVITY)
        done.set()


@contextlib.contextmanager
def hold_folder(workdir: Path, settings: "Hosts | None" = None) -> Iterator[None]:
    """Lock the folder of a run (`plmjax.files.locks`) in JAX's process 0, and watch all hosts for stalls in the body.

    settings: time limits; None to only lock, for a folder of several runs.
    """
    lock = locks.lock(workdir) if is_primary() else contextlib.nullcontext()
    watch = contextlib.nullcontext() if settings is None else watch_for_stalls(settings)
    with watch, lock:
        yield


def is_primary() -> bool:
    """Return whether this is JAX's process 0, the only one that writes the run's files and prints."""
    import jax

    return jax.process_index() == 0
