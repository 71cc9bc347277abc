"""A finished count: its settings, and its cells, which are read by position."""

import bisect
import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np

from plmjax.data import checksums
from plmjax.data.store.manifest import manifest_checksum
from plmjax.errors import UserError, quoted
from plmjax.files import json_text, storage
from plmjax.files.json_text import COUNT

VERSION = 1
MANIFEST = "manifest.json"
BEGUN = "begun.json"
KIND = "cooccurrence"
CELL = np.dtype([("row", "<i4"), ("column", "<i4"), ("value", "<f4")])
WIDEST = 22
"""Maximum window in words. The least common multiple of more distances would leave too few bits for the sums."""


@dataclasses.dataclass(frozen=True)
class Counting:
    """Settings that determine the count of a text."""

    window: int = 10
    """Number of words on each side."""
    symmetric: bool = True
    """If true, count words on both sides; else only on the left."""
    min_count: int = 5
    """Minimum number of occurrences in the training text for a word to be counted."""

    def __post_init__(self) -> None:
        if not 1 <= self.window <= WIDEST:
            raise UserError(f"Expected a window from 1 to {WIDEST} words, found {self.window}; change it.")
        if self.min_count < 1:
            raise UserError(
                f"Expected a minimum of at least 1 occurrence to count a word, found {self.min_count}; raise "
                "--min_count."
            )


MADE_FROM = {
    "counting": {"window": range(1, WIDEST + 1), "symmetric": bool, "min_count": range(1, 2**62)},
    "dataset": str,
}
"""Shape of the inputs of a count, in the form of `json_text.check`."""
_SHAPE = MADE_FROM | {
    "total": float,
    "cells": COUNT,
    "words": COUNT,
    "files": {str: {"bytes": COUNT, "crc32c": COUNT}},
}
"""Shape of a manifest, without its version."""


class Cells:
    """Cells of a finished count, memory-mapped from its files.

    count: number of cells. words: number of words that have cells. counting: settings of the count.
    total: sum of all values. dataset: fingerprint of the text.
    """

    def __init__(self, directory: Path, manifest: dict[str, Any]):
        self.directory = directory
        self.counting = Counting(**manifest["counting"])
        self.dataset: str = manifest["dataset"]
        self.total: float = manifest["total"]
        self.count: int = manifest["cells"]
        self.words: int = manifest["words"]
        self._shards = [np.memmap(directory / name, CELL, "r").view(np.ndarray) for name in manifest["files"]]
        self._starts = [0, *np.cumsum([len(shard) for shard in self._shards]).tolist()]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the cells start..stop-1, an array of `CELL`."""
        shard = bisect.bisect_right(self._starts, start) - 1
        parts = []
        while start < stop:
            first = self._starts[shard]
            end = min(stop, self._starts[shard + 1])
            parts.append(self._shards[shard][start - first : end - first])
            start, shard = end, shard + 1
        return np.concatenate(parts) if len(parts) != 1 else parts[0]


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the manifest of a finished count.

    Raises:
        UserError: the folder is missing, belongs to something else, or is unfinished or damaged.
    """
    if not directory.is_dir():
        raise UserError(f"Expected a count of cooccurrences at {directory}, found no folder; run plmjax cooccurrence.")
    try:
        manifest = json_text.parse(storage.contents(directory / MANIFEST))
        kind, damaged = manifest.get("kind"), manifest.get("crc32c") != manifest_checksum(manifest)
    except FileNotFoundError:
        found = "an unfinished one" if (directory / BEGUN).is_file() else "a folder without one"
        raise UserError(
            f"Expected a count of cooccurrences in {directory}, found {found}; run plmjax cooccurrence, which "
            "continues where it stopped."
        ) from None
    except (ValueError, AttributeError, TypeError):
        kind, damaged = KIND, True
    if kind != KIND:
        raise UserError(f"Expected a count of cooccurrences in {directory}, found something else; name another folder.")
    if damaged:
        raise UserError(f"Expected the manifest of {directory} as it was written, found it damaged; count again.")
    if manifest.get("version") != VERSION:
        raise UserError(
            f"Expected a count of version {VERSION} in {directory}, found {quoted(manifest.get('version'))}; count "
            f"again."
        )
    try:
        json_text.check(manifest, _SHAPE)
        if unknown := manifest["counting"].keys() - MADE_FROM["counting"].keys():
            raise ValueError(f"counting has {quoted(min(unknown))}")
        if sum(file["bytes"] for file in manifest["files"].values()) != CELL.itemsize * manifest["cells"]:
            raise ValueError(f"the files hold other than {manifest['cells']} cells")
    except ValueError as error:
        raise UserError(
            f"Expected a manifest as plmjax writes it at {directory / MANIFEST}, found another "
            f"({json_text.reason(error)}); count again."
        ) from None
    return manifest


def open_cells(directory: str | os.PathLike) -> Cells:
    """Open a finished count. Its files are compared with their checksums once per machine (`checksums`).

    Raises:
        UserError: an error of `read_manifest`; a file that is missing, truncated or damaged; a folder in a bucket.
    """
    directory = on_disk(directory)
    manifest = read_manifest(directory)
    for name, expected in manifest["files"].items():
        path = directory / storage.plain_name(name, directory / MANIFEST)
        found = path.stat().st_size if path.is_file() else 0
        if found != expected["bytes"]:
            raise UserError(f"Expected {path} to have {expected['bytes']} bytes, found {found}; count again.")
    if bad := checksums.find_damaged(directory, manifest["files"]):
        raise UserError(f"Expected {directory / bad} as it was counted, found its checksum differs; count again.")
    return Cells(directory, manifest)


def on_disk(directory: str | os.PathLike) -> Path:
    """Return the folder as a path. Raise UserError for a bucket, whose files cannot be memory-mapped."""
    directory = storage.path(directory)
    if storage.in_bucket(directory):
        raise UserError(
            f"Expected a folder on a disk for a count of cooccurrences, found {directory}; count on a disk."
        )
    return directory


class Writer:
    """Writes cells to files of `SHARD_CELLS` cells in a folder."""

    SHARD_CELLS = 1 << 26

    def __init__(self, folder: Path):
        self._folder = folder
        self._names: list[str] = []
        self._left = 0
        self.cells = 0

    def extend(self, cells: np.ndarray) -> None:
        """Append an array of `CELL`."""
        self.cells += len(cells)
        while len(cells):
            if not self._left:
                self._names.append(f"cells-{len(self._names):05d}.bin")
                (self._folder / self._names[-1]).unlink(missing_ok=True)
                self._left = self.SHARD_CELLS
            part, cells = cells[: self._left], cells[self._left :]
            with (self._folder / self._names[-1]).open("ab") as file:
                file.write(part)
            self._left -= len(part)

    def close(self) -> dict[str, dict[str, int]]:
        """Close the last file, and return a dict from file name to size and checksum."""
        return {name: checksums.sum_file(self._folder / name) for name in self._names}
