"""Matrix products whose sums are handed out in float32 although the factors are not."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def float32_product(product: Callable[..., jax.Array], a: jax.Array, b: jax.Array) -> jax.Array:
    """product(a, b) with a float32 result; `product` is an einsum or a dot_general that lacks its two factors.

    A matrix unit adds in float32 whatever it multiplies. With bfloat16 factors it thus gives the sums unrounded, which
    a softmax wants. The transposed products would then multiply a float32 cotangent, several times slower; it is
    rounded to the factors' dtype first. For float32 factors nothing differs from the plain product.
    """
    return product(a, b, preferred_element_type=jnp.float32)


def _forward(product: Callable[..., jax.Array], a: jax.Array, b: jax.Array) -> tuple[jax.Array, Any]:
    return float32_product(product, a, b), (a, b)


def _backward(product: Callable[..., jax.Array], factors: Any, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    result, transposed = jax.vjp(product, *factors)
    return transposed(cotangent.astype(result.dtype))


float32_product.defvjp(_forward, _backward)
