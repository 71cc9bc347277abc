"""Properties of XLNet: two streams in the order of a permutation, directions, and a memory."""

import dataclasses
import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.interop.xlnet import ADAPTER
from plmjax.models.xlnet.xlnet import XlnetForPreTraining, XlnetMemory, XlnetModel
from tests.families.permutations import XLNET
from tests.optional import torch
from tests.products import step_flops
from tests.systems.comparison import converted, reference
from tests.systems.modules import outputs, random_params

ROWS, LENGTH, MEMORY, REUSE = 4, 12, 7, 5
MODULE = XlnetForPreTraining(XLNET)


def inputs_of(seed: int = 0) -> dict[str, Any]:
    """Rows of 12 tokens, of which three or two are predicted; the last token of two rows is padding."""
    random = np.random.default_rng(seed)
    ranks, targets = np.zeros((ROWS, LENGTH), np.int32), np.full((ROWS, 3), LENGTH, np.int32)
    for row in range(ROWS):
        last = np.sort(random.choice(LENGTH - 1, 5, replace=False))  # three are predicted, two are as [SEP] and [CLS]
        ranks[row, last] = 1 + random.permutation(5)
        count = 3 - row % 2
        targets[row, :count] = random.choice(last, count, replace=False)
    mask = np.ones((ROWS, LENGTH), np.int32)
    mask[2:, -1] = 0
    return {
        "input_ids": random.integers(6, XLNET.vocab_size, (ROWS, LENGTH), np.int32),
        "attention_mask": mask,
        "token_type_ids": random.integers(0, 3, (ROWS, LENGTH), np.int32),
        "ranks": ranks,
        "target_positions": targets,
    }


def memory_of(length: int = MEMORY, seed: int = 1) -> XlnetMemory:
    states = np.random.default_rng(seed).normal(size=(XLNET.n_layer, ROWS, length, XLNET.d_model))
    return XlnetMemory(jnp.asarray(states, jnp.float32), jnp.ones((ROWS, length), jnp.int32))


def theirs_of(inputs: dict[str, Any], memory: XlnetMemory | None) -> dict[str, Any]:
    """The same for transformers, with the order as a matrix and the targets as rows of 0 and 1."""
    ranks, targets = inputs["ranks"], inputs["target_positions"]
    names = ("input_ids", "attention_mask", "token_type_ids")
    given = {name: torch.tensor(inputs[name]).long() for name in names}
    given["attention_mask"] = given["attention_mask"].float()
    predicted = np.zeros(ranks.shape, bool)
    for row, places in enumerate(targets):
        predicted[row, places[places < LENGTH]] = True
    # A token that is not predicted sees itself (data_utils.py, `self_rev_index`).
    limits = np.where(predicted, ranks, ranks + 1)
    given["perm_mask"] = torch.tensor(limits[:, :, None] <= ranks[:, None, :]).float()
    given["target_mapping"] = torch.tensor(targets[..., None] == np.arange(LENGTH)).float()
    if memory is not None:
        given["mems"] = [torch.tensor(np.moveaxis(np.asarray(layer), 0, 1)) for layer in memory.states]
    return given


def model_of(**settings: Any) -> tuple[Any, Any]:
    """transformers' model and its parameters."""
    model = reference("XLNetLMHeadModel", XLNET, mem_len=MEMORY, reuse_len=REUSE, **settings)
    return model, converted(ADAPTER, model.named_parameters(), MODULE)


def test_two_streams_equal_transformers() -> None:
    """Logits, weights, the memory after the row, and gradients; with padding, missing targets and a memory.

    Keys of the memory are the first. Our weights of the query stream are those of the predictions alone.
    """
    (model, params), inputs, memory = model_of(), inputs_of(), memory_of()
    expected = model(**theirs_of(inputs, memory), output_attentions=True)
    cotangent = np.random.default_rng(2).normal(size=expected.logits.shape).astype(np.float32)

    @jax.jit
    def run(params: Any) -> Any:
        def total(params: Any) -> tuple[jax.Array, Any]:
            given = {"memory": memory, "reuse_length": REUSE, "output_attentions": True}
            outputs = MODULE.apply({"params": params}, **inputs, **given)
            return jnp.sum(outputs.logits * cotangent), outputs

        return jax.grad(total, has_aux=True)(params)

    gradient, found = run(params)
    np.testing.assert_allclose(found.logits, expected.logits.detach().numpy(), rtol=1e-5, atol=1e-5)
    states = np.stack([layer.numpy().swapaxes(0, 1) for layer in expected.mems])
    np.testing.assert_allclose(found.memory.states, states, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found.memory.mask, 1)
    (expected.logits * torch.tensor(cotangent)).sum().backward()
    theirs = [(name, one.grad) for name, one in model.named_parameters()]
    chex.assert_trees_all_close(gradient, converted(ADAPTER, theirs, MODULE), rtol=1e-4, atol=1e-4)
    real, targets = inputs["attention_mask"][:, None, :, None] > 0, inputs["target_positions"][:, None, :, None]
    places = np.broadcast_to(np.minimum(targets, LENGTH - 1), (ROWS, XLNET.n_head, 3, MEMORY + LENGTH))
    for layer, streams in enumerate(expected.attentions):
        content, query = (stream.detach().numpy() for stream in streams)
        np.testing.assert_allclose(found.attentions[layer] * real, content * real, rtol=1e-5, atol=1e-5)
        query = np.take_along_axis(query, places, axis=2) * (targets < LENGTH)
        np.testing.assert_allclose(found.query_attentions[layer], query, rtol=1e-5, atol=1e-5)


def test_rows_that_are_read_backwards_equal_transformers() -> None:
    """transformers reads the second half of a batch backwards (`bi_data`)."""
    (model, params), inputs, memory = model_of(bi_data=True), inputs_of(), memory_of()
    backwards = np.arange(ROWS) >= ROWS // 2
    found = outputs(MODULE, params, inputs | {"memory": memory, "backwards": backwards}).logits
    expected = model(**theirs_of(inputs, memory)).logits.detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    forward = outputs(MODULE, params, inputs | {"memory": memory}).logits
    assert np.abs(forward[ROWS // 2 :] - expected[ROWS // 2 :]).max() > 0.1


@pytest.mark.nightly
def test_nothing_that_the_order_hides_is_seen() -> None:
    """The gradient of each stream by each word is zero iff its rank says so; a predicted token does not see itself."""
    inputs, encoder = inputs_of(), XlnetModel(XLNET)
    params, row = random_params(encoder), {name: x[:1] for name, x in inputs_of().items()}
    ids = np.arange(6, 6 + LENGTH)[None]
    table = params["word_embeddings"]["embedding"]

    @jax.jit
    @jax.jacrev
    def jacobian(table: jax.Array) -> tuple[jax.Array, jax.Array]:
        changed = params | {"word_embeddings": {"embedding": table}}
        outputs = encoder.apply({"params": changed}, **(row | {"input_ids": ids}), output_hidden_states=True)
        return outputs.last_hidden_state[0].sum(-1), outputs.hidden_states[-1, 0].sum(-1)

    query, content = (np.abs(one[:, ids[0]]).max(-1) > 0 for one in jacobian(table))
    ranks, targets = inputs["ranks"][0], inputs["target_positions"][0]
    np.testing.assert_array_equal(query, ranks < ranks[targets][:, None])
    np.testing.assert_array_equal(content, ranks <= ranks[:, None])
    assert not query[np.arange(3), targets].any()


def test_a_query_that_sees_no_key_does_not_depend_on_padding() -> None:
    """Deviation: in the released code it is the plain mean of all keys. The next query of the order equals theirs."""
    ids = np.random.default_rng(4).integers(6, XLNET.vocab_size, (1, LENGTH), np.int32)
    ranks = np.argsort(np.argsort(np.random.default_rng(5).random(LENGTH - 3)))
    ranks = np.concatenate([ranks, np.full(3, LENGTH)])[None].astype(np.int32)
    inputs = {
        "input_ids": ids,
        "attention_mask": (np.arange(LENGTH) < LENGTH - 3).astype(np.int32)[None],
        "token_type_ids": np.zeros_like(ids),
        "ranks": ranks,
        "target_positions": np.argsort(ranks)[:, :2].astype(np.int32),  # the first of the order sees no key
    }
    model, params = model_of()
    run = jax.jit(lambda given: MODULE.apply({"params": params}, **given).logits[0])
    cut = {name: x if name == "target_positions" else x[:, :-3] for name, x in inputs.items()}
    padded = run(inputs)
    np.testing.assert_allclose(padded, run(cut), rtol=1e-4, atol=1e-4)
    theirs = model(**theirs_of(inputs, None)).logits[0].detach().numpy()
    np.testing.assert_allclose(padded[1], theirs[1], rtol=1e-5, atol=1e-5)
    assert np.abs(padded[0] - theirs[0]).max() > 1e-2


def test_no_gradient_passes_into_the_memory() -> None:
    params, inputs = random_params(MODULE), inputs_of()

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def run(states: jax.Array, params: Any) -> tuple[jax.Array, jax.Array]:
        outputs = MODULE.apply({"params": params}, **inputs, memory=memory_of().replace(states=states))
        return jnp.sum(outputs.logits**2) + jnp.sum(outputs.memory.states), outputs.logits

    (value, logits), gradient = run(memory_of().states, params)
    assert value > 0 and not np.any(gradient)
    (_, changed), _ = run(memory_of(seed=5).states, params)
    assert np.abs(changed - logits).max() > 0.1


def test_a_memory_without_tokens_changes_nothing() -> None:
    """The memory has length 0, or a length with no token that exists; the second remembers the row."""
    params, inputs = random_params(MODULE), inputs_of()
    expected = outputs(MODULE, params, inputs).logits
    run = jax.jit(functools.partial(MODULE.apply, reuse_length=REUSE))
    for length in (0, MEMORY):
        found = run({"params": params}, **inputs, memory=XlnetMemory.empty(XLNET, ROWS, length))
        np.testing.assert_allclose(found.logits, expected, rtol=1e-5, atol=1e-5)
        assert found.memory.states.shape == (XLNET.n_layer, ROWS, length, XLNET.d_model)
    np.testing.assert_array_equal(found.memory.mask, np.tile(np.arange(MEMORY) >= MEMORY - REUSE, (ROWS, 1)))


@pytest.mark.parametrize(("memory", "predictions"), [(0, 3), (MEMORY, 0), (MEMORY, 3)])
def test_train_flops_are_the_products_of_the_program(memory: int, predictions: int) -> None:
    """Those of attention's backends: the terms of the biases u and w are left out of the closed form."""
    config, ids = dataclasses.replace(XLNET, clamp_len=-1), jnp.zeros((ROWS, LENGTH), jnp.int32)
    inputs: dict[str, Any] = {"input_ids": ids, "backwards": jnp.zeros(ROWS, bool)}
    if memory:
        inputs["memory"] = XlnetMemory.empty(config, ROWS, memory)
    if predictions:
        inputs |= {"ranks": ids, "target_positions": jnp.zeros((ROWS, predictions), jnp.int32)}
    module = MODULE if predictions else XlnetModel(config)
    found = step_flops(module, lambda outputs: outputs.logits if predictions else outputs, **inputs)
    streams, keys = 1 + (predictions > 0), LENGTH + memory
    of_content_bias = 6 * streams * ROWS * config.n_layer * keys * config.d_model
    assert config.train_flops(ROWS, LENGTH, predictions, memory) == found - of_content_bias


def test_far_tokens_count_as_the_farthest_on_both_sides() -> None:
    """Three queries stand behind a memory of two tokens; a row that is read backwards has the negated distances."""
    for clamp, expected in ((-1, [4, 3, 2, 1, 0, -1, -2]), (3, [3, 3, 2, 1, 0, -1, -2]), (1, [1, 1, 1, 1, 0, -1, -1])):
        table = dataclasses.replace(XLNET, clamp_len=clamp).distance_table(3, 5)
        for sign, own in zip((1, -1), table, strict=True):
            angles = sign * np.array(expected)[:, None] / 10000 ** (np.arange(0, XLNET.d_model, 2) / XLNET.d_model)
            np.testing.assert_allclose(own, np.concatenate([np.sin(angles), np.cos(angles)], axis=1), atol=1e-6)
