"""The weights of a model in int8: kernels and embedding tables, symmetric around 0.

All other parameters stay float32: biases, norms, and the head of a task.
"""

import math

from plmjax.compression.compression import Params
from plmjax.compression.kernels import input_axes
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import group_of
from plmjax.errors import UserError
from plmjax.training.checkpoints import stored

GRANULARITIES = ("tensor", "channel")
TABLE = "embedding"


def shared_axes(shapes: dict[str, tuple[int, ...]], model: ModelConfig, granularity: str) -> dict[str, tuple[int, ...]]:
    """Return path of a weight that is quantized -> the axes along which its values share a scale.

    With `tensor` these are all axes. With `channel` they are the input axes of a kernel, or the features of a table:
    each output or row has a scale. The layers of a stack never share one.

    shapes: path -> shape of every parameter.

    Raises:
        UserError: the model has no such weights.
    """
    groups, table = model.parameter_groups, model.system.token_table
    found = {}
    for path, shape in shapes.items():
        place = group_of(path, groups)
        is_table = path.endswith(f"/{TABLE}") or path == table
        if len(shape) < 2 or (groups and place is None) or not (is_table or path.endswith("kernel")):
            continue
        first = 0 if place is None or place[1] is None else 1  # the axis of the layers
        axes = len(shape) - first
        inputs = range(1, axes) if is_table else range(input_axes(path, axes))
        found[path] = tuple(first + axis for axis in (inputs if granularity == "channel" else range(axes)))
    if not found:
        raise UserError(f"Expected a model with kernels or tables, found {model.system}; quantize another checkpoint.")
    return found


def stored_form(params: Params, shared: dict[str, tuple[int, ...]]) -> Params:
    """Return the parameters by path, those of `shared` quantized to int8, as a checkpoint stores them."""
    return {
        name: value
        for path, array in params.items()
        for name, value in (
            {f"{path}/{part}": each for part, each in stored.encode(array, shared[path]).items()}.items()
            if path in shared
            else [(path, array)]
        )
    }


def comparison(before: Params, after: Params, shared: dict[str, tuple[int, ...]]) -> str:
    """Return a line that compares the numbers of bytes, with the fraction of the parameters in int8."""

    def size(params: Params) -> int:
        return sum(array.nbytes for array in params.values())

    count = sum(math.prod(array.shape) for array in before.values())
    integers = sum(math.prod(before[path].shape) for path in shared)
    return (
        f"{size(before):,} bytes of parameters became {size(after):,} ({size(after) / size(before):.1%}); "
        f"{integers:,} of {count:,} parameters are stored in int8"
    )
