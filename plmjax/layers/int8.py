"""Products of matrices in int8, and the ranges of activations that they need.

Quantization is symmetric: x becomes round(s x) from -127 to 127, with s = 127 / max|x|. A product of integers is exact
in int32, so that

    x W  =  (round(s_x x) . round(s_w W)) / (s_x s_w)

Each output of W has its own scale, a parameter `kernel_scale`. Scales of x are, by the precision of a projection,

    int8_dynamic    those of each token, from its largest value: tokens do not depend on each other
    int8_static     the same for all tokens, from the parameter `input_range`; results are rounded by `output_range`
    calibrated      none: products in float, and the largest values are collected in the collection `ranges`
    simulated       static, but the rounded values are multiplied in float, and the ranges follow the data as moving
                    averages in the collection `ranges` (Q8BERT, arXiv 1910.06188, section 2.2; nlp-architect,
                    quantization.py)

Deviation: a bias is added in float32. In nlp-architect it is an int32 with the scale s_x s_w, which is finer than any
difference that the rounded result shows.
Deviation: nlp-architect's dynamic scales are those of a whole batch. Then the text of one row would change another.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp

from plmjax.contracts.parameters import as_scale
from plmjax.layers.projection import Projection

FLOAT, INT8_DYNAMIC, INT8_STATIC = "float", "int8_dynamic", "int8_static"
CALIBRATED, SIMULATED = "calibrated", "simulated"
MATMUL_PRECISIONS = (FLOAT, INT8_DYNAMIC, INT8_STATIC)
"""Precisions that a run may have. Calibrated and simulated ones are those of compression, which makes such runs."""
LARGEST = 127
DECAY = 0.9999
"""Decay of the moving averages."""
RANGES = "ranges"
"""Collection of the ranges of activations while they are collected."""
KERNEL_SCALE, INPUT, OUTPUT = "kernel_scale", "input_range", "output_range"
ADDED = (KERNEL_SCALE, INPUT, OUTPUT)
"""Names of the parameters that a projection has for products in int8."""


class Int8Projection(Projection):
    """A projection in int8, with the parameters `kernel_scale` and, where scales are static, ranges."""

    precision: str = INT8_DYNAMIC

    def product(self, contracted: int, x: jax.Array, kernel: jax.Array) -> jax.Array:
        """Multiply in int8, or in float between two ranges."""
        if self.precision not in (INT8_DYNAMIC, INT8_STATIC):
            return super().product(contracted, ranged(self, self.precision, INPUT, x), kernel)
        # One axis: an array with several would be cast to the dtype of the products.
        init = as_scale(nn.initializers.ones, (None,))
        of_kernel = self.param(KERNEL_SCALE, init, (math.prod(self.features),)).reshape(self.features)
        static = self.precision == INT8_STATIC
        of_x = static_scale(self, INPUT) if static else token_scales(x, contracted)
        return product(contracted, x, kernel, (of_x, of_kernel), jnp.float32 if self.logits else self.dtype)

    def result(self, y: jax.Array) -> jax.Array:
        return ranged(self, self.precision, OUTPUT, y)


PROJECTIONS: Mapping[str, Callable[..., nn.Module] | None] = {
    FLOAT: None,
    **{
        precision: functools.partial(Int8Projection, precision=precision)
        for precision in (INT8_DYNAMIC, INT8_STATIC, CALIBRATED, SIMULATED)
    },
}
"""Precision -> `Execution.projection`."""


def scale_of(largest: jax.Array) -> jax.Array:
    """Return 127 / the largest magnitude, float32; 1 where all values are 0."""
    largest = largest.astype(jnp.float32)
    return jnp.where(largest > 0, LARGEST / jnp.where(largest > 0, largest, 1.0), 1.0)


def rounded(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the integers of x as float32; values beyond the range become the largest integer."""
    return jnp.clip(jnp.round(x.astype(jnp.float32) * scale), -LARGEST, LARGEST)


@jax.custom_vjp
def rounded_values(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the nearest values that the integers stand for; the gradient of x is that of the result."""
    return (rounded(x, scale) / scale).astype(x.dtype)


def _forward(x: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
    return rounded_values(x, scale), scale


def _backward(scale: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    return cotangent, jnp.zeros_like(scale)


rounded_values.defvjp(_forward, _backward)


def product(
    contracted: int, x: jax.Array, kernel: jax.Array, scales: tuple[jax.Array, jax.Array], dtype: jnp.dtype
) -> jax.Array:
    """Multiply [... in] by [in out] in int8 to [... out] of a dtype.

    Args:
        contracted: number of input axes.
        scales: of x, a scalar or [... 1] with an axis of size 1 for each input axis; and of the kernel, with the shape
            of its outputs.
    """
    of_x, of_kernel = scales
    left, right = rounded(x, of_x).astype(jnp.int8), rounded(kernel, of_kernel).astype(jnp.int8)
    inputs = tuple(range(x.ndim - contracted, x.ndim)), tuple(range(contracted))
    sums = jax.lax.dot_general(left, right, (inputs, ((), ())), preferred_element_type=jnp.int32)
    if of_x.ndim:
        rows = x.shape[: x.ndim - contracted]
        of_x = of_x.reshape(*rows, *(1,) * of_kernel.ndim)
    # The compiler for TPUs, libtpu 0.0.42, dies when it joins such a product of heads with one of attention.
    apart = jax.lax.optimization_barrier if kernel.ndim > 2 else _as_it_is
    values = sums.astype(jnp.float32) * (1 / of_x) * (1 / of_kernel)
    return jax.lax.platform_dependent(values.astype(dtype), tpu=apart, default=_as_it_is)


def _as_it_is(x: jax.Array) -> jax.Array:
    return x


def token_scales(x: jax.Array, contracted: int) -> jax.Array:
    """Return the scale of each token: [... in] -> float32 [... 1]."""
    return scale_of(jnp.max(jnp.abs(x), axis=tuple(range(x.ndim - contracted, x.ndim)), keepdims=True))


def ranged(module: nn.Module, precision: str, name: str, x: jax.Array) -> jax.Array:
    """Return x as products with static ranges have it: rounded to its integers' values, or x itself.

    module: the bound module that has the range `name`; it is updated where its collection may change.
    """
    if precision == INT8_STATIC:
        scale = static_scale(module, name)
        return (rounded(x, scale) * (1 / scale)).astype(x.dtype)
    if precision not in (CALIBRATED, SIMULATED):
        return x
    kept: Any = module.variable(RANGES, name, lambda: jnp.zeros((), jnp.float32))
    if module.is_mutable_collection(RANGES) and not module.is_initializing():
        largest = jnp.max(jnp.abs(jax.lax.stop_gradient(x))).astype(jnp.float32)
        averaged = kept.value - (1 - DECAY) * (kept.value - largest)
        averaged = jnp.where(kept.value > 0, averaged, largest)  # the first value is taken as it is
        kept.value = averaged if precision == SIMULATED else jnp.maximum(kept.value, largest)
    return rounded_values(x, scale_of(kept.value)) if precision == SIMULATED else x


def static_scale(module: nn.Module, name: str) -> jax.Array:
    """Return the scale of a range that is a parameter of a module."""
    init = as_scale(nn.initializers.zeros, ())
    return scale_of(module.param(name, init, ()))


def without_scales(params: Any) -> Any:
    """Return nested parameters without those that projections have for products in int8 alone."""
    flat = flax.traverse_util.flatten_dict(params)
    return flax.traverse_util.unflatten_dict({path: leaf for path, leaf in flat.items() if path[-1] not in ADDED})
