"""Whether files are still as they were written: CRC-32C, computed once on a machine and then remembered.

A disk or a copy can change a byte and leave the size alone. So a file is read whole before it is used for the first
time, and that it was sound is noted beside its size and times. While these stay the same it is not read again: a
dataset of 30 GB costs its reading at the first start on a machine, and no more. Every machine keeps notes of its own,
for it may have read another copy, or the same one through another network.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from plmjax import json_text, storage

Files = Mapping[str, Mapping[str, Any]]
"""Name in a folder -> the file's "bytes" and "crc32c"."""

FOLDER = "checked"
_CHUNK = 1 << 24
WORTH_SAYING = 1 << 30
"""Bytes whose reading takes long enough to be mentioned."""


def crc32c(data: bytes, before: int = 0) -> int:
    """The checksum of `data`, or of data with the checksum `before` followed by `data`."""
    import google_crc32c  # here, so that layouts can be imported without it

    return google_crc32c.extend(before, data)


def sum_file(path: Path) -> dict[str, int]:
    """{"bytes": size, "crc32c": checksum} of a file."""
    crc, size = 0, 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            crc, size = crc32c(chunk, crc), size + len(chunk)
    return {"bytes": size, "crc32c": crc}


def differing(folder: Path, files: Files) -> str | None:
    """Reads every file; the name of the first whose size or checksum differs, or None."""
    for name, expected in files.items():
        found = sum_file(folder / name)
        if any(found[key] != expected[key] for key in found):
            return name
    return None


def damaged(folder: Path, files: Files, say: Callable[[str], None] = lambda line: None) -> str | None:
    """Reads the files that this machine has not found sound before, or that have changed since; as `differing`.

    say: called with a line when the reading took long.
    """
    known = _noted(folder)
    unread = {name: entry for name, entry in files.items() if known.get(name) != _note(folder / name, entry)}
    if not unread:
        return None
    start = time.monotonic()
    if bad := differing(folder, unread):
        return bad
    note(folder, files)
    size = sum(entry["bytes"] for entry in unread.values())
    if size >= WORTH_SAYING:
        say(f"dataset    {size / 1e9:,.1f} GB read and found sound in {time.monotonic() - start:.0f} s")
    return None


def note(folder: Path, files: Files) -> None:
    """Remembers that the files are sound as they are now."""
    notes = json.dumps({name: _note(folder / name, entry) for name, entry in files.items()})
    for path in _notes(folder):
        with contextlib.suppress(OSError):  # where nothing can be written, they are read again next time
            path.parent.mkdir(parents=True, exist_ok=True)
            storage.write(path, notes)
            return


def _noted(folder: Path) -> dict[str, list[int]]:
    for path in _notes(folder):
        with contextlib.suppress(OSError, ValueError):
            notes = json_text.parse(path.read_bytes())
            return notes if isinstance(notes, dict) else {}
    return {}


def _note(path: Path, entry: Mapping[str, Any]) -> list[int]:
    """What a file is recognised by. The time of its last change of any kind cannot be set back, unlike the other."""
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, entry["crc32c"]]


def _notes(folder: Path) -> list[Path]:
    """Where this machine's notes on a folder may be: in it or, when it is read-only, in the user's cache folder."""
    name = hashlib.sha256(os.fspath(folder.resolve()).encode()).hexdigest()[:32]
    return [folder / FOLDER / f"{os.uname().nodename}.json", storage.cache(FOLDER, f"{name}.json")]
