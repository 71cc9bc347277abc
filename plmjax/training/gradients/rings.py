"""The gradient for slices with rings (`plmjax.parallel.rings`): parameters travel beside the computation.

Every device computes with its own sequences, as a program of its own. The matrices of stacked layers stay in pieces:
`plmjax.layers.stack` gathers those of the next layer beside the computation of a layer. In the backward pass the
gradient of the next layer is summed beside it in the same way.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from plmjax.contracts.sharded_parameter import ShardedParameter
from plmjax.objectives.objective import Batch, LossInputs, LossSums
from plmjax.parallel import sharding
from plmjax.parallel.parameter_shards import ParameterShards
from plmjax.parallel.rings import AXIS, Rings
from plmjax.training.gradients import Gradient, Loss, Weights
from plmjax.training.gradients.microbatches import accumulate


@dataclasses.dataclass(frozen=True, eq=False)
class RingExchange:
    """Stacked layers travel along the rings of `shards` with every microbatch, all other gradients once.

    Each device has its own key, so dropout depends on the number of devices.

    carry_axes: logical axis names of the carry's leaves; every leaf has a batch axis.
    microbatches: number of microbatches of a batch.
    """

    shards: ParameterShards
    carry_axes: Any
    microbatches: int

    def __call__(
        self, loss: Loss, inputs: LossInputs, weights: Weights, batch: Batch, key: jax.Array
    ) -> tuple[Gradient, LossSums]:
        """See `GradientOf`."""
        params, shards = inputs.params, self.shards
        structure = jax.tree.structure(params)
        flat = structure.flatten_up_to
        owned, sent, stacked = flat(shards.owned), flat(shards.sent), flat(shards.stacked)
        dimensions = [divided(param, place) for param, place in zip(flat(params), owned, strict=True)]
        rings, first = shards.rings, beginnings(flat(params), stacked)
        pieces, copies = flat(shards.narrow(params)), flat(shards.gather(params))
        given = [piece if kept else copy for piece, copy, kept in zip(pieces, copies, stacked, strict=True)]
        rows = jax.tree.map(
            lambda names: PartitionSpec(*(AXIS if name == "batch" else None for name in names)),
            self.carry_axes,
            is_leaf=sharding.is_axes,
        )

        def on_device(
            weights: Weights, constants: Any, step: jax.Array, given: list, carry: Any, batch: Batch, words: jax.Array
        ) -> tuple:
            key = jax.random.fold_in(jax.random.wrap_key_data(words), jax.lax.axis_index(AXIS))
            leaves = [
                Route(rings, dimension, axis).piece(leaf) if kept else leaf
                for leaf, dimension, axis, kept in zip(given, dimensions, first, stacked, strict=True)
            ]
            local = LossInputs(structure.unflatten(leaves), constants, carry=carry, step=step)
            with sharding.within_device():
                gradient, sums = accumulate(
                    loss, local, weights, batch, key, carry_axes=self.carry_axes, microbatches=self.microbatches
                )
            summed = [leaf.value if kept else leaf for leaf, kept in zip(flat(gradient.params), stacked, strict=True)]
            others = [number for number, kept in enumerate(stacked) if not kept]
            scattered = scatter(rings, *([of[number] for number in others] for of in (summed, dimensions, sent)))
            for number, leaf in zip(others, scattered, strict=True):
                summed[number] = leaf
            summed = [leaf.astype(jnp.float32) for leaf in summed]
            return summed, jax.lax.psum((sums.losses, sums.metrics), AXIS), sums.carry

        specs, whole = [place.spec for place in owned], PartitionSpec()
        taken = [spec if kept else whole for spec, kept in zip(specs, stacked, strict=True)]
        gradient, (losses, metrics), carry = jax.shard_map(
            on_device,
            in_specs=(whole, whole, whole, taken, rows, PartitionSpec(AXIS), whole),
            out_specs=(specs, whole, rows),
            check_vma=False,
        )(weights, inputs.constants, inputs.step, given, inputs.carry, batch, jax.random.key_data(key))
        return Gradient(structure.unflatten(gradient), inputs.rows), LossSums(losses, metrics, carry)


@dataclasses.dataclass(frozen=True)
class Route:
    """The way of a stacked parameter between the devices. The gradient of its two halves is summed over the devices.

    dimension: the dimension of its pieces, counted from the last one.
    first: the axis of the slice along which the pieces travel first.
    """

    rings: Rings
    dimension: int
    first: int

    def piece(self, value: jax.Array) -> ShardedParameter:
        """Return the piece that this device has."""
        return ShardedParameter(value, self.begin, self.finish)

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
            found[number] = rings.bidirectional_reduce_scatter(gradient, dimension, dtype)
        else:
            together.setdefault(dtype, []).append(number)
    for dtype, numbers in together.items():
        small = [gradients[number].astype(dtype) for number in numbers]
        pieces = rings.fused_reduce_scatter(small, [dimensions[number] for number in numbers])
        found |= zip(numbers, pieces, strict=True)
    return [found[number] for number in range(len(gradients))]
