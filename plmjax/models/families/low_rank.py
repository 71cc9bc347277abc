"""Layers whose matrices are products of two of a lower rank: W = A B, with A [in R] and B [R out].

A model computes (x A) B, which takes R (in + out) products for each token in place of in x out.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import numpy as np

from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import group_of
from plmjax.errors import UserError
from plmjax.layers.projection import EXPAND, REDUCE

KINDS = (
    "attention/query",
    "attention/key",
    "attention/value",
    "attention/output",
    "feed_forward/intermediate",
    "feed_forward/output",
)
"""The projections of a layer, in the order of `ranks`."""
WHOLE = (0,) * len(KINDS)


def check(config: ModelConfig) -> None:
    """Raise UserError unless a config has no ranks, or one from 0 for each of `KINDS`."""
    if config.ranks and (len(config.ranks) != len(KINDS) or min(config.ranks) < 0):
        raise UserError(
            f"Expected --model.ranks of {len(KINDS)} numbers from 0, found {' '.join(map(str, config.ranks))}; "
            f"change them."
        )


def attention_ranks(config: ModelConfig) -> tuple[int, ...]:
    """Return the ranks of the query, the key, the value and the last projection; 0 for a whole matrix."""
    return (config.ranks or WHOLE)[:4]


def feed_forward_ranks(config: ModelConfig) -> tuple[int, ...]:
    """Return the ranks of the two matrices of the feed-forward network; 0 for a whole matrix."""
    return (config.ranks or WHOLE)[4:]


def layer_products(config: ModelConfig, width: int, attended: int, inner: int) -> int:
    """Return the number of products of a layer's matrices for one token: 4 D N H + 2 D F if all are whole.

    width: D. attended: N H. inner: F.
    """
    sizes = (*((width, attended),) * 4, (width, inner), (inner, width))
    ranks = config.ranks or WHOLE
    return sum(rank * (a + b) if rank else a * b for (a, b), rank in zip(sizes, ranks, strict=True))


def whole(params: Mapping[str, Any], config: ModelConfig) -> tuple[Mapping[str, Any], ModelConfig]:
    """Return nested parameters and the config of the same model with whole matrices, numpy float32."""
    if not config.ranks:
        return params, config
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    for path in [path for path in flat if path.endswith(f"/{REDUCE}/kernel")]:
        projection = path.removesuffix(f"/{REDUCE}/kernel")
        first, second = (np.asarray(flat.pop(f"{projection}/{part}/kernel")) for part in (REDUCE, EXPAND))
        place = group_of(path, config.parameter_groups)
        layers = first.shape[:1] if place is not None and place[1] is not None else ()
        inputs, outputs = first.shape[len(layers) : -1], second.shape[len(layers) + 1 :]
        product = first.reshape(*layers, -1, first.shape[-1]) @ second.reshape(*layers, first.shape[-1], -1)
        flat[f"{projection}/kernel"] = product.reshape(*layers, *inputs, *outputs)
        if (bias := flat.pop(f"{projection}/{EXPAND}/bias", None)) is not None:
            flat[f"{projection}/bias"] = bias
    return flax.traverse_util.unflatten_dict(flat, sep="/"), dataclasses.replace(config, ranks=())
