"""Dropout from sixteen random bits an element."""

import flax.linen as nn
import jax
import jax.numpy as jnp

LEVELS = 1 << 16


def keep_mask(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """bool [shape], true with probability 1 - round(65536 rate) / 65536.

    One 32-bit word serves two elements, which halves the generator's work, a visible share of a training step. The two
    lie half of the last dimension but one apart: a TPU would pad a pair of neighbours to 128.
    """
    axis = max(len(shape) - 2, 0)
    length, limit = shape[axis], jnp.uint32(round(rate * LEVELS))
    words = jax.random.bits(key, (*shape[:axis], (length + 1) // 2, *shape[axis + 1 :]), jnp.uint32)
    mask = jnp.concatenate([(words & (LEVELS - 1)) >= limit, (words >> 16) >= limit], axis)
    return jax.lax.slice_in_dim(mask, 0, length, axis=axis)


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
