"""How a model is computed, not what it is: nothing here changes parameters, or outputs by more than rounding."""

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Execution:
    """The choices a model takes besides its config.

    dtype: of activations and matrix products; parameters are always float32.
    unroll: layers unrolled into straight code per trip of the loop over layers; the parameters stay stacked [L ...].
    remat: what the backward pass keeps of a layer, a name of `REMAT_POLICIES`.
    attention: how attention is computed, a name of `plmjax.layers.attention.backends.BACKENDS`.
    """

    dtype: jnp.dtype = jnp.float32
    unroll: int = 1
    remat: str = "none"
    attention: str = "dense"

    @property
    def at_once(self) -> bool:
        """Whether all scores of an attention exist at the same time, [B N T S], unless a window divides them."""
        return self.attention == "dense"


REMAT_POLICIES = {
    "none": None,  # keep every intermediate
    "full": jax.checkpoint_policies.nothing_saveable,  # keep the layer's input only
    "dots": jax.checkpoint_policies.dots_saveable,  # keep the results of matrix products
    "dots_without_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # ... but not attention's
}
"""remat name -> policy for `jax.checkpoint`; "none" means no rematerialisation."""
