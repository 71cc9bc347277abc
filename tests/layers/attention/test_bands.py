"""Attention in bands: equal to attention over whole rows; tests/models/test_windows.py has models with windows."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.bias_terms import ScoreArray
from plmjax.contracts.mask_terms import Causal, KeyMask, MaskTerms, SameSegment, Window
from plmjax.layers.attention import bands
from plmjax.layers.attention.backends import BACKENDS, dense
from tests.content_term import ContentTerm, content_parameters

ROWS, QUERIES, KEYS, HEADS, SIZE = 2, 22, 29, 2, 3
MASK = np.arange(KEYS) < np.array([[KEYS], [20]])
SEGMENTS = np.sort(np.random.default_rng(2).integers(1, 4, (ROWS, KEYS)))
OFFSET = KEYS - QUERIES

VISIBLE = {
    "before": (MaskTerms((Causal(), Window(6, 9)), OFFSET)),
    "both sides, behind what a memory has dropped": MaskTerms((Window(2, 5),), 11 + 3, 11),
    "after, in padded rows": MaskTerms((Window(-1, 4), KeyMask(MASK))),
    "packed behind a prefix": MaskTerms(
        (SameSegment(SEGMENTS[:, OFFSET:], SEGMENTS), Causal(np.array([3, 9])), Window(3, 4)), OFFSET
    ),
    "behind all keys": MaskTerms((Window(9, 0),), KEYS - 5),
}


def value_and_gradients(backend: Any, mask_terms: MaskTerms) -> Any:
    """The contexts of the queries that see a key, and the gradients of queries, keys, values and the terms."""
    random = np.random.default_rng(0)
    inputs = [jnp.asarray(random.normal(size=(ROWS, n, HEADS, SIZE)), jnp.float32) for n in (QUERIES, KEYS, KEYS)]
    values = jnp.asarray(random.normal(size=(HEADS, QUERIES, KEYS)), jnp.float32)
    hidden = jnp.broadcast_to(mask_terms.bias(QUERIES, KEYS), (ROWS, 1, QUERIES, KEYS))
    sees = jnp.any(hidden == 0, axis=-1).reshape(ROWS, QUERIES, 1, 1)
    assert 0.2 < jnp.mean(sees) <= 1

    def loss(inputs: Any, parameters: Any, values: jax.Array) -> tuple[jax.Array, jax.Array]:
        content = ContentTerm(**parameters, query_segments=SEGMENTS[:, OFFSET:], key_segments=SEGMENTS)
        terms = content, ScoreArray(values)
        context = backend(*inputs, mask_terms=mask_terms, terms=terms, rate=0.0, dropout_key=None)
        context = jnp.where(sees, context, 0.0)
        return jnp.sum(jnp.sin(context)), context

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(inputs, content_parameters(HEADS, SIZE), values)


@pytest.mark.parametrize(
    ("kind", "attention", "together"),
    [
        ("packed behind a prefix", "dense", 0),
        ("packed behind a prefix", "dense", 1),
        ("both sides, behind what a memory has dropped", "blockwise", 0),
        *(
            pytest.param(kind, "dense", 1, marks=pytest.mark.nightly)
            for kind in ("before", "after, in padded rows", "behind all keys")
        ),
    ],
)
def test_bands_are_whole_rows_without_what_is_hidden(kind: str, attention: str, together: int, monkeypatch) -> None:
    """With a memory, padding, segments, a prefix, and terms of queries and keys; gradients of all of them.

    together: 1 for all blocks at once, 0 for one after the other.
    """
    expected = value_and_gradients(dense, VISIBLE[kind])
    monkeypatch.setattr(bands, "MIN_BLOCK_SIZE", 4)
    monkeypatch.setattr(bands, "MAX_BYTES_TOGETHER", together * 2**24)
    assert bands.Bands.of(VISIBLE[kind], QUERIES, KEYS).width < KEYS
    found = value_and_gradients(BACKENDS[attention], VISIBLE[kind])
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_block_has_as_many_queries_as_the_longer_side_of_the_window_from_128_to_512() -> None:
    """Queries of a block, blocks of 600 queries, keys of a band, and where the first band begins, told by hand."""
    for window, keys, expected in (
        ((100, 30), 600, (128, 5, 384, -112)), ((129, 20), 769, (256, 3, 512, -144)),
        ((-600, 700), 4000, (512, 2, 1536, 0)), ((128, 0), 257, (128, 5, 256, -128)), ((128, 0), 256, None),
    ):  # fmt: skip
        assert bands.Bands.of(MaskTerms((Window(*window),)), 600, keys) == expected


def test_every_block_of_queries_drops_probabilities_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bands, "MIN_BLOCK_SIZE", 4)
    ones = jnp.ones((1, 16, 1, 1))
    values = jnp.tile(jnp.eye(4)[None, :, None], (1, 4, 1, 1))  # those of four neighbours tell which are dropped
    draw = {"rate": 0.5, "dropout_key": jax.random.key(0)}
    found = BACKENDS["dense"](ones, ones, values, mask_terms=MaskTerms((Window(3, 0),)), terms=(), **draw)
    blocks = np.asarray(found).reshape(4, 4, 4)[1:]  # the first sees less
    assert len({block.tobytes() for block in blocks}) == 3 and 0.3 < (blocks == 0).mean() < 0.7


def test_a_band_has_every_key_that_its_queries_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random windows on both sides, on one side, and away from the query; rows of any length behind any memory."""
    monkeypatch.setattr(bands, "MIN_BLOCK_SIZE", 4)
    monkeypatch.setattr(bands, "MAX_BLOCK_SIZE", 16)
    monkeypatch.setattr(bands, "TILE", 4)
    draw, banded = np.random.default_rng(0), 0
    for before, after, queries, memory in draw.integers([-6, -6, 1, 0], [24, 24, 50, 20], (1000, 4)).tolist():
        keys = queries + memory
        found = bands.Bands.of(MaskTerms((Window(before, after),), memory), queries, keys)
        if found is None:
            continue
        banded += 1
        query, key = np.arange(queries)[:, None], np.arange(keys)
        distances = key - query - memory
        first = found.start + query // found.size * found.size
        in_band = (key >= first) & (key < first + found.width)
        assert found.start + (found.blocks - 1) * found.size + found.width == found.start + found.keys
        assert not np.any((distances >= -before) & (distances <= after) & ~in_band), (before, after, queries, memory)
    assert banded > 200
