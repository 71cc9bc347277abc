"""What a decoder keeps of the tokens that it has read, so that a further token costs one position and not the row.

The loop over the layers carries the cache: each layer writes its keys and values before it looks at all of them. So
every read of the arrays follows the last write, and the compiler changes them in place.
"""

from typing import Protocol, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.visibility import Causal, KeyMask, Visibility
from plmjax.layers.attention.multi_head import KeyValues, MultiHeadAttention

AXES = ("layers", "batch", "heads", "head", "length")
"""Logical axes of the arrays, so that a mesh divides them as it does the batch and the heads."""


class Kept(Protocol):
    """What a decoder keeps of the tokens of R rows: keys and values, the states of LSTMs, the last tokens themselves.

    It is a pytree of arrays, whose shapes stay the same from token to token.
    """

    @property
    def count(self) -> int:
        """R."""

    def rows(self, indices: jax.Array) -> Self:
        """With other rows, int [R']: some several times, others not at all."""


@flax.struct.dataclass
class Cache:
    """Keys and values of every layer, with room for S tokens a row.

    All rows are written at the same place: rows of unequal length are padded on the left, and `key_mask` hides that.

    keys, values: [L B N H S], the places of a feature side by side: XLA for CPU copies what lies otherwise before the
        products of attention.
    key_mask: int32 [B S], 1 for tokens that may be seen.
    length: int32 scalar, how many places are written.
    """

    keys: jax.Array
    values: jax.Array
    key_mask: jax.Array
    length: jax.Array

    @classmethod
    def empty(cls, layers: int, batch: int, room: int, heads: int, size: int, dtype: jnp.dtype) -> Self:
        """A cache of no tokens, with room for so many."""
        zeros = nn.with_logical_constraint(jnp.zeros((layers, batch, heads, size, room), dtype), AXES)
        return cls(zeros, zeros, jnp.zeros((batch, room), jnp.int32), jnp.zeros((), jnp.int32))

    @property
    def count(self) -> int:
        """Rows, B."""
        return len(self.key_mask)

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
        return Visibility((KeyMask(self.key_mask), Causal(prefix_lengths)), query_offset=self.length)

    def written(self, layer: jax.Array, new: KeyValues) -> Self:
        """With a layer's keys and values of further tokens, [B T N H]."""

        def write(kept: jax.Array, new: jax.Array) -> jax.Array:
            new = jnp.einsum("BTNH->BNHT", new).astype(kept.dtype)[None]
            return jax.lax.dynamic_update_slice(kept, new, (layer, 0, 0, 0, self.length))

        return self.replace(keys=write(self.keys, new.keys), values=write(self.values, new.values))

    def layer(self, layer: jax.Array) -> KeyValues:
        """A layer's keys and values, [B S N H]."""
        return KeyValues(*(jnp.einsum("BNHS->BSNH", kept[layer]) for kept in (self.keys, self.values)))

    def advanced(self, tokens: int) -> Self:
        """After every layer has written so many tokens."""
        return self.replace(length=self.length + tokens)

    def rows(self, indices: jax.Array) -> Self:
        """With other rows, int [B']: a beam search goes on from some rows several times and drops others."""
        keys, values = (
            nn.with_logical_constraint(jnp.take(kept, indices, axis=1), AXES) for kept in (self.keys, self.values)
        )
        return self.replace(keys=keys, values=values, key_mask=jnp.take(self.key_mask, indices, axis=0))


def attend_to_past(
    attention: MultiHeadAttention,
    x: jax.Array,
    visibility: Visibility,
    cache: Cache | None,
    layer: jax.Array,
    *,
    deterministic: bool,
) -> tuple[jax.Array, Cache | None]:
    """Self-attention of T tokens that also see the tokens before them.

    Args:
        x: [B T D].
        visibility: its `query_offset` is the number of places before x.
        cache: the tokens before x; None where there are none.
        layer: which of the cache's layers this is, int scalar.

    Returns:
        [B T D], and the cache with the keys and values of x.
    """
    key_values, cache = after_past(attention.key_values(x), cache, layer)
    return attention.attend(x, key_values, visibility, deterministic=deterministic), cache


def after_past(new: KeyValues, cache: Cache | None, layer: jax.Array) -> tuple[KeyValues, Cache | None]:
    """Keys and values of T tokens behind those of a layer's tokens before them, and the cache that holds both.

    Args:
        new: [B T N H].
        cache: the tokens before; None where there are none.
        layer: which of the cache's layers this is, int scalar.
    """
    if cache is None:
        return new, None
    cache = cache.written(layer, new)
    return cache.layer(layer), cache
