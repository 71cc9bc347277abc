"""Parameter shards: every device stores and updates one shard of the parameters, and computes with gathered copies.

The shards are float32 (ZeRO, arXiv 1910.02054). A step casts the shard of each matrix to the dtype of the matrix
products, and gathers the shards into a copy once, before the loop over layers. With rings, the matrices of stacked
layers are gathered within the loop instead, one layer at a time (`plmjax.training.gradients.rings`). The gradient with
respect to the copy is reduce-scattered into the shards.
"""

import dataclasses
import math
from typing import Any, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from plmjax.parallel import sharding
from plmjax.parallel.rings import Rings

SMALLEST_PIECE = 1024
"""Least number of values of a layer's matrix on one device for which rings are used. The biases of attention's heads
have fewer. Each step of a ring takes hundreds of cycles on a device, however few values it moves.
"""


@dataclasses.dataclass(frozen=True, eq=False)
class ParameterShards:
    """Shardings and dtypes of the parameters of a run.

    sharded: shardings of the shards, of the gradient, and of the optimizer's state.
    gathered: shardings of the copy that the model computes with; it is sharded along fsdp and tensor only.
    dtypes: dtypes of the copy. Gradients are summed over devices in these dtypes, also with several microbatches.
    ring_dtypes: dtypes in which gradients are summed along rings: `dtypes`, but for embedding tables that of matrices.
    stacked: true for a matrix of stacked layers of which a layer's shard has at least `SMALLEST_PIECE` values.
    rings: the rings along which parameters and gradients travel; None if XLA inserts the collectives.
    """

    sharded: Any
    gathered: Any
    dtypes: Any
    ring_dtypes: Any
    stacked: Any
    rings: Rings | None

    @classmethod
    def of(
        cls,
        boxed: Any,
        mesh: Mesh,
        dtype: jnp.dtype,
        reduce_dtype: jnp.dtype,
        *,
        zero: bool,
        rings: Rings | None = None,
    ) -> Self:
        """Return the shards of boxed parameters.

        dtype: dtype of the matrix products.
        reduce_dtype: dtype in which gradients of parameters that are no matrices are summed over devices.
        zero: true to shard parameters over `data`; else every device along `data` has all of them.
        """
        gathered = sharding.shardings_of(boxed, mesh)
        sharded = sharding.shard_over_data(boxed, gathered, mesh) if zero else gathered
        copied, ring_dtypes = (dtypes(boxed, dtype, reduce_dtype, tables=tables) for tables in (False, True))
        return cls(sharded, gathered, copied, ring_dtypes, _stacked(boxed, sharded), rings)

    def copy(self, params: Any) -> Any:
        """Return the shapes, dtypes and shardings of the result of `gather`."""

        def describe(shard: Any, gathered: Any, dtype: jnp.dtype) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shard.shape, dtype, sharding=gathered)

        return jax.tree.map(describe, params, self.gathered, self.dtypes)

    def gather(self, params: Any) -> Any:
        """Return the gathered copy of the shards `params`."""
        return jax.tree.map(jax.lax.with_sharding_constraint, self.narrow(params), self.gathered)

    def narrow(self, params: Any) -> Any:
        """Return the shards `params` in the dtypes of the copy."""

        def cast(shard: jax.Array, sharded: Any, dtype: jnp.dtype) -> jax.Array:
            # Without this constraint the compiler might gather before the cast, which moves twice the bytes.
            return jax.lax.with_sharding_constraint(shard.astype(dtype), sharded)

        return jax.tree.map(cast, params, self.sharded, self.dtypes)

    def scatter(self, gradient: Any) -> Any:
        """Return the gradient with respect to the copy as float32 shards."""

        def to_shard(gradient: jax.Array, sharded: Any) -> jax.Array:
            return jax.lax.with_sharding_constraint(gradient, sharded).astype(jnp.float32)

        return jax.tree.map(to_shard, gradient, self.sharded)

    def add(self, gradient: Any) -> Any:
        """Return the sum of gradients [shards ...] over their first axis, which is sharded over `data`.

        It is computed in the dtype of the parameter's copy, as is the sum without microbatches.
        """

        def total(shards: jax.Array, dtype: jnp.dtype) -> jax.Array:
            return jax.lax.reduce_sum(shards.astype(dtype), (0,))

        return jax.tree.map(total, gradient, self.dtypes)


def dtypes(boxed: Any, dtype: jnp.dtype, reduce_dtype: jnp.dtype, *, tables: bool = False) -> Any:
    """Return the dtype of each parameter's copy: the smaller dtype for a matrix, and `reduce_dtype` for all others.

    tables: true to treat an embedding table as a matrix. This is for gradients that are sent along rings, because each
        device has summed the gradients of a row in float32 before.
    """
    narrow = min(dtype, reduce_dtype, key=lambda one: jnp.dtype(one).itemsize)
    return jax.tree.map(
        lambda leaf: jnp.dtype(narrow if _is_matrix(leaf, tables) else reduce_dtype),
        boxed,
        is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned),
    )


def _stacked(boxed: Any, sharded: Any) -> Any:
    """Return `ParameterShards.stacked` of boxed parameters."""

    def is_stacked(leaf: Any, place: Any) -> bool:
        if not (_is_matrix(leaf) and leaf.names[0] == "layers" and "data" in place.spec):
            return False
        return math.prod(place.shard_shape(leaf.value.shape)[1:]) >= SMALLEST_PIECE

    return jax.tree.map(is_stacked, boxed, sharded, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))


def _is_matrix(leaf: Any, tables: bool = False) -> bool:
    """Return whether a parameter may have the dtype of matrix products.

    These are parameters with at least two named axes besides "layers": kernels, and biases of attention's heads. An
    embedding table is included only with `tables`: a device adds many small gradients to the same row of a table.
    """
    names = leaf.names if isinstance(leaf, nn.LogicallyPartitioned) else ()
    return (tables or "vocab" not in names) and sum(name not in (None, "layers") for name in names) >= 2
