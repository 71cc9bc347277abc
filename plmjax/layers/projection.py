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
    kernel_init: initializer of W; b is initialised to zero.
    dtype: of the product and the output; the parameters `kernel` and `bias` are float32.
    logits: returns the sums of the product in float32, as a softmax or a squared error needs them.
    use_bias: whether there is a b.
    """

    features: tuple[int, ...]
    axes: tuple[str | None, ...]
    kernel_init: Initializer
    dtype: jnp.dtype = jnp.float32
    logits: bool = False
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        contracted = len(self.axes) - len(self.features)
        shape = x.shape[x.ndim - contracted :] + self.features
        kernel = self.param("kernel", nn.with_logical_partitioning(self.kernel_init, self.axes), shape)
        inputs = tuple(range(x.ndim - contracted, x.ndim))
        dimensions = ((inputs, tuple(range(contracted))), ((), ()))
        product = functools.partial(jax.lax.dot_general, dimension_numbers=dimensions)
        x, kernel = x.astype(self.dtype), kernel.astype(self.dtype)
        y = float32_product(product, x, kernel) if self.logits else product(x, kernel)
        if not self.use_bias:
            return y
        zeros = nn.with_logical_partitioning(nn.initializers.zeros_init(), self.axes[contracted:])
        return y + self.param("bias", zeros, self.features).astype(y.dtype)
