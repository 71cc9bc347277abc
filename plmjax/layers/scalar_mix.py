"""A weighted mean of all layers (ELMo, Peters et al. 2018, arXiv 1802.05365, equation 1)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.parameters import as_scale
from plmjax.errors import UserError


def mix_layers(
    hidden_states: jax.Array | tuple[jax.Array, ...], weights: jax.Array, scale: jax.Array | float = 1.0
) -> jax.Array:
    """Compute scale * sum over l of softmax(weights)_l h_l: [L+1 ... D], [L+1] -> float32 [... D].

    Raises:
        UserError: layers of different widths, given as a tuple.
    """
    if isinstance(hidden_states, tuple):
        widths = [layer.shape[-1] for layer in hidden_states]
        if len(set(widths)) > 1:
            raise UserError(
                f"Expected layers of one width to mix, found widths of {', '.join(map(str, widths))}; take one layer "
                f"(plmjax embed --layer), or the last (plmjax finetune --objective.mix False)."
            )
        hidden_states = jnp.stack(hidden_states)
    probabilities = jax.nn.softmax(weights.astype(jnp.float32))
    return scale * jnp.tensordot(probabilities, hidden_states.astype(jnp.float32), axes=1)


class ScalarMix(nn.Module):
    """`mix_layers` with learned weights and scale, initialized to the plain mean of the layers.

    The paper's penalty of the weights is a loss of the task (`mix_penalty` of finetuning/tasks/tagging.py).
    Deviation: the paper may normalise each layer first, which is not done here.
    """

    @nn.compact
    def __call__(self, hidden_states: jax.Array | tuple[jax.Array, ...]) -> jax.Array:
        """Map [L+1 B T D] to float32 [B T D]; layers of equal width may also be a tuple."""
        zeros = as_scale(nn.initializers.zeros_init(), (None,))
        weights = self.param("weights", zeros, (len(hidden_states),))
        scale = self.param("scale", as_scale(nn.initializers.ones_init(), ()), ())
        return mix_layers(hidden_states, weights, scale)
