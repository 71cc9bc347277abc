"""The gradient of a batch, computed in several microbatches."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.objectives.objective import Batch, LossSums
from plmjax.parallel import sharding


def accumulate(
    microstep: Callable[[Any, Batch, jax.Array], tuple[Any, LossSums]],
    carry: Any,
    carry_axes: Any,
    batch: Batch,
    key: jax.Array,
    accumulation: int,
    shards: int = 1,
    add_shards: Callable[[Any], Any] | None = None,
) -> tuple[Any, LossSums]:
    """Return (gradient, sums) of a batch, computed in `accumulation` microbatches.

     Microbatch i has the rows i, i + accumulation, ...: devices have contiguous rows, so no row has to move. Leaves of
    the carry with a "batch" axis are divided in the same way; other leaves are passed from microbatch to microbatch.

    Each of the `shards` along the mesh's data axis adds up the gradient of its own rows, and has its own key for
    dropout. `add_shards` sums gradients [shards ...] once, after the last microbatch. If a leaf of the carry has no
    batch axis, it belongs to all shards, and the gradient is summed for every microbatch.
    """
    if accumulation == 1:
        return microstep(carry, batch, key)
    structure = jax.tree.structure(carry)
    axes = [names.index("batch") if "batch" in names else None for names in structure.flatten_up_to(carry_axes)]
    shards = 1 if None in axes else shards

    def split(x: jax.Array, axis: int = 0) -> jax.Array:  # [.. B ..] -> [accumulation, shards, .. B / both ..]
        shape = (*x.shape[:axis], shards, x.shape[axis] // (shards * accumulation), accumulation, *x.shape[axis + 1 :])
        return jnp.moveaxis(x.reshape(shape), (axis + 2, axis), (0, 1))

    def join(x: jax.Array, axis: int) -> jax.Array:
        x = jnp.moveaxis(x, (0, 1), (axis + 2, axis))
        return x.reshape((*x.shape[:axis], -1, *x.shape[axis + 3 :]))

    def merge(rows: list[jax.Array], others: list[jax.Array]) -> Any:
        rows, others = iter(rows), iter(others)
        return structure.unflatten([next(others) if axis is None else next(rows) for axis in axes])

    def parts(tree: Any) -> tuple[list[jax.Array], list[jax.Array]]:
        pairs = list(zip(structure.flatten_up_to(tree), axes, strict=True))
        return [leaf for leaf, axis in pairs if axis is not None], [leaf for leaf, axis in pairs if axis is None]

    def every_shard(rows: list[jax.Array], others: list[jax.Array], microbatch: Batch, key: jax.Array) -> tuple:
        """Return (gradient, losses, metrics) of every shard, its rows of the carry, and the other leaves."""

        def shard(rows: list[jax.Array], microbatch: Batch, key: jax.Array) -> tuple:
            gradient, sums = microstep(merge(rows, others), microbatch, key)
            after, shared = parts(sums.carry)
            return ((gradient, sums.losses, sums.metrics), after), shared

        if shards == 1:
            made, shared = shard(*jax.tree.map(lambda x: x[0], (rows, microbatch)), key)
            return *jax.tree.map(lambda x: x[None], made), shared
        with nn.logical_axis_rules(sharding.RULES_WITHIN_DATA):
            made, shared = jax.vmap(shard, spmd_axis_name="data")(rows, microbatch, jax.random.split(key, shards))
        return *made, shared

    def body(scanned: Any, slices: Any) -> tuple[Any, list[jax.Array]]:
        total, others = scanned
        rows, microbatch, key = slices
        made, rows, others = every_shard(rows, others, microbatch, key)
        return (jax.tree.map(jnp.add, total, made), others), rows

    rows, others = parts(carry)
    rows = [split(leaf, axis) for leaf, axis in zip(rows, [axis for axis in axes if axis is not None], strict=True)]
    slices = (rows, jax.tree.map(split, batch), jax.random.split(key, accumulation))
    first = jax.tree.map(lambda x: x[0], slices)
    shapes = jax.eval_shape(every_shard, first[0], others, *first[1:])[0]
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    (total, others), rows = jax.lax.scan(body, (zeros, others), slices)
    gradient = add_shards(total[0]) if shards > 1 else jax.tree.map(lambda g: g[0], total[0])
    losses, metrics = jax.tree.map(lambda x: jnp.sum(x, axis=0), total[1:])
    rows = [join(leaf, axis) for leaf, axis in zip(rows, [axis for axis in axes if axis is not None], strict=True)]
    return gradient, LossSums(losses=losses, metrics=metrics, carry=merge(rows, others))
