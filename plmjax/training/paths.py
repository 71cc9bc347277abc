"""Names of parameters: their paths, such as "bert/encoder/layers/attention/query/kernel", boxed with axes or not."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
from jax.tree_util import GetAttrKey, KeyPath

LAYERS = "layers"
"""Logical axis along which the parameters of a model's layers are stacked."""


def is_parameter(node: Any) -> bool:
    """Return whether a node of a tree represents one parameter: a box, or a partition spec."""
    return isinstance(node, nn.meta.AxisMetadata | jax.sharding.PartitionSpec)


def name(path: KeyPath) -> str:
    """Return the path of a parameter, which is the same boxed and unboxed (a box is an attribute in the key path)."""
    inside = [key for key in path if not isinstance(key, GetAttrKey)]
    return jax.tree_util.keystr(tuple(inside), simple=True, separator="/")


def map_named(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return the tree of `function(path, parameter, ...)` for every parameter; a boxed one is passed in its box."""
    return jax.tree_util.tree_map_with_path(
        lambda path, *leaves: function(name(path), *leaves), tree, *others, is_leaf=is_parameter
    )
