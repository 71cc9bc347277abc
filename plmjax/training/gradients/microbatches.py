"""The gradient of a batch, computed in several microbatches."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.objectives.objective import Batch, LossInputs, LossSums
from plmjax.parallel import sharding
from plmjax.training.gradients import Gradient, Loss, Weights


def microbatch_gradient(
    loss: Loss, inputs: LossInputs, weights: Weights, *, batch: Batch, key: jax.Array, total: Any = None
) -> tuple[Gradient, LossSums]:
    """Return (gradient, sums) of one microbatch; the gradient of the parameters is added to `total`.

    total: float32 gradient of the earlier microbatches. None means 0; the gradient then has the dtypes of the
        parameters.
    """

    def accumulated(params: Any, rows: Any) -> tuple[jax.Array, LossSums]:
        value, sums = loss(inputs.replace(params=params, rows=rows), weights, batch, key)
        return accumulate_into(value, params, total), sums

    (params, rows), sums = jax.grad(accumulated, argnums=(0, 1), has_aux=True)(inputs.params, inputs.rows)
    return Gradient(add_gradients(params, total), rows), sums


def accumulate(
    loss: Loss,
    inputs: LossInputs,
    weights: Weights,
    *,
    batch: Batch,
    key: jax.Array,
    carry_axes: Any,
    microbatches: int,
    shards: int = 1,
    add_shards: Callable[[Any], Any] | None = None,
) -> tuple[Gradient, LossSums]:
    """Return (gradient, sums) of a batch, computed in several microbatches.

    Microbatch i has the rows i, i + microbatches, ... Devices have contiguous rows, so no row has to move. Leaves of
    the carry with a "batch" axis (`carry_axes`) and looked-up rows are divided in the same way; other leaves and the
    collections are passed from microbatch to microbatch.

    Each of the `shards` along the mesh's data axis adds up the gradient of its rows, with its own dropout key.
    `add_shards` sums gradients [shards ...] once, after the last microbatch. If a leaf of the carry has no batch axis,
    all shards share it, and the gradient is summed for every microbatch.
    """
    if microbatches == 1:
        return microbatch_gradient(loss, inputs, weights, batch=batch, key=key)
    carried = (inputs.carry, inputs.collections, inputs.rows)
    axes = (carry_axes, jax.tree.map(lambda _: (), inputs.collections), jax.tree.map(lambda _: ("batch",), inputs.rows))
    structure = jax.tree.structure(carried)
    axes = [names.index("batch") if "batch" in names else None for names in structure.flatten_up_to(axes)]
    shards = 1 if None in axes else shards

    def split(x: jax.Array, axis: int = 0) -> jax.Array:  # [.. B ..] -> [microbatches, shards, .. rows ..]
        shape = (*x.shape[:axis], shards, x.shape[axis] // (shards * microbatches), microbatches, *x.shape[axis + 1 :])
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

    def every_shard(
        rows: list[jax.Array], others: list[jax.Array], microbatch: Batch, *, key: jax.Array, total: Any
    ) -> tuple:
        """Return (total + gradient, losses, metrics) of every shard, its leaves with a batch axis, and the others."""

        def shard(rows: list[jax.Array], microbatch: Batch, total: Any, key: jax.Array) -> tuple:
            carry, collections, table_rows = merge(rows, others)
            given = inputs.replace(carry=carry, collections=collections, rows=table_rows)
            gradient, sums = microbatch_gradient(loss, given, weights, batch=microbatch, key=key, total=total)
            after, shared = parts((sums.carry, sums.collections, gradient.rows))
            return ((gradient.params, sums.losses, sums.metrics), after), shared

        if shards == 1:
            made, shared = shard(*jax.tree.map(lambda x: x[0], (rows, microbatch, total)), key)
            return *jax.tree.map(lambda x: x[None], made), shared
        with nn.logical_axis_rules(sharding.RULES_WITHIN_DATA):
            made, shared = jax.vmap(shard, spmd_axis_name="data")(
                rows, microbatch, total, jax.random.split(key, shards)
            )
        return *made, shared

    def body(scanned: Any, slices: Any) -> tuple[Any, list[jax.Array]]:
        total, sums, others = scanned
        rows, microbatch, key = slices
        (total, *made), rows, others = every_shard(rows, others, microbatch, key=key, total=total)
        return (total, jax.tree.map(jnp.add, sums, made), others), rows

    rows, others = parts(carried)
    batch_axes = [axis for axis in axes if axis is not None]
    rows = [split(leaf, axis) for leaf, axis in zip(rows, batch_axes, strict=True)]
    slices = (rows, jax.tree.map(split, batch), jax.random.split(key, microbatches))
    own, microbatch, one = jax.tree.map(lambda x: x[0], slices)
    gradients, *shapes = jax.eval_shape(every_shard, own, others, microbatch, key=one, total=None)[0]
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, jnp.float32), gradients)
    none = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    (total, sums, others), rows = jax.lax.scan(body, (zeros, none, others), slices)
    gradient = add_shards(total) if shards > 1 else jax.tree.map(lambda g: g[0], total)
    losses, metrics = jax.tree.map(lambda x: jnp.sum(x, axis=0), sums)
    rows = [join(leaf, axis) for leaf, axis in zip(rows, batch_axes, strict=True)]
    carry, collections, row_gradients = merge(rows, others)
    return Gradient(gradient, row_gradients), LossSums(losses, metrics, carry, collections)


def accumulate_into(value: jax.Array, params: Any, total: Any) -> jax.Array:
    """Return the loss, a scalar; its gradient with respect to float32 `params` is accumulated onto `total`.

    JAX adds up the gradients of all uses of a parameter, from the last use to the first. If this is the last use, XLA
    adds the gradient of an output layer to the total where it computes the gradient. For BERT's word table, which is
    also looked up, XLA would otherwise read and write gradient and total once more: 0.25 ms per microbatch of BERT-Base
    on v5e.

    total: a pytree of float32 arrays with the shapes of `params`; None is 0. For parameters in other dtypes, use
        `add_gradients`.
    """
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(total), strict=True) if total is not None else ()
    used = [(param, start) for param, start in pairs if param.dtype == jnp.float32]
    return _accumulate_into(value, *zip(*used, strict=True)) if used else value


def add_gradients(gradient: Any, total: Any) -> Any:
    """Return gradient + total in float32, or the gradient if `total` is None.

    Float32 leaves are returned unchanged: `accumulate_into` has added the total to them.
    """
    if total is None:
        return gradient
    return jax.tree.map(
        lambda g, start: g if g.dtype == jnp.float32 else start + g.astype(jnp.float32), gradient, total
    )


@jax.custom_vjp
def _accumulate_into(value: jax.Array, params: tuple[jax.Array, ...], total: tuple[jax.Array, ...]) -> jax.Array:
    return value


def _accumulate_into_forward(
    value: jax.Array, params: tuple[jax.Array, ...], total: tuple[jax.Array, ...]
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return value, total


def _accumulate_into_backward(total: tuple[jax.Array, ...], cotangent: jax.Array) -> tuple:
    return cotangent, total, None


_accumulate_into.defvjp(_accumulate_into_forward, _accumulate_into_backward)
