"""What the scans of recurrent layers share: arrays [T ... B], time first and rows last.

A kernel times a matrix with few columns is several times as fast on a CPU as few rows times a kernel.
"""

import functools
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

TO_GATES = functools.partial(jnp.einsum, "GHP,PB->GHB")
"""A kernel times the state of a token's rows."""
BACK_TO_STATE = functools.partial(jnp.einsum, "PGH,GHB->PB")
"""The same backwards, with the kernel as the parameters have it."""


def whole(kernel: jax.Array) -> jax.Array:
    """A kernel that every device has all of."""
    return nn.with_logical_constraint(kernel, (None,) * kernel.ndim)


def rows(x: jax.Array) -> jax.Array:
    """[B H], of which a device has all features of its rows."""
    return nn.with_logical_constraint(x, ("batch", None))


def visible_starts(starts: jax.Array | None, visible: jax.Array | None, shape: tuple[int, int]) -> jax.Array | None:
    """Where a layer begins anew: at none of the tokens that it does not see. Both are bool [B T], which is checked."""
    for mask in (starts, visible):
        if mask is not None:
            chex.assert_shape(mask, shape)
            chex.assert_type(mask, bool)
    return starts if starts is None or visible is None else starts & visible


def found(states: Any, first: Any, starts: jax.Array | None, reverse: bool) -> Any:
    """The states that tokens found, [T ... B], from those that they left and the one before the first."""

    def shifted(after: jax.Array, first: jax.Array) -> jax.Array:
        if reverse:
            return jnp.concatenate([after[1:], first[None]])
        return jnp.concatenate([first[None], after[:-1]])

    before = jax.tree.map(shifted, states, first)
    return where(None if starts is None else starts[:, None], jax.tree.map(jnp.zeros_like, before), before)


def where(condition: jax.Array | None, chosen: Any, other: Any) -> Any:
    """`chosen` in the rows where the condition, [B] or [T 1 B], is true; without a condition nowhere."""
    if condition is None:
        return other
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), chosen, other)


def ends(starts: jax.Array | None, reverse: bool) -> jax.Array | None:
    """Where a layer begins anew, bool [B T]: one that reads in reverse does at the last token of each document."""
    if starts is None or not reverse:
        return starts
    return jnp.pad(starts[:, 1:], ((0, 0), (0, 1)))
