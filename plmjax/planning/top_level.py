"""The top-level program (TLP): the bundles between the instructions that a compiled program calls.

libtpu also writes the schedule of the program itself (`TLP`), which calls the instructions, and starts and awaits
transfers. For a permute it finds the target of its device by binary search: a bundle compares the device's number with
the middle of a range, and a branch skips the half without the number. Two more branches test if the target is the
device itself:

    { %s9 = sld [smem:[#allocation202]] /* logical chip id */ }
    { %s20 = sadd.s32 %s18, %s9 }                               with the number of the core, which is 0
    { %p7 = scmp.ge.s32.totalorder %s20, 32 }
    { %11 = sbr.rel (%p7) target = $region3266 }                devices 32 to 63 skip the targets of 0 to 31
    ...
    { %s16 = sphi %s6, %s12 /* phi copy :: remote-chip-id */ }
    { %p9 = scmp.ne.s32.totalorder %s9, %s16 }
    { %12 = sbr.rel (%p9) target = $region3782 }                skips a copy from the device to itself

So devices issue different bundles, and those of the slowest device count. No permute of a train step sends to its own
device.

A program begins with copies of its donated parameters into its results. A branch skips a copy if the result has the
address of the parameter. A train step donates its state, so all these branches are taken:

    { %s13 = scalar_parameter_address 5 }
    { %p9 = scmp.eq.s32.totalorder %s30, %s13 }
    { %14 = sbr.rel (%p9) target = $region259 }                 skips a copy of 49 trips

Every other branch is treated as not taken.
"""

import dataclasses
import re
from collections.abc import Callable

from plmjax.planning import schedules

_CALL = re.compile(r"= inlined_call\b[^/]*/\* %(\S+) = ")
_NUMBER = re.compile(r"^(%s\w+) = sld \S+ /\* logical chip id \*/")
_SUM = re.compile(r"^(%s\w+) = sadd\.s32 (%s\w+), (%s\w+)")
_PARAMETER = re.compile(r"^(%s\w+) = scalar_parameter_address \d+")
_TARGET = re.compile(r"^(%s\w+) = sphi [^/]*/\*.*\bremote-chip-id\b")
_COMPARISON = re.compile(r"^(%p\w+) = scmp\.(ge|lt|eq|ne)\.s32\.totalorder (?:\(!?%p\w+\), )?(%s\w+), (%s\w+|\d+)")
_BRANCH = re.compile(r"^%\w+ = sbr\.rel \((!?)(%p\w+)\) target = \$region(\d+)")

DELAY_SLOTS = 4
"""Number of bundles after a branch that are issued even if it is taken."""

Condition = Callable[[int], bool]
"""Device's number -> true if the predicate holds on that device."""


@dataclasses.dataclass
class _Part:
    """The program's own bundles before a call, or between the last call in a loop and the end of the loop.

    branches: region -> (first bundle that a branch to it skips, condition), of branches whose region has not begun.
    skipped: (first bundle, bundle after the last, condition) of branches whose region has begun.
    limits: the numbers at which branches divide the devices. One device of each part is enough to know its cycles.
    """

    lines: list[str] = dataclasses.field(default_factory=list)
    branches: dict[str, list[tuple[int, Condition]]] = dataclasses.field(default_factory=dict)
    skipped: list[tuple[int, int, Condition]] = dataclasses.field(default_factory=list)
    limits: set[int] = dataclasses.field(default_factory=lambda: {0})

    def cycles(self) -> int:
        """Return the cycles of these bundles on the slowest device."""
        return max(schedules.parse("\n".join(self._issued(device))).cycles for device in self.limits)

    def _issued(self, device: int) -> list[str]:
        left_out = {number for first, behind, skips in self.skipped if skips(device) for number in range(first, behind)}
        return [line for number, line in enumerate(self.lines) if number not in left_out]


class _Conditions:
    """The predicates that depend only on the device's number, or on the address of a parameter: name -> condition."""

    def __init__(self) -> None:
        self.found: dict[str, Condition] = {}
        self.limits: dict[str, int] = {}
        self._numbers: set[str] = set()
        self._targets: set[str] = set()
        self._parameters: set[str] = set()

    def read(self, operation: str) -> None:
        """Read one operation of a bundle."""
        if found := _NUMBER.match(operation):
            self._numbers.add(found[1])
        elif found := _TARGET.match(operation):
            self._targets.add(found[1])
        elif found := _PARAMETER.match(operation):
            self._parameters.add(found[1])
        elif (found := _SUM.match(operation)) and self._numbers & {found[2], found[3]}:
            self._numbers.add(found[1])
        elif found := _COMPARISON.match(operation):
            name, kind, *compared = found.groups()
            if kind in ("eq", "ne"):
                self._equality(name, kind == "eq", *compared)
            elif compared[0] in self._numbers and compared[1].isdecimal():
                limit = self.limits[name] = int(compared[1])
                self.found[name] = (lambda device: device >= limit) if kind == "ge" else (lambda device: device < limit)

    def _equality(self, name: str, if_equal: bool, one: str, other: str) -> None:
        if other in self._parameters:
            self.found[name] = lambda _: if_equal
        elif one in self._numbers and other in self._targets:
            self.found[name] = lambda _: not if_equal


def _opposite(condition: Condition) -> Condition:
    return lambda device: not condition(device)


def between_calls(text: str) -> dict[str, int]:
    """Return a dict from instruction to the cycles of the program's own bundles between the previous call and its call.

    The bundles after the last call in the body of a loop are added to that call, so that they count for every trip.
    """
    found: dict[str, int] = {}
    conditions, part = _Conditions(), _Part()
    depth, last = 0, None

    def count(name: str) -> None:
        nonlocal part
        found[name] = found.get(name, 0) + part.cycles()
        part = _Part()

    for line in text.splitlines():
        if not (bundle := schedules.BUNDLE.match(line)):
            continue
        if not bundle[3]:
            if len(bundle[2]) < depth and last is not None:
                count(last)
            depth = len(bundle[2])
        _read(line[bundle.end() :], part, conditions)
        part.lines.append(line)
        if called := _CALL.search(line):
            last = called[1]
            count(last)
    return found


def _read(bundle: str, part: _Part, conditions: _Conditions) -> None:
    """Read a bundle that is about to be added to a part.

    Branches to a region that begins in the bundle move from `branches` to `skipped`. The conditions of the bundle are
    read, and its own branches whose condition is known are added to `branches`.
    """
    number = len(part.lines)
    if "region" in bundle:
        for region in schedules.REGION.findall(bundle):
            part.skipped += [(start, number, skips) for start, skips in part.branches.pop(region, ())]
    for operation in bundle.split("  ;;  "):
        conditions.read(operation.strip())
        if (branch := _BRANCH.match(operation.strip())) and branch[2] in conditions.found:
            skips = conditions.found[branch[2]] if not branch[1] else _opposite(conditions.found[branch[2]])
            part.branches.setdefault(branch[3], []).append((number + 1 + DELAY_SLOTS, skips))
            part.limits.add(conditions.limits.get(branch[2], 0))
