"""The key-value cache of a decoder: the keys and values of the tokens that it has read.

The loop over the layers carries the cache. Each layer writes its new keys and values before it reads all of them. So
every read of the arrays follows the last write, and the compiler updates the arrays in place.
"""

from typing import Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.cache import Cache
from plmjax.contracts.mask_terms import Causal, KeyMask, MaskTerms
from plmjax.layers.attention.multi_head import KeyValues

AXES = ("layers", "batch", "heads", "head", "length")
"""Logical axes of the arrays, so that a mesh divides the batch and the heads of the cache."""


@flax.struct.dataclass
class KeyValueCache(Cache):
    """Keys and values of every layer, with a capacity of S tokens per row.

    All rows are written at the same position. Rows of unequal length are padded on the left, and `key_mask` hides the
    padding.

    keys, values: [L B N H S]. The positions are the last axis, because XLA for CPU copies any other layout before the
        products of attention.
    key_mask: int32 [B S], 1 for tokens that may be attended to.
    length: int32 scalar, the number of positions written so far.
    """

    keys: jax.Array
    values: jax.Array
    key_mask: jax.Array
    length: jax.Array

    @classmethod
    def empty(cls, layers: int, batch: int, capacity: int, *, heads: int, size: int, dtype: jnp.dtype) -> Self:
        """Return a cache without tokens."""
        zeros = nn.with_logical_constraint(jnp.zeros((layers, batch, heads, size, capacity), dtype), AXES)
        return cls(zeros, zeros, jnp.zeros((batch, capacity), jnp.int32), jnp.zeros((), jnp.int32))

    @property
    def capacity(self) -> int:
        """Maximum number of tokens per row, S."""
        return self.keys.shape[-1]

    def with_mask(self, attention_mask: jax.Array) -> Self:
        """Return the cache with the mask of T new tokens, int [B T].

        The layers write their keys and values afterwards.
        """
        mask = attention_mask.astype(jnp.int32)
        return self.replace(key_mask=jax.lax.dynamic_update_slice_in_dim(self.key_mask, mask, self.length, 1))

    def positions(self, attention_mask: jax.Array) -> jax.Array:
        """Return the number of real tokens before each of T new tokens, int [B T]; 0 for padding on the left."""
        before = jnp.sum(self.key_mask, axis=1, keepdims=True)
        return jnp.maximum(before + jnp.cumsum(attention_mask, axis=1) - 1, 0).astype(jnp.int32)

    def mask_terms(self, prefix_lengths: jax.Array | None = None) -> MaskTerms:
        """Return the mask terms of new tokens: each sees the cache and the new tokens up to itself."""
        return MaskTerms((KeyMask(self.key_mask), Causal(prefix_lengths)), query_offset=self.length)

    def update(self, layer: jax.Array, new: KeyValues) -> Self:
        """Write a layer's keys and values of T new tokens, [B T N H], and return the cache."""

        def write(kept: jax.Array, new: jax.Array) -> jax.Array:
            new = jnp.einsum("BTNH->BNHT", new).astype(kept.dtype)[None]
            return jax.lax.dynamic_update_slice(kept, new, (layer, 0, 0, 0, self.length))

        return self.replace(keys=write(self.keys, new.keys), values=write(self.values, new.values))

    def layer(self, layer: jax.Array) -> KeyValues:
        """Return a layer's keys and values, [B S N H]."""
        return KeyValues(*(jnp.einsum("BNHS->BSNH", kept[layer]) for kept in (self.keys, self.values)))

    def advance(self, tokens: int) -> Self:
        """Return the cache with `tokens` more positions, after every layer has written them."""
        return self.replace(length=self.length + tokens)

    def take_rows(self, indices: jax.Array) -> Self:
        keys, values = (
            nn.with_logical_constraint(jnp.take(kept, indices, axis=1), AXES) for kept in (self.keys, self.values)
        )
        return self.replace(keys=keys, values=values, key_mask=jnp.take(self.key_mask, indices, axis=0))


def with_past(new: KeyValues, cache: KeyValueCache | None, layer: jax.Array) -> tuple[KeyValues, KeyValueCache | None]:
    """Append the keys and values of T new tokens to the cache of a layer. Return all of them, [B S N H], and the cache.

    Args:
        new: keys and values of the new tokens, [B T N H].
        cache: the earlier tokens; None if there are none. Then S is T.
        layer: index of the layer, int scalar.
    """
    if cache is None:
        return new, None
    cache = cache.update(layer, new)
    return cache.layer(layer), cache
