"""Tables whose rows the step looks up: the same step as with whole tables, on one device and on eight."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from plmjax.layers.words.embeddings import ROWS, Embedding
from plmjax.objectives.negative_sampling import NegativeSampling
from plmjax.parallel import mesh as meshes
from plmjax.training.gradients import Gradient
from plmjax.training.gradients import looked_up_rows as rows
from plmjax.training.optimizers import Adagrad, AdamW, StochasticGradientDescent
from tests.third_party import experiments
from tests.training.built import trained

RULES = {
    "sgd": StochasticGradientDescent(learning_rate=0.5, clip_norm=1.0),
    "adagrad": Adagrad(initial_accumulator=0.1),
    "adamw": AdamW(epsilon=1e-3, weight_decay=0.1),
    # These change rows without a gradient, too.
    "momentum": StochasticGradientDescent(momentum=0.9),
    "decay": StochasticGradientDescent(weight_decay=0.1),
    "mean": StochasticGradientDescent(averaging="always"),
}
VOCABULARY = 200
"""Words of the model, of which the text has 64."""
TABLE = "words/embedding"


@dataclasses.dataclass(frozen=True)
class WholeTables(NegativeSampling):
    """The same loss, of which the step does not know that it reads rows alone."""

    def rows(self, batch):
        return {}


def two_steps(kind: type = NegativeSampling, accumulation: int = 1, **mesh):
    """`built.trained` of two steps with such an objective; the rule keeps numbers for the tables."""
    training = {"steps": 2, "accumulation": accumulation}
    run = experiments.changed(experiments.word2vec(), model={"vocab_size": VOCABULARY}, training=training)
    objective = kind(**{field.name: getattr(run.objective, field.name) for field in dataclasses.fields(kind)})
    return trained(dataclasses.replace(run, objective=objective, optimizer=RULES["adagrad"]), **mesh)


@pytest.mark.nightly
def test_looked_up_rows_are_trained_as_the_whole_tables():
    """On one device, and in microbatches on a mesh that cuts tables and what Adagrad keeps by rows and by columns."""
    _, expected, expected_metrics = two_steps(WholeTables)
    first, one, metrics = two_steps()
    chex.assert_trees_all_close((one, metrics), (expected, expected_metrics), rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(two_steps(accumulation=2, sizes=(2, 2, 2))[1:], (one, metrics), rtol=1e-5, atol=1e-6)
    moved = jax.tree.map(lambda a, b: np.any(a != b, axis=1).sum(), first.params, one.params)
    assert all(20 < count <= 64 for count in jax.tree.leaves(moved))


@pytest.mark.parametrize("name", RULES)
def test_a_rule_gives_rows_what_it_gives_the_table(name):
    """Over two steps that ask for other rows, some of them twice, and for the last one, beside a parameter that is no
    table."""
    random = np.random.default_rng(0)
    params = {"words": {"embedding": jnp.asarray(random.normal(size=(9, 4)), jnp.float32)}, "bias": jnp.ones(3)}
    optimizer = RULES[name].build(2, params)
    place = meshes.make(experiments.word2vec().mesh, jax.devices()[:1])
    whole = NamedSharding(place, PartitionSpec())
    tables = rows.Tables({TABLE: whole}, whole, by_rows=RULES[name].by_rows)
    rest, found = {"bias": jnp.ones(3)}, (params, optimizer.init(params))
    expected = found

    @jax.jit
    def of_rows(ids: jax.Array, values: jax.Array, params: Any, state: Any) -> Any:
        return tables.update(optimizer, Gradient(rest, {TABLE: rows.TableRows(ids, values)}), state, params)

    @jax.jit
    def of_table(dense: jax.Array, params: Any, state: Any) -> Any:
        updates, state = optimizer.update({"words": {"embedding": dense}} | rest, state, params)
        return optax.apply_updates(params, updates), state

    for ids in np.array([[[8, 3, 3], [1, 4, 3]], [[2, 0, 0], [5, 3, 0]]]):
        values, dense = random.normal(size=(2, 3, 4)).astype(np.float32), np.zeros((9, 4), np.float32)
        np.add.at(dense, ids, values)
        found, expected = of_rows(ids, values, *found), of_table(dense, *expected)
    chex.assert_trees_all_close(found, expected, rtol=1e-5)


def test_scores_of_all_rows_need_the_table():
    table = Embedding(5, 2, "vocab", jax.nn.initializers.ones)
    variables = {"params": {"embedding": jnp.ones((5, 2))}, ROWS: {"embedding": jnp.full((3, 2), 7.0)}}
    np.testing.assert_array_equal(table.apply(variables, jnp.arange(3)), np.full((3, 2), 7))
    with pytest.raises(ValueError, match="a whole table"):
        table.apply(variables, jnp.ones((3, 2)), method="attend")
