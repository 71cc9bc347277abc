"""Normalisation: its own backward passes against those of the formulas.

tests/models/test_ulmfit.py has the statistics of batches.
"""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.layers.normalization import BatchNorm, LayerNorm, RmsNorm

EPSILON = 1e-6


def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + EPSILON) * scale + bias


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + EPSILON) * scale


CASES = {"layer norm": (LayerNorm, layer_norm), "rms norm": (RmsNorm, rms_norm)}


def parameters(formula: Callable) -> dict[str, jax.Array]:
    random = np.random.default_rng(1)
    names = ("scale", "bias")[: 2 if formula is layer_norm else 1]
    return {name: jnp.asarray(random.normal(size=9), jnp.float32) for name in names}


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_the_formula(case: str) -> None:
    module, formula = CASES[case]
    x = jnp.asarray(np.random.default_rng(0).normal(2, 3, size=(4, 5, 9)), jnp.float32)

    def value_and_gradients(normalise: Callable) -> Any:
        def loss(x: jax.Array, params: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
            y = normalise(x, params)
            return jnp.sum(jnp.sin(y)), y

        gradients, y = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(x, parameters(formula))
        return y, gradients

    found = value_and_gradients(lambda x, params: module(EPSILON).apply({"params": params}, x))
    expected = value_and_gradients(lambda x, params: formula(x, **params))
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_the_input_is_kept_in_its_own_dtype_and_statistics_in_float32(case: str) -> None:
    module, formula = CASES[case]

    def closed() -> Any:
        x = jnp.ones((4, 5, 9), jnp.bfloat16)
        apply = lambda x: module(EPSILON, jnp.bfloat16).apply({"params": parameters(formula)}, x)  # noqa: E731
        return jax.vjp(apply, x)[1]

    kept = jax.tree.leaves(jax.eval_shape(closed))
    assert {leaf.dtype for leaf in kept if leaf.size >= 4 * 5 * 9} == {jnp.dtype("bfloat16")}
    assert {leaf.shape for leaf in kept if leaf.dtype == jnp.float32} <= {(4, 5, 1), (9,)}


@pytest.mark.parametrize("case", CASES)
def test_bfloat16_numbers_are_normalised_as_float32_numbers_are(case: str) -> None:
    """To the same bits: outputs and the gradient of the input are rounded, those of the parameters are not."""
    (module, formula), random = CASES[case], np.random.default_rng(0)

    def computed(dtype: str, x: jax.Array, cotangent: jax.Array) -> Any:
        apply = lambda x, params: module(EPSILON, jnp.dtype(dtype)).apply({"params": params}, x)  # noqa: E731
        y, back = jax.vjp(apply, x.astype(dtype), parameters(formula))
        return y, *back(cotangent.astype(dtype))

    given = [jnp.asarray(random.normal(20, 3, size=(40, 9)), jnp.bfloat16) for _ in range(2)]
    y, of_x, of_params = computed("float32", *given)
    rounded = y.astype(jnp.bfloat16), of_x.astype(jnp.bfloat16), of_params
    chex.assert_trees_all_equal(computed("bfloat16", *given), rounded)


def test_batches_of_bfloat16_numbers_are_normalised_as_those_of_float32() -> None:
    norm, x = BatchNorm(), jnp.asarray(np.random.default_rng(0).normal(20, 3, size=(6, 4)), jnp.bfloat16)
    exists = jnp.arange(6) < 5
    variables = norm.init(jax.random.key(0), x, exists, True)
    found, expected = (
        norm.apply(variables, each, exists, False, mutable="batch_stats") for each in (x, x.astype(jnp.float32))
    )
    chex.assert_trees_all_equal(found, expected)
