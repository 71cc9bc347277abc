"""Rings of devices along the two axes of a slice: all-gather and reduce-scatter that overlap computation.

libtpu runs a permute beside the instructions that do not need its result, but waits for an all-reduce and for most
all-gathers. So a gather is written as permutes. Along one axis of the slice every device passes on the shard that it
received last, until it has received all shards of its line. Then whole lines of shards travel along the other axis. The
reduce-scatter of a gradient is the reverse: every device adds its part to the received sum and passes the result on.

A ring visits the chips of an axis in the order 0, 2, 4, 6, 7, 5, 3, 1. No hop is longer than two links, each link
carries one hop in each direction, and no wrap-around link is needed.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import Mesh

from plmjax.parallel.topologies import chip_of

AXIS = "data"
"""The mesh axis of the rings."""
TILE = (16, 128)
"""Rows and lanes of the largest tile in which a TPU stores an array, the tile of bfloat16."""
Cut = Callable[[jax.Array], jax.Array]
"""Function from a block of a gradient to the part that is sent, in the dtype in which it is sent."""


@dataclasses.dataclass(frozen=True)
class Rings:
    """The rings of a slice of rows x columns chips.

    The devices of the mesh axis `data` are in the order of the rows. Methods with collectives must be called within a
    `shard_map`.
    """

    shape: tuple[int, int]

    @classmethod
    def of(cls, mesh: Mesh) -> Self | None:
        """Return the rings of a mesh; None if `are_supported` is false or for another mesh than `on` takes."""
        return cls.on(mesh) if are_supported(list(mesh.devices.flat)) else None

    @classmethod
    def on(cls, mesh: Mesh) -> Self | None:
        """Return the rings of a mesh of chips of any generation.

        It is None unless `AXIS` has all devices of one slice, in the order of its rows. Devices without coordinates,
        such as a CPU's, form a grid as in `grid`.
        """
        devices = list(mesh.devices.flat)
        shape = grid(devices)
        if mesh.shape[AXIS] != len(devices) or shape is None or devices != in_rows(devices):
            return None
        return cls(shape)

    @property
    def size(self) -> int:
        """Return the number of devices."""
        return self.shape[0] * self.shape[1]

    def begin(self, piece: jax.Array, dimension: int, first: int) -> jax.Array:
        """Gather the shards of this device's line into a block: the first half of a gather.

        The backward pass of each half sums the gradient over the devices, and each device receives its part of the sum.

        dimension: the sharded dimension of the array, a negative index.
        first: the axis of the slice along which the shards travel first. If half of the parameters use one axis first
            and half use the other, the links of both axes are always in use.
        """
        return _begin(piece, self, _row(piece.shape, dimension), dimension, first)

    def finish(self, blocks: jax.Array, shape: tuple[int, ...], dimension: int, first: int) -> jax.Array:
        """Gather the blocks of all lines into the array: the second half of a gather. shape: shape of a shard."""
        return _finish(blocks, self, _row(shape, dimension), dimension, first)

    def bidirectional_reduce_scatter(self, array: jax.Array, dimension: int, dtype: jnp.dtype) -> jax.Array:
        """Reduce-scatter an array in `dtype`, the reverse of a gather, and return this device's shard of the sum.

        The two halves of a shard travel along different axes first.
        """
        return jnp.moveaxis(self._scatter_halves(_in_order(self._blocks(array, dimension)), dtype), 0, dimension)

    def fused_reduce_scatter(self, arrays: Sequence[jax.Array], dimensions: Sequence[int]) -> list[jax.Array]:
        """Reduce-scatter several arrays of one dtype as one concatenated array.

        This saves time, because each step of a ring has a fixed cost, however few bytes it moves.
        """
        blocks = [self._blocks(array, dimension) for array, dimension in zip(arrays, dimensions, strict=True)]
        joined = jnp.concatenate([block.reshape(*self.shape, -1) for block in blocks], axis=-1)
        values = joined.shape[-1]
        joined = jnp.pad(joined, ((0, 0), (0, 0), (0, -values % (2 * math.prod(TILE)))))
        piece = self._scatter_halves(_in_order(joined.reshape(*self.shape, -1, TILE[1])), joined.dtype).reshape(-1)
        ends = list(itertools.accumulate(math.prod(block.shape[2:]) for block in blocks))
        parts = jnp.split(piece[:values], ends[:-1])
        return [
            jnp.moveaxis(part.reshape(block.shape[2:]), 0, dimension)
            for part, block, dimension in zip(parts, blocks, dimensions, strict=True)
        ]

    def _blocks(self, array: jax.Array, dimension: int) -> jax.Array:
        """Return the shards of an array, [rows columns shard ...]."""
        array = jnp.moveaxis(array, dimension, 0)
        return array.reshape(*self.shape, -1, *array.shape[1:])

    def _scatter(self, blocks: jax.Array, first: int, cut: Cut = lambda block: block) -> jax.Array:
        blocks = self._scatter_along(blocks, 1 - first, cut)
        return self._scatter_along(blocks, first)[0, 0]

    def _scatter_halves(self, blocks: jax.Array, dtype: jnp.dtype) -> jax.Array:
        def half(rows: slice, block: jax.Array) -> jax.Array:
            return block[:, :, rows].astype(dtype)

        middle = -(-blocks.shape[2] // 2)
        halves = [functools.partial(half, rows) for rows in (slice(None, middle), slice(middle, None))]
        return jnp.concatenate([self._scatter(blocks, first, cut) for first, cut in enumerate(halves)])

    def _gather_along(self, block: jax.Array, axis: int) -> jax.Array:
        size = self.shape[axis]
        place, permutation = self._place(axis), self.hops(axis)
        whole = jnp.zeros((*block.shape[:axis], size, *block.shape[axis + 1 :]), block.dtype)
        for step in range(size):
            if step:
                block = jax.lax.ppermute(block, AXIS, permutation)
            whole = jax.lax.dynamic_update_slice_in_dim(whole, block, _chip(place - step, size), axis)
        return whole

    def _scatter_along(self, blocks: jax.Array, axis: int, cut: Cut = lambda block: block) -> jax.Array:
        """Return this device's block of the sum over the devices of a ring along an axis.

        cut: applied to a block before it is added. During the steps of the ring it costs no additional time. Applied to
            all blocks at once, it would be one more copy of the array before the first step.
        """
        size = self.shape[axis]
        place, permutation = self._place(axis), self.hops(axis)

        def block(step: int) -> jax.Array:
            return cut(jax.lax.dynamic_slice_in_dim(blocks, _chip(place - 1 - step, size), 1, axis))

        total = block(0)
        for step in range(1, size):
            total = jax.lax.ppermute(total, AXIS, permutation) + block(step)
        return total

    def _place(self, axis: int) -> jax.Array:
        """Return this device's position on its ring along an axis; int32 scalar."""
        device, columns = jax.lax.axis_index(AXIS), self.shape[1]
        chip = jax.lax.rem(device, columns) if axis else jax.lax.div(device, columns)
        return jnp.where(jax.lax.rem(chip, 2) == 0, jax.lax.div(chip, 2), self.shape[axis] - 1 - jax.lax.div(chip, 2))

    def hops(self, axis: int) -> list[tuple[int, int]]:
        """Return (sender, receiver) of each hop of the rings along an axis, as indices along the mesh axis."""
        order = _order(self.shape[axis])
        devices = np.arange(self.size).reshape(self.shape)
        lines = devices.T if axis == 0 else devices  # [line, chip of the line]
        pairs = list(zip(order, order[1:] + order[:1], strict=True))
        return [(int(line[sender]), int(line[receiver])) for line in lines for sender, receiver in pairs]


def _row(shape: tuple[int, ...], dimension: int) -> tuple[int, ...]:
    """Return a shape without a dimension."""
    return tuple(np.delete(shape, dimension).tolist())


def _in_lanes(row: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape in which a row of a matrix is sent.

    The heads of attention have fewer features than a tile has lanes, and a ring would send the empty lanes too. So
    heads and features are merged into one axis.
    """
    return row if len(row) < 2 or row[-1] >= TILE[1] else (math.prod(row),)


def _to_rows(array: jax.Array, row: tuple[int, ...], dimension: int) -> jax.Array:
    """Return the rows of an array along a dimension, in the shape in which they are sent. row: shape of one row.

    The products of attention's heads store rows as columns. A transposition of two axes is faster than one of three.
    """
    if _in_lanes(row) == row:
        return jnp.moveaxis(array, dimension, 0)
    columns = jnp.moveaxis(array, dimension, -1).reshape(math.prod(row), -1)
    return _in_order(columns).T


def _from_rows(rows: jax.Array, row: tuple[int, ...], dimension: int) -> jax.Array:
    """Return the array with these rows; the reverse of `_to_rows`."""
    if _in_lanes(row) == row:
        return jnp.moveaxis(rows, 0, dimension)
    return jnp.moveaxis(_in_order(rows.T).reshape(*row, -1), -1, dimension)


def _in_order(blocks: jax.Array) -> jax.Array:
    """Return the same array, with its axes stored in row-major order.

    The matrix products beside a ring may be faster with the axis of the shards within a tile of memory. If the compiler
    stores the blocks in this way, each step of the ring reads or writes parts of tiles.
    """
    return with_layout_constraint(blocks, Layout(major_to_minor=tuple(range(blocks.ndim))))


def _order(size: int) -> list[int]:
    """Return the chips of a line in the order in which its ring visits them."""
    return [*range(0, size, 2), *reversed(range(1, size, 2))]


def _chip(place: jax.Array, size: int) -> jax.Array:
    """Return `_order(size)[place]`, the chip at a position of a ring, from -size to size - 1; int32 scalar.

    It is computed, because XLA would store a table in HBM and read it again at each step of a ring.
    """
    place = jnp.where(place < 0, place + size, place)
    return jnp.where(place < (size + 1) // 2, 2 * place, 2 * (size - 1 - place) + 1)


def are_supported(devices: Sequence[jax.Device]) -> bool:
    """Return whether the devices have a `grid` and are chips of a generation with `Chip.rings`."""
    chip = chip_of(devices[0].device_kind)
    return chip is not None and chip.rings and grid(devices) is not None


def grid(devices: Sequence[jax.Device]) -> tuple[int, int] | None:
    """Return the numbers of rows and columns of the devices of one slice; None for less than two or another layout.

    Devices without coordinates (CPU, GPU) form a grid that is as square as their number allows.
    """
    if not all(hasattr(device, "coords") for device in devices):
        rows = max((size for size in range(2, math.isqrt(len(devices)) + 1) if len(devices) % size == 0), default=1)
        return (rows, len(devices) // rows) if rows > 1 else None
    rows, columns = (len({device.coords[axis] for device in devices}) for axis in (0, 1))
    slices = {getattr(device, "slice_index", 0) for device in devices}
    return (rows, columns) if min(rows, columns) > 1 and rows * columns == len(devices) and len(slices) == 1 else None


def in_rows(devices: Sequence[jax.Device]) -> list[jax.Device]:
    """Return the devices of a slice sorted by their coordinates, or by id if they have none."""
    return sorted(devices, key=lambda device: tuple(getattr(device, "coords", (device.id,))))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _begin(piece: jax.Array, rings: Rings, row: tuple[int, ...], dimension: int, first: int) -> jax.Array:
    rows = jnp.moveaxis(piece, dimension, 0)
    return rings._gather_along(rows.reshape(1, 1, len(rows), *_in_lanes(row)), first)


def _begin_forward(
    piece: jax.Array, rings: Rings, row: tuple[int, ...], dimension: int, first: int
) -> tuple[jax.Array, None]:
    return _begin(piece, rings, row, dimension, first), None


def _begin_backward(
    rings: Rings, row: tuple[int, ...], dimension: int, first: int, _: None, gradient: jax.Array
) -> tuple[jax.Array]:
    piece = rings._scatter_along(gradient, first)
    return (jnp.moveaxis(piece.reshape(-1, *row), 0, dimension),)


_begin.defvjp(_begin_forward, _begin_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _finish(blocks: jax.Array, rings: Rings, row: tuple[int, ...], dimension: int, first: int) -> jax.Array:
    blocks = _in_order(rings._gather_along(blocks, 1 - first))
    return _from_rows(blocks.reshape(-1, *_in_lanes(row)), row, dimension)


def _finish_forward(
    blocks: jax.Array, rings: Rings, row: tuple[int, ...], dimension: int, first: int
) -> tuple[jax.Array, None]:
    return _finish(blocks, rings, row, dimension, first), None


def _finish_backward(
    rings: Rings, row: tuple[int, ...], dimension: int, first: int, _: None, gradient: jax.Array
) -> tuple[jax.Array]:
    rows = _to_rows(gradient, row, dimension)
    return (rings._scatter_along(_in_order(rows.reshape(*rings.shape, -1, *rows.shape[1:])), 1 - first),)


_finish.defvjp(_finish_forward, _finish_backward)
