"""Encoders whose layers differ in their numbers of heads and in their inner sizes, after structured pruning.

Parameters are dicts from path to array. Layers of one size are one stack, `encoder/layers/... [L ...]`; layers of
different sizes are stacks of one, `encoder/layer_0/... [1 ...]`. Both forms are read through `layers_of`.

A removed head or feature may have added a constant, which moves into the bias behind it:

    a head whose values are 0:    attention adds   b_value W_output
    a feature without inputs:     the feed-forward network adds   activation(b_intermediate) W_output
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from plmjax.errors import UserError
from plmjax.layers.feed_forward import ACTIVATIONS
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
    """Return (parameters outside of the layers, parameters of each layer by their path within it).

    Raises:
        UserError: a matrix is a product of two, whose parts cannot be removed.
    """
    if config.ranks:
        raise UserError(
            f"Expected a model with whole matrices, found ranks of {' '.join(map(str, config.ranks))}; remove heads "
            f"and features first, and factorize the result."
        )
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


class PrunableEncoder:
    """The removable heads and features of an encoder with the layers of BERT (`Prunable`)."""

    def sizes(self, config: EncoderConfig) -> tuple[tuple[int, int], ...]:
        """Return the number of heads and of features of each layer."""
        return config.layer_sizes

    def divides(self, config: EncoderConfig, block: int) -> bool:
        """Return whether blocks of so many rows and columns divide the attention matrices of a head."""
        return config.head_size % block == 0 and config.hidden_size % block == 0

    def filled(
        self, params: Mapping[str, np.ndarray], config: EncoderConfig
    ) -> tuple[dict[str, np.ndarray], EncoderConfig]:
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

    def kept(
        self,
        params: Mapping[str, np.ndarray],
        config: EncoderConfig,
        heads: Sequence[Sequence[int]],
        features: Sequence[Sequence[int]],
    ) -> tuple[dict[str, np.ndarray], EncoderConfig]:
        """Return the model with these heads and features of each layer.

        heads, features: for each layer the numbers of the heads, and of the features inside the feed-forward network,
            that are kept; at least one of each.
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

        cuts = [
            {inside: cut(inside, value, layer) for inside, value in one.items()} for layer, one in enumerate(layers)
        ]
        return joined(rest, cuts, smaller), smaller

    def without_zeros(
        self, params: Mapping[str, np.ndarray], config: EncoderConfig
    ) -> tuple[dict[str, np.ndarray], EncoderConfig]:
        """Return the model without the heads and the features that add nothing but a constant; outputs do not change.

        At least one head and one feature of each layer stay.
        """
        rest, layers = layers_of(params, config)
        heads, features = [], []
        for layer in layers:
            heads.append(_kept_heads(layer))
            features.append(_kept_features(layer, config.hidden_act))
        return self.kept(joined(rest, layers, config), config, heads, features)


def _kept_heads(layer: Layer) -> np.ndarray:
    """Return the heads to keep; the constants of the others are added to the bias of the output, in `layer`."""
    value, output = layer["attention/value/kernel"], layer["attention/output/kernel"]  # [D N H], [N H D]
    without_values = ~np.any(value, axis=(0, 2))
    removed = without_values | ~np.any(output, axis=(1, 2))
    removed[np.argmax(np.abs(output).sum((1, 2)))] &= not removed.all()
    constants = np.einsum("nh,nhd->nd", layer["attention/value/bias"], output)
    layer["attention/output/bias"] = layer["attention/output/bias"] + constants[removed].sum(0)
    return np.flatnonzero(~removed)


def _kept_features(layer: Layer, activation: str) -> np.ndarray:
    """Return the features to keep; the constants of the others are added to the bias of the output, in `layer`."""
    inner, outer = layer["feed_forward/intermediate/kernel"], layer["feed_forward/output/kernel"]  # [D F], [F D]
    removed = ~np.any(inner, axis=0) | ~np.any(outer, axis=1)
    removed[np.argmax(np.abs(outer).sum(1))] &= not removed.all()
    values = np.asarray(ACTIVATIONS[activation](layer["feed_forward/intermediate/bias"]))
    layer["feed_forward/output/bias"] = layer["feed_forward/output/bias"] + values[removed] @ outer[removed]
    return np.flatnonzero(~removed)
