"""Shardings of every array of a run, from a mapping of logical axes to mesh axes."""

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

RULES = (
    ("batch", ("data", "fsdp")),
    ("vocab", "tensor"),
    ("mlp", "tensor"),
    ("heads", "tensor"),
    ("embed", "fsdp"),
    ("length", None),
    ("head", None),
    ("rank", None),
    ("layers", None),
)
"""Logical axis -> mesh axes. The first match is used, and an array uses a mesh axis only once. So "embed" of
activations is not sharded, because their "batch" uses fsdp already."""

RULES_WITHIN_DATA = (("batch", "fsdp"), *RULES[1:])
"""Rules within one shard of the data axis, where a batch has only the rows of the shard."""


def partition_spec(axes: tuple[str | None, ...], shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Return the partition spec of an array with these logical axes.

    Dimensions that do not divide evenly are not sharded.
    """
    entries = list(nn.logical_to_mesh_axes(axes, rules=RULES))
    entries += [None] * (len(shape) - len(entries))
    for dimension, entry in enumerate(entries):
        names = (entry,) if isinstance(entry, str) else entry or ()
        shards = 1
        for name in names:
            shards *= mesh.shape[name]
        if shards == 1 or shape[dimension] % shards:
            entries[dimension] = None
    return PartitionSpec(*entries)


def shardings_of(tree: Any, mesh: Mesh) -> Any:
    """Return the shardings of a tree of arrays, some of them boxed with logical axes.

    The result has the structure of the unboxed tree.
    """

    def leaf_sharding(leaf: Any) -> NamedSharding:
        axes = leaf.names if isinstance(leaf, nn.LogicallyPartitioned) else ()
        value = leaf.value if isinstance(leaf, nn.LogicallyPartitioned) else leaf
        return NamedSharding(mesh, partition_spec(axes, value.shape, mesh))

    return jax.tree.map(leaf_sharding, tree, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))


def logical_axes(tree: Any) -> Any:
    """Return the tree with a tuple of logical axis names in place of every array.

    The tuple is empty if an array has no box.
    """

    def names(leaf: Any) -> tuple[str | None, ...]:
        return tuple(leaf.names) if isinstance(leaf, nn.LogicallyPartitioned) else ()

    return jax.tree.map(names, tree, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))


def is_axes(leaf: Any) -> bool:
    """Return whether a leaf is a tuple of axis names, for `is_leaf`: the tree may have other tuples."""
    return isinstance(leaf, tuple) and all(name is None or isinstance(name, str) for name in leaf)


def with_mesh(function: Callable, mesh: Mesh) -> Callable:
    """Return the function with the mesh and the logical axis rules in scope, for the model's sharding constraints.

    The result has the name of the function, which logs and profiles of compiled programs show.
    """

    @functools.wraps(function)
    def within(*arguments: Any) -> Any:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh), nn.logical_axis_rules(RULES):
            return function(*arguments)

    return within


def within_device() -> contextlib.AbstractContextManager:
    """Return a context for a model inside a `shard_map` over the whole mesh, where its arrays are on one device."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device))


def bytes_on_device(tree: Any) -> int:
    """Return the bytes on one device of a tree of arrays or ShapeDtypeStructs with shardings."""
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def batch(tree: Any, mesh: Mesh) -> Any:
    """Return the shardings of a batch: rows are sharded over data and fsdp."""
    return jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec(("data", "fsdp"))), tree)


def shard_over_data(params: Any, shardings: Any, mesh: Mesh) -> Any:
    """Return the shardings of the parameter shards that devices store and update (ZeRO, arXiv 1910.02054).

    params: boxed parameters. shardings: shardings of the gathered copy.

    Each parameter is also sharded over `data`, along the longest dimension that divides evenly and is not sharded yet.
    So every replica receives the gradient sum of its shard and updates that shard. The last dimension is used only if
    no other fits, because a TPU pads it to a multiple of 128. An embedding table is sharded along its features rather
    than its rows. The gradient of a row then goes to the devices with its features, without a sum of complete tables.
    """

    def leaf_sharding(leaf: Any, sharding: NamedSharding) -> NamedSharding:
        value = leaf.value if isinstance(leaf, nn.LogicallyPartitioned) else leaf
        axes = leaf.names if isinstance(leaf, nn.LogicallyPartitioned) else ()
        return NamedSharding(mesh, _shard_over_data(sharding.spec, value.shape, axes, mesh))

    return jax.tree.map(
        leaf_sharding, params, shardings, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)
    )


def optimizer_state(state: Any, params: Any, shardings: Any, mesh: Mesh) -> Any:
    """Return the shardings of an optimizer's state.

    params, shardings: the parameters and the shardings of their gradients. A leaf whose path ends with the path of a
    parameter of the same shape has its sharding. All other leaves are replicated.
    """
    by_path = {
        _names(path): (leaf.shape, sharding)
        for (path, leaf), sharding in zip(
            jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(shardings), strict=True
        )
    }

    def leaf_sharding(path: Any, leaf: Any) -> NamedSharding:
        names = _names(path)
        for start in range(len(names)):
            shape, sharding = by_path.get(names[start:], (None, None))
            if shape == leaf.shape:
                return sharding
        return NamedSharding(mesh, PartitionSpec())

    return jax.tree_util.tree_map_with_path(leaf_sharding, state)


def _names(path: Any) -> tuple[str, ...]:
    return tuple(str(getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", "")))) for entry in path)


def _shard_over_data(
    spec: PartitionSpec, shape: tuple[int, ...], axes: tuple[str | None, ...], mesh: Mesh
) -> PartitionSpec:
    entries = list(spec) + [None] * (len(shape) - len(spec))
    shards = mesh.shape["data"]
    free = [i for i, size in enumerate(shape) if entries[i] is None and size % shards == 0]

    def preference(i: int) -> tuple[bool, bool, int]:
        return axes[i : i + 1] != ("vocab",), i < len(shape) - 1, shape[i]

    if shards > 1 and free:
        entries[max(free, key=preference)] = "data"
    return PartitionSpec(*entries)
