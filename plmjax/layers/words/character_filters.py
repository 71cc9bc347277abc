"""A convolution over the characters of a word, max-pooled (Kim et al. 2016, arXiv 1508.06615)."""

from collections.abc import Callable

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.parameters import as_bias


def max_pooled_convolution(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Return the largest output of each filter over all positions of a word: [N C E] -> [N F], in the dtype of x.

    x: embeddings of the C characters of N words. kernel: [width E F], filters over `width` characters. bias: [F].
    """
    chex.assert_shape(kernel, (None, x.shape[-1], bias.shape[0]))
    kernel, bias = kernel.astype(x.dtype), bias.astype(x.dtype)
    found = jax.lax.conv_general_dilated(x, kernel, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))
    return jnp.max(found, axis=1) + bias


def character_filters(
    param: Callable[..., jax.Array],
    x: jax.Array,
    width: int,
    *,
    count: int,
    kernel_init: Initializer,
    suffix: str = "",
) -> jax.Array:
    """Apply `max_pooled_convolution` to [N C E] with the parameters of a module, and return [N count].

    The parameters are `filters` [width E count], and `filter_bias` [count], which is initialized to zeros.

    Args:
        param: the module's method of this name.
        suffix: added to the names of the parameters, if a module has filters of several widths.
    """
    init = nn.with_logical_partitioning(kernel_init, (None, None, "embed"))
    zeros = as_bias(nn.initializers.zeros, ("embed",))
    kernel = param(f"filters{suffix}", init, (width, x.shape[-1], count))
    return max_pooled_convolution(x, kernel, param(f"filter_bias{suffix}", zeros, (count,)))
