"""Parser of a compiled program: its instructions, how often each runs, and the compiler's estimate of its cycles.

`compiled.cost_analysis()` counts the body of a loop once, so a scan over layers looks like one layer. Here the
optimised HLO text is parsed, and every instruction counts as often as it runs. Only the necessary part of the HLO
grammar is parsed; unknown instructions are kept unchanged.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

LONGEST_LOOP = 100_000
"""Maximum number of loop trips to count; the trips of a longer loop are treated as unknown."""

_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\](?:\{([^}]*)\})?")
_CALLED = re.compile(
    r"\b(calls|called_computations|to_apply|body|condition|branch_computations|true_computation|false_computation)="
)
_HEADER = re.compile(r"(ENTRY )?%?([\w.-]+) \(.*\{$")
_END = re.compile(r"\}(, execution_thread=.*)?$")
_OUTSIDE = re.compile(r"HloModule |(FileNames|FunctionNames|FileLocations|StackFrames)$|\d+ ")
"""Lines outside the computations: the module's header, and the tables of source files."""
_NAME = re.compile(r"\s+(?:ROOT )?%?([\w.-]+) = ")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_ARITHMETIC = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "minimum": min,
    "maximum": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
}
_COMPARISONS = {
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
}


@dataclasses.dataclass(frozen=True)
class Array:
    """One array of an instruction's result.

    space: memory space; 0 is HBM, others are on the chip (on a TPU, 1 is VMEM).
    layout: the text in braces after the shape.
    """

    dtype: str
    shape: tuple[int, ...]
    space: int = 0
    layout: str = dataclasses.field(default="", compare=False)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> float:
        """Return the number of bytes, without the padding of the layout."""
        digits = re.search(r"\d+", self.dtype)
        bits = 8 if self.dtype == "pred" else int(digits.group()) if digits else 0
        return self.size * bits / 8

    @property
    def stored_bytes(self) -> float:
        """Return the number of bytes with the padding of tiles: `{1,0:T(8,128)}` pads rows of 64 floats to 128."""
        order, _, tiling = self.layout.partition(":")
        tile = re.match(r"T\(([\d,]+)\)", tiling)
        if not tile or not self.shape:
            return self.bytes
        sizes = list(self.shape)
        for place, length in zip(order.split(","), reversed(tile.group(1).split(",")), strict=False):
            sizes[int(place)] += -sizes[int(place)] % int(length)
        return self.bytes * math.prod(sizes) / max(self.size, 1)

    @property
    def hbm(self) -> float:
        """Return the number of bytes in HBM; 0 for a scalar, such as the counter of a loop."""
        return self.bytes if self.space == 0 and self.shape else 0.0


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction, from a line `name = results opcode(arguments), attributes`.

    operands: names of the operands.
    arguments: the text in brackets, such as the value of a constant.
    computation: name of the computation that it is in.
    """

    name: str
    opcode: str
    results: tuple[Array, ...]
    operands: tuple[str, ...]
    arguments: str
    attributes: str
    computation: str

    @functools.cached_property
    def called_computations(self) -> dict[str, list[str]]:
        """Return a dict from attribute, such as "body", to the names of the computations that it calls."""
        found = {}
        for match in _CALLED.finditer(self.attributes):
            names = re.match(r"\{([^}]*)\}|%?([\w.-]+)", self.attributes[match.end() :])
            found[match.group(1)] = [name.strip().lstrip("%") for name in (names.group(1) or names.group(2)).split(",")]
        return found

    @property
    def cycles(self) -> int:
        """Return the compiler's estimate of the cycles of one run; 0 if there is none."""
        match = _CYCLES.search(self.attributes)
        cycles = int(match.group(1)) if match else 0
        return cycles if cycles < 2**62 else 0  # the largest integers mean "none"

    @property
    def target(self) -> str:
        """Return the target of a custom call; empty for other instructions."""
        return self.attribute("custom_call_target")

    def attribute(self, name: str) -> str:
        """Return the word after `name=` in the attributes; empty if there is none."""
        match = re.search(rf'\b{name}="?([\w.-]+)', self.attributes)
        return match.group(1) if match else ""


@dataclasses.dataclass(frozen=True)
class Matmul:
    """A matrix product (dot or convolution) that runs `count` times.

    dtypes, shapes: those of its factors.
    """

    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    count: int


class Program:
    """The computations of an optimised HLO module.

    unknown_loops: names of the while loops whose trips could not be counted; they count as one trip.

    Raises:
        ValueError: the text has no ENTRY computation, or a line that cannot be parsed. No line is skipped silently.
    """

    def __init__(self, text: str):
        self.computations: dict[str, dict[str, Instruction]] = {}
        self.roots: dict[str, Instruction] = {}
        self.entry = ""
        self.unknown_loops: list[str] = []
        self._known_trips: dict[str, int] = {}
        partitions = re.search(r"num_partitions=(\d+)", text[:20000])
        self.partitions = int(partitions.group(1)) if partitions else 1
        name, types = None, {}
        for line in _statements(text):
            if header := _HEADER.match(line):
                name = header.group(2)
                self.computations[name], types = {}, {}
                self.entry = name if header.group(1) else self.entry
            elif name is None:
                if not _OUTSIDE.match(line):
                    raise _unreadable("a computation or a table of sources", line)
            elif _END.match(line):
                name = None
            else:
                instruction, types[instruction.name] = _instruction(line, name)
                for operand in instruction.operands:
                    _add_elements(operand, self.computations[name], types, name)
                self.computations[name][instruction.name] = instruction
                if line.lstrip().startswith("ROOT"):
                    self.roots[name] = instruction
        if name is not None:
            raise ValueError(f"Expected the computation {name} to end, found the end of the text; compile it again.")
        if not self.entry:
            raise ValueError("the text holds no HLO module with an ENTRY computation")

    def matmuls(self) -> list[Matmul]:
        """Return every matrix product, including those inside fusions."""
        return [
            Matmul(
                dtypes=tuple(array.dtype for operand in self.operands_of(i) for array in operand.results),
                shapes=tuple(array.shape for operand in self.operands_of(i) for array in operand.results),
                count=times,
            )
            for i, times in self.every
            if i.opcode in ("dot", "convolution")
        ]

    def cycles(self) -> int:
        """Return the compiler's estimate of all cycles of one device, without communication and custom calls."""
        return sum(instruction.cycles * times for instruction, times in self.top_level)

    def largest(self, dimension: int) -> Array | None:
        """Return the largest floating-point array that has a dimension of this size; None if there is none."""
        arrays = (array for i, _ in self.every if i.opcode != "parameter" for array in i.results)
        arrays = (array for array in arrays if dimension in array.shape and "f" in array.dtype)
        return max(arrays, key=lambda array: array.size, default=None)

    @functools.cached_property
    def top_level(self) -> list[tuple[Instruction, int]]:
        """Return every instruction with its number of runs, without those inside fusions."""
        return list(self._run(self.entry, 1))

    @functools.cached_property
    def every(self) -> list[tuple[Instruction, int]]:
        """Return every instruction with its number of runs, including those inside fusions."""
        return [pair for instruction, times in self.top_level for pair in self.inside(instruction, times)]

    def _run(self, computation: str, times: int) -> Iterator[tuple[Instruction, int]]:
        for instruction in self.computations[computation].values():
            yield instruction, times
            called = instruction.called_computations
            if instruction.opcode == "while":
                yield from self._run(called["body"][0], times * self.trips(instruction))
            elif instruction.opcode == "conditional":
                yield from self._run(self.branch(instruction), times)
            elif instruction.opcode in ("call", "async-start", "custom-call"):
                for name in (name for names in called.values() for name in names):
                    yield from self._run(name, times)

    def inside(self, instruction: Instruction, times: int = 1) -> Iterator[tuple[Instruction, int]]:
        """Yield an instruction and, for a fusion, its contents."""
        yield instruction, times
        if instruction.opcode == "fusion":
            for inner in self.computations[instruction.called_computations["calls"][0]].values():
                yield from self.inside(inner, times)

    def operands_of(self, instruction: Instruction) -> list[Instruction]:
        """Return the instructions whose results are the operands."""
        return [self.computations[instruction.computation][name] for name in instruction.operands]

    def branch(self, conditional: Instruction) -> str:
        """Return the computation that counts for a conditional: the branch with the most cycles."""
        names = [name for names in conditional.called_computations.values() for name in names]
        return max(names, key=lambda name: sum(inner.cycles * times for inner, times in self._run(name, 1)))

    def trips(self, loop: Instruction) -> int:
        """Return the number of trips of a while loop, found by computing its counter; 1 if it cannot be known."""
        if loop.name not in self._known_trips:
            self._known_trips[loop.name] = self._count_trips(loop)
        return self._known_trips[loop.name]

    def _count_trips(self, loop: Instruction) -> int:
        condition, body = loop.called_computations["condition"][0], loop.called_computations["body"][0]
        state = _tuple(self._value(self.computations[loop.computation][loop.operands[0]], ()))
        for trip in range(LONGEST_LOOP):
            going = self._value(self.roots[condition], (state,))
            if going is None:
                break
            if not going:
                return trip
            state = _tuple(self._value(self.roots[body], (state,)))
        self.unknown_loops.append(loop.name)
        return 1

    def _value(self, instruction: Instruction, arguments: tuple) -> Any:
        """Return the value of an instruction: an integer, for a tuple a function from index to element, or None.

        None stands for a value that is only known at run time.

        arguments: values of the parameters of its computation.
        """
        opcode = instruction.opcode
        if opcode == "parameter":
            index = int(instruction.arguments)
            return arguments[index] if index < len(arguments) else None
        if opcode == "constant":
            constants = {"true": 1, "false": 0}
            text = instruction.arguments
            return int(text) if re.fullmatch(r"-?\d+", text) else constants.get(text)
        operands = self.operands_of(instruction)
        if opcode == "tuple":
            return lambda index: self._value(operands[index], arguments)
        if opcode == "get-tuple-element":
            return _tuple(self._value(operands[0], arguments))(int(instruction.attribute("index")))
        if opcode in ("copy", "bitcast", "convert", "copy-done", "opt-barrier"):
            return self._value(operands[0], arguments)
        if opcode == "copy-start":
            return lambda index: self._value(operands[0], arguments)
        if opcode in ("fusion", "call"):
            name = (instruction.called_computations.get("calls") or instruction.called_computations["to_apply"])[0]
            return self._value(self.roots[name], tuple(self._value(operand, arguments) for operand in operands))
        if opcode == "compare" or opcode in _ARITHMETIC:
            function = _ARITHMETIC.get(opcode) or _COMPARISONS[instruction.attribute("direction")]
            values = [self._value(operand, arguments) for operand in operands]
            return function(*values) if all(isinstance(value, int) for value in values) else None
        return None


def _statements(text: str) -> Iterator[str]:
    """Yield the lines of a module. Lines within the braces of an attribute, such as a kernel's metadata, are joined.

    The lines that begin or end a computation are not joined, although their brace has no pair.
    """
    parts: list[str] = []
    for line in text.splitlines():
        if not parts and (not line.strip() or _HEADER.match(line) or _END.match(line)):
            if line.strip():
                yield line
            continue
        if parts and _NAME.match(line):
            break
        parts.append(line)
        if len(parts) > 1 or line.count("{") != line.count("}"):
            bare = _STRING.sub("", "".join(parts))  # a string may hold half a pair
            if bare.count("{") != bare.count("}"):
                continue
        yield "".join(parts)
        parts = []
    if parts:
        raise _unreadable("closed braces", parts[0])


def _unreadable(expected: str, line: str) -> ValueError:
    return ValueError(
        f"Expected {expected} in a compiled program, found {line.strip()[:200]!r}; report it with the versions of jax "
        "and libtpu."
    )


def _instruction(line: str, computation: str) -> tuple[Instruction, str]:
    """Return the instruction in a line, and the text of its type.

    Raises:
        ValueError: the line has no instruction.
    """
    match = _NAME.match(line)
    if not match:
        raise _unreadable("an instruction", line)
    rest = line[match.end() :]
    end = _closing_bracket(rest) if rest.startswith("(") else rest.index(" ")
    results, rest = rest[:end], rest[end:].lstrip()
    start = rest.index("(")
    end = _closing_bracket(rest[start:]) + start
    inside = rest[start + 1 : end - 1]
    opcode = rest[:start]
    operands = () if opcode in ("constant", "parameter") else tuple(re.findall(r"%([\w.-]+(?:#\d+)*)", inside))
    return Instruction(match.group(1), opcode, _arrays(results), operands, inside, rest[end:], computation), results


def _add_elements(operand: str, instructions: dict[str, Instruction], types: dict[str, str], computation: str) -> None:
    """Add the get-tuple-element instructions that an operand such as `x#1` stands for.

    With the option `xla_dump_compact_gte` XLA writes an element of a tuple in this form, otherwise as an instruction.
    """
    source, *indices = operand.split("#")
    for index in indices:
        name = f"{source}#{index}"
        if name not in instructions:
            types[name] = _element_types(types[source])[int(index)]
            arrays = _arrays(types[name])
            instructions[name] = Instruction(
                name, "get-tuple-element", arrays, (source,), f"%{source}", f", index={index}", computation
            )
        source = name


@functools.lru_cache(maxsize=64)
def _element_types(text: str) -> tuple[str, ...]:
    """Return the types of the elements in the text of a tuple's type."""
    depth, start, found = 0, 1, []
    for mark in re.finditer(r"[][(){},]", text):
        depth += (mark[0] in "([{") - (mark[0] in ")]}")
        if (mark[0], depth) == (",", 1) or depth == 0:
            found.append(text[start : mark.start()])
            start = mark.end()
    return tuple(found)


def _arrays(text: str) -> tuple[Array, ...]:
    arrays = []
    for dtype, shape, layout in _ARRAY.findall(text):
        space = re.search(r"S\((\d+)\)", layout)
        sizes = tuple(int(size) for size in shape.split(",") if size)
        arrays.append(Array(dtype, sizes, int(space.group(1)) if space else 0, layout))
    return tuple(arrays)


def _closing_bracket(text: str) -> int:
    """Return the index after the bracket that closes the first bracket of `text`."""
    depth = 0
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return index + 1
    raise ValueError(f"unbalanced brackets in HLO: {text[:80]}")


def _tuple(value: Any) -> Callable[[int], Any]:
    """Return a function from index to element of a tuple. It computes each element once.

    The elements of an unknown tuple are unknown, None.
    """
    return functools.cache(value) if callable(value) else lambda index: None
