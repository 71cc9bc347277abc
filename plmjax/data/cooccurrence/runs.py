"""Sorted runs of sums on disk, and their merge in bounded memory.

A run holds the sums of one range of the text, each number of a pair once and in rising order. Its name says the range,
so that a count that was killed knows what is left to do.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plmjax import storage
from plmjax.data.cooccurrence.pairs import DISTANCE_BITS

SUM = np.dtype([("number", "<u8"), ("sum", "<i8")])
FAN_IN = 64
"""Runs that are merged at once."""
SORTED_AT_ONCE = 1 << 18
"""Pairs or sums that are worked on at once, where memory is needed for more than the pairs themselves."""
BYTES_OF_A_MERGED_SUM = 256
MERGED_AT_ONCE = 1 << 20
"""Sums; more would not be faster."""
_NAME = re.compile(r"sums-(\d+)-(\d+)\.run")


class Run(NamedTuple):
    """The sums of the tokens start..stop-1 of a text."""

    start: int
    stop: int

    def path(self, folder: Path) -> Path:
        """Its file."""
        return folder / f"sums-{self.start:015d}-{self.stop:015d}.run"


def found(folder: Path) -> list[Run]:
    """The runs of a folder by their place in the text; those that a merged one holds too are removed."""
    names = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    every = sorted((Run(*map(int, name.groups())) for name in names if name), key=lambda run: (run.start, -run.stop))
    kept: list[Run] = []
    for run in every:
        if kept and run.stop <= kept[-1].stop:
            storage.remove(run.path(folder))
        else:
            kept.append(run)
    return kept


def write_counted(path: Path, pairs: np.ndarray, weights: np.ndarray) -> None:
    """Writes the run of pairs as `near` gives them, uint64 [N], which are sorted in place.

    weights: int64, of every distance.
    """
    pairs.sort()
    with storage.replacing(path) as scratch, scratch.open("wb") as file:
        begin = 0
        while begin < len(pairs):
            part = pairs[begin : begin + SORTED_AT_ONCE]
            if begin + len(part) < len(pairs):  # what the last number has beyond is left to the next part
                end = np.searchsorted(part, part[-1] >> np.uint64(DISTANCE_BITS) << np.uint64(DISTANCE_BITS))
                part = part[:end] if end else pairs[begin : _end(pairs, begin)]
            begin += len(part)
            times = np.diff(starts := _starts(part), append=len(part))
            distinct = part[starts]
            distances = (distinct & np.uint64((1 << DISTANCE_BITS) - 1)).astype(np.int64)
            _summed(distinct >> np.uint64(DISTANCE_BITS), times * weights[distances]).tofile(file)


def merge(folder: Path, runs: Sequence[Run], memory: int) -> Run:
    """Merges neighbouring runs into one, and removes them."""
    whole = Run(runs[0].start, runs[-1].stop)
    with storage.replacing(whole.path(folder)) as scratch, scratch.open("wb") as file:
        for sums in merged([run.path(folder) for run in runs], memory):
            sums.tofile(file)
    for run in runs:
        storage.remove(run.path(folder))
    return whole


def merged(paths: Sequence[Path], memory: int) -> Iterator[np.ndarray]:
    """The sums of runs, each number once and in rising order, in arrays of `SUM`; within `memory` bytes.

    Of every run the next sums are held; those up to the smallest of their last numbers are complete and go out.
    """
    room = max(min(memory // BYTES_OF_A_MERGED_SUM, MERGED_AT_ONCE) // max(len(paths), 1), 1)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(path.open("rb")) for path in paths]
        held = [np.empty(0, SUM) for _ in files]
        while True:
            for place, file in enumerate(files):
                held[place] = np.concatenate([held[place], np.fromfile(file, SUM, room - len(held[place]))])
            left = [place for place, sums in enumerate(held) if len(sums)]
            if not left:
                return
            last = min(held[place]["number"][-1] for place in left)
            ends = [np.searchsorted(held[place]["number"], last, side="right") for place in left]
            ready = np.concatenate([held[place][:end] for place, end in zip(left, ends, strict=True)])
            for place, end in zip(left, ends, strict=True):
                held[place] = held[place][end:]
            numbers = ready["number"]
            order = np.argsort(numbers, kind="stable")  # which merges what is sorted already
            yield _summed(numbers[order], ready["sum"][order])


def groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Neighbouring runs, as many together as are merged at once."""
    return [list(runs[begin : begin + FAN_IN]) for begin in range(0, len(runs), FAN_IN)]


def _end(pairs: np.ndarray, begin: int) -> int:
    """The end of the pairs with the number of the first."""
    bits = np.uint64(DISTANCE_BITS)
    return begin + int(np.searchsorted(pairs[begin:], (pairs[begin] >> bits) + np.uint64(1) << bits))


def _starts(values: np.ndarray) -> np.ndarray:
    """Where sorted values begin to be others, int64."""
    return np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))


def _summed(numbers: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Sorted numbers, each once, with the sum of its sums: an array of `SUM`."""
    starts = _starts(numbers)
    out = np.empty(len(starts), SUM)
    out["number"], out["sum"] = numbers[starts], np.add.reduceat(sums, starts)
    return out
