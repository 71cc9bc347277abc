"""Matrix products with float32 results from factors in a smaller dtype."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def float32_product(product: Callable[..., jax.Array], a: jax.Array, b: jax.Array) -> jax.Array:
    """Compute product(a, b) with a float32 result.

    product: function of the two factors, such as a partial `jnp.einsum`, that takes `preferred_element_type`.

    A matrix unit always adds in float32. With bfloat16 factors this function returns the sums without rounding, because
    a softmax needs them. The transposed products of the backward pass would then multiply a float32 cotangent, which is
    several times slower. So the cotangent is first rounded to the factors' dtype. With float32 factors this is the
    plain product.
    """
    return product(a, b, preferred_element_type=jnp.float32)


def _forward(product: Callable[..., jax.Array], a: jax.Array, b: jax.Array) -> tuple[jax.Array, Any]:
    return float32_product(product, a, b), (a, b)


def _backward(product: Callable[..., jax.Array], factors: Any, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    result, transposed = jax.vjp(product, *factors)
    return transposed(cotangent.astype(result.dtype))


float32_product.defvjp(_forward, _backward)
