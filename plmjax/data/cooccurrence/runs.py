"""Sorted runs of sums on disk, and their merge in bounded memory.

A run has the sums of one range of the text, each pair number once and in ascending order. Its file name contains the
range, and its seal (plmjax/files/seals.py) the inputs of the count. So a restarted count knows which ranges are left.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plmjax.data.cooccurrence.pairs import DISTANCE_BITS
from plmjax.files import seals, storage

SUM = np.dtype([("number", "<u8"), ("sum", "<i8")])
FAN_IN = 64
"""Number of runs that are merged at once."""
SORTED_AT_ONCE = 1 << 18
"""Number of pairs summed at once. Sums need memory beyond that of the pairs."""
BYTES_OF_A_MERGED_SUM = 256
MERGED_AT_ONCE = 1 << 20
"""Number of sums merged at once. More would not be faster."""
_NAME = re.compile(r"sums-(\d+)-(\d+)\.run")


class Run(NamedTuple):
    """The sums of the tokens start..stop-1 of a text."""

    start: int
    stop: int

    def path(self, folder: Path) -> Path:
        """Return the path of its file."""
        return folder / f"sums-{self.start:015d}-{self.stop:015d}.run"

    def seal(self, folder: Path) -> Path:
        """Return the path of its seal."""
        return self.path(folder).with_suffix(".json")

    def remove(self, folder: Path) -> None:
        """Remove its files, the seal first."""
        storage.remove(self.seal(folder))
        storage.remove(self.path(folder))


def find(folder: Path) -> list[Run]:
    """Return the runs in a folder in the order of the text. Remove runs that are part of a merged run."""
    every = sorted(_list_runs(folder), key=lambda run: (run.start, -run.stop))
    kept: list[Run] = []
    for run in every:
        if kept and run.stop <= kept[-1].stop:
            run.remove(folder)
        else:
            kept.append(run)
    return kept


def remove_others(folder: Path, made_from: str) -> None:
    """Remove files of a killed count, except undamaged runs with the seal of this count."""
    for run in _list_runs(folder):
        if seals.read(run.seal(folder), made_from) is None:
            run.remove(folder)
    for path in folder.glob(f"sums-*{storage.WRITING}"):
        storage.remove(path)


def _list_runs(folder: Path) -> list[Run]:
    names = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return [Run(*map(int, name.groups())) for name in names if name]


def write_counted(folder: Path, run: Run, pairs: np.ndarray, *, weights: np.ndarray, made_from: str) -> None:
    """Write a run of pairs from `window_pairs`, uint64 [N], which are sorted in place.

    weights: int64, one for every distance. made_from: digest of the inputs of the count.
    """
    pairs.sort()
    with storage.replace_file(run.path(folder)) as scratch, scratch.open("wb") as file:
        begin = 0
        while begin < len(pairs):
            part = pairs[begin : begin + SORTED_AT_ONCE]
            if begin + len(part) < len(pairs):  # further pairs with the last number belong to the next part
                end = np.searchsorted(part, part[-1] >> np.uint64(DISTANCE_BITS) << np.uint64(DISTANCE_BITS))
                part = part[:end] if end else pairs[begin : _end(pairs, begin)]
            begin += len(part)
            times = np.diff(starts := _starts(part), append=len(part))
            distinct = part[starts]
            distances = (distinct & np.uint64((1 << DISTANCE_BITS) - 1)).astype(np.int64)
            file.write(_sum_equal(distinct >> np.uint64(DISTANCE_BITS), times * weights[distances]))
    seals.write(run.seal(folder), made_from, [run.path(folder).name])


def merge(folder: Path, runs: Sequence[Run], memory: int, made_from: str) -> None:
    """Merge neighboring runs into one, and remove them. made_from: digest of the inputs of the count."""
    whole = Run(runs[0].start, runs[-1].stop)
    with storage.replace_file(whole.path(folder)) as scratch, scratch.open("wb") as file:
        for sums in merge_sums([run.path(folder) for run in runs], memory):
            file.write(sums)
    seals.write(whole.seal(folder), made_from, [whole.path(folder).name])
    for run in runs:
        run.remove(folder)


def merge_sums(paths: Sequence[Path], memory: int) -> Iterator[np.ndarray]:
    """Yield the merged sums of runs in arrays of `SUM`, each number once and in ascending order, within `memory` bytes.

    The next sums of each run are held in a buffer. The smallest last number of all buffers is found, and the sums of
    numbers up to it are complete and are yielded.
    """
    capacity = max(min(memory // BYTES_OF_A_MERGED_SUM, MERGED_AT_ONCE) // max(len(paths), 1), 1)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(path.open("rb")) for path in paths]
        buffers = [np.empty(0, SUM) for _ in files]
        while True:
            for place, file in enumerate(files):
                buffers[place] = np.concatenate(
                    [buffers[place], np.fromfile(file, SUM, capacity - len(buffers[place]))]
                )
            left = [place for place, sums in enumerate(buffers) if len(sums)]
            if not left:
                return
            last = min(buffers[place]["number"][-1] for place in left)
            ends = [np.searchsorted(buffers[place]["number"], last, side="right") for place in left]
            ready = np.concatenate([buffers[place][:end] for place, end in zip(left, ends, strict=True)])
            for place, end in zip(left, ends, strict=True):
                buffers[place] = buffers[place][end:]
            numbers = ready["number"]
            order = np.argsort(numbers, kind="stable")  # a stable sort merges parts that are sorted already
            yield _sum_equal(numbers[order], ready["sum"][order])


def groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Divide runs into groups of up to `FAN_IN` neighbors, which are merged at once."""
    return [list(runs[begin : begin + FAN_IN]) for begin in range(0, len(runs), FAN_IN)]


def _end(pairs: np.ndarray, begin: int) -> int:
    """Return the end of the pairs with the same number as the first pair."""
    bits = np.uint64(DISTANCE_BITS)
    return begin + int(np.searchsorted(pairs[begin:], (pairs[begin] >> bits) + np.uint64(1) << bits))


def _starts(values: np.ndarray) -> np.ndarray:
    """Return the indices at which sorted values change, int64."""
    return np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))


def _sum_equal(numbers: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Return an array of `SUM` with each number once and the total of its sums.

    numbers: in ascending order. sums: the sum that belongs to each of them.
    """
    starts = _starts(numbers)
    out = np.empty(len(starts), SUM)
    out["number"], out["sum"] = numbers[starts], np.add.reduceat(sums, starts)
    return out
