"""Functions with a kink, differentiated there as torch and TensorFlow do it.

At a bound `jnp.clip` passes half of the gradient, `jnp.max` divides it among equal numbers, and the derivative of
`jnp.abs` at 0 is 1. `jax.nn.relu` has the derivative 0 at 0, as in torch and TensorFlow.
"""

import jax
import jax.numpy as jnp


def clamp(x: jax.Array, low: float, high: float) -> jax.Array:
    """Return x within [low, high]. The gradient passes inside the bounds and at the bounds (torch.clamp)."""
    return jnp.where((x >= low) & (x <= high), x, jnp.clip(jax.lax.stop_gradient(x), low, high))


def absolute(x: jax.Array) -> jax.Array:
    """Return |x|, with the derivative 0 at 0."""
    return x * jnp.sign(x)


def largest(x: jax.Array, axis: int) -> jax.Array:
    """Return the maxima along an axis. The gradient passes to the first of equal numbers (torch's `x.max(axis)`)."""
    return jnp.squeeze(jnp.take_along_axis(x, jnp.argmax(x, axis, keepdims=True), axis), axis)
