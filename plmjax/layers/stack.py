"""A loop over layers as one compiled body: a stack of separate layers, or one layer applied several times.

What a layer takes and returns besides the token vectors x are its lanes. `inputs` holds a slice for every layer
(caches, memories, windows), and what the layers return besides x is stacked (hidden states, new caches, attention
scores):

    x, outputs[i] = body(layer i, x, inputs[i])     for i = 0 .. length - 1

x may be a pytree, such as the token vectors with a cache that every layer changes in place.

Whatever is the same for all layers is a variable of the surrounding function that `body` reads.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

from plmjax.contracts.execution import REMAT_POLICIES, Execution

Lanes = Any
"""A pytree of arrays whose first axis is the layers; None where there are none."""
Body = Callable[[nn.Module, jax.Array, Lanes], tuple[jax.Array, Lanes]]


def stack(
    body: Body, layer: nn.Module, length: int, execution: Execution, x: jax.Array, inputs: Lanes = None
) -> tuple[jax.Array, Lanes]:
    """Runs x through `length` layers that have parameters of their own.

    Args:
        body: one layer's step, as above.
        layer: a module that is bound and not yet used, whose parameters get a leading axis "layers". Every
            layer draws its own values from every random collection.
        inputs: what each layer is given besides x, arrays [length ...].

    Returns:
        the last x, and what the layers returned besides it, arrays [length ...].
    """
    parameters = {
        "variable_axes": {"params": 0},
        "split_rngs": {True: True},
        "metadata_params": {nn.PARTITION_NAME: "layers"},
    }
    return _loop(parameters, body, layer, length, execution, x, inputs)


def repeat(
    body: Body, layer: nn.Module, length: int, execution: Execution, x: jax.Array, inputs: Lanes = None
) -> tuple[jax.Array, Lanes]:
    """As `stack`, but all trips share the parameters of one layer; they have no axis "layers".

    Every trip draws its own values from every random collection.
    """
    parameters = {"variable_broadcast": "params", "split_rngs": {"params": False, nn.DenyList("params"): True}}
    return _loop(parameters, body, layer, length, execution, x, inputs)


def _loop(
    parameters: dict[str, Any],
    body: Body,
    layer: nn.Module,
    length: int,
    execution: Execution,
    x: jax.Array,
    inputs: Lanes,
) -> tuple[jax.Array, Lanes]:
    """The loop itself; `parameters` tells `nn.scan` which of them each trip gets."""
    # A compiled loop cannot merge the second forward pass with the first; straight code must be kept from it.
    step = _rematerialised(body, execution, prevent_cse=execution.unroll > 1)
    return nn.scan(step, length=length, unroll=execution.unroll, **parameters)(layer, x, inputs)


def _rematerialised(body: Body, execution: Execution, prevent_cse: bool) -> Body:
    if execution.remat == "none":
        return body
    return nn.remat(body, policy=REMAT_POLICIES[execution.remat], prevent_cse=prevent_cse)
