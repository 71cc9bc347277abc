"""Masks: the entries of a matrix that are kept.

A matrix may be a stack of the matrices of all layers, [L ...]; every layer then has its own threshold.
"""

import jax
import jax.numpy as jnp
import numpy as np

MINIMUM = 0.005
"""Smallest fraction of a matrix that is kept (transformers' movement-pruning/emmental/modules/binarizer.py)."""


def kth_largest(values: jax.Array, count: jax.Array) -> jax.Array:
    """Return the value of rank `count` in each row: float32 [R n], int32 scalar from 1 to n -> float32 [R].

    The bits of a float32 are compared as an integer, and found one by one from the highest: 32 counts over the row
    instead of a sort. Only sums are exchanged between devices that share a row.
    """
    bits = jax.lax.bitcast_convert_type(values.astype(jnp.float32), jnp.uint32)
    negative, sign = bits >> 31 == 1, jnp.uint32(1 << 31)
    ordered = jnp.where(negative, ~bits, bits | sign)

    def step(place: jax.Array, found: jax.Array) -> jax.Array:
        candidate = found | (jnp.uint32(1) << (31 - place).astype(jnp.uint32))
        enough = jnp.sum(ordered >= candidate[:, None], axis=1) >= count
        return jnp.where(enough, candidate, found)

    found = jax.lax.fori_loop(0, 32, step, jnp.zeros(len(values), jnp.uint32))
    return jax.lax.bitcast_convert_type(jnp.where(found >> 31 == 1, found ^ sign, ~found), jnp.float32)


def top_fraction(values: jax.Array, fraction: jax.Array | float, *, stacked: bool) -> jax.Array:
    """Return bool, true for the largest entries of each matrix: `fraction` of them rounded down, at least one.

    Deviation: entries equal to the smallest kept one are kept too; the released code breaks ties by a sort.
    """
    rows = values.reshape(len(values) if stacked else 1, -1)
    count = jnp.maximum(jnp.floor(fraction * rows.shape[1]).astype(jnp.int32), 1)
    return (rows >= kth_largest(rows, count)[:, None]).reshape(values.shape)


def above(values: jax.Array, threshold: jax.Array, *, stacked: bool) -> jax.Array:
    """Return bool, true for entries above a threshold, and for the largest 0.5 % of each matrix."""
    return (values > threshold) | top_fraction(values, MINIMUM, stacked=stacked)


def two_of_four(kernel: np.ndarray, inputs: int, *, stacked: bool) -> np.ndarray:
    """Return bool, true for the two largest magnitudes among each four consecutive inputs of an output.

    inputs: number of input axes of the kernel, after the axis of the layers if it is stacked.

    Raises:
        ValueError: the number of inputs is not a multiple of 4.
    """
    first = 1 if stacked else 0
    layers, outputs = kernel.shape[:first], kernel.shape[first + inputs :]
    size = int(np.prod(kernel.shape[first : first + inputs]))
    if size % 4:
        raise ValueError(f"Expected a number of inputs that is a multiple of 4, found {size}.")
    groups = np.abs(kernel).reshape(*layers, size // 4, 4, *outputs)
    axis = len(layers) + 1
    ranks = np.argsort(np.argsort(-groups, axis=axis, kind="stable"), axis=axis, kind="stable")
    return (ranks < 2).reshape(kernel.shape)
