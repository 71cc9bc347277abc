"""Creation and per-row reset of the carry: model state that passes from one batch to the next, such as memory."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.objectives.objective import Batch
from plmjax.parallel import sharding

IS_FIRST = "is_first"
"""Field of a batch, int32 [B]: 1 where a row does not continue the same row of the previous batch."""


def reset(initial: Callable[[], Any]) -> Callable[[Any, Batch], Any]:
    """Return a function (carry, batch) -> carry that resets the rows in which a text starts (`IS_FIRST`).

    initial: function that returns the first carry, boxed with logical axes. Leaves without a "batch" axis are not
    reset.
    """
    axes = sharding.logical_axes(jax.eval_shape(initial))

    def reset_rows(carry: Any, batch: Batch) -> Any:
        if IS_FIRST not in batch:
            return carry

        def reset_leaf(names: tuple[str | None, ...], x: jax.Array, first: jax.Array) -> jax.Array:
            if "batch" not in names:
                return x
            shape = [1] * x.ndim
            shape[names.index("batch")] = -1
            return jnp.where(batch[IS_FIRST].reshape(shape) > 0, first, x)

        return jax.tree.map(reset_leaf, axes, carry, nn.meta.unbox(initial()), is_leaf=sharding.is_axes)

    return reset_rows


def initializer(carry: Callable[[], Any], shardings: Any, mesh: jax.sharding.Mesh) -> Callable[[], Any]:
    """Return the jitted function that creates the first carry on its devices."""
    return jax.jit(sharding.with_mesh(lambda: nn.meta.unbox(carry()), mesh), out_shardings=shardings)
