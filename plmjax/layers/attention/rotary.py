"""Rotary position embeddings (RoPE), and attention with them and with grouped queries.

Queries and keys are rotated by angles that grow with their positions, so that their product depends only on the
distance between them (RoFormer, Su et al., arXiv 2104.09864):

    angle_i = position / theta^(2 i / H)     for each pair i of the H features of a head
    (a, b)  ->  (a cos - b sin, b cos + a sin)

Pair i has feature i of each half of a head (Llama, ModernBERT), or the neighbouring features 2 i and 2 i + 1 (RoFormer,
NeoBERT).

Grouped-query attention (Ainslie et al., arXiv 2305.13245): several query heads share one key and value head.
"""

from typing import Self

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.mask_terms import MaskTerms
from plmjax.layers.attention.multi_head import KeyValues, MultiHeadAttention


@flax.struct.dataclass
class Rotation:
    """Cosines and sines of the angles of each token, float32 [B T 1 H/2]."""

    cos: jax.Array
    sin: jax.Array

    @classmethod
    def of(cls, positions: jax.Array, size: int, theta: float) -> Self:
        """Return the rotations of positions, int [B T], for heads of `size` features.

        The frequencies are equal to those of torch in float32, with which all published models were trained. At
        position 8,191 an error in the last digit of a frequency changes the fourth digit of the cosine.
        """
        exponents = (np.arange(0, size, 2, dtype=np.float32) / np.float32(size)).astype(np.float64)
        frequencies = np.float32(1) / (theta**exponents).astype(np.float32)
        angles = positions.astype(jnp.float32)[..., None, None] * frequencies
        return cls(jnp.cos(angles), jnp.sin(angles))

    def rotate(self, x: jax.Array, interleaved: bool) -> jax.Array:
        """Rotate [B T N H], in float32. interleaved: true if neighbouring features are pairs, false for both halves."""
        pairs = x.reshape(*x.shape[:-1], *((-1, 2) if interleaved else (2, -1))).astype(jnp.float32)
        axis = -1 if interleaved else -2
        a, b = (jnp.take(pairs, side, axis=axis) for side in (0, 1))
        rotated = jnp.stack([a * self.cos - b * self.sin, b * self.cos + a * self.sin], axis=axis)
        return rotated.reshape(x.shape).astype(x.dtype)


class RotaryAttention(MultiHeadAttention):
    """Attention with rotated queries and keys.

    key_value_heads: K, the number of key and value heads. N / K query heads share each. None takes N.
    interleaved: true to rotate pairs of neighbouring features.
    """

    key_value_heads: int | None = None
    interleaved: bool = False

    @property
    def heads_of_keys(self) -> int:
        return self.num_heads if self.key_value_heads is None else self.key_value_heads

    def rotated_key_values(self, source: jax.Array, rotation: Rotation) -> KeyValues:
        """Project [B T D] to rotated keys and plain values, [B T K H] each."""
        found = self.key_values(source)
        return found.replace(keys=rotation.rotate(found.keys, self.interleaved))

    def attend_rotated(
        self,
        queries: jax.Array,
        rotation: Rotation,
        key_values: KeyValues,
        mask_terms: MaskTerms,
        *,
        deterministic: bool,
    ) -> jax.Array:
        """Attend from [B T D] to keys and values from `rotated_key_values`, [B S K H]. Return [B T D]."""
        query = self.scaled(rotation.rotate(self.query(queries), self.interleaved))
        groups = self.num_heads // self.heads_of_keys
        if groups > 1:
            key_values = jax.tree.map(lambda x: jnp.repeat(x, groups, axis=2), key_values)
        return self.output(
            self.context(query, key_values, mask_terms, terms=(), deterministic=deterministic, name=self.name)
        )
