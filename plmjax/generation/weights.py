"""Parameters as a loop over tokens reads them fastest: cast once, and on a CPU one array a layer.

Each token reads every parameter once, which is most of the time that it takes. A loop over stacked layers copies the
layer's slice first, three times the traffic; straight code over slices of the stack makes the copies once a call.
With an array a layer nothing is copied: the compiler drops `together`, of which only slices are used.
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
class Apart:
    """A parameter of L layers as L arrays."""

    layers: tuple[jax.Array, ...]


def placed(params: Any, boxed: Any, execution: Execution, mesh: Mesh) -> Any:
    """Parameters on the devices of a mesh, sharded as in training.

    Those that products are taken with have the execution's dtype, and each layer its own array where the execution's
    loop over layers is straight code.

    Args:
        params: arrays, of the host or of devices.
        boxed: their shapes, boxed with logical axes.
    """

    def place(box: Any, array: Any) -> Any:
        axes = box.names if isinstance(box, nn.LogicallyPartitioned) else ()
        if len([axis for axis in axes if axis != "layers"]) > 1:  # the others are added or are a norm's, in float32
            array = array.astype(execution.dtype)
        spec = sharding.partition_spec(axes, array.shape, mesh)
        if axes[:1] == ("layers",) and execution.unroll >= len(array):
            layer = NamedSharding(mesh, PartitionSpec(*spec[1:]))
            return Apart(tuple(jax.device_put(np.asarray(one), layer) for one in array))
        return jax.device_put(array, NamedSharding(mesh, spec))

    return jax.tree.map(place, boxed, params, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))


def together(params: Any) -> Any:
    """The parameters as the model has them; for a compiled program."""

    def stack(leaf: Any) -> jax.Array:
        return jnp.stack(leaf.layers) if isinstance(leaf, Apart) else leaf

    return jax.tree.map(stack, params, is_leaf=lambda leaf: isinstance(leaf, Apart))
