"""Disentangled attention (He et al., arXiv 2006.03654, section 3.1; microsoft/DeBERTa disentangled_attention.py).

A token has a content, and each distance has a vector in a table that all layers share. With the bucket d of the
distance i - j, and the projections Q and K of the layer for both,

    score(i, j) = (Q x_i . K x_j + Q x_i . K r[d] + K x_j . Q r[d]) / sqrt(3 H)

The paper calls the second part content to position, c2p, and the third one position to content, p2c. All distances of
a row are taken from the table before the first layer, by an index that is a constant. One product gives the scores of a
token for all distances, and the shift of Transformer-XL moves each to its pair (layers/attention/relative_shift.py): by
queries for c2p, and by keys for p2c. The released code gathers them, with an index for each pair.

Deviation: p2c has the distance of the released code, i - j; equation 4 of the paper has that from the key to the query.
"""

from typing import Self

import flax.struct
import jax
import numpy as np

from plmjax.contracts.bias_terms import BiasTerm
from plmjax.layers.attention.multi_head import MultiHeadAttention
from plmjax.layers.attention.relative_shift import PositionalScores

CONTENT_TO_POSITION, POSITION_TO_CONTENT = "c2p", "p2c"


def log_buckets(distances: np.ndarray, buckets: int, longest: int) -> np.ndarray:
    """Return the bucket of each distance, int [...], from -buckets + 1 to buckets - 1 for distances below `longest`.

    Distances up to buckets / 2 have their own; farther ones share buckets whose sizes grow with the distance. The
    logarithm is float32, as in the released code (`make_log_bucket_position` in deberta/da_utils.py).
    """
    middle = buckets // 2
    far = np.maximum(np.abs(distances), middle).astype(np.float32)
    share = np.log(far / np.float32(middle)) / np.log(np.float32((longest - 1) / middle))
    shared = np.ceil(share * np.float32(middle - 1)).astype(int) + middle
    return np.where(np.abs(distances) <= middle, distances, np.sign(distances) * shared)


@flax.struct.dataclass
class KeyDistanceScores(PositionalScores):
    """k_j . r[i - j]: the roles of queries and keys are exchanged, so that rows are keys while they are shifted.

    table: as in `PositionalScores`, but its vectors are those of the queries S - 1 before the index of their key, and
        so on.
    queries: S, the number of keys.
    """

    def scores(
        self, query: jax.Array, key: jax.Array, query_positions: jax.Array, key_positions: jax.Array
    ) -> jax.Array:
        return self.products(key, query.shape[1], transposed=True)

    def slice_padded(self, first_query: int, queries: int, first_key: int, keys: int) -> Self:
        return super().slice_padded(first_key, keys, first_query, queries)

    def block(self, first_query: int | jax.Array, queries: int, first_key: int | jax.Array, keys: int) -> Self:
        return super().block(first_key, keys, first_query, queries)


class DisentangledAttention(MultiHeadAttention):
    """Attention whose projections of queries and keys also project the vectors of distances.

    kinds: the parts of the scores besides that of both contents, `c2p` and `p2c`.
    """

    kinds: tuple[str, ...] = (CONTENT_TO_POSITION, POSITION_TO_CONTENT)

    def distance_terms(self, vectors: jax.Array) -> tuple[BiasTerm, ...]:
        """Return the terms of the scores of T queries and T keys.

        vectors: [G R D] for G shards of the rows, of all distances in a row, R = 2 T - 1, from T - 1 down to 1 - T.
        """
        length, terms = (vectors.shape[1] + 1) // 2, []
        if CONTENT_TO_POSITION in self.kinds:
            terms.append(PositionalScores(None, self.key(vectors), length, self.execution.kernels))
        if POSITION_TO_CONTENT in self.kinds:
            queries = self.scaled(self.query(vectors[:, ::-1]))
            terms.append(KeyDistanceScores(None, queries, length, self.execution.kernels))
        return tuple(terms)
