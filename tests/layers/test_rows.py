"""Rows of tokens: their shapes and lengths, positions, what they see, and a cache with the tokens before."""

import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.layers.attention.cache import KeyValueCache
from plmjax.layers.rows import read_rows, read_source
from plmjax.layers.tokens import first_of_each, last_tokens
from plmjax.models.gpt2 import Gpt2Config

CONFIG = Gpt2Config.tiny(vocab_size=31, n_positions=8)
IDS = jnp.arange(6).reshape(2, 3)
MASK = np.array([[1, 1, 1], [0, 1, 1]])
NEXT = np.array([[1, 1], [0, 1]])


def after_three() -> KeyValueCache:
    """A cache of five places with three tokens in one row and two behind padding in the other one."""
    cache = KeyValueCache.empty(1, 2, 5, heads=2, size=3, dtype=jnp.float32)
    return read_rows(
        CONFIG, IDS, MASK, positions=None, segment_ids=None, prefix_lengths=None, cache=cache
    ).cache.advance(3)


def visible(rows: object, queries: int, keys: int) -> list:
    return (np.broadcast_to(rows.mask_terms.bias(queries, keys), (2, 1, queries, keys))[:, 0] == 0).astype(int).tolist()


def test_tokens_behind_a_cache_have_the_positions_of_the_real_ones_and_see_them() -> None:
    rows = read_rows(
        CONFIG, IDS[:, :2], NEXT, positions=None, segment_ids=None, prefix_lengths=None, cache=after_three()
    )
    assert rows.positions[0].tolist() == [3, 4] and rows.positions[1, 1] == 2
    assert rows.cache.key_mask.tolist() == [[1, 1, 1, 1, 1], [0, 1, 1, 0, 1]]
    assert visible(rows, 2, 5) == [[[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], [[0, 1, 1, 0, 0], [0, 1, 1, 0, 1]]]
    given = read_rows(
        CONFIG,
        IDS[:, :2],
        NEXT,
        positions=jnp.array([[6, 7], [1, 5]]),
        segment_ids=None,
        prefix_lengths=None,
        cache=after_three(),
    )
    assert given.positions.tolist() == [[6, 7], [1, 5]]
    first = read_rows(
        CONFIG,
        IDS,
        MASK,
        positions=None,
        segment_ids=None,
        prefix_lengths=None,
        cache=KeyValueCache.empty(1, 2, 5, heads=2, size=3, dtype=jnp.float32),
    )
    assert first.positions.tolist() == [[0, 1, 2], [0, 0, 1]]  # 0 at padding


def test_the_mask_and_the_segments_of_a_call_are_returned_as_they_were_given() -> None:
    """With a cache the mask is that of the new tokens, not of those before them."""
    behind = read_rows(
        CONFIG, IDS[:, :2], NEXT, positions=None, segment_ids=None, prefix_lengths=None, cache=after_three()
    )
    assert behind.mask is NEXT and behind.segment_ids is None
    assert (
        read_rows(
            CONFIG, IDS[:, :2], None, positions=None, segment_ids=None, prefix_lengths=None, cache=after_three()
        ).mask
        is None
    )
    segments, places = np.array([[1, 1, 2], [1, 2, 2]]), np.array([[0, 1, 0], [0, 0, 1]])
    for read in (
        read_source(CONFIG, IDS, MASK, positions=places, segment_ids=segments),
        read_rows(CONFIG, IDS, MASK, positions=places, segment_ids=segments, prefix_lengths=None, cache=None),
    ):
        assert read.mask is MASK and read.segment_ids is segments and read.positions.tolist() == places.tolist()
    source = read_source(CONFIG, IDS, MASK, positions=None, segment_ids=segments)
    assert visible(source, 3, 3) == [[[1, 1, 0], [1, 1, 0], [0, 0, 1]], [[0, 0, 0], [0, 1, 1], [0, 1, 1]]]
    assert source.positions.tolist() == [[0, 1, 2]] * 2
    with pytest.raises(ValueError, match="rows of one sequence with a cache, found segment_ids"):
        read_rows(CONFIG, IDS, None, positions=None, segment_ids=segments, prefix_lengths=None, cache=after_three())


def test_the_last_token_of_a_row_is_real_on_whichever_side_the_padding_is() -> None:
    mask = jnp.array([[1, 1, 0, 0], [0, 0, 1, 1], [0, 1, 1, 0], [1, 1, 1, 1]])
    places = jnp.broadcast_to(jnp.arange(4.0)[:, None], (4, 4, 1))
    assert last_tokens(places, mask, None)[:, 0].tolist() == [1, 3, 2, 3]
    assert last_tokens(places, None, None)[:, 0].tolist() == [3] * 4  # all are real
    ends = jnp.array([[0, 2]] * 4)
    assert last_tokens(places, mask, ends)[..., 0].tolist() == [[0, 2]] * 4


def test_a_sequence_begins_where_the_number_of_the_token_before_is_another_one() -> None:
    segments = jnp.array([[0, 0, 1, 1, 2], [3, 1, 1, 0, 0]])
    assert first_of_each(segments).tolist() == [[True, False, True, False, True], [True, True, False, True, False]]
