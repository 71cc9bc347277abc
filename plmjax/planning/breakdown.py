"""Breakdown of a step's cycles by category.

The category of an instruction follows from its operation and from the scopes in its `op_name`, which are the names of
modules. Collectives, random bits, matrix products and copies of state are found by the operation. Any other instruction
gets the category of the scope in which it computes the most elements.

    collectives      communication that no computation hides
    random bits      the hardware's generator, or rounds of threefry
    attention        the module without its projections, including its products
    matrix products  every other product, with everything fused to it
    state            casts and copies of arrays of a parameter's size, and instructions outside any module: the
                     optimizer, sums of gradients
    normalisation    layer norm, root-mean-square norm
    layers           the rest of the layers: activations, biases, dropout, residual sums
    residuals        stores for the backward pass, and loads, if nothing else is fused to them
    ends             embeddings, logits over the vocabulary, pooling, loss
    between          bundles of the program itself between its instructions, mainly to find the targets of permutes
    transfers        waits for transfers between HBM and the chip
    other            everything else: corruption of the batch, keys
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from plmjax.planning.hlo import Instruction, Program
from plmjax.planning.refined import Costs, Timeline, communicates

CATEGORIES = (
    "matrix products", "attention", "normalisation", "random bits", "layers", "residuals", "ends", "state",
    "collectives", "between", "transfers", "other",
)  # fmt: skip
SHOWN = 5
"""Number of instructions that are listed for "other", the largest ones."""
ROUNDS = 8
"""Minimum number of XOR operations by which an instruction counts as threefry; other code has one or two."""
_PROJECTIONS = {"query", "key", "value", "output"}
_LOOPS = {"while", "body", "cond", "closed_call", "shard_map"}
"""Scopes of loops over microbatches and of `shard_map`, which say nothing about the modules inside them."""
_MOVES = {
    "parameter", "constant", "tuple", "get-tuple-element", "copy", "convert", "bitcast", "transpose", "reshape",
    "slice", "dynamic-slice", "dynamic-update-slice", "broadcast", "concatenate", "pad", "fusion",
}  # fmt: skip


def category(program: Program, instruction: Instruction, parameters: Collection[int]) -> str:
    """Return the category of an instruction.

    parameters: numbers of elements of the parameters, whole and of one shard.
    """
    parts = [part for part, _ in program.inside(instruction)]
    opcodes = Counter(part.opcode for part in parts)
    products = [part for part in parts if part.opcode in ("dot", "convolution")]
    if communicates(program, instruction):
        return "collectives"
    if "rng-bit-generator" in opcodes or opcodes["xor"] >= ROUNDS:
        return "random bits"
    if products:
        return "attention" if _place(_scope(products[0])) == "attention" else "matrix products"
    moved = {array.size for array in instruction.results}
    if opcodes.keys() <= _MOVES and moved and moved <= set(parameters):
        return "state"
    weights: Counter[str] = Counter()
    for part in parts:
        weights[_place(_scope(part))] += sum(array.size for array in part.results)
    for vague in ("unknown", "residuals"):  # used only if no more precise category exists
        if len(weights) > 1:
            weights.pop(vague, None)
    found = max(weights, key=weights.__getitem__)
    if found == "unknown":
        return "state" if moved & set(parameters) else "other"
    return found


def _scope(instruction: Instruction) -> str:
    named = re.search(r'op_name="([^"]*)"', instruction.attributes)
    return named.group(1) if named else ""


def _place(scope: str) -> str:
    """Return the category of a scope such as jit(step)/jvp(Model)/Model/encoder/while/body/layers/attention/key/dot."""
    _, differentiated, inside = scope.partition("jvp(")
    if not differentiated:
        named = [segment for segment in scope.split("/") if segment not in _LOOPS]
        return "unknown" if not scope.startswith("jit(") else "state" if len(named) == 2 else "other"
    segments = inside.split("/")
    if any("norm" in segment for segment in segments):
        return "normalisation"
    attention = next((place for place, segment in enumerate(segments) if "attention" in segment), None)
    if attention is not None:
        return "layers" if _PROJECTIONS & set(segments[attention:]) else "attention"
    if "body" in segments:
        return "layers" if "layers" in segments[segments.index("body") :] else "residuals"
    return "ends"


def breakdown(
    ends: Sequence[Costs], times: Sequence[Timeline], interconnect: float, parameters: Collection[int]
) -> dict[str, Any]:
    """Return a step's cycles and HBM bytes by category, and the largest instructions of "other".

    The cycles are those of the compiler's estimate, and of the refined estimate at both ends of its range.

    ends, times: costs and timeline of the refined estimate, at the fast and then at the slow end.
    interconnect: cycles of all communication. The compiler's estimate assumes that none of it is hidden.
    parameters: as for `category`.
    """
    slow, program = ends[1], ends[1].program
    columns = ("compiler", "fast", "slow", "hbm_bytes")
    rows = {name: dict.fromkeys(columns, 0.0) for name in CATEGORIES}
    for instruction, runs in program.top_level:
        moves = instruction.name in slow.transfers
        name = "transfers" if moves else category(program, instruction, parameters)
        rows[name]["hbm_bytes"] += runs * slow[instruction].hbm_bytes
    rest = []
    for instruction, runs in slow.computing():
        name = category(program, instruction, parameters)
        rows[name]["compiler"] += runs * slow[instruction].estimated
        for column, costs in zip(("fast", "slow"), ends, strict=True):
            rows[name][column] += runs * costs[instruction].refined
        if name == "other":
            rest.append((runs * slow[instruction].refined, instruction.name, _scope(instruction)))
    rows["collectives"]["compiler"] = interconnect
    for column, time in zip(("fast", "slow"), times, strict=True):
        rows["collectives"][column] = time.waiting_network
        rows["transfers"][column] = time.waiting_hbm
        rows["between"][column] = time.between
    largest = sorted(rest, reverse=True)[:SHOWN]
    return {
        "cycles": rows,
        "largest_of_other": [{"cycles": cycles, "name": name, "scope": scope} for cycles, name, scope in largest],
    }
