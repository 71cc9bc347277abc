"""Frozen parameters: all parameters below a path, or some layers of a stack.

    bert/embeddings              all parameters below this path
    bert/encoder/layers[:6]      the first six layers of all parameters below it, as in a slice of Python
    bert/encoder/layers[0]       the first layer only

The gradient of a frozen parameter is set to 0, so the global norm leaves it out. Its update is set to 0 too, so it has
no weight decay. A parameter that is frozen by a path without layers has no optimizer state. If only layers of it are
frozen, their part of the state stays 0.
"""

import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from plmjax.errors import UserError, nearest, quoted
from plmjax.training import paths

Params = Any
OPTION = "--optimizer.frozen"


class Frozen(NamedTuple):
    """One entry of `frozen`. layers: the frozen layers of a stack; None for whole parameters."""

    prefix: str
    layers: slice | None

    def covers(self, name: str) -> bool:
        """Return whether the path of a parameter is `prefix` or below it."""
        return f"{name}/".startswith(f"{self.prefix}/")


def freeze_layers(
    update: optax.GradientTransformation, names: Sequence[str], params: Params
) -> optax.GradientTransformation:
    """Return `update` with zero gradients and updates for the layers in `names`.

    Args:
        params: boxed with their logical axes, possibly abstract.

    Raises:
        UserError: an entry of `names` has layers, but no parameter below its path is stacked.
    """
    frozen = dict(_frozen_layers(names, params))
    if not frozen:
        return update

    def trained(tree: Params) -> Params:
        def kept(path: jax.tree_util.KeyPath, leaf: jax.Array) -> jax.Array:
            name = paths.name(path)
            return jnp.where(frozen[name], 0, leaf) if name in frozen else leaf

        return jax.tree_util.tree_map_with_path(kept, tree)

    def apply(gradients: Params, state: optax.OptState, params: Params = None) -> tuple[Params, optax.OptState]:
        updates, state = update.update(trained(gradients), state, params)
        return trained(updates), state

    return optax.GradientTransformation(update.init, apply)


def freeze(update: optax.GradientTransformation, names: Sequence[str], params: Params) -> optax.GradientTransformation:
    """Return `update` for the parameters that no entry without layers covers. The others get updates of 0 and no state.

    Raises:
        UserError: an entry covers no parameter, or all parameters would be frozen.
    """
    if not names:
        return update
    _check(names, params)
    whole = [one for one in map(_parse, names) if one.layers is None]

    frozen = paths.map_named(lambda name, _: any(one.covers(name) for one in whole), params)
    trained = jax.tree.map(operator.not_, frozen)
    return optax.chain(optax.masked(update, trained), optax.freeze(frozen))


def _parse(name: str) -> Frozen:
    """Split an entry of `frozen` into its path and the layers in brackets."""
    found = re.fullmatch(r"(.+)\[(-?\d+)?(:)?(-?\d+)?\]", name)
    if found is None:
        return Frozen(name, None)
    prefix, *ends = found.groups()
    first, last = (None if end is None else int(end) for end in (ends[0], ends[2]))
    if ends[1] is None:
        if first is None or last is not None:
            raise UserError(f"Expected layers such as [0] or [1:3] in {OPTION}, found {quoted(name)}; correct it.")
        return Frozen(prefix, slice(first, first + 1 or None))
    return Frozen(prefix, slice(first, last))


def _frozen_layers(names: Sequence[str], params: Params) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (path, bool array that broadcasts to the parameter, true for its frozen layers)."""
    leaves: dict[str, Any] = {}
    paths.map_named(leaves.__setitem__, params)
    chosen = [one for one in map(_parse, names) if one.layers is not None]
    stacked = {
        name: leaf
        for name, leaf in leaves.items()
        if isinstance(leaf, nn.LogicallyPartitioned) and paths.LAYERS in leaf.names
    }
    for one in chosen:
        if not any(one.covers(name) for name in stacked):
            raise UserError(
                f"Expected {OPTION} to name the path of stacked layers before [], found {quoted(one.prefix)}; "
                f"{_nearest(one.prefix, stacked)}"
            )
    for name, leaf in stacked.items():
        axis = leaf.names.index(paths.LAYERS)
        frozen = np.zeros(leaf.value.shape[axis], bool)
        for one in chosen:
            if one.covers(name):
                frozen[one.layers] = True
        if frozen.any():
            yield name, frozen.reshape([-1 if other == axis else 1 for other in range(leaf.value.ndim)])


def _check(frozen: Sequence[str], params: Params) -> None:
    names = jax.tree.leaves(paths.map_named(lambda name, _: name, params))
    parsed = [_parse(name) for name in frozen]
    for one in parsed:
        if not any(one.covers(name) for name in names):
            raise UserError(
                f"Expected {OPTION} to name the beginning of a parameter's path, found {quoted(one.prefix)}; "
                f"{_nearest(one.prefix, names)}"
            )
    if all(any(one.layers is None and one.covers(name) for one in parsed) for name in names):
        raise UserError(
            f"Expected {OPTION} to leave parameters to train, found {' '.join(frozen)}, which is all of them; freeze "
            f"fewer."
        )


def _nearest(name: str, paths: Iterable[str]) -> str:
    """Return advice: the most similar prefix of a path, or else the top parts of the model, since all prefixes are too
    many to list.
    """
    split = [path.split("/") for path in paths]
    levels = [sorted({"/".join(parts[:depth]) for parts in split}) for depth in range(1, max(map(len, split)) + 1)]
    aliases = {one.rpartition("/")[2]: one for level in reversed(levels) for one in level}
    aliases |= {one: one for level in levels for one in level}
    return nearest(name, next((level for level in levels if len(level) > 1), levels[-1]), aliases)
