"""Properties of T5: distances instead of positions, dropout of whole rows, an output layer of either version."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.interop import t5 as t5_interop
from plmjax.models.t5 import T5ForConditionalGeneration, T5Model
from tests.families.encoder_decoders import T5
from tests.optional import torch
from tests.products import flops
from tests.systems.comparison import converted, reference
from tests.systems.modules import random_params

CONFIG = dataclasses.replace(T5, num_layers=3, num_decoder_layers=2)
BATCH = t5_interop.example(CONFIG)
MODULE = T5ForConditionalGeneration(CONFIG)


@pytest.fixture(scope="module")
def params() -> dict:
    """Parameters far from 0 of every kind."""
    return random_params(MODULE, deviation=0.4)


def close(found: jax.Array, expected: jax.Array) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_dropout_takes_the_same_from_all_tokens_of_a_row(params: dict) -> None:
    """Alike tokens stay alike, if no distance tells them apart; another row loses other numbers.

    Both sides drop numbers of the words and of their outputs. The tokens of a target stay alike in what they lose, not
    in what they keep: each attends to another number of tokens that are kept.
    """
    module = T5Model(dataclasses.replace(CONFIG, dropout_rate=0.3))
    blind = jax.tree.map(jnp.copy, params["t5"])
    for side in ("encoder", "decoder"):
        blind[side]["relative_positions"] = jax.tree.map(jnp.zeros_like, blind[side]["relative_positions"])
    ids = jnp.full((2, 7), 5)
    read = lambda key: module.apply(  # noqa: E731
        {"params": blind}, ids, decoder_input_ids=ids, deterministic=False, output_hidden_states=True,
        rngs={"dropout": jax.random.key(key)},
    )  # fmt: skip
    output = jax.jit(read)(0)
    found = output.encoder_last_hidden_state
    close(found, jnp.broadcast_to(found[:, :1], found.shape))
    for states in (output.encoder_hidden_states, output.hidden_states):
        for found in (np.asarray(states[0]), np.asarray(states[-1])):
            lost = found == 0
            np.testing.assert_array_equal(lost, np.broadcast_to(lost[:, :1], lost.shape))
            assert 0.1 < lost.mean() < 0.5 and np.abs(found[0] - found[1]).max() > 0.1


def test_version_1_1_scores_tokens_with_a_layer_of_its_own() -> None:
    """As transformers before its release 5, which ties the two; here its output layer is set by hand."""

    config = dataclasses.replace(CONFIG, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    theirs = reference("T5ForConditionalGeneration", config)
    theirs.lm_head.weight = torch.nn.Parameter(torch.randn(53, 24))
    module = T5ForConditionalGeneration(config)
    params = converted(t5_interop.ADAPTER, theirs.named_parameters(), module)
    assert params["lm_head"]["embedding"].shape == (53, 24)
    expected = theirs(**{name: torch.tensor(rows) for name, rows in BATCH.items()}).logits
    close(module.apply({"params": params}, **BATCH).logits, expected.detach().numpy())


@pytest.mark.parametrize("version", [{}, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}])
def test_train_flops_are_those_of_the_products(version: dict) -> None:
    config, ids, targets = dataclasses.replace(CONFIG, **version), np.zeros((2, 17), int), np.zeros((2, 13), int)
    module = config.module(Purpose.PRETRAINING, Execution())
    params = jax.eval_shape(lambda: module.init(jax.random.key(0), ids, decoder_input_ids=targets))
    written = 3 * flops(lambda params: module.apply(params, ids, decoder_input_ids=targets).scores.logits(), params)
    read = 3 * flops(lambda params: module.apply(params, ids, method="encode"), params)
    # Distances are looked up by products with rows of eight buckets; `encode` makes the keys that the decoder reads.
    lookups, keys = 6 * 3 * 8 * np.array([17**2, 13**2]), 6 * 2 * 17 * 2 * (2 * 24 * 3 * 5)
    assert config.train_flops(2, 17, 13) == written - lookups.sum()
    assert config.train_flops(2, 17, 0) == read - lookups[0] - keys
