"""First values of parameters that jax.nn.initializers does not draw."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer


def uniform(bound: float) -> Initializer:
    """Uniform from -bound to bound."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init
