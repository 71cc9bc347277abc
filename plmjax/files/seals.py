"""Seals of the finished parts of a command's output, so that a restarted command reuses exactly its own parts.

A command that may be killed keeps its finished parts. Each part has a seal, a JSON file that is written last:

    {"made_from": "...", "files": {"NAME": [bytes, "crc32c:..."]}, "content": ..., "crc32c": ...}

`made_from` is a digest of all inputs of the part. A part is made again if its seal is missing or for other inputs, or
if a file differs from the seal. Checkpoints compare their files with their manifest in the same way.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from plmjax.files import json_text, storage
from plmjax.files.json_text import COUNT

_SHAPE = {"made_from": str, "files": {str: [object]}, "content": object, "crc32c": COUNT}


def digest(made_from: Any) -> str:
    """Return the SHA-256 of plain data, hexadecimal."""
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()


def entries(files: Mapping[str, storage.File], like: str = "") -> dict[str, list[Any]]:
    """Return a dict from name to [size in bytes, digest] of files. like: as in `storage.File.digest`."""
    return {name: [file.size, file.digest(like)] for name, file in files.items()}


def difference(known: Mapping[str, Any], found: Mapping[str, storage.File]) -> str:
    """Return the difference between files and their `entries` as part of a sentence; empty if they are equal."""
    for name, (size, written) in known.items():
        if name not in found:
            return f"{name} is missing"
        if found[name].size != size:
            return f"{name} has {found[name].size} bytes of {size}"
        if found[name].digest(like=written) != written:
            return f"{name} is not what was written"
    return ""


class Sealed(NamedTuple):
    """The content of a valid seal: plain data."""

    content: Any


def write(seal: Path, made_from: str, names: Iterable[str], content: Any = None) -> None:
    """Write a seal for files in its folder. content: plain data that is stored in the seal."""
    files = entries({name: storage.file(seal.parent / name) for name in names}, storage.CRC32C)
    found = {"made_from": made_from, "files": files, "content": content}
    storage.write(seal, json.dumps(found | {"crc32c": _sum(found)}) + "\n")


def read(seal: Path, made_from: str, ignored: Collection[str] | None = ()) -> Sealed | None:
    """Return the content of a seal; None if it is missing, damaged or for other inputs, or if a file differs.

    ignored: names of files that are not compared; None compares no files.
    """
    try:
        found = json_text.parse(storage.contents(seal))
        json_text.check(found, _SHAPE)
        own = {name: value for name, value in found.items() if name != "crc32c"}
        if found["made_from"] != made_from or found["crc32c"] != _sum(own):
            return None
        if ignored is not None:
            known = {name: entry for name, entry in found["files"].items() if name not in ignored}
            paths = {name: seal.parent / storage.plain_name(name, seal) for name in known}
            there = {name: storage.file(path) for name, path in paths.items() if path.is_file()}
            if difference(known, there):
                return None
    except (FileNotFoundError, ValueError):
        return None
    return Sealed(found["content"])


def _sum(contents: dict[str, Any]) -> int:
    import google_crc32c  # here, because programs that only read runs may lack it

    return google_crc32c.value(json.dumps(contents, sort_keys=True).encode())
