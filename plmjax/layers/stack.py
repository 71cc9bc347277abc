"""A loop over layers as one compiled body: a stack of separate layers, or one layer applied several times.

Besides the hidden states x, a layer may have other inputs and outputs, its lanes. `inputs` holds a slice for every
layer (caches, memories, windows). The other outputs of the layers are stacked (hidden states, new caches, attention
scores):

    x, outputs[i] = body(layer i, x, inputs[i])     for i = 0 .. length - 1

The weights of attention that a layer records (`plmjax.layers.attention.recording`) are one more lane.

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
from plmjax.layers.attention.recording import collect, record_layers, wanted
from plmjax.layers.int8 import RANGES

Lanes = Any
"""A pytree of arrays whose first axis is that of the layers; None without lanes."""
Body = Callable[[nn.Module, jax.Array, Lanes], tuple[jax.Array, Lanes]]


def stack(
    body: Body, layer: nn.Module, length: int, *, execution: Execution, x: jax.Array, inputs: Lanes = None
) -> tuple[jax.Array, Lanes]:
    """Apply `length` layers with separate parameters to x.

    Args:
        body: one layer's step, as above.
        layer: a bound module that is not yet used; its parameters get a leading axis "layers". Every layer draws its
            own values from every random collection.
        inputs: lanes of each layer, arrays [length ...].

    Returns:
        the last x, and the other outputs of the layers, arrays [length ...].
    """
    if any(map(is_sharded, jax.tree.leaves(layer.variables.get("params"), is_leaf=is_sharded))):
        run = _with_prefetch
    else:
        parameters = {
            "variable_axes": {"params": 0, RANGES: 0},
            "split_rngs": {True: True},
            "metadata_params": {nn.PARTITION_NAME: "layers"},
        }
        run = functools.partial(_loop, parameters)
    return _record_weights(run, body, layer, length=length, execution=execution, x=x, inputs=inputs)


def stack_states(
    apply: Callable[[nn.Module, jax.Array, Lanes], jax.Array],
    layer: nn.Module,
    length: int,
    *,
    execution: Execution,
    x: jax.Array,
    inputs: Lanes = None,
    output_hidden_states: bool,
) -> tuple[jax.Array, jax.Array | None]:
    """Apply `length` layers whose only output is x.

    `apply` computes one layer; the other arguments are those of `stack`.

    Returns:
        the last x and, if requested, every x, [length+1 ...], the given one first.
    """

    def body(layer: nn.Module, x: jax.Array, inputs: Lanes) -> tuple[jax.Array, jax.Array | None]:
        x = apply(layer, x, inputs)
        return x, x if output_hidden_states else None

    last, states = stack(body, layer, length, execution=execution, x=x, inputs=inputs)
    return last, jnp.concatenate([x[None], states]) if output_hidden_states else None


def repeat(
    body: Body, layer: nn.Module, length: int, *, execution: Execution, x: jax.Array, inputs: Lanes = None
) -> tuple[jax.Array, Lanes]:
    """Apply one layer `length` times to x. The arguments are those of `stack`.

    All iterations share the parameters of the layer, which have no axis "layers". Every iteration draws its own values
    from every random collection, and has its own ranges of activations.
    """
    parameters = {
        "variable_broadcast": "params",
        "variable_axes": {RANGES: 0},
        "split_rngs": {"params": False, nn.DenyList("params"): True},
    }
    run = functools.partial(_loop, parameters)
    return _record_weights(run, body, layer, length=length, execution=execution, x=x, inputs=inputs)


def _record_weights(
    run: Callable[..., tuple], body: Body, layer: nn.Module, **arguments: Any
) -> tuple[jax.Array, Lanes]:
    """Return run(body, layer, **arguments), and record the attention weights of its layers."""

    def recording(layer: nn.Module, x: jax.Array, inputs: Lanes) -> tuple[jax.Array, Lanes]:
        with collect(wanted()) as weights:
            x, outputs = body(layer, x, inputs)
        return x, (outputs, weights)

    x, (outputs, weights) = run(recording, layer, **arguments)
    record_layers(weights)
    return x, outputs


def _with_prefetch(
    body: Body, layer: nn.Module, length: int, *, execution: Execution, x: jax.Array, inputs: Lanes
) -> tuple[jax.Array, Lanes]:
    """Run the loop for sharded parameters (`plmjax.contracts.sharded_parameter`).

    Each iteration gathers the parameters of the next layer, and in the backward pass reduces the gradient of the next
    layer. These transfers do not depend on the computation of the iteration, so they can overlap with it.
    """
    params = layer.variables["params"]
    leaves, structure = jax.tree.flatten(params, is_leaf=is_sharded)
    pieces = [leaf for leaf in leaves if is_sharded(leaf)]
    replicated = [leaf for leaf in leaves if not is_sharded(leaf)]
    keys = {name: jax.random.split(layer.make_rng(name), length) for name in layer.scope.rngs}
    apply = nn.apply(body, layer.clone(parent=None))

    def step(gathered: list, replicated: list, x: jax.Array, *, lanes: Lanes, keys: dict) -> tuple[jax.Array, Lanes]:
        gathered, replicated = iter(gathered), iter(replicated)
        params = structure.unflatten([next(gathered if is_sharded(leaf) else replicated) for leaf in leaves])
        return apply({"params": params}, x, lanes, rngs=keys)

    step = _rematerialised(step, execution, prevent_cse=execution.unroll > 1, remat=jax.checkpoint)

    def iteration(carried: tuple, slices: tuple) -> tuple[tuple, Lanes]:
        x, gathered = carried
        following, replicated, lanes, keys = slices
        x, outputs = step(gathered, replicated, x, lanes=lanes, keys=keys)
        return (x, gather(following)), outputs

    first = gather(jax.tree.map(lambda pieces: pieces[0], pieces))
    following = jax.tree.map(lambda pieces: jnp.roll(pieces, -1, axis=0), pieces)
    (x, _), outputs = jax.lax.scan(
        iteration, (x, first), (following, replicated, inputs, keys), length, unroll=execution.unroll
    )
    return x, outputs


def _loop(
    parameters: dict[str, Any],
    body: Body,
    layer: nn.Module,
    *,
    length: int,
    execution: Execution,
    x: jax.Array,
    inputs: Lanes,
) -> tuple[jax.Array, Lanes]:
    """Run the loop; `parameters` tells `nn.scan` which parameters are stacked."""
    # In a loop the compiler cannot merge the recomputed forward pass with the first one. In unrolled code it could, so
    # this must be prevented.
    step = _rematerialised(body, execution, prevent_cse=execution.unroll > 1)
    return nn.scan(step, length=length, unroll=execution.unroll, **parameters)(layer, x, inputs)


def _rematerialised(body: Body, execution: Execution, prevent_cse: bool, remat: Callable = nn.remat) -> Body:
    if execution.remat == "none":
        return body
    return remat(body, policy=REMAT_POLICIES[execution.remat], prevent_cse=prevent_cse)
