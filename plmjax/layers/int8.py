"""Matrix products in int8, and the ranges of activations that they need.

Quantization is symmetric: x becomes round(s x) from -127 to 127, with s = 127 / max|x|. A product of integers is exact
in int32, so that

    x W  =  (round(s_x x) . round(s_w W)) / (s_x s_w)

Each output of W has its own scale, a parameter `kernel_scale`. The precision of a projection determines the scale of x:

    int8_dynamic    one for each token, from its largest value: tokens do not depend on each other
    int8_static     one for all tokens, from the parameter `input_range`; results are rounded by `output_range`
    calibrated      none: products in float, and the largest values are collected in the collection `ranges`
    simulated       static, but the rounded values are multiplied in float, and the ranges follow the data as moving
                    averages in the collection `ranges` (Q8BERT, arXiv 1910.06188, section 2.2; nlp-architect,
                    quantization.py)

Deviation: a bias is added in floating point. In nlp-architect it is an int32 with the scale s_x s_w, whose steps are
too small to be seen in the rounded result.
Deviation: nlp-architect's dynamic scales are those of a whole batch. Then the result of a row would depend on the texts
of other rows.
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
"""Precisions that a run may have. `calibrated` and `simulated` are only for compression, which makes such runs."""
LARGEST = 127
DECAY = 0.9999
"""Decay of the moving averages."""
RANGES = "ranges"
"""Name of the collection of variables that holds the ranges of activations while they are collected."""
KERNEL_SCALE, INPUT, OUTPUT = "kernel_scale", "input_range", "output_range"
ADDED = (KERNEL_SCALE, INPUT, OUTPUT)
"""Names of the parameters that products in int8 add to a projection."""


class Int8Projection(Projection):
    """A projection in int8: its parameters are also `kernel_scale` and, if static, `input_range` and `output_range`."""

    precision: str = INT8_DYNAMIC

    def product(self, contracted: int, x: jax.Array, kernel: jax.Array) -> jax.Array:
        """Multiply in int8; with the precisions `calibrated` and `simulated`, in float."""
        if self.precision not in (INT8_DYNAMIC, INT8_STATIC):
            return super().product(contracted, apply_range(self, self.precision, INPUT, x), kernel)
        # The parameter has one axis: with several it would be cast to the dtype of the products.
        init = as_scale(nn.initializers.ones, (None,))
        kernel_scale = self.param(KERNEL_SCALE, init, (math.prod(self.features),)).reshape(self.features)
        static = self.precision == INT8_STATIC
        x_scale = static_scale(self, INPUT) if static else token_scales(x, contracted)
        return product(
            contracted, x, kernel, scales=(x_scale, kernel_scale), dtype=jnp.float32 if self.logits else self.dtype
        )

    def result(self, y: jax.Array) -> jax.Array:
        return apply_range(self, self.precision, OUTPUT, y)


PROJECTIONS: Mapping[str, Callable[..., nn.Module] | None] = {
    FLOAT: None,
    **{
        precision: functools.partial(Int8Projection, precision=precision)
        for precision in (INT8_DYNAMIC, INT8_STATIC, CALIBRATED, SIMULATED)
    },
}
"""Dict from precision to `Execution.projection`."""


def quantization_scale(largest: jax.Array) -> jax.Array:
    """Return 127 / the largest magnitude, float32; 1 where all values are 0."""
    largest = largest.astype(jnp.float32)
    return jnp.where(largest > 0, LARGEST / jnp.where(largest > 0, largest, 1.0), 1.0)


def quantize(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the integers round(scale x) as float32, clipped to the range of int8."""
    return jnp.clip(jnp.round(x.astype(jnp.float32) * scale), -LARGEST, LARGEST)


@jax.custom_vjp
def fake_quantize(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Quantize and dequantize x. The gradient passes straight through."""
    return (quantize(x, scale) / scale).astype(x.dtype)


def _forward(x: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
    return fake_quantize(x, scale), scale


def _backward(scale: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    return cotangent, jnp.zeros_like(scale)


fake_quantize.defvjp(_forward, _backward)


def product(
    contracted: int, x: jax.Array, kernel: jax.Array, *, scales: tuple[jax.Array, jax.Array], dtype: jnp.dtype
) -> jax.Array:
    """Multiply [... in] by [in out] in int8 and return [... out] in `dtype`.

    Args:
        contracted: number of input axes.
        scales: the scale of x, a scalar or [... 1] with an axis of size 1 for each input axis; and the scale of the
            kernel, with the shape of its outputs.
    """
    x_scale, kernel_scale = scales
    left, right = quantize(x, x_scale).astype(jnp.int8), quantize(kernel, kernel_scale).astype(jnp.int8)
    inputs = tuple(range(x.ndim - contracted, x.ndim)), tuple(range(contracted))
    sums = jax.lax.dot_general(left, right, (inputs, ((), ())), preferred_element_type=jnp.int32)
    if x_scale.ndim:
        rows = x.shape[: x.ndim - contracted]
        x_scale = x_scale.reshape(*rows, *(1,) * kernel_scale.ndim)
    # The compiler for TPUs, libtpu 0.0.42, crashes when it joins such a product of heads with one of attention.
    apart = jax.lax.optimization_barrier if kernel.ndim > 2 else _identity
    values = sums.astype(jnp.float32) * (1 / x_scale) * (1 / kernel_scale)
    return jax.lax.platform_dependent(values.astype(dtype), tpu=apart, default=_identity)


def _identity(x: jax.Array) -> jax.Array:
    return x


def token_scales(x: jax.Array, contracted: int) -> jax.Array:
    """Return the scale of each token: [... in] -> float32 [... 1]."""
    return quantization_scale(jnp.max(jnp.abs(x), axis=tuple(range(x.ndim - contracted, x.ndim)), keepdims=True))


def apply_range(module: nn.Module, precision: str, name: str, x: jax.Array) -> jax.Array:
    """Apply the static range `name` to x, and record it with the precisions `calibrated` and `simulated`.

    Return x rounded to the range with `int8_static` and `simulated`, otherwise x itself.

    module: the bound module that has the range; a recorded range is updated if its collection is mutable.
    """
    if precision == INT8_STATIC:
        scale = static_scale(module, name)
        return (quantize(x, scale) * (1 / scale)).astype(x.dtype)
    if precision not in (CALIBRATED, SIMULATED):
        return x
    kept: Any = module.variable(RANGES, name, lambda: jnp.zeros((), jnp.float32))
    if module.is_mutable_collection(RANGES) and not module.is_initializing():
        largest = jnp.max(jnp.abs(jax.lax.stop_gradient(x))).astype(jnp.float32)
        averaged = kept.value - (1 - DECAY) * (kept.value - largest)
        averaged = jnp.where(kept.value > 0, averaged, largest)  # the first value is taken as it is
        kept.value = averaged if precision == SIMULATED else jnp.maximum(kept.value, largest)
    return fake_quantize(x, quantization_scale(kept.value)) if precision == SIMULATED else x


def static_scale(module: nn.Module, name: str) -> jax.Array:
    """Return the scale of a range that is a parameter of the module."""
    init = as_scale(nn.initializers.zeros, ())
    return quantization_scale(module.param(name, init, ()))


def remove_scales(params: Any) -> Any:
    """Return nested parameters without those that only int8 projections have."""
    flat = flax.traverse_util.flatten_dict(params)
    return flax.traverse_util.unflatten_dict({path: leaf for path, leaf in flat.items() if path[-1] not in ADDED})
