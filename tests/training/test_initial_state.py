"""The state before the first step: its keys, its constants, and the rule that updates it."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.objectives.objective import ConstantSources, Objective
from plmjax.parallel import mesh as meshes
from plmjax.training import initial_state
from plmjax.training.initial_state import InitialState
from tests.third_party import experiments
from tests.training.test_program import bert

ONE = jax.sharding.NamedSharding(meshes.make(experiments.gpt2().mesh, jax.devices()[:1]), jax.sharding.PartitionSpec())


class Counting(Objective):
    """Its constant is the count of each token."""

    def constants(self, config: Any, sources: ConstantSources) -> Any:
        return {"counts": jnp.asarray(sources.token_counts, jnp.float32)}


def variables(key: jax.Array) -> dict[str, Any]:
    first, second = jax.random.split(key)
    drawn = nn.LogicallyPartitioned(jax.random.uniform(first, (2,)), ("embed",))
    return {"params": {"a": {"kernel": drawn, "bias": jax.random.uniform(second)}}, "statistics": {"mean": jnp.ones(3)}}


def state_of(objective: Objective, constants: Any) -> tuple[InitialState, Any]:
    boxed = jax.eval_shape(variables, jax.random.key(0))
    carry = lambda: nn.LogicallyPartitioned(jnp.full((4, 2), 5.0), ("batch", None))  # noqa: E731
    made = InitialState(objective, None, ONE.mesh, variables, boxed, constants, carry, optax.adam(1.0))
    return made, made.initializer(made.abstract_state(jax.tree.map(lambda _: ONE, nn.meta.unbox(boxed["params"]))))


def test_a_seed_gives_parameters_and_the_key_of_all_steps_by_keys_of_their_own() -> None:
    _, begin = state_of(Objective(), ())
    states = [begin(seed) for seed in (3, 3, 4)]
    jax.tree.map(np.testing.assert_array_equal, states[0], states[1])
    state, key = states[0], jax.random.key(3)
    expected = nn.meta.unbox(variables(jax.random.fold_in(key, 0)))
    jax.tree.map(np.testing.assert_array_equal, state.params, expected["params"])
    np.testing.assert_array_equal(state.key, jax.random.key_data(jax.random.fold_in(key, 1)))
    assert not np.array_equal(states[2].key, state.key)
    assert state.step == 0 and state.step.dtype == jnp.int32 and state.constants == ()
    np.testing.assert_array_equal(state.carry, np.full((4, 2), 5.0))
    assert [*state.collections] == ["statistics"]
    replaced = begin(3, replaced=lambda name: name == "a/kernel").params["a"]
    assert not replaced["kernel"].any() and replaced["bias"] == state.params["a"]["bias"]


def test_constants_are_made_of_their_sources_and_not_left_out() -> None:
    counts = jax.ShapeDtypeStruct((3,), jnp.float32)
    made, begin = state_of(Counting(), {"counts": counts})
    sources = ConstantSources(Vocabulary.placeholder(3), np.array([7, 0, 2]), list, None)
    state = begin(0, sources)
    assert state.constants["counts"].tolist() == [7, 0, 2]
    assert state.constants["counts"].sharding.is_equivalent_to(ONE, 1)
    described = made.abstract_state(jax.tree.map(lambda _: ONE, nn.meta.unbox(made.boxed["params"])))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(lambda x: (x.shape, x.dtype), described)
    with pytest.raises(ValueError, match="Expected sources for the constants of Counting, found none"):
        begin(0)
    short = ConstantSources(Vocabulary.placeholder(3), np.array([7, 0]), list, None)
    with pytest.raises(ValueError, match="shape"):
        begin(0, short)


class Inspected(Objective):
    """Its module returns outputs for inspection beside its variables."""

    def init(self, module: Any, key: jax.Array, batch: Any, *, constants: Any, carry: Any) -> dict[str, Any]:
        return variables(key) | {"intermediates": {"hidden": batch["tokens"]}}


def test_outputs_for_inspection_are_no_variables() -> None:
    run = dataclasses.replace(bert(rows=4), objective=Inspected())
    (phase,) = run.resolved_phases
    batch = {"tokens": jax.ShapeDtypeStruct((4, 8), jnp.int32)}
    make = initial_state.initial_variables(run, phase, nn.Module(), vocabulary=Vocabulary.placeholder(128), batch=batch)
    assert make(jax.random.key(0)).keys() == {"params", "statistics"}
