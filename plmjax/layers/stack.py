"""A loop over layers as one compiled body: a stack of separate layers, or one layer applied several times.

The inputs and outputs of a layer besides the hidden states x are its lanes. `inputs` holds a slice for every layer
(caches, memories, windows). The outputs of the layers besides x are stacked (hidden states, new caches, attention
scores):

    x, outputs[i] = body(layer i, x, inputs[i])     for i = 0 .. length - 1

Weights of attention that a layer records (`plmjax.layers.attention.recording`) are one lane more.

x may be a pytree, such as the hidden states with a cache that every layer changes in place.

Values that are the same for all layers are variables of the surrounding function that `body` reads.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import REMAT_POLICIES, Execution
from plmjax.contracts.sharded_parameter import gather, is_sharded
from plmjax.layers.attention.recording import record_layers, recorded, wanted
from plmjax.layers.int8 import RANGES

Lanes = Any
"""A pytree of arrays whose first axis is the layers; None without lanes."""
Body = Callable[[nn.Module, jax.Array, Lanes], tuple[jax.Array, Lanes]]


def stack(
    body: Body, layer: nn.Module, length: int, execution: Execution, x: jax.Array, inputs: Lanes = None
) -> tuple[jax.Array, Lanes]:
    """Run x through `length` layers, each with its own parameters.

    Args:
        body: one layer's step, as above.
        layer: a bound module that is not yet used; its parameters get a leading axis "layers". Every layer draws its
            own values from every random collection.
        inputs: inputs of each layer besides x, arrays [length ...].

    Returns:
        the last x, and the outputs of the layers besides x, arrays [length ...].
    """
    if any(map(is_sharded, jax.tree.leaves(layer.variables.get("params"), is_leaf=is_sharded))):
        run = _gathered_ahead
    else:
        parameters = {
            "variable_axes": {"params": 0, RANGES: 0},
            "split_rngs": {True: True},
            "metadata_params": {nn.PARTITION_NAME: "layers"},
        }
        run = functools.partial(_loop, parameters)
    return _with_weights(run, body, layer, length, execution, x, inputs)


def stack_states(
    apply: Callable[[nn.Module, jax.Array, Lanes], jax.Array],
    layer: nn.Module,
    length: int,
    execution: Execution,
    x: jax.Array,
    inputs: Lanes = None,
    *,
    output_hidden_states: bool,
) -> tuple[jax.Array, jax.Array | None]:
    """Run x through `length` layers that return nothing besides x; the arguments are those of `stack`.

    Returns:
        the last x and, if requested, every x, [length+1 ...], the given one first.
    """

    def body(layer: nn.Module, x: jax.Array, inputs: Lanes) -> tuple[jax.Array, jax.Array | None]:
        x = apply(layer, x, inputs)
        return x, x if output_hidden_states else None

    last, states = stack(body, layer, length, execution, x, inputs)
    return last, jnp.concatenate([x[None], states]) if output_hidden_states else None


def repeat(
    body: Body, layer: nn.Module, length: int, execution: Execution, x: jax.Array, inputs: Lanes = None
) -> tuple[jax.Array, Lanes]:
    """Run x through one layer `length` times. The arguments are those of `stack`.

    All iterations share the parameters of the layer, which have no axis "layers". Every iteration draws its own values
    from every random collection, and has its own ranges of activations.
    """
    parameters = {
        "variable_broadcast": "params",
        "variable_axes": {RANGES: 0},
        "split_rngs": {"params": False, nn.DenyList("params"): True},
    }
    return _with_weights(functools.partial(_loop, parameters), body, layer, length, execution, x, inputs)


def _with_weights(run: Callable[..., tuple], body: Body, *arguments: Any) -> tuple[jax.Array, Lanes]:
    """Return run(body, *arguments), and record the weights of attention that leave the loop."""

    def recording(layer: nn.Module, x: jax.Array, inputs: Lanes) -> tuple[jax.Array, Lanes]:
        with recorded(wanted()) as weights:
            x, outputs = body(layer, x, inputs)
        return x, (outputs, weights)

    x, (outputs, weights) = run(recording, *arguments)
    record_layers(weights)
    return x, outputs


def _gathered_ahead(
    body: Body, layer: nn.Module, length: int, execution: Execution, x: jax.Array, inputs: Lanes
) -> tuple[jax.Array, Lanes]:
    """Run x through the layers of which every device has pieces (`plmjax.contracts.sharded_parameter`).

    Each iteration gathers the parameters of the next layer. In the backward pass it so sums the gradient of the next
    layer. Neither needs the other computation of the iteration, so both can run beside it.
    """
    params = layer.variables["params"]
    leaves, structure = jax.tree.flatten(params, is_leaf=is_sharded)
    pieces = [leaf for leaf in leaves if is_sharded(leaf)]
    whole = [leaf for leaf in leaves if not is_sharded(leaf)]
    keys = {name: jax.random.split(layer.make_rng(name), length) for name in layer.scope.rngs}
    apply = nn.apply(body, layer.clone(parent=None))

    def step(gathered: list, whole: list, x: jax.Array, lanes: Lanes, keys: dict) -> tuple[jax.Array, Lanes]:
        gathered, whole = iter(gathered), iter(whole)
        params = structure.unflatten([next(gathered if is_sharded(leaf) else whole) for leaf in leaves])
        return apply({"params": params}, x, lanes, rngs=keys)

    step = _rematerialised(step, execution, prevent_cse=execution.unroll > 1, remat=jax.checkpoint)

    def iteration(carried: tuple, slices: tuple) -> tuple[tuple, Lanes]:
        x, gathered = carried
        following, whole, lanes, keys = slices
        x, outputs = step(gathered, whole, x, lanes, keys)
        return (x, gather(following)), outputs

    first = gather(jax.tree.map(lambda pieces: pieces[0], pieces))
    following = jax.tree.map(lambda pieces: jnp.roll(pieces, -1, axis=0), pieces)
    (x, _), outputs = jax.lax.scan(
        iteration, (x, first), (following, whole, inputs, keys), length, unroll=execution.unroll
    )
    return x, outputs


def _loop(
    parameters: dict[str, Any],
    body: Body,
    layer: nn.Module,
    length: int,
    execution: Execution,
    x: jax.Array,
    inputs: Lanes,
) -> tuple[jax.Array, Lanes]:
    """Run the loop itself; `parameters` tells `nn.scan` the parameters of each iteration."""
    # In a loop the compiler cannot merge the second forward pass with the first. In straight code it must be prevented.
    step = _rematerialised(body, execution, prevent_cse=execution.unroll > 1)
    return nn.scan(step, length=length, unroll=execution.unroll, **parameters)(layer, x, inputs)


def _rematerialised(body: Body, execution: Execution, prevent_cse: bool, remat: Callable = nn.remat) -> Body:
    if execution.remat == "none":
        return body
    return remat(body, policy=REMAT_POLICIES[execution.remat], prevent_cse=prevent_cse)
