"""A stack of equal layers as one loop over stacked parameters."""

from collections.abc import Callable

import flax.linen as nn
import jax

from plmjax.layers.execution import REMAT_POLICIES, Execution

Layer = Callable[..., jax.Array]


def stack(
    layer: nn.Module, length: int, execution: Execution, keep: bool, x: jax.Array, *arguments: jax.Array | None
) -> tuple[jax.Array, jax.Array | None]:
    """x <- layer(x, *arguments), `length` times, each with parameters of its own.

    The parameters of `layer`, which must be bound and not yet used, get a leading axis "layers". Random collection
    "dropout" is split over the layers.

    Returns:
        the last output, and all outputs [length ...] if `keep` asks for them.
    """

    def body(layer: nn.Module, x: jax.Array, *arguments: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
        x = layer(x, *arguments)
        return x, x if keep else None

    if execution.remat != "none":
        # A compiled loop cannot merge the second forward pass with the first; straight code must be kept from it.
        body = nn.remat(body, policy=REMAT_POLICIES[execution.remat], prevent_cse=execution.unroll > 1)
    return nn.scan(
        body,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=nn.broadcast,
        length=length,
        unroll=execution.unroll,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )(layer, x, *arguments)
