"""Pieces of parameters: a device holds a part of a parameter and gathers the whole when a layer needs it."""

from collections.abc import Callable
from typing import Any, Self

import flax.linen as nn
import flax.struct
import jax


class Piece(flax.struct.PyTreeNode, nn.meta.AxisMetadata):
    """A device's piece of a parameter. A module that asks for the parameter gets all of it.

    value: the piece, of a parameter or of the stacked parameters of several layers.
    gather: piece -> the parameter. It has a derivative: the device's piece of the gradient's sum over the devices.
    """

    value: jax.Array
    gather: Callable[[jax.Array], jax.Array] = flax.struct.field(pytree_node=False)

    def unbox(self) -> jax.Array:
        """Return the whole parameter."""
        return self.gather(self.value)

    def replace_boxed(self, value: Any) -> Any:
        """Return the box with another value."""
        return self.replace(value=value)

    def add_axis(self, index: int, params: dict[Any, Any]) -> Self:
        """Return the box itself: `gather` counts dimensions from the last one."""
        return self

    def remove_axis(self, index: int, params: dict[Any, Any]) -> Self:
        """Return the box itself, as `add_axis` does."""
        return self


def is_piece(leaf: Any) -> bool:
    """Return true for a `Piece`, to be used as `is_leaf`."""
    return isinstance(leaf, Piece)
