"""Relative position biases: a number for each distance between query and key, added to the scores of attention.

Source: T5 (Raffel et al. 2020, arXiv 1910.10683, section 2.1). Distances are grouped into buckets, and each head has a
learned bias for each bucket:

    score(i, j) = q_i . k_j + biases[bucket(j - i), head]
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
from plmjax.contracts.bias_terms import BiasTerm, ScoreArray
from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerms
from plmjax.contracts.parameters import as_bias
from plmjax.errors import UserError


class RelativePositions(nn.Module):
    """The biases, a parameter `embedding`, float32 [buckets N]. Any number of layers may share them.

    Attributes:
        both_sides: true if half of the buckets are for keys after the query. If false, such keys share the bucket of
            distance 0.
        buckets: number of buckets.
        largest: all distances from this one on share the last bucket.
        heads: N.
    """

    both_sides: bool
    buckets: int
    largest: int
    heads: int
    init: Initializer
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, mask_terms: MaskTerms, queries: int, keys: int) -> BiasTerm:
        """Return the bias term for `queries` queries and `keys` keys.

        If layers compute all scores at once, without a window, the term is an array that is computed once for all
        layers. Otherwise a backend of attention computes it block by block.
        """
        init = as_bias(self.init, (None, "heads"))
        table = self.param("embedding", init, (self.buckets, self.heads))
        term = DistanceScores(table, self.both_sides, self.largest)
        if not self.execution.at_once or None not in mask_terms.reach:
            return term
        return ScoreArray(term.biases(mask_terms.query_positions(queries), mask_terms.key_positions(keys)))


@flax.struct.dataclass
class DistanceScores(BiasTerm):
    """The bias of each head for the distance of a key from its query.

    table: float32 [buckets N]. both_sides, largest: as in `RelativePositions`.
    """

    table: jax.Array = axes(None, "heads")
    both_sides: bool = flax.struct.field(pytree_node=False)
    largest: int = flax.struct.field(pytree_node=False)

    def scores(
        self, query: jax.Array, key: jax.Array, query_positions: jax.Array, key_positions: jax.Array
    ) -> jax.Array:
        return self.biases(query_positions, key_positions)

    def biases(self, queries: jax.Array, keys: jax.Array) -> jax.Array:
        """Return the biases for queries at int [T] or [B T] and keys at int [S]: float32 [N T S] or [B N T S].

        Packed sequences need no special treatment: two tokens of a sequence have the same distance in the row.
        """
        buckets = distance_buckets(self.both_sides, len(self.table), self.largest)
        distance = jnp.clip(keys - queries[..., None], -self.largest, self.largest)
        # A product with one-hot vectors, because the gradient of a lookup adds the numbers one by one.
        chosen = jax.nn.one_hot(jnp.asarray(buckets)[distance + self.largest], len(self.table))
        return jnp.einsum("...TSK,KN->...NTS", chosen, self.table, precision=jax.lax.Precision.HIGHEST)


def check_buckets(buckets: int, largest: int) -> None:
    """Check that each direction has buckets for single distances and for ranges of distances.

    Raises:
        UserError: the number of buckets is odd or below 4, or no distance would share a bucket.
    """
    if buckets < 4 or buckets % 2:
        raise UserError(
            f"Expected an even number of at least 4 buckets of distances, found {buckets}; change "
            "--model.relative_attention_num_buckets."
        )
    if largest <= buckets // 2:
        raise UserError(
            f"Expected a largest distance above the {buckets // 2} that have a bucket of their own, found "
            f"{largest}; change --model.relative_attention_max_distance."
        )


@functools.cache
def distance_buckets(both_sides: bool, buckets: int, largest: int) -> np.ndarray:
    """Return int32 [2 largest + 1]: the bucket of a key at distance -largest, ..., largest from its query.

    Half of the buckets of a direction have a single distance each. The other half have ranges of distances, of equal
    size on a logarithmic scale, up to `largest` (`_relative_position_bucket` of
    mesh_tensorflow/transformer/transformer_layers.py).
    """
    places = np.arange(-largest, largest + 1)
    side = buckets // 2 if both_sides else buckets
    distance = np.abs(places) if both_sides else np.maximum(-places, 0)
    exact = side // 2
    # In float32: its rounding decides where a range begins.
    fraction = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact)) / np.float32(
        math.log(largest / exact)
    )
    far = np.minimum(exact + (fraction * np.float32(side - exact)).astype(np.int32), side - 1)
    return (np.where(distance < exact, distance, far) + side * (both_sides & (places > 0))).astype(np.int32)
