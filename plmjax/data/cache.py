"""Cached indices: folders of data computed once from a dataset, named by a hash of all their inputs."""

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from plmjax.data import checksums
from plmjax.errors import UserError
from plmjax.files import json_text, storage

_CONTENTS = "index.json"


Index = Callable[[str, np.dtype], np.ndarray]
"""Function that returns the numbers of an index file, from the name of the file and their dtype."""


def on_disk(directory: Path, settings: dict, build: Callable[[Path], None]) -> Index:
    """Return the index with these settings, memory-mapped from the folder that `build_once` returns."""
    folder = build_once(directory, settings, build)
    return lambda name, dtype: memory_map(folder / name, dtype)


def in_memory(build: Callable[[Path], None]) -> Index:
    """Build an index without a cached file: `build(folder)` writes to a temporary folder, which is read and removed."""
    with tempfile.TemporaryDirectory() as scratch:
        build(Path(scratch))
        files = {path.name: path.read_bytes() for path in Path(scratch).iterdir()}
    return lambda name, dtype: np.frombuffer(files[name], dtype)


def memory_map(path: Path, dtype: np.dtype) -> np.ndarray:
    """Return a file of numbers as a memory-mapped array."""
    return np.memmap(path, dtype, "r").view(np.ndarray)


def build_once(directory: Path, settings: dict, build: Callable[[Path], None]) -> Path:
    """Return the folder of the index with these settings; `build(folder)` creates it if it does not exist.

    It is in `directory`, or in the user's cache folder if the dataset is read-only. It gets its name only when it is
    complete. So an interrupted index is never read, and several processes can build one at the same time.
    """
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    name = f"{settings['split']}-{digest[:16]}"
    candidates = [directory, storage.cache("index")]
    for candidate in candidates:
        if _is_complete(candidate / name):
            return candidate / name
    for candidate in candidates:
        unfinished = candidate / f"{name}.{os.uname().nodename}.{os.getpid()}"
        try:
            unfinished.mkdir(parents=True)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and candidate != candidates[-1]:
                continue
            raise UserError(
                f"Expected room for the index of {directory.parent} in {candidate}, found that the system refuses it "
                f"({error}); free some, or change its mode."
            ) from error
        try:
            build(unfinished)
            files = {path.name: checksums.sum_file(path) for path in unfinished.iterdir()}
            (unfinished / _CONTENTS).write_text(json.dumps({"settings": settings, "files": files}, indent=1))
            if not _is_complete(candidate / name):
                shutil.rmtree(candidate / name, ignore_errors=True)
                unfinished.rename(candidate / name)
        except OSError as error:
            if not _is_complete(candidate / name):
                raise UserError(
                    f"Expected to write the index of {directory.parent} to {candidate}, found that the system refuses "
                    f"it ({error}); free some room, or change its mode."
                ) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return candidate / name
    raise AssertionError("The last candidate either returns or raises.")


def _is_complete(folder: Path) -> bool:
    """Return whether an index is complete and undamaged.

    After a power failure its folder may exist without the contents.
    """
    try:
        files = json_text.parse((folder / _CONTENTS).read_bytes())["files"]
        return checksums.find_damaged(folder, files) is None
    except (OSError, ValueError, KeyError, TypeError):
        return False
