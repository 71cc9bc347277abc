"""Parameters in the form that a loop over tokens reads fastest: cast once, and on a CPU with one array for each layer.

Each decode step reads every parameter once, and this takes most of its time. A loop over stacked layers first copies
the slice of a layer, which triples the memory traffic. Unrolled code over slices of the stack makes the copies once for
each call. With one array for each layer nothing is copied: the compiler removes `stack_layers`, because only slices of
its result are used.
"""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plmjax.contracts.execution import Execution
from plmjax.parallel import sharding


@flax.struct.dataclass
class UnstackedLayers:
    """A parameter of L layers as L arrays."""

    layers: tuple[jax.Array, ...]


def place_parameters(params: Any, boxed: Any, execution: Execution, mesh: Mesh) -> Any:
    """Place parameters on the devices of a mesh, sharded as in training.

    Parameters of matrix products are cast to the execution's dtype. Each layer gets its own array if the loop over
    layers is unrolled.

    Args:
        params: arrays on the host or on devices.
        boxed: the shapes of the parameters, boxed with logical axes.
    """

    def place(box: Any, array: Any) -> Any:
        axes = box.names if isinstance(box, nn.LogicallyPartitioned) else ()
        if len([axis for axis in axes if axis != "layers"]) > 1:  # other parameters are biases or of norms, in float32
            array = array.astype(execution.dtype)
        spec = sharding.partition_spec(axes, array.shape, mesh)
        if axes[:1] == ("layers",) and execution.unroll >= len(array):
            layer = NamedSharding(mesh, PartitionSpec(*spec[1:]))
            return UnstackedLayers(tuple(jax.device_put(np.asarray(one), layer) for one in array))
        return jax.device_put(array, NamedSharding(mesh, spec))

    return jax.tree.map(place, boxed, params, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))


def stack_layers(params: Any) -> Any:
    """Return the parameters as the model takes them, for use in a compiled program."""

    def stack(leaf: Any) -> jax.Array:
        return jnp.stack(leaf.layers) if isinstance(leaf, UnstackedLayers) else leaf

    return jax.tree.map(stack, params, is_leaf=lambda leaf: isinstance(leaf, UnstackedLayers))
