"""Sharded parameters: a device stores a shard of a parameter, and gathers the parameter when a layer needs it."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import flax.linen as nn
import flax.struct
import jax


class ShardedParameter(flax.struct.PyTreeNode, nn.meta.AxisMetadata):
    """A device's shard of a parameter. A module that asks for the parameter gets the gathered array.

    value: the shard, of a parameter or of the stacked parameters of several layers.
    begin: function from the shard to blocks, the first part of the all-gather.
    finish: function from (blocks, shape of the shard) to the parameter, the second part. The backward passes of both
        functions are together a reduce-scatter: it gives the device's shard of the gradient, summed over the devices.
    """

    value: jax.Array
    begin: Callable[[jax.Array], jax.Array] = flax.struct.field(pytree_node=False)
    finish: Callable[[jax.Array, tuple[int, ...]], jax.Array] = flax.struct.field(pytree_node=False)

    def unbox(self) -> jax.Array:
        """Gather and return the parameter."""
        return self.finish(self.begin(self.value), self.value.shape)

    def replace_boxed(self, value: Any) -> Any:
        return self.replace(value=value)

    def add_axis(self, index: int, params: dict[Any, Any]) -> Self:
        """Return the box itself: its functions count dimensions from the last one."""
        return self

    def remove_axis(self, index: int, params: dict[Any, Any]) -> Self:
        """Return the box itself, as `add_axis` does."""
        return self


def is_sharded(leaf: Any) -> bool:
    """Return true for a `ShardedParameter`, to be used as `is_leaf`."""
    return isinstance(leaf, ShardedParameter)


def gather(pieces: Sequence[ShardedParameter]) -> list[jax.Array]:
    """Return the gathered parameters of a layer.

    The backward pass first sums the gradients of the larger parameters, of at least the mean size, into blocks. Then it
    reduces these blocks to shards, together with the gradients of the smaller parameters. The blocks are few bytes, but
    libtpu 0.0.52 places the longest matrix products beside their communication. With this order these products also
    hide the communication of the smaller parameters.
    """
    mean = sum(piece.value.size for piece in pieces) / len(pieces)
    large = [piece.value.size >= mean for piece in pieces]
    halves = [piece.begin(piece.value) for piece in pieces]
    found = [
        half if first else piece.finish(half, piece.value.shape)
        for piece, half, first in zip(pieces, halves, large, strict=True)
    ]
    found = _wait_for_all(found)
    return [
        piece.finish(half, piece.value.shape) if first else half
        for piece, half, first in zip(pieces, found, large, strict=True)
    ]


@jax.custom_vjp
def _wait_for_all(arrays: Any) -> Any:
    """Return the arrays. In the backward pass, an optimization barrier joins their cotangents."""
    return arrays


def _forward(arrays: Any) -> tuple[Any, None]:
    return arrays, None


def _backward(_: None, gradients: Any) -> tuple[Any]:
    return (jax.lax.optimization_barrier(gradients),)


_wait_for_all.defvjp(_forward, _backward)
