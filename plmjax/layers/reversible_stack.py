"""Reversible layers: the backward pass computes activations again from the outputs of the layers.

Sources: RevNet, Gomez et al. 2017, arXiv 1707.04585; Reformer, Kitaev et al. 2020, arXiv 2001.04451, section 3.

A block has functions f_0, f_1, .... Each function reads one of two streams and adds its result to the other:

    x1 = x1 + f_0(x2);   x2 = x2 + f_1(x1);   x1 = x1 + f_2(x2);   ...

Each sum can be undone, x2 = x2 - f_1(x1), because x1 still is the input of f_1. The backward pass begins with the
streams after the last block. It computes one function at a time again, undoes its sum and differentiates it. The
forward pass keeps no other hidden state: memory grows with the number of blocks only by their parameters and by the
integers that the functions choose to keep.

The streams are float32 in any execution: in bfloat16 the sums could not be undone precisely enough.
"""

import functools
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import REMAT_POLICIES, Execution
from plmjax.layers.stack import stack

Streams = tuple[jax.Array, jax.Array]
"""The two streams, float32 [B T D] each."""
Kept = Any
"""Integers that a function computes in the forward pass and takes again in the backward pass; None without any."""
COLLECTIONS = ("dropout", "sampling")
"""Random collections of a block. Every block draws its own values, and draws them again in the backward pass."""


class ReversibleBlock(Protocol):
    """A linen module with the functions of one block. It is hashable, and each function has its own parameters."""

    functions: int
    """Number of functions; even, so that each block begins with the same stream."""

    def function(self, number: int, x: jax.Array, context: Any, *, inputs: Any, kept: Kept) -> tuple[jax.Array, Kept]:
        """Compute f_number.

        Args:
            number: from 0 to functions - 1.
            x: one stream, float32 [B T D].
            context: arrays that are the same for all blocks.
            inputs: arrays of this block.
            kept: None in the forward pass; in the backward pass the second result of the forward pass. The function
                must not compute it again: a differently rounded input could change its hash buckets.

        Returns:
            [B T D], and integers to keep.
        """


def through_block(block: ReversibleBlock, streams: Streams, context: Any, inputs: Any) -> tuple[Streams, list[Kept]]:
    """Apply a bound block. Return the streams after it, and the integers that its functions keep."""
    return _forward_through(block.function, block.functions, streams, context=context, inputs=inputs)


def reversible_stack(
    block: ReversibleBlock,
    length: int,
    execution: Execution,
    *,
    streams: Streams,
    context: Any = (),
    inputs: Any = None,
) -> Streams:
    """Apply `length` blocks with separate parameters, and return the streams after them.

    Gradients pass into the parameters and the streams. Only first-order reverse-mode differentiation is defined.

    Args:
        block: a bound module that is not yet used; its parameters get a leading axis "layers", as in `stack`.
        context: arrays that are the same for all blocks; they are not differentiated.
        inputs: arrays of each block, [length ...]; they are not differentiated.
    """
    if block.is_initializing():

        def body(block: Any, streams: Streams, inputs: Any) -> tuple[Streams, None]:
            return through_block(block, streams, context, inputs)[0], None

        return stack(body, block, length, execution=execution, x=streams, inputs=inputs)[0]
    keys = {name: jax.random.split(block.make_rng(name), length) for name in COLLECTIONS if block.has_rng(name)}
    alone, params = block.clone(parent=None, name=None), nn.meta.unbox(block.variables["params"])
    return _run(alone, execution, params, streams, keys, context, inputs)


def _forward(
    block: Any, execution: Execution, params: Any, *, streams: Streams, keys: Any, context: Any, inputs: Any
) -> tuple[Streams, Any]:
    """Return the last streams, and the integers that all blocks keep, [length ...]."""

    def step(streams: Streams, block_inputs: tuple) -> tuple[Streams, list[Kept]]:
        params, keys, inputs = block_inputs
        function = functools.partial(_apply, block, params=params, keys=keys)
        return _forward_through(function, block.functions, streams, context=context, inputs=inputs)

    return jax.lax.scan(step, streams, (params, keys, inputs), unroll=execution.unroll)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _run(
    block: Any, execution: Execution, params: Any, streams: Streams, keys: Any, context: Any, inputs: Any
) -> Streams:
    return _forward(block, execution, params, streams=streams, keys=keys, context=context, inputs=inputs)[0]


def _run_forward(block: Any, execution: Execution, *arguments: Any) -> tuple[Streams, tuple]:
    params, streams, keys, context, inputs = arguments
    last, kept = _forward(block, execution, params, streams=streams, keys=keys, context=context, inputs=inputs)
    return last, (params, last, keys, context, inputs, kept)


def _run_backward(block: Any, execution: Execution, residuals: tuple, cotangents: Streams) -> tuple:
    params, last, keys, context, inputs, kept = residuals

    def step(carry: tuple[list, list], block_inputs: tuple) -> tuple[tuple[list, list], Any]:
        """Undo and differentiate one block, from its last function to its first."""
        (streams, cotangents), (params, keys, inputs, kept) = carry, block_inputs
        streams, cotangents, gradient = list(streams), list(cotangents), None
        for number in reversed(range(block.functions)):
            changed, read = number % 2, 1 - number % 2

            def function(params: Any, x: jax.Array, number: int = number) -> jax.Array:
                own = {"params": params, "keys": keys, "inputs": inputs, "kept": kept[number]}
                return _apply(block, number, x, context, **own)[0]

            if execution.remat != "none":
                function = jax.checkpoint(function, policy=REMAT_POLICIES[execution.remat])
            y, pull = jax.vjp(function, params, streams[read])
            streams[changed] = streams[changed] - y
            params_gradient, x_gradient = pull(cotangents[changed].astype(y.dtype))
            cotangents[read] = cotangents[read] + x_gradient
            gradient = params_gradient if gradient is None else jax.tree.map(jnp.add, gradient, params_gradient)
        return (streams, cotangents), gradient

    carry, all_inputs = list(last), (params, keys, inputs, kept)
    (_, cotangents), gradient = jax.lax.scan(
        step, (carry, list(cotangents)), all_inputs, reverse=True, unroll=execution.unroll
    )
    return gradient, tuple(cotangents), None, None, None


_run.defvjp(_run_forward, _run_backward)


def _apply(
    block: Any, number: int, x: jax.Array, context: Any, *, params: Any, keys: Any, inputs: Any, kept: Kept
) -> tuple[jax.Array, Kept]:
    """Apply a function of an unbound block. Equal keys draw equal values in both passes."""
    given = {"inputs": inputs, "kept": kept}
    return block.apply({"params": params}, number, x, context, **given, rngs=keys, method="function")


def _forward_through(
    function: Any, functions: int, streams: Streams, *, context: Any, inputs: Any
) -> tuple[Streams, list[Kept]]:
    changing, kept = list(streams), []
    for number in range(functions):
        y, own = function(number, changing[1 - number % 2], context, inputs=inputs, kept=None)
        changing[number % 2] = changing[number % 2] + y
        kept.append(own)
    return tuple(changing), kept
