"""The TPU compiler's final schedules: the number of bundles that every instruction of a program issues.

A TensorCore issues one bundle (a very long instruction word) a cycle unless it waits for memory or for its matrix
units. libtpu writes the bundles of each instruction to a file `NUMBER-NAME-NUMBER-final_bundles.txt` if its environment
requests it before libtpu is loaded (`plmjax.parallel.topologies`). A line is a bundle, with one `>` for each loop
around it:

    0x4 LB: > { %s14 = sadd.s32 4294967295, %s13 ... }                      LB: the first of a loop's body
    0x9   : > { %101 = sbr.rel (%p98_p3) target = $region25 }               a branch over the bundles up to region 25
   0x1f   : > { %p8_p13 = scmp.ge.s32.totalorder %s11_s13, 18 /* loop exit test */ }

The body of a loop is a pipeline. In its first and last trips a branch skips the parts that have nothing to do yet, or
nothing to do any more. Such a branch is taken unless the counter is in an interval that two comparisons define. These
are read, so a bundle counts as often as it is issued. Every other branch is treated as not taken, which counts too
many. On v2 and v3 a bundle with `vdelay N` waits for N cycles more; later chips detect by themselves that a matrix unit
is busy.

libtpu can also simulate a schedule (`xla_jf_dump_static_llo_profile_to`), but 0.0.52 ends the process if a transfer
has strides.
"""

import dataclasses
import re
from pathlib import Path

# The pattern's third group marks a bundle that does nothing. Such bundles are left out.
_BUNDLE = re.compile(r" *(?:0x[0-9a-f]+|0) (LB|..): (>*) ?\{(\}| %\d+ = v(?:nop|delay \d+) \})?")
_DELAY = re.compile(r"= vdelay (\d+)")
_EXIT = re.compile(r"scmp\.ge\.s32\.totalorder [^,]+, (\d+) /\* loop exit test \*/")
_COMPARISON = re.compile(r"(%p\w+) = scmp\.(ge|lt)\.s32\.totalorder %s\w+, (\d+)")
_NEITHER = re.compile(r"(%p\w+) = pnand (%p\w+), (%p\w+)")
_BRANCH = re.compile(r"sbr\.rel \((%p\w+)\) target = \$region(\d+)")
_REGION = re.compile(r"[Ss]tart(?:/End empty)? region (\d+)")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Number of bundles that one run of an instruction issues, and number of cycles that they delay it.

    unknown_loops: number of loops that end by data and count once.
    """

    bundles: int
    unknown_loops: int = 0


@dataclasses.dataclass
class _Loop:
    start: int
    end: int = 0
    trips: int | None = None


def parse(text: str) -> Schedule:
    """Return the schedule in one file of final bundles."""
    cycles: list[int] = []
    loops: list[_Loop] = []
    around: list[_Loop] = []
    limits: dict[str, tuple[str, int]] = {}
    intervals: dict[str, tuple[int, int]] = {}
    branches: dict[str, list[tuple[int, tuple[int, int]]]] = {}
    skipped: list[tuple[int, int, tuple[int, int]]] = []
    for line in text.splitlines():
        if not (bundle := _BUNDLE.match(line)):
            continue
        number = len(cycles)
        depth = len(around) if bundle[3] else len(bundle[2])
        cycles.append(1 + sum(int(delay) for delay in _DELAY.findall(line)))
        while around and (len(around) > depth or (bundle[1] == "LB" and len(around) == depth)):
            around.pop().end = number
        if bundle[1] == "LB":
            around.append(_Loop(number))
            loops.append(around[-1])
        if "region" in line:
            for region in _REGION.findall(line):
                skipped += [(start, number, interval) for start, interval in branches.pop(region, ())]
        if not around:
            continue
        if found := _EXIT.search(line):
            around[-1].trips = int(found[1])
        limits |= {name: (kind, int(limit)) for name, kind, limit in _COMPARISON.findall(line)}
        for name, *both in _NEITHER.findall(line):
            known = dict(limits[one] for one in both if one in limits)
            if known.keys() == {"ge", "lt"}:
                intervals[name] = (known["ge"], known["lt"])
        for name, region in _BRANCH.findall(line):
            if name in intervals:
                branches.setdefault(region, []).append((number + 1, intervals[name]))
    for loop in around:
        loop.end = len(cycles)
    return Schedule(_issued(cycles, loops, skipped), sum(loop.trips is None for loop in loops))


def _issued(cycles: list[int], loops: list[_Loop], skipped: list[tuple[int, int, tuple[int, int]]]) -> int:
    """Return the cycles of all bundles, each as often as its loops and the branches over it allow."""
    times = [1] * len(cycles)
    for loop in loops:
        for number in range(loop.start, loop.end):
            times[number] *= loop.trips or 1
    for start, end, (first, behind) in skipped:
        # The branch tests the counter of the innermost loop around it.
        trips = next((loop.trips for loop in reversed(loops) if loop.start < start <= end <= loop.end), None)
        if trips:
            runs = max(0, min(behind, trips) - first)
            for number in range(start, end):
                times[number] = times[number] * runs // trips
    return sum(cycle * often for cycle, often in zip(cycles, times, strict=True))


def read(folder: Path) -> dict[str, Schedule]:
    """Return instruction -> its schedule, for the one program whose files are in the folder. The files are removed."""
    found = {}
    for path in sorted(folder.iterdir()):
        name = re.fullmatch(r"\d+-(.+)-\d+-final_bundles\.txt", path.name)
        if name and not name[1].endswith("-schedule-analysis"):
            found[name[1]] = parse(path.read_text(encoding="utf-8", errors="replace"))
    clear(folder)
    return found


def clear(folder: Path) -> None:
    """Remove the files of other programs."""
    for path in folder.iterdir():
        path.unlink()
