"""The activations: their values, and what the backward pass keeps; and derivatives at kinks, which are torch's."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.layers import kinks
from plmjax.layers.feed_forward import ACTIVATIONS
from plmjax.layers.int8 import fake_quantize
from plmjax.models.bert import BertConfig
from tests.optional import needs_torch, torch

DIFFERENT = {function: name for name, function in ACTIVATIONS.items()}.values()
"""A name of each function."""


@needs_torch
@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.usefixtures("platform")
def test_values_and_gradients_are_those_of_transformers(name: str) -> None:
    from transformers.activations import ACT2FN

    x = np.linspace(-4, 4, 41, dtype=np.float32) + 0.01
    other = torch.tensor(x, requires_grad=True)
    reference = ACT2FN[name](other)
    reference.sum().backward()
    found, gradient = jax.jit(jax.vmap(jax.value_and_grad(ACTIVATIONS[name])))(jnp.asarray(x))
    np.testing.assert_allclose(found, reference.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, other.grad, rtol=1e-5, atol=3e-6)


def test_names_of_one_function_are_those_of_transformers() -> None:
    same = [name for name, function in ACTIVATIONS.items() if function is ACTIVATIONS["gelu_new"]]
    assert same == ["gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"]
    with pytest.raises(UserError, match=r"Expected an activation of gelu_new, .*found 'relu6'; take one") as error:
        BertConfig(hidden_act="relu6")
    assert "did you mean" not in str(error.value)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_exact_gelu_is_as_precise_as_its_dtype(dtype: jnp.dtype) -> None:
    """Also far below zero, where 1 + erf would be 0 or 1/128 in bfloat16."""
    x = jnp.linspace(-8, 8, 2001).astype(dtype)
    wide = np.asarray(x, np.float64)
    expected = 0.5 * wide * np.array([math.erfc(-one / math.sqrt(2)) for one in wide])
    found = ACTIVATIONS["gelu"](x)
    assert found.dtype == dtype
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=float(jnp.finfo(dtype).eps), atol=1e-6)


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_input_alone_is_kept(name: str) -> None:
    closed = jax.eval_shape(lambda: jax.vjp(ACTIVATIONS[name], jnp.ones((64, 64), jnp.bfloat16))[1])
    assert [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(closed)] == [((64, 64), jnp.dtype("bfloat16"))]


TIED = [[1.0, 3.0, 3.0], [0.0, 0.0, 0.0], [-1.0, -1.0, -2.0]]


def rounded(x: Any) -> Any:
    """nlp-architect's FakeLinearQuantizationWithSTE: the gradient passes all roundings."""
    return x + ((x.detach() * 63.5).round().clamp(-127, 127) / 63.5 - x.detach())


KINKS: dict[str, tuple[Callable, Callable, Any]] = {
    "clamp": (lambda x: kinks.clamp(x, 0, 1), lambda x: x.clamp(0, 1), [-0.5, 0.0, 0.25, 1.0, 1.5]),
    "the largest along rows": (lambda x: kinks.largest(x, axis=1), lambda x: x.max(dim=1)[0], TIED),
    "the largest along columns": (lambda x: kinks.largest(x, axis=0), lambda x: x.max(dim=0)[0], TIED),
    "abs": (kinks.absolute, lambda x: x.abs(), [-1.0, 0.0, 1.0]),
    "rounding to int8": (lambda x: fake_quantize(x, jnp.asarray(63.5)), rounded, [-3.0, -2.0, 0.0, 0.3, 2.0]),
}


@pytest.mark.parametrize("name", KINKS)
def test_gradients_at_kinks_are_those_of_the_reference(name: str) -> None:
    ours, reference, values = KINKS[name]
    other = torch.tensor(values, requires_grad=True)
    expected = reference(other)
    weights = 1 + np.arange(expected.numel(), dtype=np.float32).reshape(expected.shape)
    (expected * torch.tensor(weights)).sum().backward()

    @jax.jit
    def both_ways(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        found, pull = jax.vjp(ours, x)
        return found, pull(jnp.asarray(weights.reshape(found.shape)))[0]

    found, gradient = both_ways(jnp.asarray(values))
    np.testing.assert_allclose(found.reshape(expected.shape), expected.detach(), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(gradient, other.grad, rtol=1e-5, atol=1e-6)
