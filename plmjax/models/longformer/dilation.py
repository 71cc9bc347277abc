"""Dilated windows (Beltagy et al. 2020, arXiv 2004.05150, section 3.1): a token sees every d-th token around it.

The tokens i, i + d, i + 2 d, ... see only each other. So a row of T tokens is cut into d rows of T / d tokens, in which
a dilated window is an ordinary one of adjacent tokens:

    0 1 2 3 4 5 6    ->    0 2 4 6,  1 3 5 .        d = 2

Time and memory are those of a window without dilation, and no element is looked up.
"""

import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.attention_arrays import slice_padded
from plmjax.contracts.mask_terms import MaskTerm


@flax.struct.dataclass
class EverySoMany(MaskTerm):
    """The distance of the key from the query is a multiple of `step`."""

    step: int = flax.struct.field(pytree_node=False)

    def visible(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        return (query_positions[..., None] - key_positions) % self.step == 0


def cut(x: jax.Array, dilation: int) -> jax.Array:
    """Return every d-th token as a separate row, padded with 0: [B T ...] -> [B d, T/d ...]."""
    if dilation == 1:
        return x
    rows, length, *others = x.shape
    x = slice_padded(x, 1, 0, length + -length % dilation).reshape(rows, -1, dilation, *others)
    return jnp.swapaxes(x, 1, 2).reshape(rows * dilation, -1, *others)


def join(x: jax.Array, dilation: int, length: int) -> jax.Array:
    """Undo `cut`: return the first `length` tokens, [B d, T/d ...] -> [B T ...]."""
    if dilation == 1:
        return x
    x = jnp.swapaxes(x.reshape(-1, dilation, *x.shape[1:]), 1, 2)
    return x.reshape(len(x), -1, *x.shape[3:])[:, :length]
