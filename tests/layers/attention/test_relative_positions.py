"""Buckets of distances against transformers' T5, when they become an array, and the numbers of each head."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.bias_terms import ScoreArray
from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import Causal, MaskTerms, Window
from plmjax.layers.attention import backends
from plmjax.layers.attention.relative_positions import DistanceScores, RelativePositions, distance_buckets
from tests.optional import torch, transformers


@pytest.mark.parametrize("both_sides", [True, False])
@pytest.mark.parametrize(("buckets", "largest"), [(32, 128), (8, 20), (32, 64), (16, 128)])
def test_buckets_are_those_of_transformers(both_sides: bool, buckets: int, largest: int) -> None:
    """Every distance is compared, farther ones than the largest included."""
    attention = transformers.models.t5.modeling_t5.T5Attention
    places = np.arange(-5000, 5001)
    expected = attention._relative_position_bucket(torch.tensor(places), both_sides, buckets, largest).numpy()
    found = distance_buckets(both_sides, buckets, largest)
    np.testing.assert_array_equal(found[np.clip(places, -largest, largest) + largest], expected)
    assert len(set(found.tolist())) == (buckets - 1 if both_sides else buckets)  # none is at distance 0 and after


@pytest.mark.parametrize(
    ("attention", "conditions", "kind"),
    [
        ("dense", (Causal(),), ScoreArray),
        ("blockwise", (Causal(),), DistanceScores),
        ("dense", (Causal(), Window(3, 0)), DistanceScores),
    ],
)
def test_numbers_are_an_array_only_where_all_scores_are(attention: str, conditions: tuple, kind: type) -> None:
    """Blocks and bands are made of the table: an array of all queries and keys would need the memory that they save.

    Either way the numbers are those of the distances, wherever queries and keys begin.
    """
    init, mask_terms = jax.nn.initializers.normal(1.0), MaskTerms(conditions, query_offset=5, key_offset=3)
    module = RelativePositions(False, 8, 20, 2, init, Execution(attention=attention))
    term, variables = module.init_with_output(jax.random.key(0), mask_terms, 6, 6)
    assert isinstance(term, kind)
    positions = mask_terms.query_positions(6), mask_terms.key_positions(6)
    table = nn.meta.unbox(variables)["params"]["embedding"]
    expected = DistanceScores(table, False, 20).biases(*positions)
    np.testing.assert_array_equal(term.scores(None, None, *positions), expected)


@pytest.mark.parametrize("lanes", [128, 2], ids=["all queries", "blocks of two queries"])
def test_a_few_heads_at_a_time_read_and_teach_their_own_numbers(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table itself is the term where attention is computed in bands."""
    query, key, value, table = (
        jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(2, 6, 4, 3)] * 3 + [(8, 4)])
    )

    def loss(table: jax.Array) -> jax.Array:
        terms = (DistanceScores(table, False, 20),)
        return jnp.sum(
            jnp.sin(
                backends.dense(
                    query, key, value, mask_terms=MaskTerms((Causal(),)), terms=terms, rate=0.0, dropout_key=None
                )
            )
        )

    together = jax.jit(jax.value_and_grad(loss))(table)
    monkeypatch.setattr(backends, "SCORES_AT_ONCE", 2)
    monkeypatch.setattr(backends, "LANES", lanes)
    chex.assert_trees_all_close(jax.jit(jax.value_and_grad(loss))(table), together, rtol=1e-5, atol=1e-6)
