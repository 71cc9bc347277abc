"""NeoBERT's own files, which its code on the Hub reads: config.json, and safetensors with its names of tensors.

    model.encoder.weight                                        [V D]      the word table
    model.transformer_encoder.N.qkv.weight                      [3 D, D]   for each head its queries, keys and values
    model.transformer_encoder.N.wo.weight                       [D D]
    model.transformer_encoder.N.ffn.w12.weight, w3.weight       [2 F, D], [D F]   the activated half of w12 comes first
    model.transformer_encoder.N.attention_norm.weight, ffn_norm.weight   [D]
    model.layer_norm.weight                                     [D]
    decoder.weight, decoder.bias                                [V D], [V]

V is the vocabulary size, D the hidden size, and N the number of a layer. transformers has no class for NeoBERT.
intermediate_size is the inner size of a network without a gate: F is two thirds of it, rounded up to a multiple of 8.
Source: chandar-lab/NeoBERT, model.py; xformers, ops/swiglu_op.py.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError, in_file, quoted
from plmjax.files import json_text
from plmjax.interop import config_json, encoder, tensor_names, transformers_files
from plmjax.interop.conversion import (
    Arrangement,
    Conversion,
    concatenate,
    parameter,
    read_parameters,
    weight,
    write_tensors,
)
from plmjax.interop.tensors import Shape
from plmjax.interop.transformers_files import CONFIG
from plmjax.models.modernbert.neobert import NeoBertConfig

MODEL_TYPE, CLASS = "neobert", "NeoBERTLMHead"
FIELDS = {"max_position_embeddings": "max_length", "initializer_range": "decoder_init_range"}
"""Field of a NeoBertConfig -> its name in NeoBERT's config.json, if the names differ."""
REQUIRED = {
    "hidden_act": "SwiGLU",
    "rms_norm": True,
    "rope": True,
    "ngpt": False,
    "dropout": 0,
    "tie_word_embeddings": False,
    "quantization_config": None,
}
"""Settings that change the computation, with the one value that this model implements."""
IMPLIED = {"global_rope_theta": 10_000.0}
"""A field of a NeoBertConfig without a setting in config.json, and the one value that NeoBERT's code has."""
MULTIPLE = 8
"""The inner size of the feed-forward networks, F, is a multiple of this number."""


def _per_head(parameters: Sequence[Any]) -> Sequence[Any]:
    """Return the tensor [3 N H, D] of the kernels of queries, keys and values, [D N H] each, for N heads of size H."""
    stacked = parameters[0].__array_namespace__().stack(parameters, axis=2)  # [D N 3 H]
    return [stacked.reshape(len(stacked), -1).T]


def _of_heads(tensors: Sequence[np.ndarray], shapes: Sequence[Shape]) -> Sequence[np.ndarray]:
    size, heads, features = shapes[0]
    return list(np.moveaxis(tensors[0].T.reshape(size, heads, 3, features), 2, 0))


_OURS, _THEIRS = "modernbert/layers/layer_0", "model.transformer_encoder.{layer}"
_PROJECTED = tuple(f"{_OURS}/attention/{name}/kernel" for name in ("query", "key", "value"))
_GATED = tuple(f"{_OURS}/feed_forward/{name}/kernel" for name in ("intermediate", "gate"))
CONVERSIONS = (
    parameter("modernbert/word_embeddings/embedding", "model.encoder.weight"),
    parameter(f"{_OURS}/attention_norm/scale", f"{_THEIRS}.attention_norm.weight"),
    Conversion(_PROJECTED, (f"{_THEIRS}.qkv.weight",), Arrangement(_per_head, _of_heads)),
    parameter(f"{_OURS}/attention/output/kernel", f"{_THEIRS}.wo.weight", weight(2)),
    parameter(f"{_OURS}/feed_forward_norm/scale", f"{_THEIRS}.ffn_norm.weight"),
    Conversion(_GATED, (f"{_THEIRS}.ffn.w12.weight",), concatenate(0, weight())),
    parameter(f"{_OURS}/feed_forward/output/kernel", f"{_THEIRS}.ffn.w3.weight", weight()),
    parameter("modernbert/final_norm/scale", "model.layer_norm.weight"),
    parameter("masked_language_model/decoder/kernel", "decoder.weight", weight()),
    parameter("masked_language_model/bias", "decoder.bias"),
)


def evidence(path: Path) -> str:
    """Return the evidence that a folder is NeoBERT's; empty if it is not."""
    file = path / CONFIG
    if not file.is_file():
        return ""
    try:
        model_type = _read_settings(path).get("model_type")
    except UserError:
        return ""  # the reader of transformers' folders reports it
    return f"model_type {MODEL_TYPE} in {CONFIG}" if model_type == MODEL_TYPE else ""


def load(path: Path, architecture: str = "auto") -> tuple[nn.Module, dict[str, Any]]:
    """Return the language model of a folder and its parameters, numpy float32.

    Raises:
        UserError: a setting that is not implemented, tensors of another model, or `architecture` is another class than
            the language model's.
    """
    if architecture not in ("auto", CLASS):
        raise UserError(f"Expected --architecture {CLASS} for NeoBERT, found {quoted(architecture)}; leave it out.")
    found = _read_settings(path)
    with transformers_files.open_tensors(path) as tensors:
        tensors = tensor_names.unwrap(tensors)
        with in_file(path / CONFIG):
            config = read_config(found)
            config_json.check_sizes(config, sum(int(np.prod(shape)) for shape in tensors.shapes.values()))
        module = config.module(Purpose.PRETRAINING, Execution())
        params, _ = read_parameters(module, encoder.untyped_example(config), CONVERSIONS, tensors=tensors)
    return module, params


def save(module: nn.Module, params: Mapping[str, Any], path: Path) -> None:
    """Write config.json and model.safetensors for NeoBERT's code. Reading them returns every bit unchanged.

    params: the parameters of `module`, a language model. Raises UserError if a parameter is missing, or if NeoBERT's
    code lacks a part of the model.
    """
    config = write_config(module.config)
    tensors = write_tensors(module, encoder.untyped_example(module.config), CONVERSIONS, params)
    transformers_files.write(path, config, tensors)


def read_config(found: Mapping[str, Any]) -> NeoBertConfig:
    """Return the NeoBertConfig of a config.json.

    Raises:
        UserError: a setting that is not implemented, or a value of another type.
    """
    activation = found.get("hidden_act", "SwiGLU")
    if isinstance(activation, str) and activation.lower() == "swiglu":
        found = dict(found) | {"hidden_act": "SwiGLU"}
    own = {ours: found[theirs] for ours, theirs in FIELDS.items() if theirs in found}
    size = found.get("intermediate_size", 3072)
    if type(size) is not int or not 0 < size < config_json.LARGEST:
        raise UserError(f"Expected a whole number as the config's intermediate_size, found {quoted(size)}; correct it.")
    own["intermediate_size"] = -(-(2 * size // 3) // MULTIPLE) * MULTIPLE
    defaults = {"vocab_size": 32_064, "max_position_embeddings": 1024, "norm_eps": 1e-6}
    return config_json.read(dict(found) | IMPLIED | own, NeoBertConfig, defaults, REQUIRED)


def write_config(config: NeoBertConfig) -> dict[str, Any]:
    """Return the content of config.json with which NeoBERT's code builds the same model.

    Raises:
        UserError: the model has a part that NeoBERT's code lacks.
    """
    config_json.check_implied(config, IMPLIED, "NeoBERT's code")
    if config.intermediate_size % MULTIPLE:
        raise UserError(
            f"Expected --model.intermediate_size that {MULTIPLE} divides, as in NeoBERT's code, found "
            f"{config.intermediate_size}; take plmjax itself for this model."
        )
    same = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "norm_eps", "pad_token_id")
    same += ("classifier_dropout",)  # an argument of its classifier, which an import reads
    written = {name: getattr(config, name) for name in same}
    written |= {theirs: getattr(config, ours) for ours, theirs in FIELDS.items()}
    written |= {
        "intermediate_size": config.intermediate_size * 3 // 2,
        "embedding_init_range": config.initializer_range,
    }
    return written | {"model_type": MODEL_TYPE, "architectures": [CLASS], "hidden_act": "SwiGLU", "dtype": "float32"}


def _read_settings(path: Path) -> dict[str, Any]:
    return json_text.read_object(path / CONFIG, "the config of a NeoBERT", "check the folder")
