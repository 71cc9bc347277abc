"""Logical axes to mesh axes: where every array of a run lies."""

import math
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
"""First match wins and a mesh axis is used once an array: a batch's activations leave nothing for their "embed"."""


def specification(axes: tuple[str | None, ...], shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """The partition of an array with these logical axes; what a mesh axis does not cut evenly stays whole."""
    entries = list(nn.logical_to_mesh_axes(axes, rules=RULES))
    entries += [None] * (len(shape) - len(entries))
    for dimension, entry in enumerate(entries):
        names = (entry,) if isinstance(entry, str) else entry or ()
        pieces = 1
        for name in names:
            pieces *= mesh.shape[name]
        if pieces == 1 or shape[dimension] % pieces:
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


def bytes_on_device(tree: Any) -> int:
    """Bytes that one device holds of a tree of arrays (or of their shapes) with shardings."""
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def batch(tree: Any, mesh: Mesh) -> Any:
    """Shardings of a batch: rows over data and fsdp."""
    return jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec(("data", "fsdp"))), tree)


def optimizer_state(state: Any, params: Any, shardings: Any, mesh: Mesh, zero: bool) -> Any:
    """Shardings of an optimizer's state: its leaf for a parameter lies as the parameter does.

    With `zero` (ZeRO stage 1, arXiv 1910.02054) it is cut over `data` as well, along its longest dimension that is
    still whole and divides, so that every replica keeps and updates its own share of the moments. The last dimension
    is taken when no other will do: a TPU pads it to a multiple of 128.
    """
    by_path = {
        _names(path): (leaf.shape, sharding.spec)
        for (path, leaf), sharding in zip(
            jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(shardings), strict=True
        )
    }

    def place(path: Any, leaf: Any) -> NamedSharding:
        names = _names(path)
        for start in range(len(names)):
            shape, spec = by_path.get(names[start:], (None, None))
            if shape == leaf.shape:
                return NamedSharding(mesh, _over_data(spec, shape, mesh) if zero else spec)
        return NamedSharding(mesh, PartitionSpec())

    return jax.tree_util.tree_map_with_path(place, state)


def _names(path: Any) -> tuple[str, ...]:
    return tuple(str(getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", "")))) for entry in path)


def _over_data(spec: PartitionSpec, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    entries = list(spec) + [None] * (len(shape) - len(spec))
    pieces = mesh.shape["data"]
    free = [i for i, size in enumerate(shape) if entries[i] is None and size % pieces == 0]
    if pieces > 1 and free:
        entries[max(free, key=lambda i: (i < len(shape) - 1, shape[i]))] = "data"
    return PartitionSpec(*entries)
