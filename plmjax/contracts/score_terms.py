"""Terms that are added to the scores of attention: relative positions, segments, and whatever else a system defines.

    score(i, j) = q_i . k_j + term_1(i, j) + term_2(i, j) + ...

A term may depend on the query, on the key, on their positions and on arrays of its own, and learns through all but the
positions. Attention asks for the whole of it or for one block at a time.
"""

import flax.struct
import jax

from plmjax.contracts.attention_arrays import AttentionArrays, axes


class ScoreTerm(AttentionArrays):
    """Base of the terms, dataclasses of `flax.struct` whose arrays are parameters or are computed from parameters.

    Fields for arrays with an axis of queries, keys or heads are made with `axes`: attention cuts these axes, also the
    heads, where it computes a few of them at a time.
    """

    def scores(
        self, query: jax.Array, key: jax.Array, query_positions: jax.Array, key_positions: jax.Array
    ) -> jax.Array:
        """The term for T queries and S keys: float32 that broadcasts to [B N T S].

        Args:
            query: [B T N H], already scaled.
            key: [B S N H].
            query_positions: int [T] or [B T], each one above the last.
            key_positions: int [S], each one above the last.
        """
        raise NotImplementedError(f"{type(self).__name__} must give its scores.")


@flax.struct.dataclass
class ScoreArray(ScoreTerm):
    """A term that is computed beforehand, such as one that several layers share.

    values: float32 that broadcasts to [B N T S].
    """

    values: jax.Array = axes("batch", "heads", "queries", "keys")

    def scores(
        self, query: jax.Array, key: jax.Array, query_positions: jax.Array, key_positions: jax.Array
    ) -> jax.Array:
        """The array."""
        return self.values
