"""Files: all reading and writing of paths that a user names, local paths and gs://BUCKET/....

`path` returns a pathlib.Path for a local path, and an etils.epath.Path, which has the same methods, for a path in a
bucket. A bucket has no folders, no renaming and no appending. The functions of this module replace these operations
there, and perform them on a disk. plmjax/files/buckets.py has the client of buckets.
"""

import base64
import contextlib
import dataclasses
import errno
import hashlib
import logging
import math
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from plmjax.errors import Explained, Unavailable, UserError, quoted
from plmjax.files import buckets, patience
from plmjax.files.buckets import SCHEME

_log = logging.getLogger(__name__)
WRITING = ".writing"
"""Suffix of a temporary file that is being written, and then replaces the file at the path."""
_AT_ONCE = 8
"""Number of files that are copied at the same time; the client holds up to 50 MiB of each in memory."""
_OPEN = re.compile(r"/proc/(?P<process>self|\d+)/fd/(?P<number>\d+)")
_LINKS = 40  # as many as Linux follows
_BEGINNING = 1 << 20
"""Number of first bytes by which a command recognises a file that it wrote."""
_OTHER = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/+(?P<rest>.*)", re.DOTALL)


def path(text: str | os.PathLike) -> Path:
    """Return the path of a local file or folder, or a path in a bucket that can be reached.

    Raises:
        UserError: another kind of path, or a bucket that does not exist.
        Unavailable: the bucket is forbidden or cannot be reached.
    """
    text = os.fspath(text)
    if not text:
        raise UserError("Expected a path, found an empty one; name a file or folder, or leave the option out.")
    if not text.startswith(SCHEME):
        other = _OTHER.fullmatch(text)
        if other and other["scheme"].lower() in ("gs", "gcs"):
            raise UserError(f"Expected {SCHEME}BUCKET/PATH, found {text}; did you mean {SCHEME}{other['rest']}?")
        if other:
            raise UserError(f"Expected a local path or {SCHEME}BUCKET/PATH, found {text}; copy it to one of them.")
        return Path(text)
    from etils import epath

    buckets.check(text)
    return epath.Path(text)


def in_bucket(path: str | os.PathLike) -> bool:
    """Return whether a path is in a bucket."""
    return os.fspath(path).startswith(SCHEME)


def absolute(path: Path) -> Path:
    """Return the absolute path; a path in a bucket is absolute already."""
    return path if in_bucket(path) else path.absolute()


def plain_name(name: object, source: str | os.PathLike) -> str:
    """Check that a file name which a file contains stays in its folder, and return the name.

    source: the file that contains the name, for the message.

    Raises:
        UserError: the name is no text, is empty, `.` or `..`, or has a separator, a drive or a null character.
    """
    if not isinstance(name, str) or name in ("", ".", "..") or re.search(r"[/\\:\0]", name):
        raise UserError(
            f"Expected plain file names in {source}, found {quoted(name)}, which could lead to another folder; do not "
            f"use this file unless you trust who made it, and fetch it again."
        )
    return name


def contents(path: Path) -> bytes:
    """Return all bytes of a file.

    Raises:
        FileNotFoundError: there is no file.
        UserError: the path is a folder, a link to itself or another thing that cannot be read as a file.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.strerror is None or in_bucket(path):
            raise
        raise UserError(f"Expected a file that can be read at {path}, found: {error.strerror}; check it.") from error


def cache(*names: str) -> Path:
    """Return a folder of plmjax in the user's cache folder; all files there can be created again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").joinpath("plmjax", *names)


def user_state(*names: str) -> Path:
    """Return a file or folder of plmjax in the user's state folder, which keeps data of commands on this machine."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state").joinpath("plmjax", *names)


# ------------------------------------------------------------------------------------------------------- writing


def write(path: Path, contents: str | bytes) -> None:
    """Write a file completely or not at all, even if the process is killed."""
    contents = contents.encode("utf-8") if isinstance(contents, str) else contents
    if in_bucket(path):
        buckets.client().pipe_file(os.fspath(path), contents)
        return
    with replace_file(path) as file:
        file.write_bytes(contents)


def check_file(path: Path, option: str, ours: Callable[[bytes], bool]) -> None:
    """Raise UserError unless a command may write a file at `path`.

    A command may write a new file, overwrite an empty one or one of its kind, or write to a device.

    Args:
        option: the option that named the path.
        ours: function from the first bytes of a file to true if the command writes such files.
    """
    if path.is_dir():
        raise UserError(f"Expected a file for {option}, found the folder {path}; name a file in it.")
    if not path.is_file() or _is_stream(path):
        return
    with path.open("rb") as file:
        beginning = file.read(_BEGINNING)
    if beginning and not ours(beginning):
        raise UserError(
            f"Expected a new file for {option}, or one that this command wrote, found another one at {path}; name "
            "another or remove it."
        )


def _descriptor(path: Path) -> int | None:
    """Return the file descriptor for a path such as /dev/stdout, or None for other paths."""
    place = path.absolute()
    for _ in range(_LINKS):  # Link by link: `resolve` would follow the last link, in /proc, to the file.
        place = place.parent.resolve() / place.name
        found = _OPEN.fullmatch(str(place))
        if found:
            return int(found["number"]) if found["process"] in ("self", str(os.getpid())) else None
        if not place.is_symlink():
            return None
        place = place.parent / place.readlink()
    return None


def _is_stream(path: Path) -> bool:
    """Return whether a path is a device, a pipe or an open file, which is written to and not replaced."""
    if in_bucket(path):
        return False
    return _descriptor(path) is not None or (path.exists() and not (path.is_file() or path.is_dir()))


def _stream(path: Path) -> IO[bytes]:
    """Return a stream that writes to a path of `_is_stream`. An open file is continued at its position."""
    number = _descriptor(path)
    if number is None:
        return path.open("wb")
    if sys.stdout is not None:  # It is None if it was closed before Python started.
        sys.stdout.flush()
    try:
        return os.fdopen(os.dup(number), "wb")
    except OSError as error:
        raise UserError(f"Expected an open file behind {path}, found: {error.strerror}; name a file.") from error


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a local file to write, which replaces `path` if the block ends without an error.

    For a device, a pipe or an open file such as /dev/stdout, the contents are written to it instead.
    """
    if _is_stream(path):
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / path.name
            yield file
            with _stream(path) as stream, file.open("rb") as written:
                shutil.copyfileobj(written, stream)
        return
    if in_bucket(path):
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / path.name
            yield file
            buckets.client().put_file(os.fspath(file), os.fspath(path))
        return
    try:
        file, lock = _scratch(path)
        try:
            mode = file.stat().st_mode  # The mode of the umask: libraries that replace the file may leave 0600.
            yield file
            file.chmod(mode)
            with file.open("rb") as written:
                os.fsync(written.fileno())
            file.replace(path)
        finally:
            file.unlink(missing_ok=True)
            os.close(lock)
    except OSError as error:
        if error.filename is not None and os.fspath(error.filename).startswith(f"{path}."):
            error.filename = os.fspath(path)
        raise


def _scratch(path: Path) -> tuple[Path, int]:
    """Return a new file beside `path` for this process alone, and an open descriptor of it.

    Files that killed processes left there are removed. The descriptor is locked, which marks the file as in use.
    """
    import fcntl

    left = re.compile(rf"{re.escape(path.name)}(\.[0-9a-f]{{8}})?{re.escape(WRITING)}")
    with contextlib.suppress(OSError):
        for other in [entry for entry in path.parent.iterdir() if left.fullmatch(entry.name)]:
            with contextlib.suppress(OSError), other.open("r+b") as opened:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                other.unlink()
    while True:
        file = path.with_name(f"{path.name}.{os.urandom(4).hex()}{WRITING}")
        lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # Another process is about to remove it: it looked before the file was locked.
            os.close(lock)
            continue
        except OSError:  # A file system without locks: nobody removes the file.
            return file, lock
        if file.exists():
            return file, lock
        os.close(lock)


@contextlib.contextmanager
def output(folder: Path, last: str = "") -> Iterator[Path]:
    """Yield a local folder to fill: `folder`, or for a bucket a temporary folder that is copied after the body.

    last: the file that is copied after all others.
    """
    if not in_bucket(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield Path(scratch)
        files = sorted(file for file in Path(scratch).rglob("*") if file.is_file())
        targets = [os.fspath(folder / file.relative_to(scratch).as_posix()) for file in files]
        pairs = [(os.fspath(file), target) for file, target in zip(files, targets, strict=True) if file.name != last]
        if pairs:
            buckets.client().put(*map(list, zip(*pairs, strict=True)), batch_size=_AT_ONCE)
        if last:
            buckets.client().put_file(os.fspath(Path(scratch) / last), os.fspath(folder / last))


def move(source: Path, target: Path) -> None:
    """Rename a file within a disk or within a bucket; a file at `target` is replaced."""
    if in_bucket(source):
        buckets.client().cp_file(os.fspath(source), os.fspath(target))
        buckets.client().rm_file(os.fspath(source))
    else:
        source.replace(target)


def remove(path: Path) -> None:
    """Remove a file, or a folder with its contents, if it exists."""
    if in_bucket(path):
        with contextlib.suppress(FileNotFoundError):
            buckets.client().rm(os.fspath(path), recursive=True)
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class Mirror:
    """A local folder whose files are copied to `target`, for growing files and for libraries that write only to a disk.

    For a target on a disk, `folder` is the target itself. For a bucket it is a temporary folder: a thread copies the
    changed files as a whole, and then waits twenty times as long as the copy took, to keep the load small. Call `flush`
    after writing data that must survive if the process is killed.
    """

    REST = 10.0
    """Minimum seconds between two copies."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self._scratch = tempfile.TemporaryDirectory() if in_bucket(target) else None
        self.folder = Path(self._scratch.name) if self._scratch else target
        self._copied: dict[Path, tuple[int, int]] = {}
        self._copying, self._closed = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="mirror", daemon=True)
        if self._scratch:
            self._thread.start()

    def flush(self) -> None:
        """Wait until the target has the current version of every file."""
        if self._scratch is None:
            return
        with self._copying:
            # A file that is about to replace another one may be gone in a moment.
            files = [file for file in self.folder.rglob("*") if file.is_file() and file.suffix != WRITING]
            for file in sorted(files):
                status = file.stat()
                state = (status.st_size, status.st_mtime_ns)
                if self._copied.get(file) != state:  # Data that is added after this read is copied next time.
                    write(self.target / file.relative_to(self.folder).as_posix(), file.read_bytes())
                    self._copied[file] = state

    def close(self, patient: bool = False) -> None:
        """Flush, and remove the temporary folder.

        Args:
            patient: true to retry temporary failures without end; otherwise a failure leaves files out, with a warning.
        """
        if self._scratch is None:
            return
        self._closed.set()
        self._thread.join()
        try:
            patience.insist(self._flush_or_explain, f"the files of {self.target}", math.inf if patient else 0.0)
        except Unavailable as error:
            _log.warning("warning    the last lines of %s are not written: %s", self.target, error)
        self._scratch.cleanup()

    def _flush_or_explain(self) -> None:
        with explain_errors():
            self.flush()

    def _follow(self) -> None:
        rest = self.REST
        while not self._closed.wait(rest):
            start = time.monotonic()
            # A copy that fails is repeated next time; the last `flush`, in `close`, raises errors that remain.
            with contextlib.suppress(Exception):
                self.flush()
            rest = max(self.REST, 20 * (time.monotonic() - start))


# ------------------------------------------------------------------------------------------------------- reading


@contextlib.contextmanager
def local(path: Path) -> Iterator[Path]:
    """Yield a local file or folder: `path`, or for a bucket a copy that is removed after the body."""
    if not in_bucket(path) or not path.exists():
        yield path
        return
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / path.name
        fetch(path, copy)
        yield copy


def fetch(path: Path, copy: Path, names: Iterable[str] = ()) -> None:
    """Copy a file or folder of a bucket to a local one.

    names: the files of the folder to copy; all by default.
    """
    names = list(names) or (files(path) if path.is_dir() else [""])
    targets = [copy / name for name in names]
    for target in targets:
        target.parent.mkdir(parents=True, exist_ok=True)
    objects = [f"{path}/{name}".rstrip("/") for name in names]
    buckets.client().get(objects, [os.fspath(target) for target in targets], batch_size=_AT_ONCE)


def size(path: Path) -> int:
    """Return the size of a file, in bytes."""
    status = path.stat()
    return status.length if in_bucket(path) else status.st_size


def state(path: Path) -> str:
    """Return a text that changes when the file is written again."""
    if in_bucket(path):
        return str(buckets.client().info(os.fspath(path))["generation"])
    status = path.stat()
    return f"{status.st_size} bytes, {status.st_mtime_ns} ns"


CRC32C = "crc32c:"
"""Prefix of a digest that is a CRC-32C checksum; digests without it are SHA-256."""


@dataclasses.dataclass(frozen=True)
class File:
    """The description of a file: its size in bytes, and in a bucket its CRC-32C, hexadecimal."""

    path: Path
    size: int
    crc32c: str = ""

    def digest(self, like: str = "") -> str:
        """Return the SHA-256 of a local file; in a bucket "crc32c:" and the checksum that the bucket stores.

        like: a digest to compare with, or `CRC32C`. The result has its kind: the folder may have been copied between a
            disk and a bucket.
        """
        known, checksummed = (f"{CRC32C}{self.crc32c}" if self.crc32c else ""), like.startswith(CRC32C)
        if known and (not like or checksummed):
            return known
        if checksummed:
            import google_crc32c

            checksum = google_crc32c.Checksum()
        else:
            checksum = hashlib.sha256()
        with self.path.open("rb") as contents:
            while chunk := contents.read(1 << 24):
                checksum.update(chunk)
        return f"{CRC32C}{checksum.hexdigest().decode()}" if checksummed else checksum.hexdigest()


def file(path: Path) -> File:
    """Return the description of one file."""
    if not in_bucket(path):
        return File(path, path.stat().st_size)
    found = buckets.client().info(os.fspath(path))
    return File(path, found["size"], base64.b64decode(found["crc32c"]).hex())


def files(folder: Path) -> dict[str, File]:
    """Return a dict from name relative to `folder` to `File`, for all files below it, sorted by name."""
    if not in_bucket(folder):
        found = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
        return {name: File(file, file.stat().st_size) for name, file in sorted(found.items())}
    root = os.fspath(folder).rstrip("/")
    objects = buckets.client().find(root, detail=True).values()
    named = {f"{SCHEME}{entry['name']}".removeprefix(f"{root}/"): entry for entry in objects}
    return {
        name: File(folder / name, entry["size"], base64.b64decode(entry["crc32c"]).hex())
        for name, entry in sorted(named.items())
    }


# -------------------------------------------------------------------------------------------------------- errors


def explain(error: BaseException) -> Explained | None:
    """Return a one-sentence error for an error of a disk or of a bucket's client; None for other errors."""
    if lack := out_of_space(error):
        (found, advice), path = lack, getattr(error, "filename", None)
        where = f" ({path})" if path else ""
        return UserError(f"Expected room for what is written, found {found}{where}; {advice} and run again.")
    if isinstance(error, OSError) and error.filename is not None:
        return UserError(
            f"Expected to read or write {error.filename}, found: {error.strerror}; name a path that allows it."
        )
    return buckets.explain(error)


@contextlib.contextmanager
def explain_errors() -> Iterator[None]:
    """Raise errors of a disk or of a bucket's client as one-sentence errors. FileNotFoundError is not changed."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        raise explain(error) or error from error


_LACKS = {
    errno.ENOSPC: ("the disk full", "free some space"),
    errno.EDQUOT: ("the quota on the disk used up", "free some space"),
    errno.EFBIG: ("a limit on the size of a file", "raise it (ulimit -f) or name a folder on another disk"),
}


def out_of_space(error: BaseException) -> tuple[str, str] | None:
    """Return (finding, advice) for an error of a file that cannot grow; None for other errors.

    Libraries in other languages (HDF5, safetensors, XLA) raise other errors, which quote the system's message.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return _LACKS.get(error.errno)
    if isinstance(error, Exception) and not isinstance(error, Explained):
        return next((lack for number, lack in _LACKS.items() if os.strerror(number) in str(error)), None)
    return None


def finished_steps(folder: Path) -> list[int]:
    """Return the steps of the finished checkpoints in a folder, ascending; empty if there is no folder."""
    entries = list(folder.iterdir()) if folder.is_dir() else []
    return sorted(int(entry.name) for entry in entries if entry.name.isdigit() and is_finished(entry))


def is_finished(checkpoint: Path) -> bool:
    """Return whether Orbax has finished a checkpoint: renamed its folder or, in a bucket, written its last object."""
    return (checkpoint / "commit_success.txt").is_file() if in_bucket(checkpoint) else checkpoint.is_dir()
