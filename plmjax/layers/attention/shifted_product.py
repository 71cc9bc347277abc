"""A TPU kernel that multiplies rows by the vectors of all distances and shifts each product to its column.

The score of row i and column j is row i times the vector of their distance
(plmjax/layers/attention/relative_shift.py). One matrix product gives the scores of each row for all distances. Then
each row must be shifted by one place less than the row above it. XLA can only do this by a reshape. A TPU keeps columns
in groups of 128, so it copies the product several times in HBM. The kernel keeps the product in vector memory, shifts
it there, and writes each score once. Its backward pass reads each gradient once.

A piece of 128 rows needs the distances of a block of columns and 128 more. From v5 on, one instruction shifts every row
of a register by its own number of places, if this number grows from row to row. In the backward pass it shrinks, so the
rows of a piece are reversed first, by a product with a permutation matrix, which is exact for finite numbers. Earlier
chips shift the eight rows of a register together, and then each row by the bits of its index.
"""

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from plmjax.layers.partitioning import partition_spec

PIECE, SUBLANES = 128, 8
"""Number of rows in a piece, which is the number of columns of a register; and number of rows of a register."""
BLOCK = 512
"""Maximum number of rows and of columns of a block of scores: 1 MiB."""
MAX_PADDING_RATIO = 1.5
"""Maximum ratio of the scores of whole pieces to the scores needed, for which the kernel is used."""
MAX_TABLE_SIZE = 9 << 16
"""Maximum number of elements of one head's table, (T + S) H with T and S padded to whole pieces.

In float32, two buffers of the table and two of its gradient then take 9 of 16 MiB.
"""
WITHOUT_STRIDE = ("TPU v2", "TPU v3", "TPU v4")
"""Prefixes of the `device_kind` of chips that cannot shift each row of a register by its own number of places."""
FLOAT32 = ("TPU v2", "TPU v3")
"""Prefixes of the `device_kind` of chips whose kernels have no bfloat16 products."""


def is_faster(rows: jax.Array, columns: int) -> bool:
    """Return whether the program being traced runs on a TPU, with sizes for which the kernel is faster than a reshape.

    The kind of device is read from the mesh of the program (`plmjax.parallel.sharding.with_mesh`). Without a mesh it is
    unknown, and the result is false. The arguments are those of `shifted_product`.
    """
    length, height, width = rows.shape[1], _padded(rows.shape[1]), _padded(columns)
    fits = (height + width) * rows.shape[3] <= MAX_TABLE_SIZE and height * width <= MAX_PADDING_RATIO * length * columns
    return _device_kind().startswith("TPU") and fits


def shifted_product(
    rows: jax.Array, table: jax.Array, columns: int, *, transposed: bool = False, interpret: bool = False
) -> jax.Array:
    """Multiply row i by vector j - i + T - 1 of the table, for S columns j. Return float32 [B N T S].

    A pair of row and column without a vector gets 0.

    Args:
        rows: [B T N H].
        table: [G R N H], in the dtype of the rows. Table g is for the g-th of G equal shards of the B rows. G is 1 or a
            multiple of the number of shards into which the mesh divides the rows.
        columns: S.
        transposed: true to return [B N S T].
        interpret: true to run the kernel in interpret mode, on any platform.

    Raises:
        ValueError: G does not fit the mesh.
    """
    length, kind = rows.shape[1], _device_kind()
    if kind.startswith(FLOAT32):
        rows, table = rows.astype(jnp.float32), table.astype(jnp.float32)
    height, width = _padded(length), _padded(columns)
    rows = jnp.pad(jnp.moveaxis(rows, 1, 2), [(0, 0), (0, 0), (0, height - length), (0, 0)])
    table = jnp.moveaxis(table[:, : length + columns - 1], 1, 3)  # [G N H R]
    table = jnp.pad(table, [(0, 0)] * 3 + [(height - length, length + width - table.shape[3])])
    settings = _Settings(width, transposed, not kind.startswith(WITHOUT_STRIDE), interpret)
    kernel, mesh = functools.partial(_product, settings), jax.sharding.get_abstract_mesh()
    if not mesh.empty and mesh.size > 1:
        divided = tuple(partition_spec(x.shape, ("batch", "heads")) for x in (rows, table))
        if len(table) > 1 and divided[0][0] != divided[1][0]:
            raise ValueError(
                f"Expected one table or a multiple of the mesh's shards of {len(rows)} rows, found {len(table)}; copy "
                f"the table for each shard."
            )
        kernel = jax.shard_map(kernel, in_specs=divided, out_specs=divided[0], check_vma=False)
    found = kernel(rows, table)
    return found[..., :columns, :length] if transposed else found[..., :length, :columns]


class _Settings(NamedTuple):
    """The settings of a kernel.

    Attributes:
        columns: S, padded to a multiple of `PIECE`.
        transposed: true if the scores are [B N S T].
        by_stride: true if one instruction shifts all rows of a piece.
        interpret: true for interpret mode.
    """

    columns: int
    transposed: bool
    by_stride: bool
    interpret: bool

    def shift(self, x: jax.Array) -> jax.Array:
        """Shift row i of a piece, float32 [128 W], to the left by 127 - i places."""
        if self.by_stride:
            return _roll(x, 1 - PIECE, stride=1)
        return _move_registers(x, 1)

    def cotangent(self, x: jax.Array) -> jax.Array:
        """Return a piece of cotangents, [128 S] or [S 128], as float32 [128 S]; in reversed order if `by_stride`."""
        if not self.by_stride:
            return (x.T if self.transposed else x).astype(jnp.float32)
        places = jax.lax.broadcasted_iota(jnp.int32, (PIECE, PIECE), 0)
        reversal = places + jax.lax.broadcasted_iota(jnp.int32, (PIECE, PIECE), 1) == PIECE - 1
        exact = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
        return _dot(reversal.astype(x.dtype), x, 1, 1 if self.transposed else 0, precision=exact)

    def reverse_pieces(self, x: jax.Array) -> jax.Array:
        """Reverse the order of the rows in each piece of [B N T H] if `by_stride`, as `cotangent` does."""
        if not self.by_stride:
            return x
        pieces = x.reshape(*x.shape[:2], -1, PIECE, x.shape[3])
        return jnp.flip(pieces, 3).reshape(x.shape)

    def shift_back(self, x: jax.Array) -> jax.Array:
        """Undo `shift`: move row i of a piece, float32 [128 W], to the right by 127 - i places, or by i if reversed."""
        return _roll(x, 0, stride=1) if self.by_stride else _move_registers(x, -1)


def _dot(a: jax.Array, b: jax.Array, a_axis: int, b_axis: int, *, precision: Any = None) -> jax.Array:
    """Return the float32 product of two matrices, contracted over one axis of each."""
    contracted = (((a_axis,), (b_axis,)), ((), ()))
    return jax.lax.dot_general(a, b, contracted, precision, preferred_element_type=jnp.float32)


def _roll(x: jax.Array, places: int, *, stride: int | None = None) -> jax.Array:
    """Shift row i to the right by places + i * stride. Elements that leave a row come back on its left."""
    from jax.experimental.pallas import tpu as pltpu

    return pltpu.roll(x, places % x.shape[1], 1, stride=stride, stride_axis=None if stride is None else 0)


def _move_registers(x: jax.Array, sign: int) -> jax.Array:
    """Shift row i of a piece to the left by 127 - i places, or to the right if `sign` is -1."""
    groups = (_roll(x[first : first + SUBLANES], sign * (first + 1 - PIECE)) for first in range(0, PIECE, SUBLANES))
    x, row = jnp.concatenate([*groups], axis=0), jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
    for bit in (1, 2, 4):
        x = jnp.where(row & bit != 0, _roll(x, sign * bit), x)
    return x


class _Blocks:
    """The grid of the kernel and its blocks. The axes of the grid are heads, batch, blocks of rows, blocks of columns.

    rows, table, scores: the blocks of [B N T H], [G N H T+S] and [B N T S] that a step of the kernel holds.
    """

    def __init__(self, rows: jax.Array, table: jax.Array, settings: _Settings) -> None:
        from jax.experimental import pallas as pl

        (batch, heads, length, size), (shards, *_) = rows.shape, table.shape
        self.shared = batch // shards  # rows of the batch with one table
        self.height, self.width = _block(length), _block(settings.columns)
        self.grid = (heads, batch, length // self.height, settings.columns // self.width)
        self.rows = pl.BlockSpec((1, 1, self.height, size), lambda head, row, i, j: (row, head, i, 0))
        self.table = pl.BlockSpec((1, 1, *table.shape[2:]), lambda head, row, i, j: (row // self.shared, head, 0, 0))
        if settings.transposed:
            self.scores = pl.BlockSpec((1, 1, self.width, self.height), lambda head, row, i, j: (row, head, j, i))
        else:
            self.scores = pl.BlockSpec((1, 1, self.height, self.width), lambda head, row, i, j: (row, head, i, j))

    def pieces(self) -> Iterator[tuple[slice, Any]]:
        """Yield the rows of each piece of a block, and their distances in the table."""
        from jax.experimental import pallas as pl

        _, _, i, j = (pl.program_id(axis) for axis in range(4))
        for first in range(0, self.height, PIECE):
            last = self.grid[2] * self.height - i * self.height - first - PIECE
            distances = pl.ds(pl.multiple_of(last + j * self.width, PIECE), self.width + PIECE)
            yield slice(first, first + PIECE), distances


def _padded(size: int) -> int:
    """Return the size, rounded up to a multiple of `PIECE`."""
    return PIECE * math.ceil(size / PIECE)


def _block(size: int) -> int:
    """Return the largest multiple of `PIECE` up to `BLOCK` that divides `size`, itself a multiple of `PIECE`."""
    return next(part for part in range(BLOCK, 0, -PIECE) if size % part == 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(settings: _Settings, rows: jax.Array, table: jax.Array) -> jax.Array:
    """[B N T H], [G N H T+S] -> float32 [B N T S]; T and S are multiples of `PIECE`."""
    from jax.experimental import pallas as pl

    blocks = _Blocks(rows, table, settings)

    def kernel(rows: Any, table: Any, scores: Any) -> None:
        for piece, distances in blocks.pieces():
            moved = settings.shift(_dot(rows[0, 0, piece], table[0, 0, :, distances], 1, 0))[:, : blocks.width]
            if settings.transposed:
                scores[0, 0, :, piece] = moved.T
            else:
                scores[0, 0, piece] = moved

    sizes = (settings.columns, rows.shape[2]) if settings.transposed else (rows.shape[2], settings.columns)
    return pl.pallas_call(
        kernel,
        grid=blocks.grid,
        in_specs=[blocks.rows, blocks.table],
        out_specs=blocks.scores,
        out_shape=jax.ShapeDtypeStruct((*rows.shape[:2], *sizes), jnp.float32),
        interpret=settings.interpret,
        name="shifted_product",
    )(rows, table)


def _forward(settings: _Settings, rows: jax.Array, table: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _product(settings, rows, table), (rows, table)


def _backward(
    settings: _Settings, factors: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the gradients of the factors. As in `float32_product`, the cotangent is rounded to their dtype."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    rows, table = factors
    blocks = _Blocks(rows, table, settings)

    def kernel(cotangent: Any, rows: Any, table: Any, rows_gradient: Any, table_gradient: Any, total: Any) -> None:
        row, i, j = (pl.program_id(axis) for axis in (1, 2, 3))

        @pl.when((row % blocks.shared == 0) & (i == 0) & (j == 0))
        def _() -> None:
            table_gradient[...] = jnp.zeros_like(table_gradient)

        @pl.when(j == 0)
        def _() -> None:
            total[...] = jnp.zeros_like(total)

        for piece, distances in blocks.pieces():
            given = settings.cotangent(cotangent[0, 0, :, piece] if settings.transposed else cotangent[0, 0, piece])
            given = jnp.concatenate([given, jnp.zeros((PIECE, PIECE), jnp.float32)], axis=1)
            moved = settings.shift_back(given).astype(table.dtype)
            total[piece] += _dot(moved, table[0, 0, :, distances], 1, 1)
            table_gradient[0, 0, :, distances] += _dot(rows[0, 0, piece], moved, 0, 0)

        @pl.when(j == pl.num_programs(3) - 1)
        def _() -> None:
            rows_gradient[0, 0] = total[...].astype(rows_gradient.dtype)

    rows_gradient, table_gradient = pl.pallas_call(
        kernel,
        grid=blocks.grid,
        in_specs=[blocks.scores, blocks.rows, blocks.table],
        out_specs=[blocks.rows, blocks.table],
        out_shape=[jax.ShapeDtypeStruct(rows.shape, rows.dtype), jax.ShapeDtypeStruct(table.shape, jnp.float32)],
        scratch_shapes=[pltpu.VMEM((blocks.height, rows.shape[3]), jnp.float32)],
        interpret=settings.interpret,
        name="shifted_product_gradient",
    )(cotangent.astype(rows.dtype), settings.reverse_pieces(rows), table)
    return settings.reverse_pieces(rows_gradient), table_gradient.astype(table.dtype)


_product.defvjp(_forward, _backward)


def _device_kind() -> str:
    device = jax.sharding.get_abstract_mesh().abstract_device
    return "" if device is None else device.device_kind
