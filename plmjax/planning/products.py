"""Number of multiply-adds in the matrix products of a compiled program.

XLA writes every product as a dot or a convolution. A batch of products is a convolution over a dimension in which every
window has a single element. The other places are dilation and padding, which are not multiplied.
"""

import itertools
import math
import re
from collections.abc import Collection

from plmjax.planning.hlo import Array, Instruction, Program

INTEGERS = {"s8"}
"""Dtypes of the factors of an int8 product."""


def multiply_adds(program: Program, instruction: Instruction, dtypes: Collection[str] | None = None) -> int:
    """Return the multiply-adds of one run of an instruction. A fusion has those of the products inside it.

    dtypes: count only products whose factors have exactly these dtypes; None counts all.
    """
    total = 0
    for one, _ in program.inside(instruction):
        if one.opcode in ("dot", "convolution"):
            factors = [array for operand in program.operands_of(one) for array in operand.results]
            if dtypes is None or {array.dtype for array in factors} == set(dtypes):
                total += _multiply_adds(one, factors)
    return total


def _multiply_adds(product: Instruction, operands: list[Array]) -> int:
    left, right, result = operands[0].shape, operands[1].shape, product.results[0].shape
    if product.opcode == "dot":
        summed = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", product.attributes)
        return math.prod(result) * math.prod(left[int(axis)] for axis in summed.group(1).split(",") if axis)
    lefts, rights, results = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", product.attributes).groups()
    window = _window(product.attributes)
    total = right[rights.index("i")] * result[results.index("b")] * result[results.index("f")]
    for axis in (label for label in results if label.isdigit()):
        place = int(axis)
        total *= _pairs(
            left[lefts.index(axis)],
            right[rights.index(axis)],
            result[results.index(axis)],
            stride=int(window.get("stride", {}).get(place, 1)),
            padding=int(window.get("pad", {}).get(place, "0_0").split("_")[0]),
            left_dilation=int(window.get("lhs_dilate", {}).get(place, 1)),
            right_dilation=int(window.get("rhs_dilate", {}).get(place, 1)),
        )
    return total


def _window(attributes: str) -> dict[str, dict[int, str]]:
    """Parse `window={size=4x1 pad=3_3x0_0}` to {"size": {0: "4", 1: "1"}, "pad": {0: "3_3", 1: "0_0"}}."""
    window = re.search(r"window=\{([^}]*)\}", attributes)
    fields = re.findall(r"(\w+)=(\S+)", window.group(1)) if window else []
    return {name: dict(enumerate(values.split("x"))) for name, values in fields}


def _pairs(
    left: int, right: int, result: int, *, stride: int, padding: int, left_dilation: int, right_dilation: int
) -> int:
    """Return the number of pairs of elements that a convolution multiplies along one dimension."""
    places = (
        out * stride + tap * right_dilation - padding for out, tap in itertools.product(range(result), range(right))
    )
    return sum(0 <= place <= (left - 1) * left_dilation and place % left_dilation == 0 for place in places)
