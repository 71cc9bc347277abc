"""Norms of the single layers of parameters that are stacked along the logical axis "layers"."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import KeyPath

from plmjax.training import paths

Params = Any
Axes = dict[str, tuple[str | None, ...]]
"""Path of a parameter -> its logical axes."""


def axes_of(params: Params, chosen: Params) -> Axes:
    """Return the logical axes of the parameters of a boxed tree for which `chosen`, a tree of bool, is true.

    Raises:
        ValueError: a chosen parameter is not boxed. Without its axes, a stack would look like a single layer.
    """
    found: Axes = {}

    def note(path: KeyPath, is_chosen: bool, parameter: Any) -> None:
        if not is_chosen:
            return
        if not paths.is_parameter(parameter):
            raise ValueError(
                f"The rule needs the logical axes of {paths.name(path)!r}: build it from boxed parameters."
            )
        found[paths.name(path)] = tuple(getattr(parameter, "names", parameter))

    jax.tree_util.tree_map_with_path(note, chosen, params)
    return found


def _within(array: jax.Array, names: tuple[str | None, ...]) -> tuple[int, ...]:
    """Return the axes of an array that belong to a single layer: all but "layers"."""
    return tuple(axis for axis in range(array.ndim) if names[axis : axis + 1] != (paths.LAYERS,))


def layer_norms(array: jax.Array, names: tuple[str | None, ...]) -> jax.Array:
    """Return the L2 norm of each layer of a parameter, in a shape that broadcasts to it."""
    return jnp.sqrt(jnp.sum(jnp.square(array), _within(array, names), keepdims=True))


def layer_root_mean_squares(array: jax.Array, names: tuple[str | None, ...]) -> jax.Array:
    """Return the root mean square of each layer of a parameter, in a shape that broadcasts to it."""
    return jnp.sqrt(jnp.mean(jnp.square(array), _within(array, names), keepdims=True))
