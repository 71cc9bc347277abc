"""Projections: values and gradients against those of the formula, for every kind of axes."""

from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.layers.int8 import INT8_DYNAMIC, PROJECTIONS
from plmjax.layers.projection import Projection
from plmjax.models.compressed.low_rank import LowRankProjection

CASES = {
    "features": ((5,), ("embed", "mlp"), "BTD,DF->BTF"),
    "to heads": ((2, 3), ("embed", "heads", "head"), "BTD,DNH->BTNH"),
    "from heads": ((5,), ("heads", "head", "embed"), "BTNH,NHD->BTD"),
}


@pytest.mark.parametrize("logits", [False, pytest.param(True, marks=pytest.mark.nightly)])  # by day of bfloat16, below
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("platform")
def test_values_and_gradients_are_those_of_the_formula(case: str, logits: bool) -> None:
    features, axes, formula = CASES[case]
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(2, 4, 2, 3) if case == "from heads" else (2, 4, 6)), jnp.float32)
    module = Projection(features, axes, nn.initializers.normal(1.0), logits=logits)
    params = nn.meta.unbox(jax.jit(module.init)(jax.random.key(0), x))["params"]
    params = params | {"bias": jnp.asarray(random.normal(size=features), jnp.float32)}

    def plain(params: Any, x: jax.Array) -> jax.Array:
        return jnp.einsum(formula, x, params["kernel"]) + params["bias"]

    def gradients(apply: Any) -> Any:
        """And the values."""

        def loss(params: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            found = apply(params, x)
            return jnp.sum(jnp.sin(found)), found

        return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(params, x)

    def applied(params: Any, x: jax.Array) -> jax.Array:
        return module.apply({"params": params}, x)

    (found, values), (expected, plain_values) = gradients(applied), gradients(plain)
    np.testing.assert_allclose(values, plain_values, rtol=1e-5, atol=1e-6)
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


def test_a_product_of_two_matrices_has_the_dtype_the_bias_and_the_scales_of_one() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 400)), jnp.bfloat16)
    features, axes, two = (2, 3), ("embed", "heads", "head"), nn.initializers.constant(2.0)
    settings = {"kernel_init": nn.initializers.normal(1.0), "dtype": jnp.bfloat16, "logits": True, "bias_init": two}
    module = LowRankProjection(features, axes, **settings, rank=4)
    found, variables = jax.jit(module.init_with_output)(jax.random.key(0), x)
    first, second = (nn.meta.unbox(variables)["params"][name] for name in ("reduce", "expand"))
    assert (first["kernel"].shape, second["kernel"].shape) == ((400, 4), (4, 2, 3)) and set(first) == {"kernel"}
    assert abs(first["kernel"].std() - 0.5) < 0.05 and (second["bias"] == 2).all()
    hidden = (x @ first["kernel"].astype(jnp.bfloat16)).astype(np.float32)
    kernel = second["kernel"].astype(jnp.bfloat16).astype(np.float32)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, np.einsum("br,rnh->bnh", hidden, kernel) + 2, rtol=1e-5, atol=1e-5)
    integers = module.clone(make=PROJECTIONS[INT8_DYNAMIC], use_bias=False)
    shapes = jax.eval_shape(lambda: integers.init(jax.random.key(0), x))["params"]
    assert {name: set(part) for name, part in shapes.items()} == {one: {"kernel", "kernel_scale"} for one in shapes}
