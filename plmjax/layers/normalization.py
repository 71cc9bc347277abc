"""Normalisation of the last axis."""

import flax.linen as nn
import jax
import jax.numpy as jnp


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis (Ba et al., arXiv 1607.06450).

    Statistics are always float32, the variance is that of the centred values; `dtype` is that of the output.
    """

    epsilon: float
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        size = x.shape[-1:]
        scale = self.param("scale", nn.with_logical_partitioning(nn.initializers.ones_init(), ("embed",)), size)
        bias = self.param("bias", nn.with_logical_partitioning(nn.initializers.zeros_init(), ("embed",)), size)
        x = x.astype(jnp.float32)
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        return (centred * jax.lax.rsqrt(variance + self.epsilon) * scale + bias).astype(self.dtype)


class RmsNorm(nn.Module):
    """x / sqrt(mean of squares + epsilon) * scale over the last axis (Zhang and Sennrich, arXiv 1910.07467).

    The mean is float32; `dtype` is that of the output.
    """

    epsilon: float
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        ones = nn.with_logical_partitioning(nn.initializers.ones_init(), ("embed",))
        scale = self.param("scale", ones, x.shape[-1:])
        x = x.astype(jnp.float32)
        mean = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
        return (x * jax.lax.rsqrt(mean + self.epsilon) * scale).astype(self.dtype)
