"""The communication of a compiled program."""

import dataclasses
import math
import re
from typing import Any

from plmjax.plan.hlo import Instruction, Program

COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast", "send",
)  # fmt: skip
"""Operations that communicate. A TPU program of several slices sends from one slice to the next."""


@dataclasses.dataclass(frozen=True)
class Collective:
    """Communication of one kind, dtype and size.

    bytes: those of one device's whole array. count: number of runs.
    gathered: elements of an all-reduce that it gathers. The TPU compiler gathers less than 16 MiB, with the padding of
        the layout, by a sum of arrays that are 0 outside a device's own part.
    """

    kind: str
    dtype: str
    bytes: float
    elements: int
    group: int
    count: int
    gathered: int = 0


def collectives(program: Program) -> list[Collective]:
    """Return the communication of a step. Equal collectives are combined. An asynchronous collective counts once."""
    counts: dict[Collective, int] = {}
    for one, times in communication(program).values():
        counts[one] = counts.get(one, 0) + times
    merged = [dataclasses.replace(one, count=times) for one, times in counts.items()]
    return sorted(merged, key=lambda one: -one.bytes * one.count)


def communication(program: Program) -> dict[str, tuple[Collective, int]]:
    """Return name of an instruction that communicates or starts to -> (one run of it, number of runs)."""
    seen: dict[Any, tuple[str, Collective, int]] = {}
    for instruction, times in program.every:
        kind = instruction.opcode.removesuffix("-start")
        if kind not in COLLECTIVES or instruction.opcode.endswith("-done"):
            continue
        operands = [array for operand in program.operands_of(instruction) for array in operand.results]
        results = [array for array in instruction.results if array.shape or not instruction.opcode.endswith("start")]
        # A start's result includes its operands. The larger side is the array that exists once on each device.
        arrays = operands if sum(a.bytes for a in operands) >= sum(a.bytes for a in results) / 2 else results
        if kind == "send":
            arrays = operands[:1]  # the other one is a token
        if kind == "all-gather":
            arrays = [max(results, key=lambda array: array.bytes)] if len(operands) == 1 else results
        if kind == "all-reduce" and _is_scattered(instruction.computation):
            kind = "reduce-scatter"
        channel = instruction.attribute("channel_id") or instruction.name
        one = Collective(
            kind=kind,
            dtype=max(arrays, key=lambda array: array.bytes).dtype,
            bytes=sum(array.bytes for array in arrays),
            elements=sum(array.size for array in arrays),
            group=_group(instruction, program.partitions),
            count=1,
            gathered=_gathered(program, instruction) if kind == "all-reduce" else 0,
        )
        # Chunks of it may also be in loops that overlap with it. Its number of runs is that of the rarest chunk.
        key = (channel, one)
        if key not in seen or times < seen[key][2]:
            seen[key] = (instruction.name, one, times)
    return {name: (one, times) for name, one, times in seen.values()}


def _group(instruction: Instruction, partitions: int) -> int:
    """Return the number of devices that take part in a collective together."""
    text = instruction.attributes
    if match := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
        return len(match.group(1).split(","))
    if match := re.search(r"replica_groups=\[(\d+),(\d+)\]", text):
        return int(match.group(2))
    if match := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", text):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", match.group(1)))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", match.group(2)))
    return 2 if "source_target_pairs" in text else partitions


def _gathered(program: Program, reduction: Instruction) -> int:
    """Return the number of elements of a sum that no two devices add to: zeros, updated with a device's own part."""
    return sum(
        operand.results[0].size
        for operand in program.operands_of(reduction)
        if operand.opcode == "dynamic-update-slice" and _is_zero(program, program.operands_of(operand)[0])
    )


def _is_zero(program: Program, array: Instruction) -> bool:
    if array.opcode == "broadcast":
        array = program.operands_of(array)[0]
    return array.opcode == "constant" and array.arguments.strip("-") in ("0", "0.0")


def _is_scattered(computation: str) -> bool:
    # The TPU compiler writes a reduce-scatter as an all-reduce inside a fusion of this name.
    return computation.startswith("all-reduce-scatter")
