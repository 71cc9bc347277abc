"""Conditions of visibility: one that a system adds in its own file, how far queries see, and constants of scores."""

import functools
from typing import Any

import chex
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.attention_arrays import axes
from plmjax.contracts.mask_terms import Causal, KeyMask, MaskTerm, MaskTerms, Window
from plmjax.layers.attention.backends import blockwise, dense

ROWS, LENGTH, HEADS, SIZE = 2, 10, 2, 3


@flax.struct.dataclass
class InOrder(MaskTerm):
    """The key comes before the query in a permutation of the row, or is the query itself, as XLNet needs it.

    query_ranks, key_ranks: int [B T] and [B S].
    """

    query_ranks: jax.Array = axes("batch", "queries")
    key_ranks: jax.Array = axes("batch", "keys")

    def visible(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        return self.key_ranks[:, None] <= self.query_ranks[:, :, None]


RANKS = np.stack([np.random.default_rng(row).permutation(LENGTH) for row in range(ROWS)])


def one_query_at_a_time(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Each query with the keys that it sees, and no other."""
    rows = []
    for row in range(ROWS):
        contexts = []
        for i in range(LENGTH):
            seen = [j for j in range(LENGTH) if RANKS[row, j] <= RANKS[row, i]]
            scores = jnp.stack([jnp.sum(query[row, i] * key[row, j], axis=-1) for j in seen])  # [seen N]
            values = jnp.stack([value[row, j] for j in seen])
            contexts.append(jnp.sum(jax.nn.softmax(scores, axis=0)[..., None] * values, axis=0))
        rows.append(jnp.stack(contexts))
    return jnp.stack(rows)


@pytest.mark.nightly
def test_a_condition_of_its_own_file_works_in_every_backend() -> None:
    random = np.random.default_rng(5)
    inputs = tuple(jnp.asarray(random.normal(size=(ROWS, LENGTH, HEADS, SIZE)), jnp.float32) for _ in range(3))
    mask_terms = MaskTerms((InOrder(RANKS, RANKS),))

    def value_and_gradients(attend: Any) -> Any:
        def loss(inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            context = attend(*inputs)
            return jnp.sum(jnp.sin(context)), context

        return jax.jit(jax.grad(loss, has_aux=True))(inputs)

    expected = value_and_gradients(one_query_at_a_time)
    for backend in (dense, functools.partial(blockwise, block=4)):
        given = {"mask_terms": mask_terms, "terms": (), "rate": 0.0, "dropout_key": None}
        found = value_and_gradients(functools.partial(backend, **given))
        chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("conditions", "reach"),
    [
        ((), (None, None)),
        ((Causal(), KeyMask(RANKS)), (None, 0)),
        ((Causal(np.array([1, 2])), Window(3, 2)), (3, 2)),
        ((Window(3, 2), Causal(), Window(5, 1)), (3, 0)),
        ((Window(np.int32(3), 2), InOrder(RANKS, RANKS)), (None, 2)),
    ],
)
def test_the_narrowest_condition_decides_how_far_a_query_sees(conditions: Any, reach: Any) -> None:
    assert MaskTerms(conditions).reach == reach


def test_queries_of_another_row_see_the_keys_of_their_sequence_that_are_no_padding() -> None:
    """More queries than keys, and a mask that hides a key of their sequence."""
    keys, queries = np.array([[1, 1, 2]]), np.array([[2, 1, 1, 0]])
    seen = lambda mask_terms, count: (np.asarray(mask_terms.bias(count, 3))[0, 0] == 0).astype(int).tolist()  # noqa: E731
    hidden = MaskTerms.of_rows(np.array([[0, 1, 1]]), keys, queries)
    assert seen(hidden, 4) == [[0, 0, 1], [0, 1, 0], [0, 1, 0], [0, 0, 0]]
    assert seen(MaskTerms.of_rows(None, keys, queries), 4) == [[0, 0, 1], [1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert seen(MaskTerms.of_rows(None, keys), 3) == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert MaskTerms.of_rows(None, None, queries).bias(4, 3) is None
