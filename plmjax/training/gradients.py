"""The gradient of a batch, summed over all devices into the shares of the parameters.

`of_copy` is for any mesh. The compiler divides the work. A copy of all parameters is gathered before the computation.

`of_pieces` is for slices with rings (`plmjax.parallel.rings`). Every device computes with its own rows, as a program of
its own. The matrices of stacked layers stay in pieces: `plmjax.layers.stack` gathers those of the next layer beside the
computation of a layer. In the backward pass the gradient of the next layer is summed beside it in the same way.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from plmjax.contracts.parameter_pieces import Piece
from plmjax.objectives.objective import Batch, LossSums
from plmjax.parallel import sharding
from plmjax.parallel.rings import AXIS, Rings
from plmjax.parallel.shares import Shares
from plmjax.training.accumulation import accumulate

Microstep = Callable[[Any, Any, Any, Batch, jax.Array], tuple[Any, LossSums]]
"""(values, parameters, carry, microbatch, key) -> (gradient of the parameters, sums). The values are the same for all
microbatches: arrays that the loss reads besides."""


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
    owned, dtypes, stacked = flat(shares.owned), flat(shares.dtypes), flat(shares.stacked)
    ways = routes(shares.rings, flat(params), owned, stacked)
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
            Piece(leaf, route.gather) if kept else leaf for leaf, route, kept in zip(given, ways, stacked, strict=True)
        ]
        with sharding.within_device():
            compute = functools.partial(microstep, values, structure.unflatten(leaves))
            gradient, sums = accumulate(compute, carry, inputs.axes, batch, key, accumulation)
        summed = [
            leaf.value if kept else route.scatter(leaf.astype(dtype))
            for leaf, route, dtype, kept in zip(flat(gradient), ways, dtypes, stacked, strict=True)
        ]
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
    """The way of a parameter between the devices.

    dimension: the dimension of its pieces, counted from the last one; 0 for a parameter that every device owns whole.
    first: the axis of the slice along which the pieces travel first.
    halves: true if each half of the gradient travels along an axis of its own first.
    """

    rings: Rings
    dimension: int
    first: int
    halves: bool = False

    def gather(self, piece: jax.Array) -> jax.Array:
        """Return the parameter. The gradient of this function is summed over the devices."""
        return self.rings.gather(piece, self.dimension, self.first)

    def scatter(self, gradient: jax.Array) -> jax.Array:
        """Return this device's piece of the sum of the devices' gradients."""
        if not self.dimension:
            return jax.lax.psum(gradient, AXIS)
        if self.halves:
            return self.rings.scatter_halves(gradient, self.dimension)
        return self.rings.scatter(gradient, self.dimension, self.first)


def routes(rings: Rings, params: list[jax.Array], owned: list[Any], stacked: list[bool]) -> list[Route]:
    """Return the route of each parameter. The bytes are divided evenly between the two axes of the slice.

    This holds for the stacked parameters, which travel layer by layer, and for the others together. If one of the
    others is larger than the rest of them, as the word table of most models is, its gradient is divided into halves.
    """
    loads = {True: [0, 0], False: [0, 0]}
    single = sum(param.size for param, kept in zip(params, stacked, strict=True) if not kept)
    found: dict[int, Route] = {}
    for number in sorted(range(len(params)), key=lambda number: -params[number].size):
        size, spec, load = params[number].size, owned[number].spec, loads[stacked[number]]
        dimension = spec.index(AXIS) - params[number].ndim if AXIS in spec else 0
        halves = not stacked[number] and 2 * size > single and dimension != 0
        first = load.index(min(load))
        if not halves:
            load[first] += size
        found[number] = Route(rings, dimension, first, halves)
    return [found[number] for number in range(len(params))]
