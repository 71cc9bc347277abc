"""Initializers that jax.nn.initializers does not have."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer


def uniform(bound: float) -> Initializer:
    """Return a uniform initializer from -bound to bound."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def fan_in_uniform(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """Draw uniform values from -1 / sqrt(inputs) to 1 / sqrt(inputs), as torch does for linear layers.

    The inputs are the first axis.
    """
    return uniform(shape[0] ** -0.5)(key, shape, dtype)
