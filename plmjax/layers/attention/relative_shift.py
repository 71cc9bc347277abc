"""Scores that depend on the query and on its distance from the key, computed with a shift (Dai et al., arXiv
1901.02860, section 3.3 and appendix B).

With content k_j, a vector r for each distance, and two learned vectors u and v of each head,

    score(i, j) = (q_i + u) . k_j + (q_i + v) . r[i - j]

`ContentBias` is the term with u, and `PositionalScores` the one with r. One product gives the scores of every query for
all distances, the farthest first. Then each row moves to the left, one place less than the row above it, so that every
distance is below its key. With two queries, a key of a memory and the distances 2, 1 and 0:

    a b c          b c .
    d e f    ->    d e f

The dot is above the diagonal, for a hidden key. Nothing is looked up. The rows move in one of two ways, by the device:

- A change of shape, as the paper does. This takes an additional column, the first. All numbers stand in one line
  without the first two, in rows of three. On a CPU or GPU it costs at most a copy.
- A TPU keeps arrays in tiles, and a row of another length moves every number to another tile. There the rows move by
  the binary digits of their places: first those that move an odd number of places by 1, then by 2, by 4, and so on.
"""

import functools
from typing import Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.attention_arrays import axes, placed
from plmjax.contracts.score_terms import ScoreTerm
from plmjax.layers.mesh_places import pieces
from plmjax.layers.product import float32_product


def distances(queries: int, keys: int, memory: int, *, later: bool) -> np.ndarray:
    """Return the distances i - j of `PositionalScores`, int [R], from the farthest past on.

    Args:
        queries: T.
        keys: S, the first of which is `memory` positions before the first query.
        memory: number of keys before the first query.
        later: true if queries see later keys: R is T + S - 1. Otherwise R is S, and every key at most `memory` places
            after the index of its query; all others must be hidden.
    """
    return memory + queries - 1 - np.arange(queries + keys - 1 if later else keys)


def copied(vectors: jax.Array, rows: int) -> jax.Array:
    """Return the vectors of all distances once for each part of B rows on a mesh, [R D] -> [G R D].

    Each part projects its own. Otherwise the devices would add up the gradient of the projected vectors, [R N H], in
    every layer.
    """
    (parts,) = pieces((rows,), ("batch",))
    vectors = jnp.broadcast_to(vectors, (parts, *vectors.shape))
    return nn.with_logical_constraint(vectors, ("batch", None, None))


@flax.struct.dataclass
class ContentBias(ScoreTerm):
    """u . k_j, the same for all queries.

    vectors: u, float32 [N H], multiplied by the scale of the queries.
    """

    vectors: jax.Array = axes("heads", None)

    def scores(
        self, query: jax.Array, key: jax.Array, query_positions: jax.Array, key_positions: jax.Array
    ) -> jax.Array:
        """Return the term, float32 [B N 1 S]."""
        product = functools.partial(jnp.einsum, "NH,BSNH->BNS")
        return float32_product(product, self.vectors.astype(key.dtype), key)[:, :, None]


@flax.struct.dataclass
class PositionalScores(ScoreTerm):
    """(q_i + v) . r[i - j]: by the indices of queries and keys in their rows, not by their positions.

    vectors: v, float32 [N H], multiplied by the scale of the queries.
    table: r, [G R N H], in the dtype of the queries, for G parts of the B rows, the first B / G and so on. Its vectors
        are those of the keys T - 1 before the index of their query, T - 2 before it, and so on (`distances`). There are
        at least S. A pair of a query and a key without a vector gets an arbitrary finite score, and must be hidden.
    queries: T.
    """

    vectors: jax.Array = axes("heads", None)
    table: jax.Array = axes("batch", None, "heads", None)
    queries: int = flax.struct.field(pytree_node=False)

    def scores(
        self, query: jax.Array, key: jax.Array, query_positions: jax.Array, key_positions: jax.Array
    ) -> jax.Array:
        """Return the term, float32 [B N T S]."""
        queries = (query + self.vectors.astype(query.dtype)).reshape(len(self.table), -1, *query.shape[1:])
        found = jax.lax.platform_dependent(queries, self.table, tpu=_moved_by_digits, default=_moved_by_shape)
        return found.reshape(len(query), *found.shape[2:])[..., : key.shape[1]]

    def placed(self, first_query: int, queries: int, first_key: int, keys: int) -> Self:
        """Return a copy that has a row for every pair; rows that were absent are 0."""
        first = self._first_row(first_query, queries, first_key)
        return self.replace(table=placed(self.table, 1, first, queries + keys - 1), queries=queries)

    def block(self, first_query: int | jax.Array, queries: int, first_key: int | jax.Array, keys: int) -> Self:
        """Return a copy for a block; `placed` was called before."""
        first = self._first_row(first_query, queries, first_key)
        rows = jax.lax.dynamic_slice_in_dim(self.table, first, queries + keys - 1, axis=1)
        return self.replace(table=rows, queries=queries)

    def _first_row(self, first_query: int | jax.Array, queries: int, first_key: int | jax.Array) -> int | jax.Array:
        """Return the row of the last query of a block and its first key."""
        return first_key - first_query + self.queries - queries


def _products(queries: jax.Array, table: jax.Array) -> jax.Array:
    return float32_product(functools.partial(jnp.einsum, "GBTNH,GRNH->GBNTR"), queries, table)


def _moved_by_shape(queries: jax.Array, table: jax.Array) -> jax.Array:
    """Return the scores of queries [G B T N H] for a table [G R N H], row t moved by T - 1 - t, float32 [G B N T R]."""
    found = _products(queries, jnp.pad(table, [(0, 0), (1, 0), (0, 0), (0, 0)]))
    *leading, rows, columns = found.shape
    return found.reshape(*leading, rows * columns)[..., rows:].reshape(*leading, rows, columns - 1)


def _moved_by_digits(queries: jax.Array, table: jax.Array) -> jax.Array:
    """Return what `_moved_by_shape` does; numbers that it takes from the next row are others of the same row."""
    found = _products(queries, table)
    rows = found.shape[-2]
    places = (rows - 1 - jnp.arange(rows))[:, None]
    for digit in range((rows - 1).bit_length()):
        found = jnp.where(places >> digit & 1, jnp.roll(found, -(1 << digit), axis=-1), found)
    return found
