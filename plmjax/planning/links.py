"""The links between the chips of a slice: which of them a collective uses, and for how long.

For an array of b bytes on c chips, a chip sends 2 b (c-1)/c bytes in an all-reduce; b (c-1)/c in an all-gather, a
reduce-scatter or an all-to-all; and b on one link in a permute. A group smaller than the slice uses the links of one
axis. Traffic between slices uses a chip's fraction of the network of its host.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence

from plmjax.parallel import topologies
from plmjax.planning import collectives
from plmjax.planning.hlo import Instruction, Program

OUTSIDE = -1
"""The axis number of the network between slices."""


@dataclasses.dataclass(frozen=True)
class Transmission:
    """One run of a collective: the cycles for which it sends, and the axes of the slice whose links it uses."""

    cycles: float
    axes: frozenset[int]


def interconnect_seconds(communicated: list[collectives.Collective], part: topologies.Slice) -> float:
    """Return the estimated seconds of some collectives, one after the other, on links without other traffic."""
    seconds = 0.0
    for one in communicated:
        if one.kind == "send":
            seconds += one.count * one.bytes / (part.chip.network / part.chip.devices)
            continue
        whole = one.group == part.chips * part.chip.devices // part.slices
        chips = part.chips // part.slices if whole else one.group
        links = part.link_bandwidth if whole else part.chip.link
        if chips == 1:
            continue
        sent = one.bytes * (chips - 1) / chips
        if one.kind == "all-reduce":
            sent *= 2
        if one.kind == "collective-permute":
            sent, links = one.bytes, part.chip.link
        seconds += one.count * sent / links
    return seconds


def busiest_seconds(program: Program, part: topologies.Slice, places: Sequence[tuple[int, ...]]) -> float:
    """Return the seconds of a step's communication on the links of the busiest axis.

    The axes of a slice have separate links, so collectives along different axes may overlap.

    places: as for `transmissions`.
    """
    instructions = {one.name: one for one, _ in program.every}
    seconds: Counter[int] = Counter()
    for name, (one, runs) in collectives.communication(program).items():
        for axis in _used_axes(one, instructions[name], program, places):
            seconds[axis] += runs * interconnect_seconds([one], part)
    return max(seconds.values(), default=0.0)


def transmissions(
    program: Program, part: topologies.Slice, places: Sequence[tuple[int, ...]], efficiency: float = 1.0
) -> dict[str, Transmission]:
    """Return a dict from the name of an instruction that communicates, or starts to, to one run of its collective.

    places: coordinates of each device's chip, in the order of the mesh.
    efficiency: fraction of the bandwidth of the links that is reached.
    """
    instructions = {one.name: one for one, _ in program.every}
    return {
        name: Transmission(
            interconnect_seconds([one], part) / efficiency * part.chip.clock,
            _used_axes(one, instructions[name], program, places),
        )
        for name, (one, _) in collectives.communication(program).items()
    }


def _used_axes(
    one: collectives.Collective, instruction: Instruction, program: Program, places: Sequence[tuple[int, ...]]
) -> frozenset[int]:
    """Return the axes whose links a collective uses."""
    if one.kind == "send":
        return frozenset({OUTSIDE})
    return axes(collectives.groups(instruction, program.partitions), places)


def axes(groups: list[list[int]], places: Sequence[tuple[int, ...]]) -> frozenset[int]:
    """Return the axes of a slice along which the devices of at least one group differ."""
    differing = set()
    for group in groups:
        along = zip(*(places[device] for device in group), strict=True)
        differing |= {axis for axis, coordinates in enumerate(along) if len(set(coordinates)) > 1}
    return frozenset(differing)
