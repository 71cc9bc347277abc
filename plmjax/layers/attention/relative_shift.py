"""Scores that depend on the query and on its distance from the key, computed with a shift (Dai et al., arXiv
1901.02860, section 3.3 and appendix B).

With content k_j, a vector r for each distance, and two learned vectors u and v of each head,

    score(i, j) = (q_i + u) . k_j + (q_i + v) . r[i - j]

`ContentBias` is the term with u, and `PositionalScores` the one with r. One product gives the scores of every query for
all distances, the largest first. Then a reshape shifts each row to the left, by one place less than the row above it,
so that every distance is in the column of its key. This needs one more column, the first. With two queries, one key in
a memory, and the distances 2, 1 and 0:

    . a b c          b c .
    . d e f    ->    d e f        all numbers in one line, without the first two, in rows of three

There is no gather, and the product is the only array of its size. The dot is above the diagonal, for a hidden key. On a
TPU a kernel multiplies and shifts the rows where it is faster (shifted_product.py).
"""

import functools
from typing import Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.attention_arrays import axes, slice_padded
from plmjax.contracts.bias_terms import BiasTerm
from plmjax.layers.attention import shifted_product
from plmjax.layers.partitioning import shard_counts
from plmjax.layers.product import float32_product


def distances(queries: int, keys: int, memory: int, *, later: bool) -> np.ndarray:
    """Return the distances i - j of `PositionalScores`, int [R], in decreasing order.

    Args:
        queries: T.
        keys: S.
        memory: number of keys before the first query.
        later: true if queries also see later keys; then R is T + S - 1. Otherwise R is S, and a key whose index exceeds
            that of the query by more than `memory` must be hidden.
    """
    return memory + queries - 1 - np.arange(queries + keys - 1 if later else keys)


def copy_per_shard(vectors: jax.Array, rows: int) -> jax.Array:
    """Copy the vectors of all distances for each shard of the batch on the mesh, [R D] -> [G R D].

    Each shard projects its own copy. With a single copy, devices would sum the gradient of the projected vectors,
    [R N H], in every layer.

    rows: B, the number of rows of the batch.
    """
    (parts,) = shard_counts((rows,), ("batch",))
    vectors = jnp.broadcast_to(vectors, (parts, *vectors.shape))
    return nn.with_logical_constraint(vectors, ("batch", None, None))


@flax.struct.dataclass
class ContentBias(BiasTerm):
    """u . k_j, equal for all queries.

    vectors: u, float32 [N H], already multiplied by the scale of the queries.
    """

    vectors: jax.Array = axes("heads", None)

    def scores(
        self, query: jax.Array, key: jax.Array, query_positions: jax.Array, key_positions: jax.Array
    ) -> jax.Array:
        """Return the term, float32 [B N 1 S]."""
        product = functools.partial(jnp.einsum, "NH,BSNH->BNS")
        return float32_product(product, self.vectors.astype(key.dtype), key)[:, :, None]


@flax.struct.dataclass
class PositionalScores(BiasTerm):
    """(q_i + v) . r[i - j], where i and j are indices in the row, not positions.

    vectors: v, float32 [N H], already multiplied by the scale of the queries; None without v.
    table: r, [G R N H], in the dtype of the queries. Table g is for the g-th of G equal shards of the B rows. Its first
        vector is that of a key T - 1 places before its query, the next one T - 2 places, and so on (`distances`). R is
        at least S. A pair of a query and a key without a vector gets an arbitrary finite score, and must be hidden.
    queries: T.
    kernels: true to use the TPU kernel where it is faster.
    """

    vectors: jax.Array | None = axes("heads", None)
    table: jax.Array = axes("batch", None, "heads", None)
    queries: int = flax.struct.field(pytree_node=False)
    kernels: bool = flax.struct.field(pytree_node=False, default=True)

    def scores(
        self, query: jax.Array, key: jax.Array, query_positions: jax.Array, key_positions: jax.Array
    ) -> jax.Array:
        """Return the term, float32 [B N T S]."""
        query = query if self.vectors is None else query + self.vectors.astype(query.dtype)
        return self.products(query, key.shape[1])

    def products(self, rows: jax.Array, columns: int, *, transposed: bool = False) -> jax.Array:
        """Multiply rows [B T N H] by the vectors of their distances from S columns. Return float32 [B N T S].

        transposed: true to return [B N S T].
        """
        if self.kernels and shifted_product.is_faster(rows, columns):
            return shifted_product.shifted_product(rows, self.table, columns, transposed=transposed)
        table = jnp.pad(self.table, [(0, 0), (1, 0), (0, 0), (0, 0)])
        parts = rows.reshape(len(table), -1, *rows.shape[1:])
        found = float32_product(functools.partial(jnp.einsum, "GBTNH,GRNH->GBNTR"), parts, table)
        found = _shift_rows(found.reshape(len(rows), *found.shape[2:]))[..., :columns]
        return jnp.swapaxes(found, -1, -2) if transposed else found

    def slice_padded(self, first_query: int, queries: int, first_key: int, keys: int) -> Self:
        """Return a copy for a slice, with a vector in the table for every pair of query and key; missing ones are 0."""
        first = self._first_row(first_query, queries, first_key)
        return self.replace(table=slice_padded(self.table, 1, first, queries + keys - 1), queries=queries)

    def block(self, first_query: int | jax.Array, queries: int, first_key: int | jax.Array, keys: int) -> Self:
        """Return a copy for a block of queries and keys; needs a table from `slice_padded`."""
        first = self._first_row(first_query, queries, first_key)
        rows = jax.lax.dynamic_slice_in_dim(self.table, first, queries + keys - 1, axis=1)
        return self.replace(table=rows, queries=queries)

    def _first_row(self, first_query: int | jax.Array, queries: int, first_key: int | jax.Array) -> int | jax.Array:
        """Return the index in the table of the distance between a block's last query and its first key."""
        return first_key - first_query + self.queries - queries


def _shift_rows(x: jax.Array) -> jax.Array:
    """Shift row i of T rows to the left by T - 1 - i places and drop the first column, [B N T R+1] -> [B N T R]."""
    *others, height, width = x.shape
    return x.reshape(*others, height * width)[..., height:].reshape(*others, height, width - 1)
