"""One case of the fuzzer: a sample with a change, what a reader says of it, and whether that is what it may say."""

import collections
import contextlib
import dataclasses
import hashlib
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plmjax.errors import UserError, beginning
from tests.fuzzing import changes

SECONDS = 10
"""Maximum processor time of a case."""
PATIENCE = 120
"""Seconds after which a case is stopped: something waits for what never comes."""
ROOM, FRACTION = 300 << 20, 30
"""Bytes by which the memory of the process may grow, and how many more for each of the sample's."""
LONGEST = 5000
"""Characters of a message."""

Read = Callable[[Path], object]


@dataclasses.dataclass(frozen=True)
class Reader:
    """A reader of files that anybody may have made.

    make: fills a new folder with a small whole sample; given the name of a fixture it has the fixture's value.
    read: reads all of what the folder holds.
    seal: after a change makes the sample's own checksums right again, as whoever changes a file on purpose would; in
        every other case.
    owns: names of the sample's files that the reader writes itself.
    """

    name: str
    make: Callable[[Path, Callable[[str], Any]], object]
    read: Read
    seal: Callable[[Path], object] | None = None
    owns: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


class Hang(BaseException):
    """A case took longer than `PATIENCE`."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a case; `fault` says what was wrong with it, if anything."""

    reader: str
    number: int
    change: str
    said: str
    fault: str = ""

    def __str__(self) -> str:
        return (
            f"{self.reader}, case {self.number}: {self.change}\n  {self.fault}\n"
            f"  {beginning(self.said, 2000) or 'it was read'}\n"
            f"  python -m pytest tests/fuzzing -q --reader '{self.reader}' --case {self.number}"
        )


def read_whole(reader: Reader, sample: Path, scratch: Path) -> None:
    """Reads the unchanged sample: a reader that refuses it would refuse every change of it."""
    here = _copied(sample, scratch)
    with elsewhere(scratch):
        reader.read(here)


def _copied(sample: Path, scratch: Path) -> Path:
    """A copy of the sample in an empty folder, with the folders that the process is to use beside it."""
    shutil.rmtree(scratch, ignore_errors=True)
    for folder in ("output", "working", "cache", "temporary"):
        (scratch / folder).mkdir(parents=True)
    return Path(shutil.copytree(sample, scratch / "case" / sample.name))


def run(reader: Reader, number: int, sample: Path, scratch: Path) -> Outcome:
    """Runs a case in an empty folder: what it changes is a function of the reader's name and the case's number."""
    draws = random.Random(f"{reader.name}/{number}")
    here = _copied(sample, scratch)
    file, change = changes.spoil(here, draws)
    if reader.seal is not None and draws.random() < 0.5:
        with contextlib.suppress(Exception):  # of what is no longer there to be sealed
            reader.seal(here)
            change = f"{change}, sealed again"
    change = f"{file.relative_to(here)}: {change}"
    before, size = listing(scratch, here, reader.owns), sum(one[1] for one in listing(here, here).values())
    said, fault = "", ""
    start, memory = time.process_time(), peak(begin=True)
    try:
        with elsewhere(scratch), patience():
            reader.read(here)
    except UserError as error:
        said = str(error)
        fault = fault_of(said, str(here))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the point: whatever else comes out of a reader is a fault
        said = "".join(traceback.format_exception(error))[-1500:].replace("\n", "\n  ")
        fault = f"raised {type(error).__name__}"
    seconds, grown = time.process_time() - start, peak() - memory
    if not fault and seconds > SECONDS:
        fault = f"took {seconds:.1f} s"
    if not fault and grown > ROOM + FRACTION * size:
        fault = f"took {grown >> 20} MiB of memory for {size:,} bytes"
    if not fault and (after := listing(scratch, here, reader.owns)) != before:
        differing = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        fault = f"wrote or removed {differing[:3]}"
    return Outcome(reader.name, number, change, said, fault)


def fault_of(message: str, named: str) -> str:
    """Return the fault of a sentence about a damaged file; empty where it has none."""
    if message.splitlines() != [message]:
        return "said more than one line"
    if not message.endswith((".", "?")):
        return "said no sentence"
    if named not in message:
        return f"did not name {named}"
    if "--model." in message:
        return "advised an option of the model"
    if len(message) > LONGEST:
        return f"said {len(message):,} characters"
    try:
        message.encode("utf-8")
    except UnicodeEncodeError:
        return "said what no terminal can show"
    return ""


def listing(folder: Path, sample: Path, owns: tuple[str, ...] = ()) -> dict[str, tuple[str, int]]:
    """Every file and link of a folder by its content, but for what a reader may write."""
    found = {}
    allowed = {folder / "output", folder / "cache", sample / "checked", *(sample / name for name in owns)}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if Path(place) / name not in allowed]
        for path in (Path(place) / name for name in (*folders, *names)):
            if path in allowed:
                continue
            if path.is_symlink():
                found[str(path)] = (os.readlink(path), 0)
            elif path.is_file():
                found[str(path)] = (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size)
            else:
                found[str(path)] = ("folder", 0)
    return found


@contextlib.contextmanager
def elsewhere(scratch: Path) -> Iterator[None]:
    """The working, temporary and cache folders of the process within a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(scratch / "working")
        patch.setenv("XDG_CACHE_HOME", str(scratch / "cache"))
        patch.setattr("tempfile.tempdir", str(scratch / "temporary"))
        yield


@contextlib.contextmanager
def patience() -> Iterator[None]:
    """Raises Hang in the block after `PATIENCE` seconds."""

    def stop(number: int, frame: object) -> None:
        raise Hang(f"after {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def peak(begin: bool = False) -> int:
    """The largest memory of the process in bytes so far; with `begin` it is counted from what is in use now."""
    if begin:
        with contextlib.suppress(OSError):  # where Linux does not give it, small growth below an old peak is not seen
            Path("/proc/self/clear_refs").write_text("5")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def table(outcomes: list[Outcome]) -> list[str]:
    """The counts of every reader as the rows of a table, and their sum."""
    counts: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0, 0])
    for outcome in outcomes:
        column = 3 if outcome.fault else 2 if outcome.said else 1
        for row in (outcome.reader, "all"):
            counts[row][0] += 1
            counts[row][column] += 1
    total = counts.pop("all", [0, 0, 0, 0])
    rows = ["| reader | cases | read | refused | faults |", "|---|---|---|---|---|"]
    rows += [f"| {name} | {' | '.join(map(str, row))} |" for name, row in sorted(counts.items())]
    return [*rows, f"| all | {' | '.join(f'{count:,}' for count in total)} |"]
