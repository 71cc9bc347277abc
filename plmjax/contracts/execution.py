"""The execution of a model: dtype, loop over layers, memory of the backward pass, attention backend, and products.

Outputs change only by rounding. Products in int8 have further parameters, their scales; nothing else changes
parameters.
"""

import dataclasses

import jax
import jax.numpy as jnp

FLOAT, INT8_DYNAMIC, INT8_STATIC = "float", "int8_dynamic", "int8_static"
CALIBRATED, SIMULATED = "calibrated", "simulated"
MATMUL_PRECISIONS = (FLOAT, INT8_DYNAMIC, INT8_STATIC)
"""Products that a run may have. Calibrated and simulated ones are those of compression, which makes such runs."""


@dataclasses.dataclass(frozen=True)
class Execution:
    """The execution choices of a model. They are not part of its config.

    dtype: of activations and matrix products; parameters are always float32.
    unroll: layers unrolled into straight code per iteration of the loop over layers; the parameters stay stacked
        [L ...].
    remat: the values of a layer that are kept for the backward pass, a name of `REMAT_POLICIES`.
    attention: the backend of attention, a name of `plmjax.layers.attention.backends.BACKENDS`.
    matmul_precision: of the products with matrices of attention and feed-forward networks, in float or in integers
        (`layers/int8.py`).
    kernels: true if kernels of Pallas may be used where they are faster; false for XLA alone.
    """

    dtype: jnp.dtype = jnp.float32
    unroll: int = 1
    remat: str = "none"
    attention: str = "dense"
    matmul_precision: str = FLOAT
    kernels: bool = True

    @property
    def at_once(self) -> bool:
        """True if all scores of an attention exist at the same time, [B N T S], unless a window divides them."""
        return self.attention == "dense"


REMAT_POLICIES = {
    "none": None,  # keep every intermediate value
    "full": jax.checkpoint_policies.nothing_saveable,  # keep only the layer's input
    "dots": jax.checkpoint_policies.dots_saveable,  # keep the results of matrix products
    "dots_without_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # as dots, without attention's
}
"""Dict from remat name to policy for `jax.checkpoint`; "none" means no rematerialisation."""
