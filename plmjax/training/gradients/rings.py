"""The gradient on a slice with rings (`plmjax.parallel.rings`): communication of parameters overlaps the computation.

Every device computes with its own sequences, under `shard_map`. The matrices of stacked layers stay sharded:
`plmjax.layers.stack` gathers the next layer during the computation of a layer. In the backward pass the gradient of a
layer is reduce-scattered in the same way during the computation of the next one.
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
    """Exchanges stacked layers along the rings of `shards` in every microbatch, and all other gradients once per batch.

    Each device has its own key, so dropout depends on the number of devices.

    carry_axes: logical axis names of the carry's leaves; every leaf has a batch axis.
    microbatches: number of microbatches of a batch.
    """

    shards: ParameterShards
    carry_axes: Any
    microbatches: int

    def __call__(
        self, loss: Loss, inputs: LossInputs, weights: Weights, *, batch: Batch, key: jax.Array
    ) -> tuple[Gradient, LossSums]:
        params, shards = inputs.params, self.shards
        structure = jax.tree.structure(params)
        flat = structure.flatten_up_to
        placed, ring_dtypes, stacked = flat(shards.sharded), flat(shards.ring_dtypes), flat(shards.stacked)
        dimensions = [sharded_dimension(param, place) for param, place in zip(flat(params), placed, strict=True)]
        rings, first = shards.rings, first_axes(flat(params), stacked)
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
                    loss,
                    local,
                    weights,
                    batch=batch,
                    key=key,
                    carry_axes=self.carry_axes,
                    microbatches=self.microbatches,
                )
            summed = [leaf.value if kept else leaf for leaf, kept in zip(flat(gradient.params), stacked, strict=True)]
            others = [number for number, kept in enumerate(stacked) if not kept]
            scattered = scatter(rings, *([of[number] for number in others] for of in (summed, dimensions, ring_dtypes)))
            for number, leaf in zip(others, scattered, strict=True):
                summed[number] = leaf
            summed = [leaf.astype(jnp.float32) for leaf in summed]
            return summed, jax.lax.psum((sums.losses, sums.metrics), AXIS), sums.carry

        specs, whole = [place.spec for place in placed], PartitionSpec()
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
    """The gather of a stacked parameter over the devices, in two halves: `begin` and `finish`.

    The gradients of both halves are summed over the devices.

    dimension: the sharded dimension, counted from the last one (negative).
    first: the axis of the slice along which the shards travel first.
    """

    rings: Rings
    dimension: int
    first: int

    def piece(self, value: jax.Array) -> ShardedParameter:
        """Return the shard of this device as a `ShardedParameter`."""
        return ShardedParameter(value, self.begin, self.finish)

    def begin(self, piece: jax.Array) -> jax.Array:
        """Gather the shards of one line of devices into a block."""
        return self.rings.begin(piece, self.dimension, self.first)

    def finish(self, blocks: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Gather the blocks of all lines into the parameter. shape: shape of a shard."""
        return self.rings.finish(blocks, shape, self.dimension, self.first)


def sharded_dimension(param: jax.Array, place: NamedSharding) -> int:
    """Return the sharded dimension of a parameter, counted from the last one (negative); 0 if it is replicated."""
    return place.spec.index(AXIS) - param.ndim if AXIS in place.spec else 0


def first_axes(params: list[jax.Array], stacked: list[bool]) -> list[int]:
    """Return the axis of the slice along which the shards of each stacked parameter travel first.

    The bytes are divided evenly between the two axes. Parameters that are not stacked get 0: their gradients are split
    into halves, one for each axis.
    """
    load, found = [0, 0], [0] * len(params)
    for number in sorted(range(len(params)), key=lambda number: -params[number].size):
        if stacked[number]:
            found[number] = load.index(min(load))
            load[found[number]] += params[number].size
    return found


TOGETHER = 2**20
"""Largest number of values of a gradient that is copied, to be sent together with others."""


def scatter(
    rings: Rings, gradients: Sequence[jax.Array], dimensions: Sequence[int], dtypes: Sequence[jnp.dtype]
) -> list[jax.Array]:
    """Reduce-scatter the gradients of several parameters, and return the shards of this device.

    dtypes: dtypes in which the gradients are sent and returned.
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
