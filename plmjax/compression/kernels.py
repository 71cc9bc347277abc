"""The kernels of a model's layers: the matrices that compression changes."""

from collections.abc import Iterable

from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import group_of
from plmjax.errors import UserError
from plmjax.models.compressed.low_rank import EXPAND, REDUCE


def layer_kernels(paths: Iterable[str], model: ModelConfig) -> dict[str, bool]:
    """Return path of a layer's kernel -> true if it is a stack of the layers' matrices, [L ...].

    Embedding tables, the projections below and above the layers, and heads are not included.

    paths: paths of the model's parameters.

    Raises:
        UserError: the model has no layers with kernels.
    """
    _, *groups = model.parameter_groups or (None,)
    prefixes = {prefix for group in groups for prefix in group.prefixes}
    whole = {one for one in prefixes if any(other.startswith(f"{one}/") for other in prefixes)}
    found = {}
    for path in paths:
        if not path.endswith("/kernel"):
            continue
        place = group_of(path, groups)
        if place is not None and place[0] not in whole:
            found[path] = place[1] is not None
    if not found:
        raise UserError(f"Expected a model with layers of matrices, found {model.system}; compress another checkpoint.")
    return found


def input_axes(path: str, axes: int) -> int:
    """Return the number of input axes of a kernel with `axes` axes, both without the axis of the layers.

    A kernel with three axes belongs to attention. The projections to heads have outputs [N H], the output projection
    has inputs [N H]. A projection of a lower rank has two kernels, `reduce` and `expand`.
    """
    if path.endswith((f"/{REDUCE}/kernel", f"/{EXPAND}/kernel")):
        return axes - 1 if path.endswith(f"/{REDUCE}/kernel") else 1
    return 2 if axes == 3 and path.endswith("/output/kernel") else axes - 1 if axes < 3 else 1
