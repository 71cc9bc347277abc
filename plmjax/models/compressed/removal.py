"""Removal of attention heads and of inner features of feed-forward networks, so that matrices become smaller.

A removed head or feature may have added a constant. The constant is added to the bias of the output projection:

    a head whose value kernel is 0:         b_value W_output
    a feature whose input weights are 0:    activation(b_intermediate) W_output
"""

from collections.abc import Mapping, Sequence

import numpy as np

from plmjax.layers.feed_forward import ACTIVATIONS
from plmjax.models.compressed.configs import with_compression
from plmjax.models.compressed.parameters import HEADS, WIDTH, Layer, join_layers, layers_of
from plmjax.models.families.encoder import EncoderConfig


def keep(
    params: Mapping[str, np.ndarray],
    config: EncoderConfig,
    heads: Sequence[Sequence[int]],
    features: Sequence[Sequence[int]],
) -> tuple[dict[str, np.ndarray], EncoderConfig]:
    """Return the model with only these heads and features of each layer.

    heads: for each layer, the indices of the heads that are kept, at least one.
    features: for each layer, the indices of the kept features inside the feed-forward network, at least one.
    """
    rest, layers = layers_of(params, config)
    sizes = {"layer_heads": tuple(map(len, heads)), "layer_widths": tuple(map(len, features))}
    smaller = with_compression(config, **sizes)

    def cut(inside: str, value: np.ndarray, layer: int) -> np.ndarray:
        if inside in HEADS:
            return np.take(value, np.asarray(heads[layer]), axis=HEADS[inside])
        return np.take(value, np.asarray(features[layer]), axis=WIDTH[inside]) if inside in WIDTH else value

    cuts = [{inside: cut(inside, value, layer) for inside, value in one.items()} for layer, one in enumerate(layers)]
    return join_layers(rest, cuts, smaller), smaller


def remove_zeros(
    params: Mapping[str, np.ndarray], config: EncoderConfig
) -> tuple[dict[str, np.ndarray], EncoderConfig]:
    """Return the model without heads and features that add only a constant; outputs do not change.

    At least one head and one feature of each layer stay.
    """
    rest, layers = layers_of(params, config)
    heads, features = [], []
    for layer in layers:
        heads.append(_kept_heads(layer))
        features.append(_kept_features(layer, config.hidden_act))
    return keep(join_layers(rest, layers, config), config, heads, features)


def _kept_heads(layer: Layer) -> np.ndarray:
    """Return the indices of heads to keep, and add the constants of the others to the output bias in `layer`."""
    value, output = layer["attention/value/kernel"], layer["attention/output/kernel"]  # [D N H], [N H D]
    without_values = ~np.any(value, axis=(0, 2))
    removed = without_values | ~np.any(output, axis=(1, 2))
    removed[np.argmax(np.abs(output).sum((1, 2)))] &= not removed.all()
    constants = np.einsum("nh,nhd->nd", layer["attention/value/bias"], output)
    layer["attention/output/bias"] = layer["attention/output/bias"] + constants[removed].sum(0)
    return np.flatnonzero(~removed)


def _kept_features(layer: Layer, activation: str) -> np.ndarray:
    """Return the indices of features to keep, and add the constants of the others to the output bias in `layer`."""
    inner, outer = layer["feed_forward/intermediate/kernel"], layer["feed_forward/output/kernel"]  # [D F], [F D]
    removed = ~np.any(inner, axis=0) | ~np.any(outer, axis=1)
    removed[np.argmax(np.abs(outer).sum(1))] &= not removed.all()
    values = np.asarray(ACTIVATIONS[activation](layer["feed_forward/intermediate/bias"]))
    layer["feed_forward/output/bias"] = layer["feed_forward/output/bias"] + values[removed] @ outer[removed]
    return np.flatnonzero(~removed)
