"""Clipping of gradients by their global norm."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Params = Any


class ClipState(NamedTuple):
    """global_norm: float32 scalar, the norm of the last gradient before clipping."""

    global_norm: jax.Array


def clip_by_global_norm(largest: float) -> optax.GradientTransformation:
    """Clip float32 gradients to a global norm of at most `largest`; 0 only records the norm.

    If the norm is not finite, every gradient becomes NaN, as in tf.clip_by_global_norm, so that the run stops.
    """

    def init(params: Params) -> ClipState:
        return ClipState(jnp.zeros((), jnp.float32))

    def update(gradients: Params, state: ClipState, params: Params = None) -> tuple[Params, ClipState]:
        gradients = optax.tree.cast(gradients, jnp.float32)
        norm = optax.tree.norm(gradients)
        if largest:
            scale = jnp.where(jnp.isfinite(norm), largest / jnp.maximum(norm, largest), jnp.nan)
            gradients = jax.tree.map(lambda gradient: gradient * scale, gradients)
        return gradients, ClipState(norm)

    return optax.GradientTransformation(init, update)
