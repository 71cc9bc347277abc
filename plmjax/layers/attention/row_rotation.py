"""A TPU kernel that rotates each row of an array by one place more than the row above it.

The scores of distances need this shift (plmjax/layers/attention/relative_shift.py). XLA can only reshape. A TPU keeps
columns in groups of 128, so that a reshape between rows of R and of R - 1 columns copies the array several times, by
code that grows with the array. The kernel reads and writes the array once. A register has eight rows: they are rotated
together, and then each by the bits of its index, 1, 2 and 4 places. v2 and v3 rotate registers slowly, so that the
kernel is faster there only with many columns.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from plmjax.layers.partitioning import partition_spec

LANES, SUBLANES = 128, 8
"""Number of columns and of rows of a register."""
SLOW = ("TPU v2", "TPU v3")
"""Beginnings of the `device_kind` of chips on which the kernel is slower up to `WIDE` columns."""
WIDE = 2048
BLOCK = 1 << 17
"""Maximum number of elements of a block, if it has more rows than a register: 512 KiB."""


def is_faster(columns: int) -> bool:
    """Return whether the traced program runs on a TPU on which the kernel is faster than a reshape.

    The mesh of the program tells the TPU (`plmjax.parallel.sharding.with_mesh`). Without a mesh no kernel is used.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is None or not device.device_kind.startswith("TPU"):
        return False
    return columns > WIDE or not device.device_kind.startswith(SLOW)


def rotate_rows(x: jax.Array, *, interpret: bool = False) -> jax.Array:
    """Move row i of T rows to the left by T - 1 - i places, float32 [B N T R] -> [B N T R].

    Columns that leave a row on the left come back on its right. R is a multiple of `LANES`.

    interpret: compute with XLA, on any platform.
    """
    return _rotate(x, 1, interpret)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _rotate(x: jax.Array, step: int, interpret: bool) -> jax.Array:
    """Move row i to the left by T - 1 - i places with `step` 1, and to the right with `step` -1."""
    mesh, kernel = jax.sharding.get_abstract_mesh(), functools.partial(_kernel, step=step, interpret=interpret)
    if mesh.empty or mesh.size == 1:
        return kernel(x)
    divided = partition_spec(x.shape, ("batch", "heads"))
    return jax.shard_map(kernel, in_specs=divided, out_specs=divided, check_vma=False)(x)


def _forward(x: jax.Array, step: int, interpret: bool) -> tuple[jax.Array, tuple[()]]:
    return _rotate(x, step, interpret), ()


def _backward(step: int, interpret: bool, _: tuple[()], cotangent: jax.Array) -> tuple[jax.Array]:
    return (_rotate(cotangent, -step, interpret),)  # the rows go back


_rotate.defvjp(_forward, _backward)


def _kernel(x: jax.Array, *, step: int, interpret: bool) -> jax.Array:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    *others, height, width = x.shape
    rows = SUBLANES * max(1, min(math.ceil(height / SUBLANES), BLOCK // width // SUBLANES))

    def rotate(source: Any, target: Any) -> None:
        first = pl.program_id(1) * rows - (height - 1)
        number = jax.lax.broadcasted_iota(jnp.int32, (SUBLANES, width), 0)

        def rotate_register(register: jax.Array, _: None) -> None:
            place = pl.ds(pl.multiple_of(register * SUBLANES, SUBLANES), SUBLANES)
            moved = pltpu.roll(source[0, place], step * (first + register * SUBLANES) % width, 1)
            for bit in (1, 2, 4):
                moved = jnp.where(number & bit != 0, pltpu.roll(moved, step * bit % width, 1), moved)
            target[0, place] = moved

        jax.lax.fori_loop(0, rows // SUBLANES, rotate_register, None)

    block = pl.BlockSpec((1, rows, width), lambda array, part: (array, part, 0))
    arrays = x.reshape(-1, height, width)
    call = pl.pallas_call(
        rotate,
        grid=(len(arrays), math.ceil(height / rows)),
        in_specs=[block],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(arrays.shape, x.dtype),
        interpret=interpret,
        name="row_rotation",
    )
    return call(arrays).reshape(*others, height, width)
