"""Products that hand out float32 sums: what goes in, what comes out, and what their transposes multiply."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.layers.product import float32_product

PRODUCT = functools.partial(jnp.einsum, "BTH,BSH->BTS")


def factors(dtype: str) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(0), 2)
    return [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, [(2, 5, 8), (2, 3, 8)], strict=True)]


def operands(jaxpr: jax.extend.core.Jaxpr) -> list[set[str]]:
    """The dtypes that each matrix product of a program multiplies."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            found.append({str(variable.aval.dtype) for variable in equation.invars})
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "jaxpr")):
            if hasattr(inner, "jaxpr"):
                found += operands(inner.jaxpr)
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_product_mixes_dtypes_forward_or_back(dtype):
    def loss(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.sum(jax.nn.softmax(float32_product(PRODUCT, a, b)) ** 2)

    assert float32_product(PRODUCT, *factors(dtype)).dtype == jnp.float32
    traced = jax.make_jaxpr(jax.grad(loss, (0, 1)))(*factors(dtype))
    assert operands(traced.jaxpr) == [{dtype}] * len(operands(traced.jaxpr)) and len(operands(traced.jaxpr)) >= 3


def test_float32_is_the_plain_product_to_the_bit():
    def value_and_gradients(product):
        def loss(a: jax.Array, b: jax.Array) -> jax.Array:
            return jnp.sum(jnp.tanh(product(a, b)))

        return jax.jit(jax.value_and_grad(loss, (0, 1)))(*factors("float32"))

    found = value_and_gradients(functools.partial(float32_product, PRODUCT))
    jax.tree.map(np.testing.assert_array_equal, found, value_and_gradients(PRODUCT))


def test_bfloat16_gradients_are_those_of_float32_but_for_rounding():
    def gradients(a: jax.Array, b: jax.Array):
        return jax.grad(lambda a, b: jnp.sum(jnp.tanh(float32_product(PRODUCT, a, b))), (0, 1))(a, b)

    rounded = factors("bfloat16")
    for found, exact in zip(gradients(*rounded), gradients(*(x.astype(jnp.float32) for x in rounded)), strict=True):
        assert found.dtype == jnp.bfloat16
        np.testing.assert_allclose(found.astype(np.float32), exact, atol=2e-2 * float(jnp.max(jnp.abs(exact))))
