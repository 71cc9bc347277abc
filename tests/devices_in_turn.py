"""A `jax.shard_map` over one axis without collectives between devices, for programs with independent collectives.

On a CPU simulated devices wait for each other in a collective, each with a thread. If a program has several collectives
that do not need each other, devices may take them in different order, and wait for ever. A TPU runs its program in one
order. Here the devices are a batch axis of `jax.vmap`, which gives collectives the same meaning.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

AXIS, DEVICES = "data", 8


def shard_map(
    function: Callable, *, in_specs: Any, out_specs: Any, check_vma: bool = False, mesh: Any = None
) -> Callable:
    """Return the function of whole arrays that `jax.shard_map` returns for eight devices along `AXIS`."""

    def divided(spec: PartitionSpec, part: Any) -> Any:
        def leaf(x: jax.Array) -> jax.Array:
            x = jnp.asarray(x)
            if AXIS not in spec:
                return jnp.broadcast_to(x, (DEVICES, *x.shape))
            place = spec.index(AXIS)
            return jnp.moveaxis(x.reshape(*x.shape[:place], DEVICES, -1, *x.shape[place + 1 :]), place, 0)

        return jax.tree.map(leaf, part)

    def joined(spec: PartitionSpec, part: Any) -> Any:
        def leaf(x: jax.Array) -> jax.Array:
            if AXIS not in spec:
                return x[0]
            place = spec.index(AXIS)
            x = jnp.moveaxis(x, 0, place)
            return x.reshape(*x.shape[:place], -1, *x.shape[place + 2 :])

        return jax.tree.map(leaf, part)

    def is_spec(leaf: Any) -> bool:
        return isinstance(leaf, PartitionSpec)

    def run(*arguments: Any) -> Any:
        if not jax.sharding.get_abstract_mesh().empty:  # every device computes all of it
            arguments = jax.lax.with_sharding_constraint(arguments, PartitionSpec())
        given = jax.tree.map(divided, tuple(in_specs), arguments, is_leaf=is_spec)
        return jax.tree.map(joined, out_specs, jax.vmap(function, axis_name=AXIS)(*given), is_leaf=is_spec)

    return run
