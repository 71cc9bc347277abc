"""Sharded parameters: a device holds a part of a parameter and gathers all of it when a layer needs it."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import flax.linen as nn
import flax.struct
import jax


class ShardedParameter(flax.struct.PyTreeNode, nn.meta.AxisMetadata):
    """A device's shard of a parameter. A module that asks for the parameter gets the gathered array.

    value: the shard, of a parameter or of the stacked parameters of several layers.
    begin: shard -> blocks, the first part of the all-gather.
    finish: (blocks, shape of the shard) -> the parameter. The derivatives of both functions are a reduce-scatter: the
        device's shard of the gradient's sum over the devices.
    """

    value: jax.Array
    begin: Callable[[jax.Array], jax.Array] = flax.struct.field(pytree_node=False)
    finish: Callable[[jax.Array, tuple[int, ...]], jax.Array] = flax.struct.field(pytree_node=False)

    def unbox(self) -> jax.Array:
        """Gather and return the parameter."""
        return self.finish(self.begin(self.value), self.value.shape)

    def replace_boxed(self, value: Any) -> Any:
        """Return the box with another value."""
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

    In the backward pass the gradients of larger parameters, those of at least the mean size, are sent first. Those of
    the smaller ones follow when the blocks of the larger ones are summed. The shards of the larger ones remain for the
    end. They are few bytes, and a product that the compiler places beside them hides little else: libtpu 0.0.52 places
    the longest products there. With this order the bytes of the smaller ones are sent beside them too.
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
