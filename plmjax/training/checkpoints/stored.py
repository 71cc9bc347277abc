"""The int8 storage format of arrays in a checkpoint.

A float32 array is stored as two arrays:

    int8     int8 [...], from -127 to 127
    scale    float32, with the same number of axes, of size 1 where all values along an axis have one scale

Each value is int8 / scale, with scale = 127 / max|value| (as quantization.py of nlp-architect). A restored array is
always float32.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.traverse_util
import numpy as np

LARGEST = 127
INTEGERS, SCALE = "int8", "scale"


def encode(values: np.ndarray, shared: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the int8 form of an array; `shared` are the axes along which all values have one scale.

    Values are rounded to the nearest integer, halves to even. If all values are 0, their scale is 1.
    """
    values = np.asarray(values, np.float32)
    largest = np.max(np.abs(values), axis=tuple(shared), keepdims=True)
    scale = np.where(largest > 0, np.float32(LARGEST) / np.where(largest > 0, largest, np.float32(1)), np.float32(1))
    rounded = np.clip(np.round(values * scale), -LARGEST, LARGEST)
    return {INTEGERS: rounded.astype(np.int8), SCALE: scale.astype(np.float32)}


def paths(tree: Any) -> list[str]:
    """Return the sorted paths of the arrays of a tree that are in the int8 form; leaves may be any objects."""
    return sorted("/".join(path) for path in _forms(tree)) if isinstance(tree, Mapping) else []


def decode(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree of numpy arrays, with arrays in the int8 form converted to float32.

    Raises:
        ValueError: the arrays of an int8 form have other dtypes, or its scale does not fit in shape or is not above 0.
    """
    flat = flax.traverse_util.flatten_dict(tree)
    for path in _forms(tree):
        integers, scale = flat.pop((*path, INTEGERS)), flat.pop((*path, SCALE))
        name = "/".join(path)
        if integers.dtype != np.int8 or scale.dtype != np.float32:
            raise ValueError(f"{name} is stored as {integers.dtype} with scales of {scale.dtype}")
        pairs = zip(integers.shape, scale.shape, strict=False)
        if integers.ndim != scale.ndim or any(own not in (1, size) for size, own in pairs):
            raise ValueError(f"{name} of shape {integers.shape} has scales of shape {scale.shape}")
        if not (np.isfinite(scale).all() and (scale > 0).all()):
            raise ValueError(f"{name} has a scale that is not above 0")
        flat[path] = integers.astype(np.float32) / scale
    return flax.traverse_util.unflatten_dict(flat)


def _forms(tree: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the paths of the nodes that consist of exactly the two arrays of an int8 form."""
    found: dict[tuple[str, ...], set[str]] = {}
    for path in flax.traverse_util.flatten_dict(tree):
        found.setdefault(path[:-1], set()).add(path[-1])
    inner = {path[:length] for path in found for length in range(len(path))}
    return [path for path, names in found.items() if names == {INTEGERS, SCALE} and path and path not in inner]
