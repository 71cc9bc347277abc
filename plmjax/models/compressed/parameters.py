"""The parameters of compressed models: by layer, and converted to the same model without compression.

Parameters are dicts from path to array. Layers of equal size are one stack, `encoder/layers/... [L ...]`; layers of
different sizes are separate, `encoder/layer_0/... [1 ...]`. `layers_of` reads both forms.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import UserError
from plmjax.models.compressed import low_rank
from plmjax.models.compressed.configs import LowRankConfig, PrunedEncoder, with_compression
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
        UserError: matrices are products of two, from which heads and features cannot be removed.
    """
    if getattr(config, "ranks", ()):
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


def join_layers(
    rest: Mapping[str, np.ndarray], layers: Sequence[Layer], config: EncoderConfig
) -> dict[str, np.ndarray]:
    """Return all parameters of a model, given the results of `layers_of`. Layers of equal size are stacked."""
    prefix = f"{config.system.name}/encoder"
    if not getattr(config, "layer_heads", ()):
        stacks = {inside: np.stack([layer[inside] for layer in layers]) for inside in layers[0]}
        return dict(rest) | {f"{prefix}/layers/{inside}": value for inside, value in stacks.items()}
    return dict(rest) | {
        f"{prefix}/layer_{number}/{inside}": value[None]
        for number, layer in enumerate(layers)
        for inside, value in layer.items()
    }


def dense(params: Mapping[str, np.ndarray], config: ModelConfig) -> tuple[dict[str, np.ndarray], ModelConfig]:
    """Return the parameters and the config of the same model without compression.

    Pairs of matrices are multiplied. The parameters of removed heads and features are 0: such a head or feature adds
    nothing to the output.
    """
    if not isinstance(config, LowRankConfig):
        return dict(params), config
    params, config = low_rank.multiply_pairs(params, config.parameter_groups), with_compression(config, ranks=())
    if not isinstance(config, PrunedEncoder):
        return params, config
    plain = with_compression(config, layer_heads=(), layer_widths=())
    rest, layers = layers_of(params, config)
    sizes = dict.fromkeys(HEADS, plain.num_attention_heads) | dict.fromkeys(WIDTH, plain.intermediate_size)

    def fill(inside: str, value: np.ndarray) -> np.ndarray:
        if inside not in sizes:
            return value
        axis = (HEADS | WIDTH)[inside]
        missing = [(0, sizes[inside] - value.shape[axis] if other == axis else 0) for other in range(value.ndim)]
        return np.pad(value, missing)

    layers = [{inside: fill(inside, value) for inside, value in layer.items()} for layer in layers]
    return join_layers(rest, layers, plain), plain
