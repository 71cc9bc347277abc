"""The communication of a compiled program."""

import dataclasses
import math
import re
from collections.abc import Collection

import numpy as np

from plmjax.planning.hlo import Instruction, Program

COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast", "send",
)  # fmt: skip
"""Opcodes of communication. On several slices a TPU program uses send between slices."""


@dataclasses.dataclass(frozen=True)
class Collective:
    """Communication of one kind, dtype and size.

    bytes: bytes of the complete array on one device. A permute also sends the padding of the layout, which counts.
    elements: number of elements of that array.
    group: number of devices that communicate with each other, in the largest group.
    count: number of runs.
    gathered: number of elements that an all-reduce only gathers. The TPU compiler gathers an array of less than 16 MiB,
        padding included, as a sum of arrays that are 0 outside each device's own part.
    """

    kind: str
    dtype: str
    bytes: float
    elements: int
    group: int
    count: int
    gathered: int = 0


def collectives(program: Program) -> list[Collective]:
    """Return the collectives of a step, largest first. Equal ones are merged. An asynchronous one counts once."""
    counts: dict[Collective, int] = {}
    for one, times in communication(program).values():
        counts[one] = counts.get(one, 0) + times
    merged = [dataclasses.replace(one, count=times) for one, times in counts.items()]
    return sorted(merged, key=lambda one: -one.bytes * one.count)


def communication(program: Program) -> dict[str, tuple[Collective, int]]:
    """Return a dict from instruction name to (one run of its collective, number of runs).

    It has the instructions that communicate, or start to. A channel does not identify a collective: all collectives of
    a `shard_map` have the same one.
    """
    found: dict[str, tuple[Collective, int]] = {}
    chunks: dict[tuple[str, Collective], tuple[str, int]] = {}
    started = set()
    for outer, times in program.top_level:
        parts = [part for part, _ in program.inside(outer)]
        for instruction in (part for part in parts if sends(part)):
            one = _collective(program, instruction)
            form = (instruction.attribute("channel_id"), one)
            if continues(outer, parts):
                # Chunks may be in loops that overlap with the collective. It runs as often as the rarest chunk.
                if form not in chunks or times < chunks[form][1]:
                    chunks[form] = (instruction.name, times)
            else:
                started.add(form)
                before = found[instruction.name][1] if instruction.name in found else 0
                found[instruction.name] = (one, before + times)
    return found | {name: (form[1], times) for form, (name, times) in chunks.items() if form not in started}


def sends(instruction: Instruction) -> bool:
    """Return true if an instruction is a collective, or starts one."""
    return instruction.opcode.removesuffix("-start") in COLLECTIVES


def continues(instruction: Instruction, parts: Collection[Instruction]) -> bool:
    """Return true for a fusion that continues or ends a collective which another instruction started.

    parts: the instruction and everything inside it.
    """
    targets = {part.target for part in parts}
    called = (name for names in instruction.called_computations.values() for name in names)
    beside = any(name.startswith("async_collective_fusion") for name in called)
    return (beside or "AsyncCollectiveDone" in targets) and "AsyncCollectiveStart" not in targets


def _collective(program: Program, instruction: Instruction) -> Collective:
    kind = instruction.opcode.removesuffix("-start")
    operands = [array for operand in program.operands_of(instruction) for array in operand.results]
    results = [array for array in instruction.results if array.shape or not instruction.opcode.endswith("start")]
    # The result of a start includes its operands. The larger of both is the array that each device has once.
    arrays = operands if sum(a.bytes for a in operands) >= sum(a.bytes for a in results) / 2 else results
    if kind == "send":
        arrays = operands[:1]  # the other one is a token
    if kind == "all-gather":
        arrays = [max(results, key=lambda array: array.bytes)] if len(operands) == 1 else results
    if kind == "all-reduce" and _is_scattered(instruction.computation):
        kind = "reduce-scatter"
    return Collective(
        kind=kind,
        dtype=max(arrays, key=lambda array: array.bytes).dtype,
        bytes=sum(array.stored_bytes if kind == "collective-permute" else array.bytes for array in arrays),
        elements=sum(array.size for array in arrays),
        group=max(map(len, groups(instruction, program.partitions))),
        count=1,
        gathered=_gathered_elements(program, instruction) if kind == "all-reduce" else 0,
    )


def groups(instruction: Instruction, partitions: int) -> list[list[int]]:
    """Return the groups of devices of a collective; for a permute, the (sender, receiver) pairs."""
    text = instruction.attributes
    if match := re.search(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}", text):
        return [[int(device) for device in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", match.group(1))]
    if match := re.search(r"replica_groups=\[([\d,]+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)", text):
        shape = [int(size) for size in match.group(1).split(",")]
        return _devices(match.group(2), math.prod(shape)).reshape(shape).tolist()
    if match := re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^{]*)\))? \{([^}]*)\}", text):
        return _groups_of_a_mesh(*match.groups())
    if "replica_groups" in text and "replica_groups={}" not in text:
        raise ValueError(f"Expected the groups of {instruction.name} in a known form, found {text[:200]!r}; report it.")
    return [list(range(partitions))]


def _groups_of_a_mesh(mesh: str, order: str | None, along: str) -> list[list[int]]:
    """Return the groups of devices that differ only along some axes of a mesh, or along a part of an axis.

    mesh: such as "'data'=4,'model'=2".
    order: as for `_devices`.
    along: such as "'data'", or "'data':(2)2" for an inner part of size 2 within an outer part of size 2.
    """
    named = {name: (outer, part) for name, outer, part in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", along)}
    shape: list[int] = []
    inside: list[int] = []
    for name, size in ((name, int(size)) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh)):
        outer, part = (int(one or 0) for one in named.get(name, ("", "")))
        inside += [len(shape) + 1] if name in named else []
        shape += [outer, part, size // (outer * part)] if outer else [1, size, 1]
    outside = [axis for axis in range(len(shape)) if axis not in inside]
    devices = _devices(order, math.prod(shape)).reshape(shape).transpose(*outside, *inside)
    return devices.reshape(-1, math.prod(shape[axis] for axis in inside)).tolist()


def _devices(order: str | None, count: int) -> np.ndarray:
    """Return the device order of a compiled program, int [count]; ascending if `order` is None.

    order: "[2,2,2]T(1,0,2)" for 0, 1, ... in a shape that is then transposed, or a list such as "0,2,1,3".
    """
    if order is None:
        return np.arange(count)
    if match := re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", order):
        sizes, axes = ([int(one) for one in (part or "").split(",") if one] for part in match.groups())
        return np.arange(count).reshape(sizes).transpose(axes or range(len(sizes))).reshape(-1)
    return np.array([int(device) for device in order.split(",")])


def _gathered_elements(program: Program, reduction: Instruction) -> int:
    """Return the number of elements that an all-reduce gathers: those of zeros updated with a device's own part."""
    return sum(o.results[0].size for o in program.operands_of(reduction) if _is_own_part(program, o))


def _is_own_part(program: Program, array: Instruction) -> bool:
    update, callers = _origin(program, array)
    if update.opcode != "dynamic-update-slice":
        return False
    zeros, callers = _origin(program, program.operands_of(update)[0], callers)
    if zeros.opcode == "broadcast":
        zeros, _ = _origin(program, program.operands_of(zeros)[0], callers)
    return zeros.opcode == "constant" and zeros.arguments.strip("-") in ("0", "0.0")


def _origin(
    program: Program, array: Instruction, callers: tuple[Instruction, ...] = ()
) -> tuple[Instruction, tuple[Instruction, ...]]:
    """Return the instruction that first computes an array, before copies and fusions pass it on, and its callers.

    callers: the fusions around the instruction, the innermost last.
    """
    while True:
        if array.opcode in ("copy", "copy-start", "copy-done", "bitcast"):
            array = program.operands_of(array)[0]
        elif array.opcode == "fusion":
            callers, array = (*callers, array), program.roots[array.called_computations["calls"][0]]
        elif array.opcode == "parameter" and callers:
            array, callers = program.operands_of(callers[-1])[int(array.arguments)], callers[:-1]
        else:
            return array, callers


def _is_scattered(computation: str) -> bool:
    # The TPU compiler writes a reduce-scatter as an all-reduce inside a fusion of this name.
    return computation.startswith("all-reduce-scatter")
