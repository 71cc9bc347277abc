"""A linear map whose axes have names: [... in] -> [... out]."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import FLOAT, INT8_DYNAMIC, INT8_STATIC
from plmjax.contracts.parameters import as_bias, as_scale
from plmjax.layers import int8

REDUCE, EXPAND = "reduce", "expand"
"""Names of the two projections of a product of two matrices."""


class Projection(nn.Module):
    """y = x W + b. The number of contracted trailing axes of x is len(axes) - len(features).

    features: sizes of the output axes.
    axes: logical names of the kernel's axes, inputs first; the bias has the names of the outputs.
    kernel_init: initializer of W.
    dtype: dtype of the product and the output; the parameters `kernel` and `bias` are float32.
    logits: returns the sums of the product in float32, for a softmax or a squared error.
    use_bias: true to add b.
    bias_init: initializer of b.
    matmul_precision: of the product of x and W, as `Execution.matmul_precision`; in int8 there are further parameters,
        `kernel_scale` and ranges.
    rank: R of W = A B, two kernels [in R] and [R out] of projections of their own; 0 for one kernel.
    """

    features: tuple[int, ...]
    axes: tuple[str | None, ...]
    kernel_init: Initializer
    dtype: jnp.dtype = jnp.float32
    logits: bool = False
    use_bias: bool = True
    bias_init: Initializer = nn.initializers.zeros
    matmul_precision: str = FLOAT
    rank: int = 0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        contracted = len(self.axes) - len(self.features)
        if self.rank:
            inputs, outputs = self.axes[:contracted], self.axes[contracted:]
            # The initial values of A B are as large as those of one kernel.
            kept, init = (
                {"dtype": self.dtype, "matmul_precision": self.matmul_precision},
                nn.initializers.normal(self.rank**-0.5),
            )
            x = Projection((self.rank,), (*inputs, "rank"), init, use_bias=False, name=REDUCE, **kept)(x)
            biases = {"use_bias": self.use_bias, "bias_init": self.bias_init, "logits": self.logits}
            second = Projection(self.features, ("rank", *outputs), self.kernel_init, name=EXPAND, **biases, **kept)
            return second(x)
        shape = x.shape[x.ndim - contracted :] + self.features
        kernel = self.param("kernel", nn.with_logical_partitioning(self.kernel_init, self.axes), shape)
        y = self._product(contracted, x.astype(self.dtype), kernel.astype(self.dtype))
        if self.use_bias:
            bias_init = as_bias(self.bias_init, self.axes[contracted:])
            y = y + self.param("bias", bias_init, self.features).astype(y.dtype)
        return int8.ranged(self, self.matmul_precision, int8.OUTPUT, y)

    def _product(self, contracted: int, x: jax.Array, kernel: jax.Array) -> jax.Array:
        if self.matmul_precision not in (INT8_DYNAMIC, INT8_STATIC):
            x = int8.ranged(self, self.matmul_precision, int8.INPUT, x)
            return _product(contracted, self.logits, x, kernel)
        # One axis: an array with several would be cast to the dtype of the products.
        init = as_scale(nn.initializers.ones, (None,))
        of_kernel = self.param(int8.KERNEL_SCALE, init, (math.prod(self.features),)).reshape(self.features)
        static = self.matmul_precision == INT8_STATIC
        of_x = int8.static_scale(self, int8.INPUT) if static else int8.token_scales(x, contracted)
        return int8.product(contracted, x, kernel, (of_x, of_kernel), jnp.float32 if self.logits else self.dtype)


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
    """Compute the gradient of the kernel in the order of its axes.

    JAX itself would make its transpose. XLA for CPU then rearranges the whole cotangent.
    """
    x, kernel = kept
    rows = tuple(range(x.ndim - contracted))
    outputs = tuple(range(len(rows), cotangent.ndim)), tuple(range(contracted, kernel.ndim))
    cotangent = cotangent.astype(x.dtype)  # as `float32_product` does
    of_x = jax.lax.platform_dependent(
        cotangent,
        kernel,
        cpu=functools.partial(_of_matrices, contracted),
        default=lambda cotangent, kernel: jax.lax.dot_general(cotangent, kernel, (outputs, ((), ()))),
    )
    return of_x, jax.lax.dot_general(x, cotangent, ((rows, rows), ((), ())))


def _of_matrices(contracted: int, cotangent: jax.Array, kernel: jax.Array) -> jax.Array:
    """Compute the gradient of x from matrices, because XLA for CPU would transpose a kernel with more axes."""
    inputs = kernel.shape[:contracted]
    matrix = kernel.reshape(math.prod(inputs), -1)
    rows = cotangent.reshape(-1, matrix.shape[1])
    return (rows @ matrix.T).reshape(*cotangent.shape[: cotangent.ndim - kernel.ndim + contracted], *inputs)


_product.defvjp(_product_forward, _product_backward)
