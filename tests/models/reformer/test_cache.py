"""Reformer's cache: how long a row is with its padding, and what other rows have."""

import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.layers.attention.cache import KeyValueCache
from plmjax.models.reformer.cache import ReformerCache
from plmjax.models.reformer.reformer import ReformerConfig


def empty(smallest: int = 4, multiple: int = 3) -> ReformerCache:
    return ReformerCache(
        KeyValueCache.empty(2, 2, 9, 1, 1, jnp.float32), jnp.zeros((1, 2, 1, 1, 9), int), smallest, multiple
    )


def test_a_row_that_is_longer_than_the_smallest_chunk_is_padded_to_a_multiple() -> None:
    assert [int(empty().advance(read).padded_length) for read in range(8)] == [1, 2, 3, 4, 6, 6, 9, 9]


def test_buckets_are_written_behind_those_before_and_taken_with_their_rows() -> None:
    cache = empty().with_mask(jnp.array([[0, 1], [1, 1]]))
    cache = cache.write_buckets(0, jnp.array([5, 6, 7, 8]).reshape(2, 1, 1, 2)).advance(2)
    cache = cache.with_mask(jnp.array([[1], [0]])).write_buckets(0, jnp.array([9, 10]).reshape(2, 1, 1, 1))
    assert cache.last_mask.tolist() == [[1], [0]]
    taken = cache.take_rows(jnp.array([1, 1, 0]))
    assert taken.buckets[0, :, 0, 0, :4].tolist() == [[7, 8, 10, 0], [7, 8, 10, 0], [5, 6, 9, 0]]
    assert taken.key_mask[:, :3].tolist() == [[1, 1, 0], [1, 1, 0], [0, 1, 1]] and taken.smallest == 4


def test_an_empty_cache_has_the_buckets_of_padding_for_the_layers_that_hash() -> None:
    config = ReformerConfig.tiny(attn_layers=("local", "lsh", "local"), num_buckets=(2, 4), num_hashes=3)
    cache = config.empty_cache(5, 8, Execution())
    assert cache.buckets.shape == (1, 5, config.num_attention_heads, 3, 8) and np.all(cache.buckets == 8)
    assert cache.key_values.keys.shape == (3, 5, config.num_attention_heads, config.attention_head_size, 8)
