"""The gradient of a batch, summed over all devices into the shares of the parameters.

`of_copy` is for any mesh. The compiler divides the work. A copy of all parameters is gathered before the computation.

`of_pieces` is for slices with rings (`plmjax.parallel.rings`). Every device computes with its own rows, as a program of
its own. The matrices of stacked layers stay in pieces: `plmjax.layers.stack` gathers those of the next layer beside the
computation of a layer. In the backward pass the gradient of the next layer is summed beside it in the same way.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from plmjax.contracts.parameter_pieces import Piece
from plmjax.objectives.objective import Batch, LossSums
from plmjax.parallel import sharding
from plmjax.parallel.rings import AXIS, Rings
from plmjax.parallel.shares import Shares
from plmjax.training.accumulation import accumulate

Microstep = Callable[[Any, Any, Any, Batch, jax.Array, Any], tuple[Any, LossSums]]
"""(values, parameters, carry, microbatch, key, total) -> (total + gradient of the parameters, sums). The values are the
same for all microbatches: arrays that the loss reads besides. The total is as in `accumulate`."""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs of a gradient besides the parameters.

    values: as in `Microstep`. carry, axes: the carry and the logical axis names of its leaves. key: for dropout.
    """

    values: Any
    carry: Any
    axes: Any
    batch: Batch
    key: jax.Array


def of_copy(
    microstep: Microstep, shares: Shares, params: Any, inputs: Inputs, accumulation: int, shards: int
) -> tuple[Any, LossSums]:
    """Return (gradient of the shares `params` in float32, sums of the batch).

    accumulation: number of microbatches. shards: number of shards of a microbatch along the `data` axis.
    """
    compute = functools.partial(microstep, inputs.values, shares.gather(params))
    gradient, sums = accumulate(
        compute, inputs.carry, inputs.axes, inputs.batch, inputs.key, accumulation, shards, shares.add
    )
    return shares.scatter(gradient), sums


def of_pieces(
    microstep: Microstep, shares: Shares, params: Any, inputs: Inputs, accumulation: int
) -> tuple[Any, LossSums]:
    """Return the same as `of_copy`.

    `shares` has rings, and every leaf of the carry has a batch axis. Each device has its own key, so dropout depends on
    the number of devices. Stacked layers travel along the rings with every microbatch, all other gradients once.
    """
    structure = jax.tree.structure(params)
    flat = structure.flatten_up_to
    owned, sent, stacked = flat(shares.owned), flat(shares.sent), flat(shares.stacked)
    dimensions = [divided(param, place) for param, place in zip(flat(params), owned, strict=True)]
    rings, first = shares.rings, beginnings(flat(params), stacked)
    pieces, copies = flat(shares.narrow(params)), flat(shares.gather(params))
    given = [piece if kept else copy for piece, copy, kept in zip(pieces, copies, stacked, strict=True)]
    rows = jax.tree.map(
        lambda names: PartitionSpec(*(AXIS if name == "batch" else None for name in names)),
        inputs.axes,
        is_leaf=sharding.is_axes,
    )

    def on_device(values: Any, given: list[jax.Array], carry: Any, batch: Batch, words: jax.Array) -> tuple:
        key = jax.random.fold_in(jax.random.wrap_key_data(words), jax.lax.axis_index(AXIS))
        leaves = [
            Route(rings, dimension, axis).piece(leaf) if kept else leaf
            for leaf, dimension, axis, kept in zip(given, dimensions, first, stacked, strict=True)
        ]
        with sharding.within_device():
            compute = functools.partial(microstep, values, structure.unflatten(leaves))
            gradient, sums = accumulate(compute, carry, inputs.axes, batch, key, accumulation)
        summed = [leaf.value if kept else leaf for leaf, kept in zip(flat(gradient), stacked, strict=True)]
        others = [number for number, kept in enumerate(stacked) if not kept]
        scattered = scatter(rings, *([of[number] for number in others] for of in (summed, dimensions, sent)))
        for number, leaf in zip(others, scattered, strict=True):
            summed[number] = leaf
        summed = [leaf.astype(jnp.float32) for leaf in summed]
        return summed, jax.lax.psum((sums.losses, sums.metrics), AXIS), sums.carry

    specs = [place.spec for place in owned]
    taken = [spec if kept else PartitionSpec() for spec, kept in zip(specs, stacked, strict=True)]
    gradient, (losses, metrics), carry = jax.shard_map(
        on_device,
        in_specs=(PartitionSpec(), taken, rows, PartitionSpec(AXIS), PartitionSpec()),
        out_specs=(specs, PartitionSpec(), rows),
        check_vma=False,
    )(inputs.values, given, inputs.carry, inputs.batch, jax.random.key_data(inputs.key))
    return structure.unflatten(gradient), LossSums(losses=losses, metrics=metrics, carry=carry)


@dataclasses.dataclass(frozen=True)
class Route:
    """The way of a stacked parameter between the devices. The gradient of its two halves is summed over the devices.

    dimension: the dimension of its pieces, counted from the last one.
    first: the axis of the slice along which the pieces travel first.
    """

    rings: Rings
    dimension: int
    first: int

    def piece(self, value: jax.Array) -> Piece:
        """Return the piece that this device has."""
        return Piece(value, self.begin, self.finish)

    def begin(self, piece: jax.Array) -> jax.Array:
        """Return the blocks that the pieces of a line of devices make."""
        return self.rings.begin(piece, self.dimension, self.first)

    def finish(self, blocks: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Return the parameter that the blocks of all lines make. shape: of a piece."""
        return self.rings.finish(blocks, shape, self.dimension, self.first)


def divided(param: jax.Array, place: NamedSharding) -> int:
    """Return the dimension of a parameter's pieces, counted from the last one; 0 if every device owns it whole."""
    return place.spec.index(AXIS) - param.ndim if AXIS in place.spec else 0


def beginnings(params: list[jax.Array], stacked: list[bool]) -> list[int]:
    """Return the axis of the slice along which the pieces of each stacked parameter travel first.

    Their bytes are divided evenly between the two axes. The other parameters have 0: their gradients travel in halves.
    """
    load, found = [0, 0], [0] * len(params)
    for number in sorted(range(len(params)), key=lambda number: -params[number].size):
        if stacked[number]:
            found[number] = load.index(min(load))
            load[found[number]] += params[number].size
    return found


TOGETHER = 2**20
"""Largest number of values of a gradient that travels together with others. They are copied for that."""


def scatter(
    rings: Rings, gradients: Sequence[jax.Array], dimensions: Sequence[int], dtypes: Sequence[jnp.dtype]
) -> list[jax.Array]:
    """Return this device's piece of the sum of the devices' gradients, for each of several parameters.

    dtypes: those in which the gradients are sent and returned.
    """
    found: dict[int, jax.Array] = {}
    together: dict[jnp.dtype, list[int]] = {}
    for number, (gradient, dimension, dtype) in enumerate(zip(gradients, dimensions, dtypes, strict=True)):
        if not dimension:
            found[number] = jax.lax.psum(gradient.astype(dtype), AXIS)
        elif gradient.size > TOGETHER:
            found[number] = rings.scatter_halves(gradient, dimension, dtype)
        else:
            together.setdefault(dtype, []).append(number)
    for dtype, numbers in together.items():
        small = [gradients[number].astype(dtype) for number in numbers]
        pieces = rings.scatter_together(small, [dimensions[number] for number in numbers])
        found |= zip(numbers, pieces, strict=True)
    return [found[number] for number in range(len(gradients))]
