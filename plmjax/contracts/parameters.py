"""The shapes, logical axes and kinds of a module's parameters, without computing them."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import flax.struct
import flax.traverse_util
import jax
from jax.nn.initializers import Initializer

from plmjax.errors import UserError

NORM, BIAS = "layer_norm", "bias"
"""Kinds of parameters that weight decay may leave out. NORM: scales, mainly of normalizations. BIAS: added parameters.

The bias of a normalization is of both kinds. Kernels and embedding tables have no kind.
"""


@flax.struct.dataclass(eq=False)
class Declared(nn.LogicallyPartitioned):
    """The box of a parameter, with its logical axes and its kinds (`NORM`, `BIAS`)."""

    kinds: tuple[str, ...] = flax.struct.field(default=(), pytree_node=False)


def kinds_of(parameter: Any) -> tuple[str, ...]:
    """Return the kinds of a boxed parameter.

    A vector or a scalar without a box, as in Flax's own modules, is of both kinds.
    """
    if isinstance(parameter, nn.meta.AxisMetadata):
        return parameter.kinds if isinstance(parameter, Declared) else ()
    return (NORM, BIAS) if len(parameter.shape) < 2 else ()


def as_bias(init: Initializer, names: tuple[str | None, ...]) -> Initializer:
    """Return an initializer that marks its parameter as a bias: it is added, for example to scores."""
    return _declared(init, names, BIAS)


def as_scale(init: Initializer, names: tuple[str | None, ...]) -> Initializer:
    """Return an initializer that marks its parameter as the scale of a normalization."""
    return _declared(init, names, NORM)


def as_norm_bias(init: Initializer, names: tuple[str | None, ...]) -> Initializer:
    """Return an initializer that marks its parameter as the bias of a normalization."""
    return _declared(init, names, NORM, BIAS)


def _declared(init: Initializer, names: tuple[str | None, ...], *kinds: str) -> Initializer:
    return lambda *drawn: Declared(init(*drawn), names, kinds=kinds)


def abstract_parameters(module: nn.Module, example: Mapping[str, Any]) -> Any:
    """Return the tree of a module's parameters: shapes and dtypes, boxed with their logical axes.

    The module is traced once for inputs of the same shapes, which takes up to a second. Commands use the tree to check,
    place and write the parameters of a checkpoint.

    Args:
        module: its `__call__` takes `deterministic`.
        example: the other keyword arguments of `__call__`: trees of arrays, whose shapes and dtypes are used.
    """
    leaves, structure = jax.tree.flatten(dict(example))
    return _traced(module, structure, tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves))


@functools.lru_cache(maxsize=32)
def _traced(module: nn.Module, structure: Any, leaves: tuple[jax.ShapeDtypeStruct, ...]) -> Any:
    example = jax.tree.unflatten(structure, leaves)
    init = lambda example: module.init(jax.random.key(0), **example, deterministic=True)["params"]  # noqa: E731
    return jax.eval_shape(init, example)


def check_parameters(
    module: nn.Module, params: Any, batch: Mapping[str, Any], *, origin: str | Path, hint: str
) -> None:
    """Raise UserError if the checkpoint `origin` lacks a parameter of the module.

    batch: as `example` of `abstract_parameters`. hint: reason for the message.
    """
    expected = abstract_parameters(module, batch)
    wanted, found = (flax.traverse_util.flatten_dict(nn.meta.unbox(tree), sep="/") for tree in (expected, params))
    for name in sorted(wanted.keys() - found.keys()):
        raise UserError(f"Expected a checkpoint with {name}, found none in {origin}: {hint}; name another.")
