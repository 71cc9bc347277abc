"""A loop over layers as one compiled body: a stack of layers of their own, or one layer again and again."""

from typing import Any

import flax.linen as nn
import jax

from plmjax.layers.execution import REMAT_POLICIES, Execution


def stack(
    layer: nn.Module, length: int, execution: Execution, keep: bool, x: jax.Array, *arguments: jax.Array | None
) -> tuple[jax.Array, jax.Array | None]:
    """x <- layer(x, *arguments), `length` times, each with parameters of its own.

    The parameters of `layer`, which must be bound and not yet used, get a leading axis "layers". Random collection
    "dropout" is split over the layers.

    Returns:
        the last output, and all outputs [length ...] if `keep` asks for them.
    """
    parameters = {
        "variable_axes": {"params": 0},
        "split_rngs": {"params": True, "dropout": True},
        "metadata_params": {nn.PARTITION_NAME: "layers"},
    }
    return _loop(parameters, layer, length, execution, keep, x, *arguments)


def repeat(
    layer: nn.Module, length: int, execution: Execution, keep: bool, x: jax.Array, *arguments: jax.Array | None
) -> tuple[jax.Array, jax.Array | None]:
    """As `stack`, every time with the same parameters; they have no axis "layers". Dropout differs all the same."""
    parameters = {"variable_broadcast": "params", "split_rngs": {"params": False, "dropout": True}}
    return _loop(parameters, layer, length, execution, keep, x, *arguments)


def _loop(
    parameters: dict[str, Any],
    layer: nn.Module,
    length: int,
    execution: Execution,
    keep: bool,
    x: jax.Array,
    *arguments: jax.Array | None,
) -> tuple[jax.Array, jax.Array | None]:
    """The loop itself; `parameters` tells `nn.scan` which of them a trip is given."""

    def body(layer: nn.Module, x: jax.Array, *arguments: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
        x = layer(x, *arguments)
        return x, x if keep else None

    if execution.remat != "none":
        # A compiled loop cannot merge the second forward pass with the first; straight code must be kept from it.
        body = nn.remat(body, policy=REMAT_POLICIES[execution.remat], prevent_cse=execution.unroll > 1)
    scan = nn.scan(body, in_axes=nn.broadcast, length=length, unroll=execution.unroll, **parameters)
    return scan(layer, x, *arguments)
