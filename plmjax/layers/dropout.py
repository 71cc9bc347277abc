"""Dropout from sixteen random bits an element."""

import flax.linen as nn
import jax
import jax.numpy as jnp

LEVELS = 1 << 16


def keep_mask(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """bool [shape], true with probability 1 - round(65536 rate) / 65536.

    One random 32-bit word decides two elements, which halves the generator's work, a visible share of a training step.
    The two are half of the second-last dimension apart: a TPU would pad a pair of neighbours to 128.
    """
    axis = max(len(shape) - 2, 0)
    length, limit = shape[axis], jnp.uint32(round(rate * LEVELS))
    words = jax.random.bits(key, (*shape[:axis], (length + 1) // 2, *shape[axis + 1 :]), jnp.uint32)
    mask = jnp.concatenate([(words & (LEVELS - 1)) >= limit, (words >> 16) >= limit], axis)
    return jax.lax.slice_in_dim(mask, 0, length, axis=axis)


def dropped(x: jax.Array, rate: float, key: jax.Array | None, together: tuple[int, ...] = ()) -> jax.Array:
    """x with elements zeroed at `rate` and the rest scaled by 1 / (1 - rate); x itself without a key.

    together: axes along which all elements are dropped or all are kept.
    """
    if key is None:
        return x
    kept = 1.0 - round(rate * LEVELS) / LEVELS
    mask = keep_mask(key, rate, tuple(1 if axis in together else size for axis, size in enumerate(x.shape)))
    return jnp.where(mask, x / jnp.asarray(kept, x.dtype), jnp.zeros((), x.dtype))


class Dropout(nn.Module):
    """`dropped` with keys of the random collection "dropout"."""

    rate: float
    together: tuple[int, ...] = ()

    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """[...] -> [...]."""
        return dropped(x, self.rate, self.key(deterministic), self.together)

    def key(self, deterministic: bool) -> jax.Array | None:
        """A new key; None where nothing is dropped."""
        return None if deterministic or self.rate == 0.0 else self.make_rng("dropout")
