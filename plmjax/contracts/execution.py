"""The execution of a model: dtype, loop over layers, memory of the backward pass, attention backend, and projections.

Outputs change only by rounding. Projections in int8 or of a lower rank have other parameters; no other field changes
the parameters.
"""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Execution:
    """The settings of a model's execution, which are not part of its config.

    dtype: dtype of activations and matrix products; parameters are always float32.
    unroll: number of layers that one iteration of the loop over layers computes; parameters stay stacked [L ...].
    remat: a key of `REMAT_POLICIES`, for the values of a layer that are kept for the backward pass.
    attention: the backend of attention, a name of `plmjax.layers.attention.backends.BACKENDS`.
    kernels: true if Pallas kernels may be used where they are faster; false for XLA alone.
    projection: function that makes the linear maps of attention and feed-forward networks, for example in int8. Its
        arguments are those of `plmjax.layers.projection.Projection`, which is the default (None).
    """

    dtype: jnp.dtype = jnp.float32
    unroll: int = 1
    remat: str = "none"
    attention: str = "dense"
    kernels: bool = True
    projection: Callable[..., nn.Module] | None = None

    @property
    def at_once(self) -> bool:
        """True if attention computes all scores [B N T S] at once, unless a window divides them into bands."""
        return self.attention == "dense"


REMAT_POLICIES = {
    "none": None,  # keep every intermediate value
    "full": jax.checkpoint_policies.nothing_saveable,  # keep only the layer's input
    "dots": jax.checkpoint_policies.dots_saveable,  # keep the results of matrix products
    "dots_without_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # as dots, without batched products
}
"""Name -> policy for `jax.checkpoint`; "none" means no rematerialisation."""
