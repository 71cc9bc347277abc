"""A model of a compiled program's traffic: the bytes that its instructions read from and write to HBM.

A fusion reads its operands and writes its results once, or only the slices that it uses. Arrays that the compiler keeps
on the chip do not count.
"""

import functools

from plmjax.planning.collectives import COLLECTIVES
from plmjax.planning.hlo import Array, Instruction, Program

FREE_CALLS = (
    "AllocateBuffer", "ConcatBitcast", "AssumeGatherIndicesInBound", "GatherScatterIndicesBitpacked",
    "X64Combine", "X64SplitLow", "X64SplitHigh",  # of a generator's 64-bit state
    "PrepareAsyncCallStart", "PrepareAsyncCallDone",  # before a call of a SparseCore
)  # fmt: skip
"""Targets of custom calls of the compiler that move no data."""
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "call", "conditional", "after-all",
    "async-start", "async-update", "async-done", "partition-id", "replica-id", "opt-barrier", "domain", "recv",
}  # fmt: skip


class Traffic:
    """The traffic of one program between its chip and HBM."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._demands: dict[tuple[str, str], float] = {}

    def total(self) -> float:
        """Return the bytes that a device reads and writes in one run of the program. Communication does not count."""
        return sum(self.bytes(instruction) * times for instruction, times in self.program.top_level)

    def bytes(self, instruction: Instruction) -> float:
        """Return the bytes that one run of an instruction reads from and writes to HBM."""
        opcode = instruction.opcode
        if opcode in _FREE or opcode.endswith("-done") or opcode.removesuffix("-start") in COLLECTIVES:
            return 0.0
        if instruction.target in FREE_CALLS:
            return 0.0
        operands = self.program.operands_of(instruction)
        if opcode in ("copy-start", "slice-start"):
            target, source = (0, 1) if opcode == "copy-start" else (1, 0)
            moved = instruction.results[target]
            return moved.hbm + (moved.bytes if instruction.results[source].space == 0 else 0.0)
        if opcode == "fusion":
            inner = instruction.called_computations["calls"][0]
            parameters = (i for i in self.program.computations[inner].values() if i.opcode == "parameter")
            reads = sum(array.hbm * self._demand(i) for i in parameters for array in i.results)
            return reads + self._written_bytes(self.program.roots[inner], instruction.results)
        reads = 0.0
        for operand in operands:
            if operand.opcode == "constant" and _size(operand) == 1:
                continue  # part of the bundle, as in the rounds of threefry on one word
            part = self._part(operand, instruction)
            reads += sum(array.hbm * part for array in operand.results)
        return reads + self._written_bytes(instruction, instruction.results)

    def _demand(self, value: Instruction) -> float:
        """Return the fraction, from 0 to 1, of a value inside a fusion that the fusion needs."""
        key = (value.computation, value.name)
        if key not in self._demands:
            users = self._users[value.computation].get(value.name, ())
            self._demands[key] = min(1.0, sum(self._part(value, user) for user in users))
            if value is self.program.roots[value.computation]:
                caller = self._callers[value.computation]
                self._demands[key] = self._demand(caller) if self._is_fused(caller) else 1.0
        return self._demands[key]

    def _part(self, value: Instruction, user: Instruction) -> float:
        """Return the fraction, from 0 to 1, of a value that one of its users needs."""
        is_first = user.operands[0] == value.name
        sizes = [_size(value), _size(user)]
        if (user.opcode == "tuple" and value.opcode == "parameter") or user.opcode.removesuffix(
            "-start"
        ) in COLLECTIVES:
            return 0.0  # passed on unchanged, or sent
        if user.opcode == "dynamic-update-slice" and is_first:
            return 0.0  # changed in place
        if user.opcode == "scatter" and value.name in user.operands[: len(user.results)]:
            return min(1.0, sum(map(_size, self._updates(user))) / max(sizes[0], 1))  # changed in place
        if user.opcode == "fusion":
            inner = self.program.computations[user.called_computations["calls"][0]].values()
            places = [place for place, name in enumerate(user.operands) if name == value.name]
            return max(self._demand(i) for i in inner if i.opcode == "parameter" and int(i.arguments) in places)
        needed = self._demand(user) if self._is_fused(user) else 1.0
        if user.opcode in ("dynamic-slice", "slice", "gather") and is_first:
            return min(1.0, needed * sizes[1] / max(sizes[0], 1))
        return needed if sizes[0] == sizes[1] else float(needed > 0)

    def _is_fused(self, instruction: Instruction) -> bool:
        caller = self._callers.get(instruction.computation)
        return caller is not None and caller.opcode == "fusion"

    def _written_bytes(self, root: Instruction, results: tuple[Array, ...]) -> float:
        """Return the bytes written to HBM for the results of `root`."""
        operands = self.program.operands_of(root)
        if root.opcode == "tuple":
            pairs = zip(operands, results, strict=False)
            return sum(self._written_bytes(operand, (array,)) for operand, array in pairs)
        if root.opcode == "parameter" or root.opcode.removesuffix("-start") in COLLECTIVES:
            return 0.0
        if root.opcode == "bitcast":
            return self._written_bytes(operands[0], results)
        if root.opcode == "fusion" and len(results) == len(root.results):
            return self._written_bytes(self.program.roots[root.called_computations["calls"][0]], results)
        if root.opcode == "dynamic-update-slice":
            return sum(array.bytes for array in operands[1].results) if results[0].space == 0 else 0.0
        if root.opcode == "scatter":
            changed = zip(operands, self._updates(root), results, strict=False)
            return sum(
                (new.results[0].bytes if array.hbm else 0) if self._is_in_memory(old) else array.hbm
                for old, new, array in changed
            )
        return sum(array.hbm for array in results)

    def _is_in_memory(self, value: Instruction) -> bool:
        """Return true if a value is in memory before the fusion that uses it runs."""
        while self._is_fused(value) and value.opcode == "bitcast":
            value = self.program.operands_of(value)[0]
        return value.opcode == "parameter" or not self._is_fused(value)

    def _updates(self, scatter: Instruction) -> list[Instruction]:
        """Return the values that a scatter adds to its first operands, or writes into them."""
        return self.program.operands_of(scatter)[-len(scatter.results) :]

    @functools.cached_property
    def _callers(self) -> dict[str, Instruction]:
        """Return a dict from computation to the instruction that calls it.

        There is one caller, because the compiler copies a computation for each caller.
        """
        every = (i for instructions in self.program.computations.values() for i in instructions.values())
        return {name: i for i in every for names in i.called_computations.values() for name in names}

    @functools.cached_property
    def _users(self) -> dict[str, dict[str, list[Instruction]]]:
        users: dict[str, dict[str, list[Instruction]]] = {name: {} for name in self.program.computations}
        for name, instructions in self.program.computations.items():
            for instruction in instructions.values():
                for operand in dict.fromkeys(instruction.operands):
                    users[name].setdefault(operand, []).append(instruction)
        return users


def _size(value: Instruction) -> int:
    return sum(array.size for array in value.results)
