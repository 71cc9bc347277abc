"""Normalisation over the last axis, and over a batch.

The backward passes of the normalisation over the last axis keep the input in its own dtype and float32 statistics, one
or two numbers per position. They keep nothing else of the size of the input. Only first-order reverse-mode
differentiation is defined; JAX raises an error for forward mode.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.parameters import as_norm_bias, as_scale
from plmjax.errors import UserError


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis (Ba et al., arXiv 1607.06450).

    Statistics are float32. The variance is the mean of the squares of x - mean. The output has the dtype `dtype`.

    use_bias: true to add the bias.
    """

    epsilon: float
    dtype: jnp.dtype = jnp.float32
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        size = x.shape[-1:]
        scale = self.param("scale", as_scale(nn.initializers.ones_init(), ("embed",)), size)
        if not self.use_bias:
            return _layer_norm(self.epsilon, self.dtype, x, scale, None)
        bias = self.param("bias", as_norm_bias(nn.initializers.zeros_init(), ("embed",)), size)
        return _layer_norm(self.epsilon, self.dtype, x, scale, bias)


class RmsNorm(nn.Module):
    """x / sqrt(mean of squares + epsilon) * scale over the last axis (Zhang and Sennrich, arXiv 1910.07467).

    The mean of squares is float32. The output has the dtype `dtype`.
    """

    epsilon: float
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        ones = as_scale(nn.initializers.ones_init(), ("embed",))
        scale = self.param("scale", ones, x.shape[-1:])
        return _rms_norm(self.epsilon, self.dtype, x, scale)


class BatchNorm(nn.Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, with the statistics of each feature over a batch.

    The sources are Ioffe and Szegedy 2015, arXiv 1502.03167, and torch.nn.BatchNorm1d.

    In training the mean and the variance are those of the batch: the global batch of a step, on any number of devices,
    or one microbatch. Running statistics are kept in the collection "batch_stats" and used outside training.

    momentum: weight of the batch in the running statistics.
    """

    epsilon: float = 1e-5
    momentum: float = 0.1

    @nn.compact
    def __call__(self, x: jax.Array, exists: jax.Array, deterministic: bool) -> jax.Array:
        """Normalize [... D] to float32 [... D].

        exists: bool [...], true for positions of a batch that are not empty.

        Raises:
            UserError: a training batch has only one position.
        """
        size, axes = x.shape[-1:], tuple(range(x.ndim - 1))
        scale = self.param("scale", as_scale(nn.initializers.ones_init(), (None,)), size)
        bias = self.param("bias", as_norm_bias(nn.initializers.zeros_init(), (None,)), size)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, size)
        running_variance = self.variable("batch_stats", "variance", jnp.ones, size)
        x, mean, variance = x.astype(jnp.float32), running_mean.value, running_variance.value
        if not deterministic:
            if exists.size < 2:
                raise UserError(
                    "Expected at least 2 examples in a batch whose model has batch normalization, found 1; raise "
                    "--training.batch_size, or lower --training.accumulation."
                )
            weights = exists[..., None].astype(jnp.float32)
            count = jnp.maximum(jnp.sum(weights), 1)
            mean = jnp.sum(weights * x, axis=axes) / count
            variance = jnp.sum(weights * jnp.square(x - mean), axis=axes) / count
            unbiased = variance * count / jnp.maximum(count - 1, 1)
            for running, found in ((running_mean, mean), (running_variance, unbiased)):
                running.value += self.momentum * (jax.lax.stop_gradient(found) - running.value)
        return (x - mean) * jax.lax.rsqrt(variance + self.epsilon) * scale + bias


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _layer_norm(epsilon: float, dtype: jnp.dtype, x: jax.Array, scale: jax.Array, bias: jax.Array | None) -> jax.Array:
    return _layer_norm_forward(epsilon, dtype, x, scale, bias)[0]


def _layer_norm_forward(
    epsilon: float, dtype: jnp.dtype, x: jax.Array, scale: jax.Array, bias: jax.Array | None
) -> tuple[jax.Array, tuple]:
    mean = _mean(x.astype(jnp.float32))
    centred = x.astype(jnp.float32) - mean
    inverse = jax.lax.rsqrt(_mean(jnp.square(centred)) + epsilon)
    normal = centred * inverse * scale
    return (normal if bias is None else normal + bias).astype(dtype), (x, mean, inverse, scale, bias)


def _layer_norm_backward(epsilon: float, dtype: jnp.dtype, kept: tuple, cotangent: jax.Array) -> tuple:
    x, mean, inverse, scale, bias = kept
    normal = (x.astype(jnp.float32) - mean) * inverse
    cotangent = cotangent.astype(jnp.float32)
    normal_gradient = cotangent * scale
    x_gradient = inverse * (normal_gradient - _mean(normal_gradient) - normal * _mean(normal_gradient * normal))
    x_gradient, scale_gradient = x_gradient.astype(x.dtype), _parameter_gradient(cotangent * normal, scale)
    return x_gradient, scale_gradient, None if bias is None else _parameter_gradient(cotangent, bias)


_layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _rms_norm(epsilon: float, dtype: jnp.dtype, x: jax.Array, scale: jax.Array) -> jax.Array:
    return _rms_norm_forward(epsilon, dtype, x, scale)[0]


def _rms_norm_forward(epsilon: float, dtype: jnp.dtype, x: jax.Array, scale: jax.Array) -> tuple[jax.Array, tuple]:
    inverse = jax.lax.rsqrt(_mean(jnp.square(x.astype(jnp.float32))) + epsilon)
    return (x.astype(jnp.float32) * inverse * scale).astype(dtype), (x, inverse, scale)


def _rms_norm_backward(epsilon: float, dtype: jnp.dtype, kept: tuple, cotangent: jax.Array) -> tuple:
    x, inverse, scale = kept
    normal = x.astype(jnp.float32) * inverse
    cotangent = cotangent.astype(jnp.float32)
    normal_gradient = cotangent * scale
    x_gradient = inverse * (normal_gradient - normal * _mean(normal_gradient * normal))
    return x_gradient.astype(x.dtype), _parameter_gradient(cotangent * normal, scale)


_rms_norm.defvjp(_rms_norm_forward, _rms_norm_backward)


def _mean(x: jax.Array) -> jax.Array:
    return jnp.mean(x, axis=-1, keepdims=True)


def _parameter_gradient(x: jax.Array, parameter: jax.Array) -> jax.Array:
    """Sum the gradient of a parameter of the last axis over all positions."""
    return jnp.sum(x, axis=tuple(range(x.ndim - 1))).astype(parameter.dtype)
