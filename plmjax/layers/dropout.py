"""Dropout from sixteen random bits an element."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

LEVELS = 1 << 16


def keep_mask(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """bool [shape], true with probability 1 - round(65536 rate) / 65536.

    One 32-bit word serves two elements, which halves the generator's work, a visible share of a training step.
    """
    size = math.prod(shape)
    words = jax.random.bits(key, ((size + 1) // 2,), jnp.uint32)
    halves = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(-1)[:size]
    return halves.reshape(shape) >= jnp.uint16(round(rate * LEVELS))


class Dropout(nn.Module):
    """Zeroes elements at `rate` and scales the rest by 1 / (1 - rate); the random collection is "dropout"."""

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        if deterministic or self.rate == 0.0:
            return x
        kept = 1.0 - round(self.rate * LEVELS) / LEVELS
        mask = keep_mask(self.make_rng("dropout"), self.rate, x.shape)
        return jnp.where(mask, x / jnp.asarray(kept, x.dtype), jnp.zeros((), x.dtype))
