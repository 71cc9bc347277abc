"""The sharding of arrays on a mesh, for use while a program is traced.

The mesh and the rules from logical names to mesh axes are those of the program (`plmjax.parallel.sharding.with_mesh`).
"""

import math

import flax.linen as nn
import jax
from jax.sharding import PartitionSpec


def shard_hidden(x: jax.Array) -> jax.Array:
    """Shard hidden states [B T D] as they are sharded between sublayers."""
    return nn.with_logical_constraint(x, ("batch", "length", "embed"))


def partition_spec(shape: tuple[int, ...], axes: tuple[str | None, ...]) -> PartitionSpec:
    """Return the mesh axes that shard each dimension, without axes that do not divide it evenly.

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


def with_all_rows(x: jax.Array) -> jax.Array:
    """Return x [B ...] with all rows on every device. Other dimensions may be sharded."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(None, *[PartitionSpec.UNCONSTRAINED] * (x.ndim - 1)))


def shard_counts(shape: tuple[int, ...], axes: tuple[str | None, ...]) -> tuple[int, ...]:
    """Return the number of shards of each dimension in `axes`."""
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(
        math.prod(mesh.shape[name] for name in jax.tree.leaves(place)) for place in partition_spec(shape, axes)
    )
