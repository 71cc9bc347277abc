"""XLNet's search for answers, beside transformers: what it finds, what it is trained on, and gradients of both."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plmjax.interop.xlnet import ADAPTER
from plmjax.models.xlnet.heads import XlnetForQuestionAnswering
from plmjax.objectives.objective import cross_entropy
from tests.families.permutations import XLNET
from tests.optional import torch
from tests.systems.comparison import converted, reference
from tests.systems.modules import outputs, random_params

ROWS, LENGTH = 3, 13
CONFIG = dataclasses.replace(XLNET, start_n_top=3, end_n_top=2)
MODULE = XlnetForQuestionAnswering(CONFIG)
RANDOM = np.random.default_rng(0)
IDS = RANDOM.integers(6, CONFIG.vocab_size, (ROWS, LENGTH), np.int32)
TYPES = np.broadcast_to(np.repeat([0, 1, 2], [8, 4, 1]), IDS.shape).astype(np.int32)
POSSIBLE = np.broadcast_to(np.arange(LENGTH) < 8, IDS.shape).copy()
POSSIBLE[:, -1] = True
STARTS, ENDS = np.array([1, 4, LENGTH - 1]), np.array([3, 4, LENGTH - 1])


@pytest.fixture(scope="module")
def both() -> tuple[Any, Any]:
    """transformers' model and its parameters."""
    model = reference("XLNetForQuestionAnswering", CONFIG)
    return model, converted(ADAPTER, model.named_parameters(), MODULE)


def theirs(model: Any, **inputs: np.ndarray) -> Any:
    ids = {"input_ids": torch.tensor(IDS).long(), "token_type_ids": torch.tensor(TYPES).long()}
    return model(**ids, p_mask=torch.tensor(~POSSIBLE).float(), **{k: torch.tensor(x) for k, x in inputs.items()})


@jax.jit
def ours(params: Any, **inputs: np.ndarray) -> Any:
    return MODULE.apply({"params": params}, IDS, token_type_ids=TYPES, answer_mask=POSSIBLE, **inputs)


def test_finds_what_transformers_finds(both: tuple[Any, Any]) -> None:
    """The same starts and ends in the same order, none of them where no answer may be, and their probabilities."""
    model, params = both
    expected, found = theirs(model), ours(params)
    np.testing.assert_array_equal(found.starts, expected.start_top_index)
    np.testing.assert_array_equal(found.ends, expected.end_top_index)
    assert POSSIBLE[np.arange(ROWS)[:, None], found.ends].all()
    for mine, name in (
        (found.start_probabilities, "start_top_log_probs"),
        (found.end_probabilities, "end_top_log_probs"),
        (found.impossible_logits, "cls_logits"),
    ):
        np.testing.assert_allclose(mine, expected[name].detach().numpy(), rtol=1e-5, atol=1e-5, err_msg=name)


# 2 s; by day the loss of training has its gradient, and the search its values
@pytest.mark.nightly
def test_gradients_of_the_search_equal_transformers(both: tuple[Any, Any]) -> None:
    model, params = both

    def total(params: Any) -> jax.Array:
        found = ours(params)
        chances = jnp.sum(found.start_probabilities**2) + jnp.sum(found.end_probabilities**3)
        return chances + jnp.sum(jnp.sin(found.impossible_logits))

    expected = theirs(model)
    chances = (expected.start_top_log_probs**2).sum() + (expected.end_top_log_probs**3).sum()
    assert_equal_gradients(model, chances + expected.cls_logits.sin().sum(), jax.jit(jax.grad(total))(params))


def test_the_loss_of_training_and_its_gradient_equal_transformers(both: tuple[Any, Any]) -> None:
    """Ends given the right start, and half of the nats of having no answer."""
    model, params = both
    last = np.full(ROWS, LENGTH - 1)

    def loss(params: Any) -> jax.Array:
        found = ours(params, start_positions=jnp.asarray(STARTS), cls_positions=last[:, None])
        spans = cross_entropy(found.start_logits, STARTS) + cross_entropy(found.end_logits, ENDS)
        impossible = optax.sigmoid_binary_cross_entropy(
            found.impossible_logits, jnp.asarray(last == STARTS, jnp.float32)
        )
        return jnp.mean(spans / 2 + impossible / 2)

    expected = theirs(
        model,
        start_positions=STARTS,
        end_positions=ENDS,
        cls_index=last,
        is_impossible=(last == STARTS).astype(np.float32),
    ).loss
    found, gradient = jax.jit(jax.value_and_grad(loss))(params)
    np.testing.assert_allclose(found, expected.item(), rtol=1e-5)
    assert_equal_gradients(model, expected, gradient)


def assert_equal_gradients(model: Any, total: Any, gradient: Any) -> None:
    """Within 1e-4, of a number that torch computed."""
    model.zero_grad()
    total.backward()
    pairs = [(name, torch.zeros_like(one) if one.grad is None else one.grad) for name, one in model.named_parameters()]
    chex.assert_trees_all_close(gradient, converted(ADAPTER, pairs, MODULE), rtol=1e-4, atol=1e-4)


def test_a_row_shorter_than_the_search_has_fewer_starts() -> None:
    module = XlnetForQuestionAnswering(XLNET)
    found = outputs(module, random_params(module), {"input_ids": IDS[:, :4]})
    assert found.starts.shape == (ROWS, 4) and found.ends.shape == (ROWS, 16)
