"""What filters find in the spelling of words (Kim et al. 2016, arXiv 1508.06615)."""

import chex
import jax
import jax.numpy as jnp


def strongest(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """The largest number that each filter makes of any stretch of a word: [N C E] -> [N F], in the dtype of x.

    x: vectors of the C characters of words. kernel: [width E F], of filters over so many characters. bias: [F].
    """
    chex.assert_shape(kernel, (None, x.shape[-1], bias.shape[0]))
    kernel, bias = kernel.astype(x.dtype), bias.astype(x.dtype)
    found = jax.lax.conv_general_dilated(x, kernel, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))
    return jnp.max(found, axis=1) + bias
