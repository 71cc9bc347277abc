"""Axial position embeddings (Kitaev et al. 2020, appendix D): a long table, factorized into small tables.

Position p of n1 x n2 positions has the rows p // n2 and p % n2 of two small tables, concatenated. 65,536 positions of
768 features need 128 rows of 256 and 512 rows of 512 features.
"""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.layers.dropout import Dropout


class AxialPositions(nn.Module):
    """Tables `axis_0`, `axis_1`, ..., float32 [n D'] each.

    shape: rows of each table; their product is the number of positions.
    sizes: features of each table; their sum is D.
    deviation: standard deviation of the initial values.
    """

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    deviation: float
    dropout: float
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, positions: jax.Array, deterministic: bool) -> jax.Array:
        """Look up positions, int [B T] -> [B T D].

        Dropout drops all positions of a row that have equal indices on all axes but the first, as in the released code.
        """
        init = nn.with_logical_partitioning(nn.initializers.normal(self.deviation), (None, "embed"))
        places = jnp.unravel_index(positions, self.shape)
        tables = [
            self.param(f"axis_{axis}", init, sizes)
            for axis, sizes in enumerate(zip(self.shape, self.sizes, strict=True))
        ]
        x = jnp.concatenate(
            [jnp.take(table, place, axis=0) for table, place in zip(tables, places, strict=True)], axis=-1
        )
        columns = math.prod(self.shape[1:])
        kept = Dropout(self.dropout)(jnp.ones((len(positions), columns)), deterministic)
        take = functools.partial(jnp.take_along_axis, axis=1)
        return (x * take(kept, positions % columns)[..., None]).astype(self.dtype)
