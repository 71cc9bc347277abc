"""Bias terms: numbers that are added to the scores of attention, such as relative positions.

    score(i, j) = q_i . k_j + term_1(i, j) + term_2(i, j) + ...

A term may depend on the query, on the key, on their positions and on learned arrays. Gradients pass through all of
these except the positions. Attention computes a term for all scores, or for one block of them at a time.
"""

import flax.struct
import jax

from plmjax.contracts.attention_arrays import AttentionArrays, axes


class BiasTerm(AttentionArrays):
    """Base of the bias terms: dataclasses of `flax.struct` whose arrays are parameters or depend on parameters.

    Fields for arrays with an axis of queries, keys or heads are made with `axes`. Attention slices these axes. It
    slices the heads only where it computes a few heads at a time.
    """

    def scores(
        self, query: jax.Array, key: jax.Array, query_positions: jax.Array, key_positions: jax.Array
    ) -> jax.Array:
        """Return the term for T queries and S keys: float32 that broadcasts to [B N T S].

        Args:
            query: [B T N H], already scaled.
            key: [B S N H].
            query_positions: int [T] or [B T], strictly increasing.
            key_positions: int [S], strictly increasing.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `scores`.")


@flax.struct.dataclass
class ScoreArray(BiasTerm):
    """A term that is computed in advance, for example one that several layers share.

    values: float32 that broadcasts to [B N T S].
    """

    values: jax.Array = axes("batch", "heads", "queries", "keys")

    def scores(
        self, query: jax.Array, key: jax.Array, query_positions: jax.Array, key_positions: jax.Array
    ) -> jax.Array:
        return self.values
