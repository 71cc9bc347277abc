"""The parameters that a module has, known without computing any."""

import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax


def abstract_parameters(module: nn.Module, example: Mapping[str, Any]) -> Any:
    """Return the tree of a module's parameters: their shapes and dtypes, boxed with their logical axes.

    A module is traced once for inputs of the same shapes, which takes up to a second: commands check a checkpoint's
    parameters, place them and write them.

    Args:
        module: the module; its `__call__` takes `deterministic`.
        example: the other keyword arguments of `__call__`, arrays or trees of arrays. Only shapes and dtypes count.
    """
    leaves, structure = jax.tree.flatten(dict(example))
    return _traced(module, structure, tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves))


@functools.lru_cache(maxsize=32)
def _traced(module: nn.Module, structure: Any, leaves: tuple[jax.ShapeDtypeStruct, ...]) -> Any:
    example = jax.tree.unflatten(structure, leaves)
    init = lambda example: module.init(jax.random.key(0), **example, deterministic=True)["params"]  # noqa: E731
    return jax.eval_shape(init, example)
