"""The state before the first step: its keys, and its constants with the data that they are made from."""

import contextlib
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.objectives.objective import ConstantSources, Objective
from plmjax.parallel import mesh as meshes
from plmjax.training import constants
from plmjax.training.checkpoints import checkpoints
from plmjax.training.checkpoints.checkpoints import Description
from plmjax.training.initial_state import InitialState
from tests.third_party import experiments

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


def test_tokens_that_the_text_lacks_are_counted_as_none() -> None:
    """A model may have more tokens than the text, and a task counts none."""
    vocabulary, description = Vocabulary.placeholder(5), Description(experiments.gpt2(), 0, {})
    for counts, expected in ((np.array([7, 0, 3]), [7, 0, 3, 0, 0]), (None, [0] * 5)):
        found = constants.of_run(vocabulary, counts, description).token_counts
        assert found.tolist() == expected and found.dtype == np.int64


def test_parameters_of_another_checkpoint_have_the_axes_of_their_module(tmp_path: Path) -> None:
    def init(key: jax.Array) -> dict[str, Any]:
        kernel = nn.LogicallyPartitioned(jax.random.normal(key, (2, 3)), ("embed", "mlp"))
        return {"lm": {"kernel": kernel, "bias": jnp.zeros(3)}}

    sources = constants.of_run(Vocabulary.placeholder(5), None, Description(experiments.gpt2(), 0, {}))
    kernel, bias = np.full((2, 3), 7.0), np.ones(3)
    for name, found, message in (
        ("same", {"kernel": kernel, "bias": bias}, ""),
        ("turned", {"kernel": kernel.T, "bias": bias}, r"lm/kernel of shape \(2, 3\) .*/turned, found \(3, 2\)"),
        ("less", {"kernel": kernel}, r"lm/bias of shape \(3,\) .*/less, found no such parameter"),
    ):
        params = {"lm": found, "other": np.ones(9)}
        checkpoints.save_parameters(tmp_path / name, params, experiments.gpt2(), tokenizer={})
        with pytest.raises(UserError, match=message) if message else contextlib.nullcontext():
            made = sources.parameters(str(tmp_path / name), init)["lm"]
            assert made["kernel"].names == ("embed", "mlp") and (made["bias"] == 1).all()
            np.testing.assert_array_equal(made["kernel"].value, kernel)
