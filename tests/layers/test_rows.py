"""Rows of tokens: their shapes, positions, what they see, and a cache with the tokens before; and prompts.

tests/interop/test_sentence_transformers.py has vectors of texts.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.template import TEXT_ALONE, Template
from plmjax.errors import UserError
from plmjax.layers.attention.cache import KeyValueCache
from plmjax.layers.rows import DecoderRows, read_rows, read_source
from plmjax.layers.text_vectors import TextVectors, tokens_before
from plmjax.layers.tokens import first_of_each, last_tokens
from plmjax.models.gpt2 import Gpt2Config

CONFIG = Gpt2Config.tiny(vocab_size=31, n_positions=8)
IDS = jnp.arange(6).reshape(2, 3)
MASK = np.array([[1, 1, 1], [0, 1, 1]])
NEXT = np.array([[1, 1], [0, 1]])


EMPTY = KeyValueCache.empty(1, 2, 5, heads=2, size=3, dtype=jnp.float32)


def read(ids: Any, mask: Any, cache: KeyValueCache | None = None, **settings: object) -> DecoderRows:
    given = {"positions": None, "segment_ids": None, "prefix_lengths": None} | settings
    return read_rows(CONFIG, ids, mask, **given, cache=cache)


def after_three() -> KeyValueCache:
    """A cache of five places with three tokens in one row and two behind padding in the other one."""
    return read(IDS, MASK, EMPTY).cache.advance(3)


def visible(rows: object, queries: int, keys: int) -> list:
    return (np.broadcast_to(rows.mask_terms.bias(queries, keys), (2, 1, queries, keys))[:, 0] == 0).astype(int).tolist()


def test_tokens_behind_a_cache_have_the_positions_of_the_real_ones_and_see_them() -> None:
    rows = read(IDS[:, :2], NEXT, after_three())
    assert rows.positions[0].tolist() == [3, 4] and rows.positions[1, 1] == 2
    assert rows.cache.key_mask.tolist() == [[1, 1, 1, 1, 1], [0, 1, 1, 0, 1]]
    assert visible(rows, 2, 5) == [[[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], [[0, 1, 1, 0, 0], [0, 1, 1, 0, 1]]]
    given = read(IDS[:, :2], NEXT, after_three(), positions=jnp.array([[6, 7], [1, 5]]))
    assert given.positions.tolist() == [[6, 7], [1, 5]]
    assert read(IDS, MASK, EMPTY).positions.tolist() == [[0, 1, 2], [0, 0, 1]]  # 0 at padding


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


def test_the_prompt_is_counted_with_its_special_tokens_but_the_last() -> None:
    templates = (Template("cls A sep", "cls A sep B sep"), Template("A sep cls", "A sep B sep cls"), TEXT_ALONE)
    assert [tokens_before([7, 8], template) for template in templates] == [3, 3, 2]
    assert [tokens_before([], template) for template in templates] == [0, 0, 0]
    with pytest.raises(UserError, match="found one of 4 tokens in a row of 4"):
        TextVectors(include_prompt=False).pool(np.ones((4, 2), np.float32), before=4)


def test_sequences_of_a_row_see_themselves_alone() -> None:
    segments = np.array([[1, 1, 2], [1, 2, 2]])
    source = read_source(CONFIG, IDS, MASK, positions=None, segment_ids=segments)
    assert visible(source, 3, 3) == [[[1, 1, 0], [1, 1, 0], [0, 0, 1]], [[0, 0, 0], [0, 1, 1], [0, 1, 1]]]
    assert source.mask is MASK and source.positions.tolist() == [[0, 1, 2]] * 2
    with pytest.raises(ValueError, match="rows of one sequence with a cache, found segment_ids"):
        read(IDS, None, after_three(), segment_ids=segments)
