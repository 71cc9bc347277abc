"""Encoders whose layers differ in their numbers of heads and in their inner sizes, after structured pruning.

Parameters are dicts from path to array. Layers of one size are one stack, `encoder/layers/... [L ...]`; layers of
different sizes are stacks of one, `encoder/layer_0/... [1 ...]`. Both forms are read through `layers_of`.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from plmjax.models.families.encoder import EncoderConfig

Layer = dict[str, np.ndarray]
HEADS = {
    "attention/query/kernel": 1,
    "attention/query/bias": 0,
    "attention/key/kernel": 1,
    "attention/key/bias": 0,
    "attention/value/kernel": 1,
    "attention/value/bias": 0,
    "attention/output/kernel": 0,
}
"""Path of a parameter within a layer -> its axis of the attention heads."""
WIDTH = {"feed_forward/intermediate/kernel": 1, "feed_forward/intermediate/bias": 0, "feed_forward/output/kernel": 0}
"""Path of a parameter within a layer -> its axis of the features inside the feed-forward network."""


def layers_of(params: Mapping[str, np.ndarray], config: EncoderConfig) -> tuple[dict[str, np.ndarray], list[Layer]]:
    """Return (parameters outside of the layers, parameters of each layer by their path within it)."""
    prefix = f"{config.system.name}/encoder/"
    layers: list[Layer] = [{} for _ in range(config.num_hidden_layers)]
    rest = {}
    for path, value in params.items():
        part, _, inside = path.removeprefix(prefix).partition("/")
        if not path.startswith(f"{prefix}layer"):
            rest[path] = value
        elif part == "layers":
            for number, layer in enumerate(layers):
                layer[inside] = value[number]
        else:
            layers[int(part.removeprefix("layer_"))][inside] = value[0]
    return rest, layers


def joined(rest: Mapping[str, np.ndarray], layers: Sequence[Layer], config: EncoderConfig) -> dict[str, np.ndarray]:
    """Return all parameters of a model, from those of `layers_of`; the config decides if the layers are one stack."""
    prefix = f"{config.system.name}/encoder"
    if not config.layer_heads:
        stacks = {inside: np.stack([layer[inside] for layer in layers]) for inside in layers[0]}
        return dict(rest) | {f"{prefix}/layers/{inside}": value for inside, value in stacks.items()}
    return dict(rest) | {
        f"{prefix}/layer_{number}/{inside}": value[None]
        for number, layer in enumerate(layers)
        for inside, value in layer.items()
    }


def filled(params: Mapping[str, np.ndarray], config: EncoderConfig) -> tuple[dict[str, np.ndarray], EncoderConfig]:
    """Return the same model with layers of one size: heads and features that are missing are 0.

    A head whose projections are 0 adds nothing to the output, and so does a feature whose kernels and bias are 0.
    """
    if not config.layer_heads:
        return dict(params), config
    rest, layers = layers_of(params, config)
    whole = dataclasses.replace(config, layer_heads=(), layer_widths=())
    sizes = dict.fromkeys(HEADS, whole.num_attention_heads) | dict.fromkeys(WIDTH, whole.intermediate_size)

    def fill(inside: str, value: np.ndarray) -> np.ndarray:
        if inside not in sizes:
            return value
        axis = (HEADS | WIDTH)[inside]
        missing = [(0, sizes[inside] - value.shape[axis] if other == axis else 0) for other in range(value.ndim)]
        return np.pad(value, missing)

    layers = [{inside: fill(inside, value) for inside, value in one.items()} for one in layers]
    return joined(rest, layers, whole), whole


def reduced(
    params: Mapping[str, np.ndarray],
    config: EncoderConfig,
    heads: Sequence[Sequence[int]],
    features: Sequence[Sequence[int]],
) -> tuple[dict[str, np.ndarray], EncoderConfig]:
    """Return the model with these heads and features of each layer.

    heads, features: for each layer the numbers of the heads, and of the features inside the feed-forward network, that
        are kept; at least one of each.
    """
    rest, layers = layers_of(params, config)
    smaller = dataclasses.replace(
        config,
        layer_heads=tuple(len(kept) for kept in heads),
        layer_widths=tuple(len(kept) for kept in features),
    )

    def cut(inside: str, value: np.ndarray, layer: int) -> np.ndarray:
        if inside in HEADS:
            return np.take(value, np.asarray(heads[layer]), axis=HEADS[inside])
        return np.take(value, np.asarray(features[layer]), axis=WIDTH[inside]) if inside in WIDTH else value

    cuts = [{inside: cut(inside, value, layer) for inside, value in one.items()} for layer, one in enumerate(layers)]
    return joined(rest, cuts, smaller), smaller
