"""Disentangled attention (He et al., arXiv 2006.03654, section 3.1; microsoft/DeBERTa disentangled_attention.py).

Each token i has a content vector x_i. Each distance has a vector in a table r that all layers share. A layer projects
both by the same Q and K. If d is the bucket of the distance i - j,

    score(i, j) = (Q x_i . K x_j + Q x_i . K r[d] + K x_j . Q r[d]) / sqrt(3 H)

The paper calls the second term content to position (c2p) and the third one position to content (p2c). The vectors of
all distances in a row are looked up once, before the first layer, by a constant index. One product gives the scores of
a token for all distances, and the shift of Transformer-XL moves each score to its pair
(layers/attention/relative_shift.py): the rows are queries for c2p, and keys for p2c. The released code gathers the
scores, with an index for each pair.

Deviation: the distance in p2c is i - j, as in the released code; in equation 4 of the paper it is j - i.
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

    Each distance up to buckets / 2 has its own bucket. Larger ones share buckets whose sizes grow with the distance.
    The logarithm is float32, as in the released code (`make_log_bucket_position` in deberta/da_utils.py).
    """
    middle = buckets // 2
    far = np.maximum(np.abs(distances), middle).astype(np.float32)
    share = np.log(far / np.float32(middle)) / np.log(np.float32((longest - 1) / middle))
    shared = np.ceil(share * np.float32(middle - 1)).astype(int) + middle
    return np.where(np.abs(distances) <= middle, distances, np.sign(distances) * shared)


@flax.struct.dataclass
class KeyDistanceScores(PositionalScores):
    """k_j . r[i - j]: `PositionalScores` with queries and keys exchanged, so that the rows that are shifted are keys.

    table: as in `PositionalScores`, but its first vector is that of a query S - 1 positions before its key, and so on.
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
    """Attention whose query and key projections also project the vectors of distances.

    kinds: the terms of the scores besides content to content: `c2p`, `p2c` or both.
    """

    kinds: tuple[str, ...] = (CONTENT_TO_POSITION, POSITION_TO_CONTENT)

    def distance_terms(self, vectors: jax.Array) -> tuple[BiasTerm, ...]:
        """Return the bias terms of `kinds` for T queries and T keys.

        vectors: [G R D], a copy for each of G shards of the rows. R = 2 T - 1 vectors, of the distances T - 1 down to
            1 - T.
        """
        length, terms = (vectors.shape[1] + 1) // 2, []
        if CONTENT_TO_POSITION in self.kinds:
            terms.append(PositionalScores(None, self.key(vectors), length, self.execution.kernels))
        if POSITION_TO_CONTENT in self.kinds:
            queries = self.scaled(self.query(vectors[:, ::-1]))
            terms.append(KeyDistanceScores(None, queries, length, self.execution.kernels))
        return tuple(terms)
