"""A linear map whose axes have names: [... in] -> [... out]."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer


class Projection(nn.Module):
    """y = x W + b, contracting as many trailing axes of x as `axes` has more names than there are `features`.

    features: sizes of the output axes.
    axes: logical names of the kernel's axes, inputs first; the bias has the names of the outputs.
    kernel_init: initializer of W; b begins at zero.
    dtype: of the product and the output; the parameters `kernel` and `bias` are float32.
    """

    features: tuple[int, ...]
    axes: tuple[str | None, ...]
    kernel_init: Initializer
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        contracted = len(self.axes) - len(self.features)
        shape = x.shape[x.ndim - contracted :] + self.features
        kernel = self.param("kernel", nn.with_logical_partitioning(self.kernel_init, self.axes), shape)
        zeros = nn.with_logical_partitioning(nn.initializers.zeros_init(), self.axes[contracted:])
        bias = self.param("bias", zeros, self.features)
        inputs = tuple(range(x.ndim - contracted, x.ndim))
        y = jax.lax.dot_general(
            x.astype(self.dtype), kernel.astype(self.dtype), ((inputs, tuple(range(contracted))), ((), ()))
        )
        return y + bias.astype(self.dtype)
