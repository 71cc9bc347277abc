"""Where a mesh places the dimensions of an array, asked while a program is traced for it.

The mesh and the rules from logical names to its axes are those of the program (`plmjax.parallel.sharding.scoped`).
"""

import math

import flax.linen as nn
import jax
from jax.sharding import PartitionSpec


def places(shape: tuple[int, ...], axes: tuple[str | None, ...]) -> PartitionSpec:
    """The mesh axes that divide each dimension; those that do not divide it evenly are left out.

    axes: logical names of the leading dimensions.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return PartitionSpec(*[None] * len(axes))
    found = nn.logical_to_mesh_axes(axes)
    counts = [math.prod(mesh.shape[name] for name in jax.tree.leaves(place)) for place in found]
    return PartitionSpec(
        *(place if shape[i] % count == 0 else None for i, (place, count) in enumerate(zip(found, counts, strict=True)))
    )


def pieces(shape: tuple[int, ...], axes: tuple[str | None, ...]) -> tuple[int, ...]:
    """Into how many pieces each of the dimensions that `axes` names is divided."""
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(math.prod(mesh.shape[name] for name in jax.tree.leaves(place)) for place in places(shape, axes))
