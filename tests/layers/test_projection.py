"""Projections, in int8 too, and normalisation: values, gradients, dtypes, and what backward passes keep.

tests/systems has values and gradients on a CPU, tests/models/test_ulmfit.py the statistics of batches, and
tests/compression the scales of models.
"""

import functools
from collections.abc import Callable
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.layers import int8
from plmjax.layers.int8 import CALIBRATED, FLOAT, INT8_DYNAMIC, INT8_STATIC, PROJECTIONS, SIMULATED
from plmjax.layers.normalization import LayerNorm, RmsNorm
from plmjax.layers.projection import Projection

CASES = {
    "features": ((5,), ("embed", "mlp"), "BTD,DF->BTF"),
    "to heads": ((2, 3), ("embed", "heads", "head"), "BTD,DNH->BTNH"),
    "from heads": ((5,), ("heads", "head", "embed"), "BTNH,NHD->BTD"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("platform")
def test_values_and_gradients_are_those_of_the_formula(case: str) -> None:
    features, axes, formula = CASES[case]
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(2, 4, 2, 3) if case == "from heads" else (2, 4, 6)), jnp.float32)
    module = Projection(features, axes, nn.initializers.normal(1.0))
    params = nn.meta.unbox(jax.jit(module.init)(jax.random.key(0), x))["params"]
    params = params | {"bias": jnp.asarray(random.normal(size=features), jnp.float32)}

    def run(apply: Callable) -> Any:
        """The gradients of a number that all values go into, and the values."""

        def loss(params: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            found = apply(params, x)
            return jnp.sum(jnp.sin(found)), found

        return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(params, x)

    found = run(lambda params, x: module.apply({"params": params}, x))
    expected = run(lambda params, x: jnp.einsum(formula, x, params["kernel"]) + params["bias"])
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-5)


def test_logits_of_bfloat16_are_float32_sums_and_their_gradients_are_bfloat16_products() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 64)), jnp.bfloat16)
    module = Projection((5,), ("embed", None), nn.initializers.normal(1.0), jnp.bfloat16, logits=True)
    params = nn.meta.unbox(module.init(jax.random.key(0), x))
    found, back = jax.vjp(lambda x: module.apply(params, x), x)
    kernel = np.asarray(params["params"]["kernel"].astype(jnp.bfloat16), np.float32)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, np.asarray(x, np.float32) @ kernel, rtol=1e-5, atol=1e-5)
    assert back(jnp.ones_like(found))[0].dtype == jnp.bfloat16
    text = jax.jit(lambda x: jax.vjp(lambda x: module.apply(params, x), x)[1](found)).lower(x).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert products and not any("(tensor<3x5xf32>" in line for line in products)


DRAWS = np.random.default_rng(0)
SHAPES = {"one": ((4, 6), 1), "heads": ((4, 2, 3), 1), "joining": ((2, 3, 4), 2)}


def projected(precision: str, shape: tuple[int, ...], contracted: int, **changes) -> Projection:
    outputs = shape[contracted:]
    axes = (None,) * len(shape)
    return (PROJECTIONS[precision] or Projection)(outputs, axes, nn.initializers.normal(1.0), **changes)


def expected_integers(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.clip(np.round(values.astype(np.float32) * scale), -127, 127).astype(np.int64)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("precision", [INT8_DYNAMIC, INT8_STATIC])
def test_products_in_int8_are_those_of_integers(precision: str, shape: str) -> None:
    sizes, contracted = SHAPES[shape]
    x = jnp.asarray(DRAWS.normal(size=(2, 5, *sizes[:contracted])), jnp.float32)
    module = projected(precision, sizes, contracted)
    params = nn.meta.unbox(jax.jit(module.init)(jax.random.key(0), x))["params"]
    kernel, outputs = np.asarray(params["kernel"]), sizes[contracted:]
    of_kernel = 127 / np.abs(kernel).max(axis=tuple(range(contracted)))
    params = params | {"kernel_scale": of_kernel.reshape(-1), "bias": DRAWS.normal(size=outputs).astype(np.float32)}
    inputs = tuple(range(2, 2 + contracted))
    of_x = 127 / np.abs(x).max(axis=inputs, keepdims=True)
    if precision == INT8_STATIC:
        params |= {"input_range": np.float32(2.0), "output_range": np.float32(3.0)}
        of_x = np.full_like(of_x, 127 / 2)
    sums = np.tensordot(expected_integers(np.asarray(x), of_x), expected_integers(kernel, of_kernel), contracted)
    expected = sums / (of_x.reshape(2, 5, *(1,) * len(outputs)) * of_kernel) + params["bias"]
    if precision == INT8_STATIC:
        expected = expected_integers(expected, np.float32(127 / 3)) / (127 / 3)
    apply = jax.jit(lambda params: module.apply({"params": params}, x))
    np.testing.assert_allclose(apply(params), expected, rtol=1e-5, atol=1e-5)
    program = str(jax.make_jaxpr(apply)(params))
    assert "i8[" in program and "preferred_element_type=int32" in program


def test_int8_kernels_of_bfloat16_keep_their_integers() -> None:
    """A kernel whose values are integers over a scale is rounded to bfloat16 before a product."""
    integers = DRAWS.integers(-127, 128, size=(64, 32)).astype(np.float32)
    scale = DRAWS.uniform(50, 5000, size=32).astype(np.float32)
    kernel = jnp.asarray(integers / scale).astype(jnp.bfloat16)
    np.testing.assert_array_equal(int8.quantize(kernel, scale), integers)
    assert int8.quantization_scale(jnp.float32(0.0)) == 1


@pytest.mark.parametrize(("precision", "kept"), [(CALIBRATED, [2.0, 3.0, 3.0]), (SIMULATED, [2.0, 2.0001, 2.0])])
def test_ranges_follow_the_data(precision: str, kept: list[float]) -> None:
    module = projected(precision, (4, 6), 1)
    x = jnp.eye(4)[None]
    variables = nn.meta.unbox(jax.jit(module.init)(jax.random.key(0), x))
    ranges, calibrate = variables["ranges"], jax.jit(functools.partial(module.apply, mutable=["ranges"]))
    assert not any(jax.tree.leaves(ranges))
    for largest, expected in zip([2.0, 3.0, 1.0], kept, strict=True):
        _, after = calibrate(variables | {"ranges": ranges}, largest * x)
        ranges = after["ranges"]
        np.testing.assert_allclose(ranges["input_range"], expected, rtol=1e-6)
    fixed = module.apply(variables | {"ranges": ranges}, 5.0 * x)
    plain = projected(FLOAT, (4, 6), 1).apply({"params": variables["params"]}, 5.0 * x)
    if precision == CALIBRATED:
        np.testing.assert_array_equal(fixed, plain)
    else:  # both ends of the range: the inputs of 5 became 2
        assert np.abs(fixed).max() <= ranges["output_range"] < np.abs(plain).max()


NORMS = {LayerNorm: ("scale", "bias"), RmsNorm: ("scale",)}
"""Module -> its parameters."""


def apply_of(module: type, dtype: Any) -> tuple[Callable, dict[str, jax.Array]]:
    """(x, parameters) -> the output; and the parameters."""
    random = np.random.default_rng(1)
    params = {name: jnp.asarray(random.normal(size=9), jnp.float32) for name in NORMS[module]}
    return lambda x, params: module(1e-6, jnp.dtype(dtype)).apply({"params": params}, x), params


@pytest.mark.parametrize("module", NORMS)
def test_the_input_is_kept_in_its_own_dtype_and_statistics_in_float32(module: type) -> None:
    apply, params = apply_of(module, "bfloat16")
    closed = jax.eval_shape(lambda: jax.vjp(lambda x: apply(x, params), jnp.ones((4, 5, 9), jnp.bfloat16))[1])
    kept = jax.tree.leaves(closed)
    assert {leaf.dtype for leaf in kept if leaf.size >= 4 * 5 * 9} == {jnp.dtype("bfloat16")}
    assert {leaf.shape for leaf in kept if leaf.dtype == jnp.float32} <= {(4, 5, 1), (9,)}


@pytest.mark.parametrize("module", NORMS)
def test_bfloat16_numbers_are_normalised_as_float32_numbers_are(module: type) -> None:
    """To the same bits: outputs and the gradient of the input are rounded, those of the parameters are not."""
    random = np.random.default_rng(0)

    def computed(dtype: str, x: jax.Array, cotangent: jax.Array) -> Any:
        apply, params = apply_of(module, dtype)
        y, back = jax.vjp(apply, x.astype(dtype), params)
        return y, *back(cotangent.astype(dtype))

    given = [jnp.asarray(random.normal(20, 3, size=(40, 9)), jnp.bfloat16) for _ in range(2)]
    y, of_x, of_params = computed("float32", *given)
    rounded = y.astype(jnp.bfloat16), of_x.astype(jnp.bfloat16), of_params
    chex.assert_trees_all_equal(computed("bfloat16", *given), rounded)
