"""A lock for a folder. Two runs in one folder would delete each other's metrics and mix their checkpoints.

On a disk it is a lock of the kernel (`flock` of FOLDER/lock.json, which network file systems forward to their server).
It always ends with the process. In a bucket it is the object FOLDER/lock.json, which is written with a generation
precondition, and again every BEAT_SECONDS. If its holder was a process of this machine that has ended, the lock is
taken over at once. Otherwise it is taken over after this process has seen it unchanged for SILENT_SECONDS. Clocks of
different machines are not compared.
"""

import contextlib
import errno
import functools
import json
import logging
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from plmjax.errors import UNAVAILABLE, Unavailable, UserError
from plmjax.files import buckets, json_text, storage

NAME = "lock.json"
BEAT_SECONDS = 15.0
SILENT_SECONDS = 60.0
LOOK_SECONDS = 1.0
UNKNOWN = {"pid": 0, "host": "", "since": "", "machine": "", "started": ""}
"""The holder of a lock with damaged text."""
_OPENING = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
"""Flags of mode "a+", with O_NOFOLLOW: through a link, another file would be truncated."""
_log = logging.getLogger(__name__)
_held: set[str] = set()
"""Texts of the locks in buckets that this process holds. Another lock that names this process is a leftover."""
_here = threading.local()
"""Its attribute `folders` has the folders that this thread has locked."""


@contextlib.contextmanager
def lock(folder: Path, report: Callable[[str], None] = print) -> Iterator[None]:
    """Create and lock a folder during the body; `report` is called with a line if it waits for another process.

    Raises:
        UserError: another process of this machine, or one that shares the disk, holds the lock; the message names it.
        Unavailable: another machine holds the lock in a bucket.
    """
    own = str(storage.absolute(folder))
    with _in_bucket(folder, report) if storage.in_bucket(folder) else _on_disk(folder):
        before = getattr(_here, "folders", frozenset())
        _here.folders = before | {own}
        try:
            yield
        finally:
            _here.folders = before


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Lock a folder during the body as `lock` does, unless this thread has locked it already."""
    mine = str(storage.absolute(folder)) in getattr(_here, "folders", frozenset())
    with contextlib.nullcontext() if mine else lock(folder):
        yield


def is_unused(folder: Path) -> bool:
    """Return whether a folder is missing, or has only a lock and partial files of killed processes."""
    return not folder.exists() or all(
        entry.name == NAME or entry.name.endswith(storage.WRITING) for entry in folder.iterdir()
    )


@contextlib.contextmanager
def _on_disk(folder: Path) -> Iterator[None]:
    import fcntl

    if folder.exists() and not folder.is_dir():
        raise UserError(f"Expected a folder, found the file {folder}; name another.")
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    path = folder / NAME
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file = os.fdopen(os.open(path, _OPENING, 0o666), "a+", encoding="utf-8")
        except FileNotFoundError:  # The previous holder has just removed the folder.
            continue
        except OSError as error:
            raise UserError(
                f"Expected a lock of this project at {path}, found a file that cannot be opened ({error.strerror}); "
                f"remove it."
            ) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            with file:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    file.seek(0)
                    raise _in_use(folder, file.read()) from None
            raise UserError(
                f"Expected a file system with locks for {folder}, found: {error.strerror}; name a folder on another, "
                f"or mount it with locks."
            ) from None
        # The previous holder may have removed the file between the two calls.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                break
        file.close()
    with file:
        file.truncate(0)
        file.write(_holder())
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # A folder that is not empty stays.
                for place in made:
                    place.rmdir()


@contextlib.contextmanager
def _in_bucket(folder: Path, report: Callable[[str], None]) -> Iterator[None]:
    path, mine = folder / NAME, _holder()
    generation = _take_over(folder, path, mine, report)
    done = threading.Event()

    def beat() -> None:
        nonlocal generation
        while not done.wait(BEAT_SECONDS):
            with contextlib.suppress(Exception):  # If the bucket does not respond, the next beat tries again.
                generation = buckets.replace(path, mine, generation) or _lost(folder, path, mine)

    beating = threading.Thread(target=beat, name="lock", daemon=True)
    beating.start()
    _held.add(mine)
    try:
        yield
    finally:
        _held.remove(mine)
        done.set()
        beating.join()
        try:
            storage.remove(path)
        except Exception as error:
            if not buckets.may_pass(error):
                raise
            _log.warning("warning    %s stays, and is free in %g s: %s", path, SILENT_SECONDS, error)


def _take_over(folder: Path, path: Path, mine: str, report: Callable[[str], None]) -> int:
    """Write the lock in a bucket when it is free, and return its generation."""
    watched, since = None, time.monotonic()
    while True:
        found = buckets.generation(path)
        if watched is not None and found[0] not in (0, watched):
            # The holder may be a machine that is about to end: the folder may be free when this command runs again.
            raise Unavailable(str(_in_use(folder, found[1])))
        free = found[0] == 0 or _is_gone(found[1]) or time.monotonic() - since > SILENT_SECONDS
        if free and (made := buckets.replace(path, mine, found[0])):
            return made
        if not free and watched is None:
            if _is_here(found[1]):
                raise _in_use(folder, found[1])
            watched = found[0]
            report(f"waiting    up to {SILENT_SECONDS:g} s, whether {_describe(found[1])} still works in {folder}")
        time.sleep(LOOK_SECONDS)


def _lost(folder: Path, path: Path, mine: str) -> int:
    """Return the lock's generation after a failed write, or end this process if another process holds the lock."""
    generation, contents = buckets.generation(path)
    if contents == mine:
        return generation
    print(
        f"plmjax: Expected to hold {folder}, found it taken over by {_describe(contents)} after this process had not "
        f"renewed its lock for {SILENT_SECONDS:g} s; check that process.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(UNAVAILABLE)


# ------------------------------------------------------------------------------------------------------ the holder


def _holder() -> str:
    """Return the text of a lock that this process holds: JSON with a unique token."""
    holder = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "machine": _machine(),
        "started": _start_time(os.getpid()),
        "token": uuid.uuid4().hex,
    }
    return json.dumps(holder) + "\n"


@functools.cache
def _machine() -> str:
    """Return an id of this machine since its boot and of the PID namespace; empty if not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """Return the start time of a process, in clock ticks since the boot; empty for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _is_here(holder: str) -> bool:
    """Return whether the holder is a running process of this machine, and not one that has reused its PID."""
    known = _fields(holder)
    if known["machine"] != _machine() or not known["machine"] or _start_time(known["pid"]) != known["started"]:
        return False
    return known["pid"] != os.getpid() or holder in _held


def _is_gone(holder: str) -> bool:
    """Return whether the holder was a process of this machine that has ended."""
    return _fields(holder)["machine"] == _machine() != "" and not _is_here(holder)


def _fields(holder: str) -> dict[str, Any]:
    """Return the fields of a holder, or `UNKNOWN` if the text is damaged or incomplete."""
    with contextlib.suppress(ValueError):
        known = json_text.parse(holder)
        if isinstance(known, dict) and known.keys() >= UNKNOWN.keys() and isinstance(known["pid"], int):
            return known
    return UNKNOWN


def _describe(holder: str) -> str:
    known = _fields(holder)
    if known is UNKNOWN:
        return "another process"
    return f"process {known['pid']} on {known['host']} (since {known['since']})"


def _in_use(folder: Path, holder: str) -> UserError:
    return UserError(
        f"Expected {folder} for this process alone, found {_describe(holder)} at work there; wait for it, stop it, or "
        f"name another folder."
    )
