"""CRC-32C checksums of files, verified once per machine.

A disk or a copy can change a byte without changing the size. So a file is read in full before its first use, and the
result is saved with its size and times. While these stay the same, the file is not read again: a dataset of 30 GB is
read once, at the first start on a machine. Every machine saves its own results, because it may have read another copy,
or the same copy through another network.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from plmjax.files import json_text, storage

Files = Mapping[str, Mapping[str, Any]]
"""Name in a folder -> the file's "bytes" and "crc32c"."""

FOLDER = "checked"
_CHUNK = 1 << 24
REPORTED_BYTES = 1 << 30
"""Minimum number of bytes for which the time of reading is reported."""


def crc32c(data: bytes, before: int = 0) -> int:
    """Return the checksum of `data`, or of data with the checksum `before` followed by `data`."""
    import google_crc32c  # here, so that layouts can be imported without it

    return google_crc32c.extend(before, data)


def sum_file(path: Path) -> dict[str, int]:
    """Return {"bytes": size, "crc32c": checksum} of a file."""
    crc, size = 0, 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            crc, size = crc32c(chunk, crc), size + len(chunk)
    return {"bytes": size, "crc32c": crc}


def first_difference(folder: Path, files: Files) -> str | None:
    """Read every file. Return the name of the first file with another size or checksum, or None."""
    for name, expected in files.items():
        found = sum_file(folder / name)
        if any(found[key] != expected[key] for key in found):
            return name
    return None


def find_damaged(folder: Path, files: Files, report: Callable[[str], None] = lambda line: None) -> str | None:
    """Read the files that are new or changed on this machine; return the first damaged one as `first_difference` does.

    report: function that is called with a line if at least `REPORTED_BYTES` were read.
    """
    known = _read_notes(folder)
    unread = {name: entry for name, entry in files.items() if known.get(name) != _note(folder / name, entry)}
    if not unread:
        return None
    start = time.monotonic()
    if bad := first_difference(folder, unread):
        return bad
    note(folder, files)
    size = sum(entry["bytes"] for entry in unread.values())
    if size >= REPORTED_BYTES:
        report(f"dataset    {size / 1e9:,.1f} GB read and found sound in {time.monotonic() - start:.0f} s")
    return None


def note(folder: Path, files: Files) -> None:
    """Save that the files are undamaged in their current state."""
    notes = json.dumps({name: _note(folder / name, entry) for name, entry in files.items()})
    for path in _notes(folder):
        with contextlib.suppress(OSError):  # if nothing can be written, the files are read again next time
            path.parent.mkdir(parents=True, exist_ok=True)
            storage.write(path, notes)
            return


def _read_notes(folder: Path) -> dict[str, list[int]]:
    for path in _notes(folder):
        with contextlib.suppress(OSError, ValueError):
            notes = json_text.parse(path.read_bytes())
            return notes if isinstance(notes, dict) else {}
    return {}


def _note(path: Path, entry: Mapping[str, Any]) -> list[int]:
    """Return the values that identify the state of a file.

    Unlike the modification time, the change time cannot be set back.
    """
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, entry["crc32c"]]


def _notes(folder: Path) -> list[Path]:
    """Return the possible paths of this machine's notes on a folder.

    They are in the folder or, if it is read-only, in the user's cache folder.
    """
    name = hashlib.sha256(os.fspath(folder.resolve()).encode()).hexdigest()[:32]
    return [folder / FOLDER / f"{os.uname().nodename}.json", storage.cache(FOLDER, f"{name}.json")]
