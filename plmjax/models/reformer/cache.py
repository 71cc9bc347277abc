"""The cache of Reformer: the vectors of the tokens that it has read, and their buckets."""

from typing import Self

import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.cache import Cache
from plmjax.layers.attention.cache import KeyValueCache
from plmjax.layers.attention.multi_head import KeyValues


@flax.struct.dataclass
class ReformerCache(Cache):
    """Keys, values and buckets of every layer, with a capacity of S tokens per row.

    key_values: the keys and values of all layers.
    buckets: int [L' B N R S], of the L' layers that hash; positions without a token have the bucket of padding.
    smallest, multiple: a row of more than `smallest` tokens is padded to a multiple of `multiple` tokens.
    """

    key_values: KeyValueCache
    buckets: jax.Array
    smallest: int = flax.struct.field(pytree_node=False)
    multiple: int = flax.struct.field(pytree_node=False)

    @property
    def capacity(self) -> int:
        """Maximum number of tokens per row, S."""
        return self.key_values.capacity

    @property
    def length(self) -> jax.Array:
        """The position of the next token, int32 scalar."""
        return self.key_values.length

    @property
    def key_mask(self) -> jax.Array:
        """int32 [B S], 1 for tokens that may be seen."""
        return self.key_values.key_mask

    @property
    def last_mask(self) -> jax.Array:
        """int32 [B 1], the mask at the position of the next token."""
        return jax.lax.dynamic_slice_in_dim(self.key_mask, self.length, 1, axis=1)

    @property
    def padded_length(self) -> jax.Array:
        """The length of rows that end with the next token, with their padding, int32 scalar."""
        tokens = self.length + 1
        return jnp.where(tokens <= self.smallest, tokens, -(-tokens // self.multiple) * self.multiple)

    def with_mask(self, attention_mask: jax.Array) -> Self:
        """Return the cache with the mask of T new tokens, int [B T]."""
        return self.replace(key_values=self.key_values.with_mask(attention_mask))

    def write(self, layer: jax.Array, key: jax.Array, value: jax.Array) -> Self:
        """Write a layer's keys and values of T new tokens, [B N T H] each."""
        new = KeyValues(jnp.moveaxis(key, 1, 2), jnp.moveaxis(value, 1, 2))
        return self.replace(key_values=self.key_values.update(layer, new))

    def write_buckets(self, hashing_layer: jax.Array, new: jax.Array) -> Self:
        """Write the buckets of T new tokens, int [B N R T]."""
        places = (hashing_layer, 0, 0, 0, self.length)
        return self.replace(buckets=jax.lax.dynamic_update_slice(self.buckets, new[None], places))

    def layer(self, layer: jax.Array) -> KeyValues:
        """Return a layer's keys and values, [B S N H]."""
        return self.key_values.layer(layer)

    def advance(self, tokens: int) -> Self:
        """Return the cache with `tokens` more positions, after every layer has written them."""
        return self.replace(key_values=self.key_values.advance(tokens))

    def take_rows(self, indices: jax.Array) -> Self:
        buckets = jnp.take(self.buckets, indices, axis=1)
        return self.replace(key_values=self.key_values.take_rows(indices), buckets=buckets)
