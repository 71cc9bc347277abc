"""The cache of a model that generates text: the arrays that it keeps for the tokens read so far."""

from typing import Protocol, Self

import jax
import jax.numpy as jnp


class Cache(Protocol):
    """Base class of caches: keys and values, recurrent states or the last tokens of B rows.

    A cache is a pytree of arrays. Their shapes stay the same at every decode step. A module takes it as `cache`, and
    its output has the cache after the tokens of the call, also as `cache`.
    """

    def take_rows(self, indices: jax.Array) -> Self:
        """Return the cache of the rows `indices`, int [B']. A row may be selected several times or not at all.

        By default the rows are the first axis of every array.
        """
        return jax.tree.map(lambda x: jnp.take(x, indices, axis=0), self)
