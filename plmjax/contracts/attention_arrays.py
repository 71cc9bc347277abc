"""Arrays that attention slices as it slices its scores: into blocks of queries and keys, and into groups of heads.

A mask term or a bias term is a dataclass of arrays. Its fields name the axes that attention may slice:

    @flax.struct.dataclass
    class SameSegment(MaskTerm):
        query_segments: jax.Array = axes("batch", "queries")
        key_segments: jax.Array = axes("batch", "keys")
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import flax.struct
import jax
import jax.numpy as jnp


def axes(*names: str | None) -> Any:
    """Return a field for an array whose last axes have these names; attention slices "queries", "keys" and "heads".

    An axis of length 1 is broadcast and never sliced. An array may lack the first ones of these axes.
    """
    return flax.struct.field(metadata={"axes": names})


class AttentionArrays:
    """Base of dataclasses whose fields are made with `axes`.

    Other fields have the same value for every block and every head.
    """

    def change_axis(self, name: str, change: Callable[[jax.Array, int], jax.Array]) -> Self:
        """Return a copy with change(array, axis) in place of each array that has the axis `name` with length above 1.

        `axis` is negative: it is counted from the end.
        """
        changed = {}
        for field in dataclasses.fields(self):
            x, axis = getattr(self, field.name), _axis(field, name)
            if axis is not None and _is_cut(x, axis):
                changed[field.name] = change(x, axis)
        return dataclasses.replace(self, **changed)

    def slice_padded(self, first_query: int, queries: int, first_key: int, keys: int) -> Self:
        """Return a copy for a range of queries and a range of keys. Outside the arrays the values are 0.

        Attention calls it once, before it slices blocks.
        """
        changed = self.change_axis("queries", lambda x, axis: slice_padded(x, axis, first_query, queries))
        return changed.change_axis("keys", lambda x, axis: slice_padded(x, axis, first_key, keys))

    def block(self, first_query: int | jax.Array, queries: int, first_key: int | jax.Array, keys: int) -> Self:
        """Return a copy for a block of consecutive queries and a block of consecutive keys."""
        return self.change_axis("queries", _cut(first_query, queries)).change_axis("keys", _cut(first_key, keys))

    def head_axes(self) -> tuple[int | None, ...]:
        """Return the axis of the heads in each array of `jax.tree.leaves(self)`; None for an array without heads.

        Axes are negative: they are counted from the end.
        """
        found = []
        for field in dataclasses.fields(self):
            if field.metadata.get("pytree_node", True):
                axis = _axis(field, "heads")
                leaves = jax.tree.leaves(getattr(self, field.name))
                found += [axis if axis is not None and _is_cut(leaf, axis) else None for leaf in leaves]
        return tuple(found)


def slice_padded(x: jax.Array, axis: int, first: int, count: int) -> jax.Array:
    """Return `count` elements of an axis of x from index `first` on; elements outside x are 0."""
    x, sides = jnp.asarray(x), [(0, 0, 0)] * jnp.ndim(x)
    sides[axis] = (-first, first + count - x.shape[axis], 0)
    return jax.lax.pad(x, jnp.zeros((), x.dtype), sides)


def _axis(field: dataclasses.Field, name: str) -> int | None:
    names = field.metadata.get("axes", ())
    return names.index(name) - len(names) if name in names else None


def _is_cut(x: jax.Array | None, axis: int) -> bool:
    return x is not None and x.ndim >= -axis and x.shape[axis] > 1


def _cut(first: int | jax.Array, count: int) -> Callable[[jax.Array, int], jax.Array]:
    return lambda x, axis: jax.lax.dynamic_slice_in_dim(x, first, count, axis)
