"""A number added to each score of attention for how far the key is from its query (Raffel et al. 2020, section 2.1).

Distances are gathered in buckets, and each head has a number for each bucket:

    score(i, j) = q_i . k_j + numbers[bucket(j - i), head]
"""

import functools
import math

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import Initializer

from plmjax.contracts.attention_arrays import axes
from plmjax.contracts.execution import Execution
from plmjax.contracts.score_terms import ScoreArray, ScoreTerm
from plmjax.contracts.visibility import Visibility


class RelativePositions(nn.Module):
    """The numbers, a parameter `embedding`, float32 [buckets N], for any number of layers that share them.

    both_sides: whether keys after their query have buckets of their own, half of them all; else they share that of the
        query itself.
    largest: distance from which on all are in the last bucket.
    """

    both_sides: bool
    buckets: int
    largest: int
    heads: int
    init: Initializer
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, visibility: Visibility, queries: int, keys: int) -> ScoreTerm:
        """The term of so many queries and keys.

        An array, made once for all layers, where a layer makes all its scores at once; else blocks are made as a
        backend of attention asks for them.
        """
        init = nn.with_logical_partitioning(self.init, (None, "heads"))
        table = self.param("embedding", init, (self.buckets, self.heads))
        term = DistanceScores(table, self.both_sides, self.largest)
        if not self.execution.at_once or None not in visibility.reach:
            return term
        return ScoreArray(term.of_positions(visibility.query_positions(queries), jnp.arange(keys)))


@flax.struct.dataclass
class DistanceScores(ScoreTerm):
    """The numbers of each head for the distance of a key from its query.

    table: float32 [buckets N]. both_sides, largest: as `RelativePositions` has them.
    """

    table: jax.Array = axes(None, "heads")
    both_sides: bool = flax.struct.field(pytree_node=False)
    largest: int = flax.struct.field(pytree_node=False)

    def scores(
        self, query: jax.Array, key: jax.Array, query_positions: jax.Array, key_positions: jax.Array
    ) -> jax.Array:
        """Of the positions alone."""
        return self.of_positions(query_positions, key_positions)

    def of_positions(self, queries: jax.Array, keys: jax.Array) -> jax.Array:
        """The numbers for queries at int [T] or [B T] and keys at int [S]: float32 [N T S] or [B N T S].

        Packed sequences need nothing else: the distance of two tokens of a sequence is that of their places in the row.
        """
        buckets = distance_buckets(self.both_sides, len(self.table), self.largest)
        distance = jnp.clip(keys - queries[..., None], -self.largest, self.largest)
        # A product, because the gradient of a look-up adds one number after the other.
        chosen = jax.nn.one_hot(jnp.asarray(buckets)[distance + self.largest], len(self.table))
        return jnp.einsum("...TSK,KN->...NTS", chosen, self.table, precision=jax.lax.Precision.HIGHEST)


@functools.cache
def distance_buckets(both_sides: bool, buckets: int, largest: int) -> np.ndarray:
    """int32 [2 largest + 1]: the bucket of a key that stands -largest, ..., largest places after its query.

    Half of the buckets of a direction are for one distance each, the other half for ranges that grow with the logarithm
    of the distance, up to `largest` (`_relative_position_bucket` of mesh_tensorflow/transformer/transformer_layers.py).
    """
    places = np.arange(-largest, largest + 1)
    side = buckets // 2 if both_sides else buckets
    distance = np.abs(places) if both_sides else np.maximum(-places, 0)
    exact = side // 2
    # In float32, whose rounding decides where a range begins.
    share = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact)) / np.float32(
        math.log(largest / exact)
    )
    far = np.minimum(exact + (share * np.float32(side - exact)).astype(np.int32), side - 1)
    return (np.where(distance < exact, distance, far) + side * (both_sides & (places > 0))).astype(np.int32)
