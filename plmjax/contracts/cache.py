"""The cache of a model: the part of the tokens it has read that it needs in order to read further ones."""

from typing import Protocol, Self

import jax
import jax.numpy as jnp


class Cache(Protocol):
    """Keys and values, recurrent states, the last tokens: all that a model keeps of B rows. A class inherits from it.

    It is a pytree of arrays whose shapes stay the same from token to token. A module takes it as `cache` and returns
    the cache after the tokens of the call as `cache` of its output.
    """

    def take_rows(self, indices: jax.Array) -> Self:
        """The cache of other rows, int [B']: a row may come several times or not at all.

        By default the rows are the first axis of every array.
        """
        return jax.tree.map(lambda x: jnp.take(x, indices, axis=0), self)
