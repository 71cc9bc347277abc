"""What a decoder keeps of the tokens that it has read, so that a further token costs one position and not the row."""

from typing import Self

import flax.struct
import jax
import jax.numpy as jnp

from plmjax.layers.attention import KeyValues, MultiHeadAttention
from plmjax.layers.visibility import Visibility


@flax.struct.dataclass
class Cache:
    """Keys and values of every layer, with room for S tokens a row.

    All rows are written at the same place: rows of unequal length are padded on the left, and `key_mask` hides that.

    layers: arrays [L B S N H].
    key_mask: int32 [B S], 1 for tokens that may be seen.
    length: int32 scalar, how many places are written.
    """

    layers: KeyValues
    key_mask: jax.Array
    length: jax.Array

    @classmethod
    def empty(cls, layers: int, batch: int, room: int, heads: int, size: int, dtype: jnp.dtype) -> Self:
        """A cache of no tokens, with room for so many."""
        one = KeyValues.empty(batch, room, heads, size, dtype)
        stacked = jax.tree.map(lambda x: jnp.broadcast_to(x, (layers, *x.shape)), one)
        return cls(stacked, jnp.zeros((batch, room), jnp.int32), jnp.zeros((), jnp.int32))

    def extended(self, attention_mask: jax.Array) -> Self:
        """With the mask of further tokens, int [B T], which the layers have still to write."""
        mask = attention_mask.astype(jnp.int32)
        return self.replace(key_mask=jax.lax.dynamic_update_slice_in_dim(self.key_mask, mask, self.length, 1))

    def positions(self, attention_mask: jax.Array) -> jax.Array:
        """int [B T]: how many real tokens stand before each of these further ones; padding takes 0."""
        before = jnp.sum(self.key_mask, axis=1, keepdims=True)
        return jnp.maximum(before + jnp.cumsum(attention_mask, axis=1) - 1, 0).astype(jnp.int32)

    def visibility(self, prefix_lengths: jax.Array | None = None) -> Visibility:
        """What further tokens see: the tokens kept, and themselves up to each."""
        return Visibility(key_mask=self.key_mask, causal=True, prefix_lengths=prefix_lengths, query_offset=self.length)

    def written(self, new: KeyValues) -> Self:
        """With the keys and values of T further tokens, [L B T N H]."""
        layers = jax.tree.map(
            lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), self.length, 2),
            self.layers,
            new,
        )
        return self.replace(layers=layers, length=self.length + new.keys.shape[2])

    def rows(self, indices: jax.Array) -> Self:
        """With other rows, int [B']: a beam search goes on from some rows several times and drops others."""
        return self.replace(
            layers=jax.tree.map(lambda x: jnp.take(x, indices, axis=1), self.layers),
            key_mask=jnp.take(self.key_mask, indices, axis=0),
        )


def attend_to_past(
    attention: MultiHeadAttention,
    x: jax.Array,
    visibility: Visibility,
    past: KeyValues | None,
    *,
    deterministic: bool,
) -> tuple[jax.Array, KeyValues]:
    """Self-attention of T tokens that also see the tokens before them.

    Args:
        x: [B T D].
        visibility: its `query_offset` is the number of places before x.
        past: one layer's keys and values, [B S N H]; None where nothing is before x.

    Returns:
        [B T D], and the keys and values of x, [B T N H].
    """
    new = attention.key_values(x)
    seen = new if past is None else past.written(new, visibility.query_offset)
    return attention.attend(x, seen, visibility, deterministic=deterministic), new
