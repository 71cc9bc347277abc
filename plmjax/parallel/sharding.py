"""Logical axes to mesh axes: the sharding of every array of a run."""

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
    ("layers", None),
)
"""The first match wins, and an array uses a mesh axis once: "embed" of activations is not sharded, because their
"batch" uses fsdp already."""

RULES_WITHIN_DATA = (("batch", "fsdp"), *RULES[1:])
"""The rules for one shard of the data axis, where a batch is that shard's rows."""


def specification(axes: tuple[str | None, ...], shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """The partition of an array with these logical axes; one that does not divide evenly is not sharded."""
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


def boxed(tree: Any, mesh: Mesh) -> Any:
    """Shardings of a tree of arrays, some boxed with logical axes; the result has the structure of the unboxed tree."""

    def place(leaf: Any) -> NamedSharding:
        axes = leaf.names if isinstance(leaf, nn.LogicallyPartitioned) else ()
        value = leaf.value if isinstance(leaf, nn.LogicallyPartitioned) else leaf
        return NamedSharding(mesh, specification(axes, value.shape, mesh))

    return jax.tree.map(place, tree, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))


def logical_axes(tree: Any) -> Any:
    """The tree with a tuple of logical axis names in place of every array (empty where it has no box)."""

    def names(leaf: Any) -> tuple[str | None, ...]:
        return tuple(leaf.names) if isinstance(leaf, nn.LogicallyPartitioned) else ()

    return jax.tree.map(names, tree, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))


def scoped(function: Callable, mesh: Mesh) -> Callable:
    """The function within the mesh and the logical axis rules, for the model's activation constraints.

    Compiled programs have the function's own name in logs and profiles.
    """

    @functools.wraps(function)
    def within(*arguments: Any) -> Any:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh), nn.logical_axis_rules(RULES):
            return function(*arguments)

    return within


def bytes_on_device(tree: Any) -> int:
    """Bytes on one device of a tree of arrays (or of their shapes) with shardings."""
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def batch(tree: Any, mesh: Mesh) -> Any:
    """Shardings of a batch: rows over data and fsdp."""
    return jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec(("data", "fsdp"))), tree)


def over_data(params: Any, shardings: Any, mesh: Mesh) -> Any:
    """Shardings of the shares that devices own and update, from boxed parameters and the shardings of their copy.

    Each is sharded over `data` as well (ZeRO, arXiv 1910.02054), along the longest dimension that divides and
    is not sharded yet, so that every replica gets the sum of its own share and updates that. The last dimension is the
    last choice: a TPU pads it to a multiple of 128. A vocabulary is divided along its features before its rows: the
    gradient of a row then goes to the devices with its features, and no sum over a whole table is needed.
    """

    def place(leaf: Any, sharding: NamedSharding) -> NamedSharding:
        value = leaf.value if isinstance(leaf, nn.LogicallyPartitioned) else leaf
        axes = leaf.names if isinstance(leaf, nn.LogicallyPartitioned) else ()
        return NamedSharding(mesh, _over_data(sharding.spec, value.shape, axes, mesh))

    return jax.tree.map(place, params, shardings, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))


def optimizer_state(state: Any, params: Any, shardings: Any, mesh: Mesh) -> Any:
    """Shardings of an optimizer's state: its leaf for a parameter has the sharding of that parameter's gradient."""
    by_path = {
        _names(path): (leaf.shape, sharding)
        for (path, leaf), sharding in zip(
            jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(shardings), strict=True
        )
    }

    def place(path: Any, leaf: Any) -> NamedSharding:
        names = _names(path)
        for start in range(len(names)):
            shape, sharding = by_path.get(names[start:], (None, None))
            if shape == leaf.shape:
                return sharding
        return NamedSharding(mesh, PartitionSpec())

    return jax.tree_util.tree_map_with_path(place, state)


def _names(path: Any) -> tuple[str, ...]:
    return tuple(str(getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", "")))) for entry in path)


def _over_data(spec: PartitionSpec, shape: tuple[int, ...], axes: tuple[str | None, ...], mesh: Mesh) -> PartitionSpec:
    entries = list(spec) + [None] * (len(shape) - len(spec))
    shards = mesh.shape["data"]
    free = [i for i, size in enumerate(shape) if entries[i] is None and size % shards == 0]

    def preference(i: int) -> tuple[bool, bool, int]:
        return axes[i : i + 1] != ("vocab",), i < len(shape) - 1, shape[i]

    if shards > 1 and free:
        entries[max(free, key=preference)] = "data"
    return PartitionSpec(*entries)
