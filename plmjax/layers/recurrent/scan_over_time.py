"""The shared parts of recurrent layers: their fields, and scans over arrays [T ... B], time first and rows last.

The rows are last because on a CPU the product of a kernel and a matrix with few columns is several times as fast as the
product of a matrix with few rows and a kernel.
"""

import functools
from collections.abc import Callable
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.parameters import as_bias
from plmjax.layers.projection import Projection

TO_GATES = functools.partial(jnp.einsum, "GHP,PB->GHB")
"""Product of a recurrent kernel, [G H P], and the states of all rows at one token, [P B]."""
BACK_TO_STATE = functools.partial(jnp.einsum, "PGH,GHB->PB")
"""Transposed product of `TO_GATES`, for the backward pass. The kernel is [P G H], as in the parameters."""
OF_GATES = ("embed", None, "mlp")
"""Logical axes of the kernels [D G H] that compute the gates."""


class RecurrentLayer(nn.Module):
    """Base of the layers that read in one direction.

    features: H, the size of the state.
    kernel_init, bias_init: initializers of all kernels and of all biases.
    reverse: reads from the last token to the first; outputs stay at their tokens.
    dtype: dtype of the products and the output; parameters are float32.

    The parameters `input/kernel` [D G H] and `input/bias` [G H] compute x W + b, the part of the gates that depends on
    the inputs.
    """

    features: int
    kernel_init: Initializer
    bias_init: Initializer = nn.initializers.zeros
    reverse: bool = False
    dtype: jnp.dtype = jnp.float32

    def input_gates(self, x: jax.Array, gates: int) -> jax.Array:
        """Compute x W + b, [B T D] -> [B T G H]."""
        inits = {"kernel_init": self.kernel_init, "bias_init": self.bias_init}
        return Projection((gates, self.features), OF_GATES, **inits, dtype=self.dtype, name="input")(x)

    def kernel(self, name: str, axes: tuple[str | None, ...], *shape: int) -> jax.Array:
        """Return a kernel of the recurrence."""
        return self.param(name, nn.with_logical_partitioning(self.kernel_init, axes), shape)

    def bias(self, name: str, axes: tuple[str | None, ...], *shape: int) -> jax.Array:
        """Return a bias of the recurrence."""
        return self.param(name, as_bias(self.bias_init, axes), shape)


def both_directions(
    layer: Callable[..., RecurrentLayer], x: jax.Array, starts: jax.Array | None, visible: jax.Array | None
) -> tuple[jax.Array, tuple[Any, Any]]:
    """Run the layers `forward` and `backward` over [B T D].

    Return the outputs [B T 2 P], forward first, and the last state of each direction.
    """
    layers = (layer(reverse=reverse, name=name) for name, reverse in (("forward", False), ("backward", True)))
    outputs, states = zip(*(one(x, starts=starts, visible=visible) for one in layers), strict=True)
    return jnp.concatenate(outputs, axis=-1), states


def time_first(
    gates: jax.Array, starts: jax.Array | None, visible: jax.Array | None
) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
    """Return the inputs of a scan, rows last: [B T G H] -> [T G H B], and both masks, bool [B T] -> [T B].

    Every device has all features of its rows. If the features were sharded too, each token would cost a transfer, and
    XLA (of jax 0.10) would shard the backward loop so that the gradients are wrong on a mesh with three axes.
    """
    starts = visible_starts(starts, visible, gates.shape[:2])
    gates = nn.with_logical_constraint(gates, ("batch", "length", None, None))
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1), (gates, starts, visible))


def batch_first(outputs: jax.Array) -> jax.Array:
    """Return the outputs of a scan in the layout of a layer: [T P B] -> [B T P]."""
    return nn.with_logical_constraint(jnp.moveaxis(outputs, -1, 0), ("batch", "length", None))


def replicate(kernel: jax.Array) -> jax.Array:
    """Replicate a kernel on every device."""
    return nn.with_logical_constraint(kernel, (None,) * kernel.ndim)


def shard_rows(x: jax.Array) -> jax.Array:
    """Shard [B H] by rows, with all features on every device."""
    return nn.with_logical_constraint(x, ("batch", None))


def visible_starts(starts: jax.Array | None, visible: jax.Array | None, shape: tuple[int, int]) -> jax.Array | None:
    """Return `starts` with false at padding; None without `starts`.

    Both masks are bool [B T]; shapes and dtypes are checked.
    """
    for mask in (starts, visible):
        if mask is not None:
            chex.assert_shape(mask, shape)
            chex.assert_type(mask, bool)
    return starts if starts is None or visible is None else starts & visible


def states_before(states: Any, first: Any, starts: jax.Array | None, reverse: bool) -> Any:
    """Return the states before each token, [T ... B], 0 at `starts`.

    states: the states after each token. first: the state before the first token that is read.
    """

    def shifted(after: jax.Array, first: jax.Array) -> jax.Array:
        if reverse:
            return jnp.concatenate([after[1:], first[None]])
        return jnp.concatenate([first[None], after[:-1]])

    before = jax.tree.map(shifted, states, first)
    return where(None if starts is None else starts[:, None], jax.tree.map(jnp.zeros_like, before), before)


def where(condition: jax.Array | None, chosen: Any, other: Any) -> Any:
    """Select `chosen` in the rows where the condition, [B] or [T 1 B], is true; without a condition return `other`."""
    if condition is None:
        return other
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), chosen, other)


def restarts(starts: jax.Array | None, reverse: bool) -> jax.Array | None:
    """Return the tokens at which a layer resets its state, bool [B T].

    A layer that reads in reverse resets it at the last token of each document. At the end of the row it keeps the
    given state.
    """
    if starts is None or not reverse:
        return starts
    return jnp.pad(starts[:, 1:], ((0, 0), (0, 1)))
