"""Score terms that depend on queries and keys: their values and gradients in every way to compute attention."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.mask_terms import Causal, MaskTerms
from plmjax.layers.attention import backends
from plmjax.layers.attention.backends import SCORES, blockwise, dense
from plmjax.layers.dropout import apply_dropout
from tests.content_term import FARTHEST, ContentTerm, content_parameters

ROWS, QUERIES, KEYS, HEADS, SIZE = 2, 5, 8, 4, 3
VISIBILITY = MaskTerms((Causal(),), KEYS - QUERIES)
SEGMENTS = np.array([[0, 0, 0, 1, 1, 1, 2, 2], [0, 0, 0, 0, 0, 1, 1, 1]])
RATE, KEY = 0.3, jax.random.key(3)
FIRST_BLOCK = jax.random.fold_in(jax.random.fold_in(KEY, 0), 0)


def formula(
    query: jax.Array, key: jax.Array, value: jax.Array, *, term: ContentTerm, rate: float, draw: jax.Array | None
) -> jax.Array:
    """softmax(Q K^T + term) V, one pair of a query and a key after the other, left to automatic differentiation."""
    rows = []
    for i in range(QUERIES):
        position = i + KEYS - QUERIES
        row = []
        for j in range(KEYS):
            distance = min(max(j - position, -FARTHEST), FARTHEST) + FARTHEST
            other = (SEGMENTS[:, position] != SEGMENTS[:, j])[:, None, None]
            asked = key[:, j] + term.distances[distance] + other * term.other_segment  # [B N H]
            score = jnp.sum(query[:, i] * asked, axis=-1) + jnp.sum(term.key_bias * key[:, j], axis=-1)
            row.append(score if j <= position else jnp.full_like(score, -jnp.inf))
        rows.append(jnp.stack(row, axis=-1))
    probabilities = jax.nn.softmax(jnp.stack(rows, axis=-2))  # [B N T S]
    return jnp.einsum("BNTS,BSNH->BTNH", apply_dropout(probabilities, rate, draw, axes=SCORES), value)


def value_and_gradients(attend: Any) -> Any:
    """The context, and the gradients for queries, keys, values and all that the term learns."""
    random = np.random.default_rng(0)
    inputs = [jnp.asarray(random.normal(size=(ROWS, n, HEADS, SIZE)), jnp.float32) for n in (QUERIES, KEYS, KEYS)]

    def loss(inputs: Any, parameters: Any) -> tuple[jax.Array, jax.Array]:
        term = ContentTerm(**parameters, query_segments=SEGMENTS[:, KEYS - QUERIES :], key_segments=SEGMENTS)
        context = attend(*inputs, term=term)
        return jnp.sum(jnp.sin(context)), context

    gradients, context = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(inputs, content_parameters(HEADS, SIZE))
    return context, gradients


def attended(backend: Any, draw: jax.Array | None = None) -> Any:
    """The output of `backend`, with dropout if there is a key."""
    given = {"mask_terms": VISIBILITY, "rate": RATE, "dropout_key": draw}
    return lambda *inputs, term: backend(*inputs, terms=(term,), **given)


@functools.cache
def expected(dropout: str | None) -> Any:
    """By the formula; with the mask that a backend draws."""
    draw = {None: None, "of the key": KEY, "of the first block": FIRST_BLOCK}[dropout]
    return value_and_gradients(functools.partial(formula, rate=RATE, draw=draw))


def close(found: Any, expected: Any) -> None:
    """An element is a sum, whose rounding has the size of the largest."""
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        chex.assert_trees_all_close(ours, theirs, rtol=0, atol=3e-6 * np.abs(theirs).max())


def test_a_term_of_queries_and_keys_is_that_of_its_formula() -> None:
    close(value_and_gradients(attended(dense)), expected(None))
    close(value_and_gradients(attended(functools.partial(blockwise, block=3))), expected(None))
    assert min(np.abs(gradient).max() for gradient in jax.tree.leaves(expected(None))) > 0.01


def test_a_term_of_queries_and_keys_learns_through_dropout() -> None:
    close(value_and_gradients(attended(dense, KEY)), expected("of the key"))
    close(value_and_gradients(attended(blockwise, KEY)), expected("of the first block"))


@pytest.mark.parametrize("lanes", [128, 2], ids=["all queries", "blocks of two queries"])
def test_a_few_heads_at_a_time_get_their_part_of_a_term(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "SCORES_AT_ONCE", 2)
    monkeypatch.setattr(backends, "LANES", lanes)
    close(value_and_gradients(attended(dense)), expected(None))
