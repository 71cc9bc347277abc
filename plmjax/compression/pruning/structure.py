"""Structured pruning: heads and features whose weights are all 0 are removed, so that the matrices become smaller.

A removed head or feature may still add a constant, which moves into the bias behind it:

    a head whose values are 0:    attention adds   b_value W_output
    a feature without inputs:     the feed-forward network adds   activation(b_intermediate) W_output
"""

import numpy as np

from plmjax.compression.compression import Params
from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import UserError
from plmjax.layers.feed_forward import ACTIVATIONS
from plmjax.models.families.encoder import EncoderConfig
from plmjax.models.families.layer_sizes import Layer, joined, layers_of, reduced


def check(model: ModelConfig) -> None:
    """Raise UserError for a model whose layers cannot differ in their sizes."""
    if not (isinstance(model, EncoderConfig) and hasattr(model, "__dataclass_fields__")) or (
        "layer_heads" not in model.__dataclass_fields__
    ):
        raise UserError(
            f"Expected a BERT or a RoBERTa, whose layers may differ in their heads and widths, found {model.system}; "
            f"take a method that sets single weights to 0."
        )


def without_zeros(params: Params, model: EncoderConfig) -> tuple[Params, EncoderConfig]:
    """Return the model without the heads and the features that add nothing but a constant; outputs do not change.

    At least one head and one feature of each layer stay.
    """
    rest, layers = layers_of(params, model)
    heads, features = [], []
    for layer in layers:
        heads.append(_kept_heads(layer))
        features.append(_kept_features(layer, model.hidden_act))
    return reduced(joined(rest, layers, model), model, heads, features)


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
