"""A score term that depends on queries, keys, positions and segments, as those of Transformer-XL and XLNet do."""

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.attention_arrays import axes
from plmjax.contracts.bias_terms import BiasTerm

FARTHEST = 3


@flax.struct.dataclass
class ContentTerm(BiasTerm):
    """q_i . distances[clip(j - i)] + key_bias . k_j + q_i . other_segment where i and j are of different segments.

    distances: [2 FARTHEST + 1, N H]. key_bias, other_segment: [N H]. Segments: int [B T] and [B S].
    """

    distances: jax.Array = axes(None, "heads", None)
    key_bias: jax.Array = axes("heads", None)
    other_segment: jax.Array = axes("heads", None)
    query_segments: jax.Array = axes("batch", "queries")
    key_segments: jax.Array = axes("batch", "keys")

    def scores(
        self, query: jax.Array, key: jax.Array, query_positions: jax.Array, key_positions: jax.Array
    ) -> jax.Array:
        distance = jnp.clip(key_positions - query_positions[..., None], -FARTHEST, FARTHEST) + FARTHEST
        distance = distance[None] if distance.ndim == 2 else distance  # [B T S], B may be 1
        chosen = jax.nn.one_hot(distance, 2 * FARTHEST + 1)
        by_distance = jnp.einsum("BTNH,KNH->BNTK", query, self.distances)
        chosen = jnp.broadcast_to(chosen, (len(query), *chosen.shape[1:]))
        by_key = jnp.einsum("NH,BSNH->BNS", self.key_bias, key)[:, :, None]
        other = self.query_segments[:, None, :, None] != self.key_segments[:, None, None]
        by_segment = jnp.einsum("BTNH,NH->BNT", query, self.other_segment)[..., None]
        return jnp.einsum("BNTK,BTSK->BNTS", by_distance, chosen) + by_key + jnp.where(other, by_segment, 0.0)


def content_parameters(heads: int, size: int) -> dict[str, jax.Array]:
    """The arrays of a `ContentTerm` that learn."""
    random = np.random.default_rng(11)
    shapes = {"distances": (2 * FARTHEST + 1, heads, size), "key_bias": (heads, size), "other_segment": (heads, size)}
    return {name: jnp.asarray(random.normal(size=shape), jnp.float32) for name, shape in shapes.items()}
