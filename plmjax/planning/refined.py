"""A second estimate of a step's time, from the compiler's scheduled bundles.

The compiler's own estimate of an instruction, `estimated_cycles`, is made before the instruction is scheduled. For
reductions, stores of stacked arrays, copies and conversions it is several times the number of bundles that are issued.
Pallas kernels, gathers and sorts have no estimate. Here the time of an instruction is the largest of

    its schedule: its bundles, as often as they are issued, and waits for matrix units  (`planning/schedules.py`)
    its multiply-adds at the rate of the matrix units
    its HBM bytes at the assumed HBM bandwidth

plus the time until its first bytes from HBM arrive. The time of a program is the sum of its instructions, of the
bundles that it issues between them, and of waits. A transfer between HBM and the chip, or a collective, may start in
one instruction and be awaited in another. It proceeds while the instructions between the two run, as far as they leave
the HBM, or its links, idle. The axes of a slice have separate links: a collective along one axis does not delay one
along another. The start and the end of a collective are a pair of instructions, or two fusions with an
`AsyncCollectiveStart` and an `AsyncCollectiveDone`. Fusions named `async_collective_fusion` between them compute while
the collective proceeds. A collective without such a pair is not hidden.

The bandwidths that a chip reaches are assumptions. The estimate is made for both ends of `RANGE`.

Equal instructions share one schedule. Without a schedule, the compiler's estimate is used (`Cost.source`). If the trips
of a loop inside an instruction depend on data, the larger of schedule and compiler's estimate is used. Not counted are
waits for results of earlier instructions, dispatch by the host, and work of collectives besides sending.
"""

import copy
import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Self

from plmjax.planning import products
from plmjax.planning.collectives import COLLECTIVES
from plmjax.planning.hlo import Instruction, Program
from plmjax.planning.links import Transmission
from plmjax.planning.schedules import Schedule
from plmjax.planning.traffic import Traffic


@dataclasses.dataclass(frozen=True)
class Efficiency:
    """The assumed bandwidths and delays of a chip.

    hbm, links: fractions of the bandwidths on the data sheet.
    startup: seconds until an instruction that uses HBM moves its first bytes.
    """

    hbm: float
    links: float
    startup: float


RANGE = (Efficiency(hbm=0.92, links=0.90, startup=0.5e-6), Efficiency(hbm=0.85, links=0.75, startup=1.5e-6))
"""The fast and the slow end of usual values. These are assumptions, not measurements on a TPU."""


@dataclasses.dataclass(frozen=True)
class Rates:
    """The rates of one device, per cycle.

    multiply_adds: multiply-adds of floating-point numbers; also those of int8 if `int8` is 0.
    bytes: HBM bytes.
    int8: multiply-adds of int8; 0 if they have no rate of their own.
    startup: cycles until an instruction that uses HBM moves its first bytes.
    """

    multiply_adds: float
    bytes: float
    int8: float = 0.0
    startup: float = 0.0


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of one run of an instruction. All fields but `open_loops` and `hbm_bytes` are in cycles.

    compiler: the compiler's estimate; None if there is none.
    scheduled: the cycles of its schedule; None without a schedule.
    open_loops: number of loops in the schedule whose trips depend on data; they count as one trip.
    products: the time of its multiply-adds on the matrix units.
    hbm_bytes: the bytes that it reads from and writes to HBM.
    hbm: the time of these bytes.
    startup: the time until its first bytes; 0 without bytes.
    before: the program's own bundles before it, which `refined` does not include.
    """

    compiler: int | None
    scheduled: int | None
    open_loops: int
    products: float
    hbm_bytes: float
    hbm: float
    startup: float = 0.0
    before: int = 0

    @property
    def source(self) -> str:
        """Return the source of the refined estimate: "schedule", "compiler", or "none" (products and bytes only)."""
        return "schedule" if self.scheduled is not None else "compiler" if self.compiler is not None else "none"

    @property
    def refined(self) -> float:
        """Return the cycles of the refined estimate."""
        computed = self.scheduled or 0
        if self.scheduled is None or self.open_loops:
            computed = max(computed, self.compiler or 0)
        return max(computed, self.products, self.hbm) + self.startup

    @property
    def estimated(self) -> float:
        """Return the cycles of the compiler's estimate, or of the refined one if there is none."""
        return self.refined if self.compiler is None else self.compiler


class Costs:
    """The costs of all instructions of a program."""

    def __init__(self, program: Program, schedules: Mapping[str, Schedule], rates: Rates) -> None:
        self.program, self.rates, self.schedules = program, rates, schedules
        self.traffic = Traffic(program)
        self.transfers: set[str] = set()
        """Names of instructions that move data while others run: starts, and the instructions that they start."""
        for instruction in (one for one, _ in program.top_level if one.opcode.endswith("-start")):
            self.transfers |= {part.name for part in _async_start(program, instruction)}
        self._twins: dict[tuple, Schedule] = {}
        for instruction, _ in program.top_level:
            if instruction.name in schedules and schedules[instruction.name].cycles is not None:
                self._twins.setdefault(self._form(instruction), schedules[instruction.name])

    @functools.cached_property
    def _known(self) -> dict[str, Cost]:
        return {instruction.name: self._cost(instruction) for instruction, _ in self.program.top_level}

    def at(self, rates: Rates) -> Self:
        """Return the costs with the HBM bandwidth and startup time of other rates."""
        other = copy.copy(self)
        other.rates = rates
        other._known = {name: other._at_rates(cost) for name, cost in self._known.items()}
        return other

    def _at_rates(self, cost: Cost) -> Cost:
        startup = self.rates.startup if cost.hbm_bytes else 0.0
        return dataclasses.replace(cost, hbm=cost.hbm_bytes / self.rates.bytes, startup=startup)

    def __getitem__(self, instruction: Instruction) -> Cost:
        return self._known[instruction.name]

    def computing(self) -> Iterator[tuple[Instruction, int]]:
        """Yield (instruction, number of runs) for those that compute: no transfers and no communication."""
        for instruction, times in self.program.top_level:
            if instruction.name not in self.transfers and not communicates(self.program, instruction):
                yield instruction, times

    def _cost(self, instruction: Instruction) -> Cost:
        moved = self.traffic.bytes(instruction)
        own = self.schedules.get(instruction.name)
        schedule = own if own and own.cycles is not None else self._twins.get(self._form(instruction))
        compiler = instruction.cycles or None
        scheduled, open_loops = (schedule.cycles, schedule.unknown_loops) if schedule else (None, 0)
        count = products.multiply_adds(self.program, instruction)
        integers = products.multiply_adds(self.program, instruction, products.INTEGERS) if self.rates.int8 else 0
        computed = (count - integers) / self.rates.multiply_adds + (integers / self.rates.int8 if integers else 0.0)
        before = own.before if own else 0
        return self._at_rates(Cost(compiler, scheduled, open_loops, computed, moved, 0.0, before=before))

    def _form(self, instruction: Instruction) -> tuple:
        """Return a key that is equal for instructions with the same schedule: names and metadata are left out."""
        inner = tuple((one.opcode, one.results, _plain(one.attributes)) for one, _ in self.program.inside(instruction))
        taken = tuple(operand.results for operand in self.program.operands_of(instruction))
        return instruction.results, taken, inner


def _plain(attributes: str) -> str:
    """Return an instruction's attributes without names."""
    plain = re.sub(r'(?:, )?metadata=\{[^}]*\}|"indices":\[[^\]]*\]', "", attributes)
    return re.sub(r"%[\w.-]+", "%", plain)


def communicates(program: Program, instruction: Instruction) -> bool:
    """Return true if an instruction, or one fused to it, is a collective or starts or ends one.

    A fusion named `async_collective_fusion` computes while a collective continues, so it returns false.
    """
    parts = {part.opcode.removesuffix("-start").removesuffix("-done") for part, _ in program.inside(instruction)}
    called = (name for names in instruction.called_computations.values() for name in names)
    return not parts.isdisjoint(COLLECTIVES) and not any(name.startswith("async_collective_fusion") for name in called)


def _async_start(program: Program, instruction: Instruction) -> list[Instruction]:
    computations = [program.computations[name] for names in instruction.called_computations.values() for name in names]
    called = [part for computation in computations for part in computation.values()]
    return [instruction, *called]


@dataclasses.dataclass
class Timeline:
    """The cycles of one run of a program: computation, waits, and the use of HBM and links.

    computing: instructions, and the program's own bundles between them.
    waiting_hbm, waiting_network: waits for transfers and for collectives.
    hbm: time in which HBM is used.
    network: sum of all collectives.
    links: axis of the slice -> sum of the collectives on its links.
    between: the part of `computing` that is the program's own bundles.
    """

    computing: float = 0.0
    waiting_hbm: float = 0.0
    waiting_network: float = 0.0
    hbm: float = 0.0
    network: float = 0.0
    links: Counter[int] = dataclasses.field(default_factory=Counter)
    between: float = 0.0

    @property
    def total(self) -> float:
        """Return the cycles from start to end."""
        return self.computing + self.waiting_hbm + self.waiting_network

    def add(self, other: "Timeline", times: int) -> None:
        """Add a part that runs `times` times."""
        for name in ("computing", "between", "waiting_hbm", "waiting_network", "hbm", "network"):
            setattr(self, name, getattr(self, name) + times * getattr(other, name))
        for axis, cycles in other.links.items():
            self.links[axis] += times * cycles

    def send(self, sent: Collection[Transmission]) -> None:
        """Add collectives to the use of the links."""
        self.network += sum(one.cycles for one in sent)
        for one in sent:
            for axis in one.axes:
                self.links[axis] += one.cycles


class _Transfers:
    """Transfers in progress, oldest first, each with its remaining cycles."""

    def __init__(self) -> None:
        self._left: dict[str, float] = {}

    def start(self, name: str, cycles: float) -> None:
        if cycles:  # A copy sends nothing, so it does not wait for earlier collectives.
            self._left[name] = cycles

    def advance(self, cycles: float) -> None:
        for name, left in self._left.items():
            passed = min(left, cycles)
            self._left[name], cycles = left - passed, cycles - passed

    def until(self, name: str | None) -> float:
        """Return the cycles until a transfer and all earlier ones are done. name: None for the last one."""
        if name is not None and name not in self._left:
            return 0.0  # done with a later one, or there was nothing to do
        names = list(self._left)
        return sum(self._left[one] for one in (names if name is None else names[: names.index(name) + 1]))

    def finish(self, name: str | None, cycles: float) -> None:
        """Advance the time by `cycles`, and end a transfer and all earlier ones; None ends all."""
        self.advance(cycles)
        names = list(self._left)
        if name is None or name in self._left:
            for one in names if name is None else names[: names.index(name) + 1]:
                del self._left[one]


class _Links:
    """Collectives in progress on the links of each axis of a slice."""

    def __init__(self) -> None:
        self._axes: dict[int, _Transfers] = {}

    def start(self, name: str, sent: Collection[Transmission]) -> None:
        for axis in {axis for one in sent for axis in one.axes}:
            cycles = sum(one.cycles for one in sent if axis in one.axes)
            self._axes.setdefault(axis, _Transfers()).start(name, cycles)

    def advance(self, cycles: float, used: Mapping[int, float]) -> None:
        """Advance the time by `cycles`. used: axis -> cycles for which other collectives use its links."""
        for axis, transfers in self._axes.items():
            transfers.advance(cycles - used.get(axis, 0.0))

    def finish(self, name: str | None) -> float:
        """Wait for a collective, and return the cycles until it and all earlier ones on its links are done."""
        waited = max((transfers.until(name) for transfers in self._axes.values()), default=0.0)
        for transfers in self._axes.values():
            transfers.finish(name, waited)
        return waited


def timeline(costs: Costs, network: Mapping[str, Transmission]) -> Timeline:
    """Return the timeline of a program. network: as from `plmjax.planning.links.transmissions`."""
    return _run(costs, network, costs.program.entry)


def _run(costs: Costs, network: Mapping[str, Transmission], computation: str) -> Timeline:
    program, time = costs.program, Timeline()
    memory, links = _Transfers(), _Links()
    started: dict[str, str] = {}
    begun: dict[str, list[str]] = {}

    def advance(part: Timeline, times: int = 1) -> None:
        time.add(part, times)
        memory.advance(times * (part.total - part.hbm))
        links.advance(times * part.total, {axis: times * cycles for axis, cycles in part.links.items()})

    def wait(name: str | None, for_memory: bool = True) -> None:
        if for_memory:
            left = memory.until(name)
            memory.finish(name, left)
            time.waiting_hbm += left
            links.advance(left, {})
        left = links.finish(name)
        time.waiting_network += left
        memory.advance(left)

    for instruction in program.computations[computation].values():
        name, opcode = instruction.name, instruction.opcode
        called = [one for names in instruction.called_computations.values() for one in names]
        if opcode == "while":
            advance(_run(costs, network, instruction.called_computations["body"][0]), program.trips(instruction))
        elif opcode == "conditional":
            advance(_run(costs, network, program.branch(instruction)))
        elif opcode == "call":
            for one in called:
                advance(_run(costs, network, one))
        elif opcode.endswith("-start") or opcode == "send":
            parts = _async_start(program, instruction)
            moved = sum(costs[part].hbm for part in parts)
            sent = [network[part.name] for part in parts if part.name in network]
            time.hbm += moved
            time.send(sent)
            memory.start(name, moved + sum(costs[part].startup for part in parts))
            links.start(name, sent)
            started[name] = name
        elif opcode.endswith("-update") and instruction.operands[0] in started:
            started[name] = started[instruction.operands[0]]
        elif opcode.endswith("-done") and instruction.operands[0] in started:
            wait(started[instruction.operands[0]])
        else:
            cost, parts = costs[instruction], [part for part, _ in program.inside(instruction)]
            sent = [network[part.name] for part in parts if part.name in network]
            targets = {part.target for part in parts}
            channel = next((part.attribute("channel_id") for part in parts if part.opcode in COLLECTIVES), "")
            if "AsyncCollectiveStart" in targets:
                time.send(sent)
                links.start(name, sent)
                begun.setdefault(channel, []).append(name)
                sent = []
            if "AsyncCollectiveDone" in targets and begun.get(channel):
                wait(begun[channel].pop(0), for_memory=False)  # several may share a channel: the oldest ends first
            refined = 0.0 if communicates(program, instruction) else cost.refined
            advance(Timeline(computing=cost.before, between=cost.before))
            part = Timeline(computing=refined, hbm=cost.hbm)
            part.send(sent)
            part.waiting_network = max(0.0, part.network - refined)
            advance(part)
    wait(None)
    return time
