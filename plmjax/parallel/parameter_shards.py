"""Parameter shares: every device owns and updates one share, and computes with a gathered copy of all of them.

The shares are float32 (ZeRO, arXiv 1910.02054). A step casts the share of each matrix to the dtype of the matrix
products and gathers the copy once, before the loop over layers. The gradient with respect to the copy is summed into
the shares.
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
"""Smallest number of values of a layer's matrix on one device that is worth a ring. The biases of attention's heads
have fewer. A step of a ring takes its device hundreds of cycles, however few values it moves.
"""


@dataclasses.dataclass(frozen=True, eq=False)
class ParameterShards:
    """Shardings and dtypes of the parameters of a run.

    owned: shardings of the shares, of the gradient, and of the optimizer's state.
    whole: shardings of the copy that the model computes with; it is sharded along fsdp and tensor only.
    dtypes: dtypes of that copy, in which gradients are summed over devices, also those of several microbatches.
    sent: dtypes in which gradients are summed along rings: `dtypes`, but an embedding table has that of a matrix.
    stacked: true for a matrix of each of several layers, of which devices own pieces of at least `SMALLEST_PIECE`.
    rings: the rings along which parameters and gradients travel; None where the compiler gathers and sums.
    """

    owned: Any
    whole: Any
    dtypes: Any
    sent: Any
    stacked: Any
    rings: Rings | None

    @classmethod
    def of(
        cls, boxed: Any, mesh: Mesh, dtype: jnp.dtype, exchanged: jnp.dtype, *, zero: bool, rings: Rings | None = None
    ) -> Self:
        """Return the shares of boxed parameters.

        dtype: dtype of the matrix products.
        exchanged: dtype of the gradients of all other parameters in the sum over devices.
        zero: if True, devices along `data` divide the parameters; else each holds all.
        """
        whole = sharding.boxed(boxed, mesh)
        owned = sharding.over_data(boxed, whole, mesh) if zero else whole
        copied, sent = (dtypes(boxed, dtype, exchanged, tables=tables) for tables in (False, True))
        return cls(owned, whole, copied, sent, _stacked(boxed, owned), rings)

    def copy(self, params: Any) -> Any:
        """Return the shape, dtype and sharding of the result of `gather`."""

        def describe(share: Any, whole: Any, dtype: jnp.dtype) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(share.shape, dtype, sharding=whole)

        return jax.tree.map(describe, params, self.whole, self.dtypes)

    def gather(self, params: Any) -> Any:
        """Return the gathered copy of the shares `params`."""
        return jax.tree.map(jax.lax.with_sharding_constraint, self.narrow(params), self.whole)

    def narrow(self, params: Any) -> Any:
        """Return the shares `params` in the dtypes of the copy."""

        def cast(share: jax.Array, owned: Any, dtype: jnp.dtype) -> jax.Array:
            # Constrained before it is gathered: the compiler might gather first and cast then, twice the bytes.
            return jax.lax.with_sharding_constraint(share.astype(dtype), owned)

        return jax.tree.map(cast, params, self.owned, self.dtypes)

    def scatter(self, gradient: Any) -> Any:
        """Return the gradient with respect to the copy as float32 shares."""

        def share(gradient: jax.Array, owned: Any) -> jax.Array:
            return jax.lax.with_sharding_constraint(gradient, owned).astype(jnp.float32)

        return jax.tree.map(share, gradient, self.owned)

    def add(self, gradient: Any) -> Any:
        """Return the sum of gradients [shards ...], one shard on each device along `data`.

        It is computed in the dtype of the parameter's copy, as it is without microbatches.
        """

        def total(shards: jax.Array, dtype: jnp.dtype) -> jax.Array:
            return jax.lax.reduce_sum(shards.astype(dtype), (0,))

        return jax.tree.map(total, gradient, self.dtypes)


def dtypes(boxed: Any, dtype: jnp.dtype, exchanged: jnp.dtype, *, tables: bool = False) -> Any:
    """Return the dtype of each parameter's copy: the smaller one for a matrix, and `exchanged` for all others.

    tables: if True, an embedding table is a matrix too. This is for gradients that are sent along rings: each device
        has added up the gradients of a row in float32 before.
    """
    narrow = min(dtype, exchanged, key=lambda one: jnp.dtype(one).itemsize)
    return jax.tree.map(
        lambda leaf: jnp.dtype(narrow if _is_matrix(leaf, tables) else exchanged),
        boxed,
        is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned),
    )


def _stacked(boxed: Any, owned: Any) -> Any:
    """Return `ParameterShards.stacked` of boxed parameters."""

    def of_layers(leaf: Any, place: Any) -> bool:
        if not (_is_matrix(leaf) and leaf.names[0] == "layers" and "data" in place.spec):
            return False
        return math.prod(place.shard_shape(leaf.value.shape)[1:]) >= SMALLEST_PIECE

    return jax.tree.map(of_layers, boxed, owned, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))


def _is_matrix(leaf: Any, tables: bool = False) -> bool:
    """Return whether a parameter may have the dtype of matrix products.

    Kernels may, and biases that are added to their results. An embedding table may only with `tables`: its rows are
    looked up, and a device adds many small gradients to the same row.
    """
    names = leaf.names if isinstance(leaf, nn.LogicallyPartitioned) else ()
    return (tables or "vocab" not in names) and sum(name not in (None, "layers") for name in names) >= 2
