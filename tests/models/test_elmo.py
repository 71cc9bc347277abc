"""ELMo's dropout, states and sizes; tests/families has its row."""

from __future__ import annotations

import dataclasses
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.layers.words.characters import sentence_marks, spell
from plmjax.models.elmo import DIRECTIONS, ElmoConfig, ElmoModel, LanguageModel
from tests.families.recurrent import ELMO, WITHOUT_HIGHWAYS
from tests.systems.modules import random_params

PLAIN = dataclasses.replace(ELMO, **WITHOUT_HIGHWAYS)
WORDS = ["the", "extraordinary", "é", "a", "cats"]
LENGTHS = [7, 3]


def characters(length: int = 9) -> np.ndarray:
    """int32 [2 T C]: a sentence of five words with its marks, and one of a single word, padded."""
    begin, end = sentence_marks(length)
    words = spell(WORDS, length)
    rows = np.zeros((2, LENGTHS[0], length), np.int32)
    rows[0] = [begin, *words, end]
    rows[1, :3] = [begin, words[1], end]
    return rows


def test_directions_and_layers_draw_dropout_of_their_own() -> None:
    """Both directions have the same parameters and read the same words; a layer's own draws show in its output."""
    config = ElmoConfig(**(vars(PLAIN) | {"dropout": 0.5, "cell_clip": 9.0, "proj_clip": 9.0}))
    module = config.module(Purpose.PRETRAINING, Execution())
    spellings, flags = {way: characters() for way in DIRECTIONS}, {way: np.zeros((2, 7), bool) for way in DIRECTIONS}
    inputs = spellings, flags, {way: ~flags[way] for way in DIRECTIONS}, config.zero_states(2)
    random, shapes = np.random.default_rng(0), jax.eval_shape(lambda: module.init(jax.random.key(0), *inputs)["params"])
    params = jax.tree.map(lambda leaf: random.standard_normal(leaf.shape, np.float32), nn.meta.unbox(shapes))
    params["elmo"]["backward"] = params["elmo"]["forward"]

    @jax.jit
    def read(params: Any) -> Any:
        rngs = {"dropout": jax.random.key(0)}
        found = module.apply({"params": params}, *inputs, deterministic=False, rngs=rngs)
        return {way: (scores.hidden, found.states[way]) for way, scores in found.scores.items()}

    (forward, states), (backward, other) = (read(params)[way] for way in DIRECTIONS)
    for mask in (forward == 0, backward == 0):
        assert 0.2 < mask.mean() < 0.8
    assert ((forward == 0) != (backward == 0)).any()
    for layer, (one, two) in enumerate(zip(states, other, strict=True)):
        assert np.abs(one.cell - two.cell).max() > 1e-2, layer


def test_each_direction_goes_on_from_its_own_states() -> None:
    """With one set of parameters both are the same, but for the order of the words: of one word, but for the states."""
    module = ElmoModel(PLAIN)
    params = random_params(module, deviation=0.5)
    params = params | {"backward": params["forward"]}
    random, word = np.random.default_rng(0), characters()[:, 1:2]
    one, other = (
        tuple(jax.tree.map(lambda x: random.normal(size=x.shape).astype(np.float32), state) for state in states)
        for states in PLAIN.zero_states(2).values()
    )
    apply = jax.jit(lambda states: module.apply({"params": params}, word, states=states))
    found, swapped = (apply({"forward": first, "backward": second}) for first, second in ((one, other), (other, one)))
    size = PLAIN.projection_dim
    np.testing.assert_array_equal(found.last_hidden_state[..., :size], swapped.last_hidden_state[..., size:])
    chex.assert_trees_all_equal(found.states["forward"], swapped.states["backward"])
    assert np.abs(found.last_hidden_state[..., :size] - found.last_hidden_state[..., size:]).max() > 0.01


def test_the_inputs_of_all_layers_but_the_first_are_added_to_their_outputs() -> None:
    config = dataclasses.replace(PLAIN, n_layers=2, use_skip_connections=True)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, config.projection_dim)), jnp.float32)
    states = config.zero_states(2)["forward"]
    params = jax.jit(LanguageModel(config, jnp.float32).init)(jax.random.key(0), x, states)
    with_it, without = (
        jax.jit(LanguageModel(dataclasses.replace(config, use_skip_connections=skip), jnp.float32).apply)(
            params, x, states
        )[0]
        for skip in (True, False)
    )
    np.testing.assert_array_equal(with_it[0], without[0])
    np.testing.assert_allclose(with_it[1], without[0] + without[1], atol=1e-6)


def test_products_in_bfloat16_keep_parameters_and_states_in_float32() -> None:
    half, rows = ElmoModel(PLAIN, Execution(dtype=jnp.bfloat16)), characters()
    params = random_params(half, deviation=0.5)
    found, expected = (jax.jit(module.apply)({"params": params}, rows) for module in (half, ElmoModel(PLAIN)))
    assert found.last_hidden_state.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(found.states)} == {jnp.dtype(jnp.float32)}
    difference = np.abs(found.last_hidden_state.astype(jnp.float32) - expected.last_hidden_state)
    assert 0 < difference.mean() < 0.02 * np.abs(expected.last_hidden_state).mean() + 0.002
