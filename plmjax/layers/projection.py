"""A linear map whose axes have names: [... in] -> [... out]."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.layers.product import float32_product


class Projection(nn.Module):
    """y = x W + b, contracting as many trailing axes of x as `axes` has more names than there are `features`.

    features: sizes of the output axes.
    axes: logical names of the kernel's axes, inputs first; the bias has the names of the outputs.
    kernel_init: initializer of W; b begins at zero.
    dtype: of the product and the output; the parameters `kernel` and `bias` are float32.
    logits: hands out the sums of the product in float32, as a softmax or a squared error wants them.
    """

    features: tuple[int, ...]
    axes: tuple[str | None, ...]
    kernel_init: Initializer
    dtype: jnp.dtype = jnp.float32
    logits: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        contracted = len(self.axes) - len(self.features)
        shape = x.shape[x.ndim - contracted :] + self.features
        kernel = self.param("kernel", nn.with_logical_partitioning(self.kernel_init, self.axes), shape)
        zeros = nn.with_logical_partitioning(nn.initializers.zeros_init(), self.axes[contracted:])
        bias = self.param("bias", zeros, self.features)
        inputs = tuple(range(x.ndim - contracted, x.ndim))
        dimensions = ((inputs, tuple(range(contracted))), ((), ()))
        product = functools.partial(jax.lax.dot_general, dimension_numbers=dimensions)
        x, kernel = x.astype(self.dtype), kernel.astype(self.dtype)
        if self.logits:
            return float32_product(product, x, kernel) + bias
        return product(x, kernel) + bias.astype(self.dtype)
