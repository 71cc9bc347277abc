"""A linear map whose axes have names: [... in] -> [... out]."""

import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.contracts.parameters import as_bias


class Projection(nn.Module):
    """y = x W + b. The number of contracted trailing axes of x is len(axes) - len(features).

    features: sizes of the output axes.
    axes: logical names of the kernel's axes, inputs first; the bias has the names of the outputs.
    kernel_init: initializer of W.
    dtype: dtype of the product and the output; the parameters `kernel` and `bias` are float32.
    logits: true to return the sums of the product in float32, for a softmax or a squared error.
    use_bias: true to add b.
    bias_init: initializer of b.
    """

    features: tuple[int, ...]
    axes: tuple[str | None, ...]
    kernel_init: Initializer
    dtype: jnp.dtype = jnp.float32
    logits: bool = False
    use_bias: bool = True
    bias_init: Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        contracted = len(self.axes) - len(self.features)
        shape = x.shape[x.ndim - contracted :] + self.features
        kernel = self.param("kernel", nn.with_logical_partitioning(self.kernel_init, self.axes), shape)
        y = self.product(contracted, x.astype(self.dtype), kernel.astype(self.dtype))
        if self.use_bias:
            bias_init = as_bias(self.bias_init, self.axes[contracted:])
            y = y + self.param("bias", bias_init, self.features).astype(y.dtype)
        return self.result(y)

    def product(self, contracted: int, x: jax.Array, kernel: jax.Array) -> jax.Array:
        """Multiply [... in] by [in out] to [... out]; the first `contracted` axes of the kernel are inputs."""
        return _product(contracted, self.logits, x, kernel)

    def result(self, y: jax.Array) -> jax.Array:
        """Return y [... out] unchanged; a projection that rounds its results overrides this."""
        return y


def layer_projection(
    execution: Execution, features: tuple[int, ...], axes: tuple[str | None, ...], init: Initializer, **settings: Any
) -> nn.Module:
    """Return a projection of attention or of a feed-forward network, of the class that the execution names."""
    return (execution.projection or Projection)(features, axes, init, execution.dtype, **settings)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _product(contracted: int, logits: bool, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Multiply [... in] by [in out] to [... out], in float32 for logits.

    The first `contracted` axes of the kernel are inputs.
    """
    inputs = tuple(range(x.ndim - contracted, x.ndim)), tuple(range(contracted))
    return jax.lax.dot_general(x, kernel, (inputs, ((), ())), preferred_element_type=jnp.float32 if logits else None)


def _product_forward(contracted: int, logits: bool, x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple]:
    return _product(contracted, logits, x, kernel), (x, kernel)


def _product_backward(contracted: int, logits: bool, kept: tuple, cotangent: jax.Array) -> tuple:
    """Compute both gradients, that of the kernel with its axes in order.

    JAX would compute the transpose of that gradient, and XLA for CPU would then transpose the whole cotangent.
    """
    x, kernel = kept
    rows = tuple(range(x.ndim - contracted))
    outputs = tuple(range(len(rows), cotangent.ndim)), tuple(range(contracted, kernel.ndim))
    cotangent = cotangent.astype(x.dtype)  # as `float32_product` does
    x_gradient = jax.lax.platform_dependent(
        cotangent,
        kernel,
        cpu=functools.partial(_input_gradient, contracted),
        default=lambda cotangent, kernel: jax.lax.dot_general(cotangent, kernel, (outputs, ((), ()))),
    )
    return x_gradient, jax.lax.dot_general(x, cotangent, ((rows, rows), ((), ())))


def _input_gradient(contracted: int, cotangent: jax.Array, kernel: jax.Array) -> jax.Array:
    """Compute the gradient of x from matrices: XLA for CPU would transpose a kernel with more axes."""
    inputs = kernel.shape[:contracted]
    matrix = kernel.reshape(math.prod(inputs), -1)
    rows = cotangent.reshape(-1, matrix.shape[1])
    return (rows @ matrix.T).reshape(*cotangent.shape[: cotangent.ndim - kernel.ndim + contracted], *inputs)


_product.defvjp(_product_forward, _product_backward)
