"""The TPU compiler's final schedules: the cycles in which every instruction of a program issues its bundles.

A TensorCore issues one bundle (a very long instruction word) a cycle unless it waits for memory or for its matrix
units. libtpu writes the bundles of each instruction to a file `NUMBER-NAME-NUMBER-final_bundles.txt` if an environment
variable requests it before libtpu is loaded (`plmjax.parallel.topologies`). A line is a bundle, with one `>` for each
loop around it:

    0x4 LB: > { %s14 = sadd.s32 4294967295, %s13 ... }                      LB: the first of a loop's body
    0x9   : > { %101 = sbr.rel (%p98_p3) target = $region25 }               a branch over the bundles up to region 25
   0x1f   : > { %p8_p13 = scmp.ge.s32.totalorder %s11_s13, 18 /* loop exit test */ }

The body of a loop is a software pipeline. In the first and last trips a branch skips the stages that have no work. Such
a branch is taken unless the counter is in an interval that two comparisons define. Another kind of branch skips work
that only the last step of a sum does: it is taken except in every N-th trip. Both kinds are parsed, so that a bundle
counts as often as it is issued. Any other branch is treated as not taken, which counts too many bundles. On v2 and v3 a
bundle with `vdelay N` takes N more cycles.

On later chips the hardware detects that a matrix unit is busy: bundles issue in order, and a bundle waits until the
unit has taken the rows of its last product (`vmatmul`). The schedule does not show these waits, so they are simulated,
from trip to trip of a loop: a unit that is busy at the end of a trip also delays the next one. JAX has published two
timings of matrix products on a v5e (docs.jax.dev/en/latest/pallas/tpu/matmul.html); tests/planning/test_schedules.py
compares them.

The program that calls the instructions has a schedule too (`plmjax.planning.top_level`).

libtpu can also simulate a schedule (`xla_jf_dump_static_llo_profile_to`), but 0.0.52 ends the process if a transfer
has strides.
"""

import bisect
import dataclasses
import itertools
import re

# The third group matches a bundle that does nothing, which libtpu writes without the `>` of its loops.
BUNDLE = re.compile(r" *(?:0x[0-9a-f]+|0) (LB|..): (>*) ?\{(\}| %\d+ = v(?:nop|delay \d+) \})?")
_DELAY = re.compile(r"= vdelay (\d+)")
_EXIT = re.compile(r"scmp\.ge\.s32\.totalorder [^,]+, (\d+) /\* loop exit test \*/")
_COMPARISON = re.compile(r"(%p\w+) = scmp\.(ge|lt)\.s32\.totalorder %s\w+, (\d+)")
_NOT_ZERO = re.compile(r"(%p\w+) = scmp\.ne\.s32\.totalorder (%s\w+), 0\b")
_NUMBER = re.compile(r"(%s\w+) = scalar_select /\*predicate=\*/(%p\w+), /\*on_true=\*/1, /\*on_false=\*/0")
_LESS = re.compile(r"(%s\w+) = sadd\.s32 (4294\d{6}), %s\w+")
_NEITHER = re.compile(r"(%p\w+) = pnand (%p\w+), (%p\w+)")
_BRANCH = re.compile(r"sbr\.rel \((%p\w+)\) target = \$region(\d+)")
REGION = re.compile(r"[Ss]tart(?:/End empty)? region (\d+)")


_PRODUCT = re.compile(r"= vmatmul\.([\w.]*)mxu(\d)")
# A product reads a register of rows: 16 rows of bfloat16 or 32 rows of int8, in 16 cycles. It takes half the time for
# eight rows of float32 (v2 and v3 have no other product), for eight rows that the unit already holds (`lmr`), and on
# v6e, whose units read two rows in a cycle (`mubr`).
_BUSY, _BUSY_HALF = 16, 8
_HALF = re.compile(r"\b(f32|lmr|mubr)\b")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The cycles of one run of an instruction, without waits for HBM or for other chips.

    cycles: cycles of the instruction. None if libtpu wrote no file for it, as for all but one of equal instructions;
        then only `before` is known.
    unknown_loops: number of loops whose trips depend on data; they count as one trip.
    before: cycles of the program's own bundles around the call of the instruction, mainly before it.
    """

    cycles: int | None
    unknown_loops: int = 0
    before: int = 0


@dataclasses.dataclass(frozen=True)
class _Trips:
    """The trips of a loop in which a branch is not taken: an interval of trips, or every N-th trip."""

    first: int = 0
    behind: int = 2**32
    every: int = 1


@dataclasses.dataclass(eq=False)
class _Loop:
    """A loop, or the complete schedule: the bundles from `start` to before `end`.

    trips: number of trips; None if it depends on data.
    steps: in order, (bundle, inner loop) and (bundle, matrix unit, cycles for which the unit is busy).
    skipped: (first bundle, bundle after the last, trips that issue them) of bundles that only some trips issue.
    """

    start: int
    end: int = 0
    trips: int | None = None
    steps: list[tuple] = dataclasses.field(default_factory=list)
    skipped: list[tuple[int, int, _Trips]] = dataclasses.field(default_factory=list)


def parse(text: str) -> Schedule:
    """Return the schedule in the text of a file of final bundles."""
    cycles: list[int] = []
    whole = _Loop(0, trips=1)
    loops: list[_Loop] = []
    around: list[_Loop] = []
    branches: dict[str, list[tuple[int, _Trips]]] = {}
    skipped: list[tuple[int, int, _Trips]] = []
    predicates = _Predicates()
    for line in text.splitlines():
        if not (bundle := BUNDLE.match(line)):
            continue
        number = len(cycles)
        depth = len(around) if bundle[3] else len(bundle[2])
        cycles.append(1 + sum(int(delay) for delay in _DELAY.findall(line)))
        while around and (len(around) > depth or (bundle[1] == "LB" and len(around) == depth)):
            around.pop().end = number
        if bundle[1] == "LB":
            loop = _Loop(number)
            (around[-1] if around else whole).steps.append((number, loop))
            around.append(loop)
            loops.append(loop)
        if "vmatmul" in line:
            (around[-1] if around else whole).steps.extend((number, *product) for product in _products(line))
        if "region" in line:
            for region in REGION.findall(line):
                skipped += [(start, number, trips) for start, trips in branches.pop(region, ())]
        if not around:
            continue
        if found := _EXIT.search(line):
            around[-1].trips = int(found[1])
        predicates.read(line)
        if "sbr.rel" in line:
            for name, region in _BRANCH.findall(line):
                if name in predicates.trips:
                    branches.setdefault(region, []).append((number + 1, predicates.trips[name]))
    whole.end = len(cycles)
    for loop in around:
        loop.end = len(cycles)
    for start, end, trips in skipped:
        # The branch tests the counter of the innermost loop around it.
        inner = next((loop for loop in reversed(loops) if loop.start < start <= end <= loop.end), None)
        if inner is not None and inner.trips:
            inner.skipped.append((start, end, trips))
    return Schedule(_Issue(cycles).run(whole), sum(loop.trips is None for loop in loops))


class _Predicates:
    """The predicates of branches that depend only on a loop's counter. trips: name -> trips without the branch."""

    def __init__(self) -> None:
        self.trips: dict[str, _Trips] = {}
        self._limits: dict[str, tuple[str, int]] = {}
        self._numbers: dict[str, str] = {}
        self._less: dict[str, int] = {}

    def read(self, line: str) -> None:
        """Read the predicates that a bundle computes."""
        if "scmp" in line:
            self._limits |= {name: (kind, int(limit)) for name, kind, limit in _COMPARISON.findall(line)}
            for name, number in _NOT_ZERO.findall(line):
                if number in self._less and ("ge", self._less[number] + 1) in self._limits.values():
                    self.trips[name] = _Trips(every=self._less[number] + 1)  # it counts from 0 to the number
                elif self._numbers.get(number) in self.trips:
                    self.trips[name] = self.trips[self._numbers[number]]
        if "pnand" in line:
            for name, *both in _NEITHER.findall(line):
                known = dict(self._limits[one] for one in both if one in self._limits)
                if known.keys() == {"ge", "lt"}:
                    self.trips[name] = _Trips(known["ge"], known["lt"])
        if "scalar_select" in line:
            self._numbers |= dict(_NUMBER.findall(line))
        if "sadd.s32 4294" in line:
            self._less |= {name: 2**32 - int(number) for name, number in _LESS.findall(line)}


def _products(line: str) -> list[tuple[str, int]]:
    """Return (matrix unit, cycles for which it is busy) of the products of a bundle."""
    return [(unit, _BUSY_HALF if _HALF.search(kind) else _BUSY) for kind, unit in _PRODUCT.findall(line)]


class _Issue:
    """The issue of bundles in order, each waiting until the matrix units it uses are free."""

    SETTLED = 3
    """Number of equal trips to simulate; the remaining ones take as long as the last of them."""

    def __init__(self, cycles: list[int]) -> None:
        self._before = [0, *itertools.accumulate(cycles)]
        self._free: dict[str, int] = {}
        """Matrix unit -> the cycle from which it is free."""

    def run(self, loop: _Loop, time: int = 0) -> int:
        """Return the cycle after all trips of a loop that begins at `time`."""
        trips = loop.trips or 1
        limits = (limit for _, _, some in loop.skipped for limit in (some.first, some.behind))
        parts = sorted({0, trips, *(min(max(limit, 0), trips) for limit in limits)})
        periods = sorted({1, *(some.every for _, _, some in loop.skipped)})
        for first, behind in itertools.pairwise(parts):
            for every, longer in zip(periods, [*periods[1:], 2**62], strict=True):
                count = (behind - first) // every - (behind - first) // longer
                spans = _issued_parts(loop, first, every)
                for _ in range(min(count, self.SETTLED)):
                    start, time = time, self._trip(loop, spans, time)
                if count > self.SETTLED:
                    rest = count - self.SETTLED
                    self._free = {unit: free + rest * (time - start) for unit, free in self._free.items()}
                    time += rest * (time - start)
        return time

    def _trip(self, loop: _Loop, spans: list[tuple[int, int]], time: int) -> int:
        for position, end in spans:
            first, behind = (bisect.bisect_left(loop.steps, (limit,)) for limit in (position, end))
            for number, what, *busy in loop.steps[first:behind]:
                time += self._before[number] - self._before[position]
                position = number
                if busy:
                    time = max(time, self._free.get(what, 0))
                    self._free[what] = time + busy[0]
                else:
                    time, position = self.run(what, time), what.end
            time += self._before[end] - self._before[position]
        return time


def _issued_parts(loop: _Loop, trip: int, every: int) -> list[tuple[int, int]]:
    """Return the parts of a loop's bundles that a trip issues: (first bundle, bundle after the last) each.

    every: the trip counts as an N-th trip for all N up to this number.
    """
    spans, start = [], loop.start
    for first, behind, some in sorted(loop.skipped, key=lambda one: one[:2]):
        if not some.first <= trip < some.behind or some.every > every:
            spans.append((start, max(start, first)))
            start = max(start, behind)
    return [*spans, (start, loop.end)]
