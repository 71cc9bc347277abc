"""The shared parts of the adapters of BERT and similar encoders: names of tensors, configs, heads."""

from collections.abc import Mapping
from typing import Any, TypeVar

import flax.linen as nn
import numpy as np

from plmjax.interop import config_json, labels, tensor_names
from plmjax.interop.adapter import Architecture, example_rows
from plmjax.interop.conversion import FLAT, Conversion, parameter, weight
from plmjax.models.families.encoder import EncoderConfig
from plmjax.models.families.task_heads import QuestionAnswering, TokenClassification

Config = TypeVar("Config", bound=EncoderConfig)

REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "is_encoder_decoder": False,
    "pruned_heads": {},
    "quantization_config": None,
}
"""transformers settings that change the computation, with the one value that these models implement."""

LOGITS = {"logits": "logits"}
HIDDEN = {"last_hidden_state": "last_hidden_state"}
SPAN = {"start_logits": "start_logits", "end_logits": "end_logits"}
POOLED = {**HIDDEN, "pooler_output": "pooler_output"}
"""Our name of an output -> its name in transformers."""


def dense(path: str, tensor: str, inputs: int = 1) -> tuple[Conversion, ...]:
    """Return the conversions of a projection: its kernel and its bias.

    inputs: number of first axes of the kernel that the product sums over.
    """
    return (
        parameter(f"{path}/kernel", f"{tensor}.weight", weight(inputs)),
        parameter(f"{path}/bias", f"{tensor}.bias", FLAT),
    )


def layer_norm(path: str, tensor: str) -> tuple[Conversion, ...]:
    """Return the conversions of a layer normalization: its scale and bias."""
    return (parameter(f"{path}/scale", f"{tensor}.weight"), parameter(f"{path}/bias", f"{tensor}.bias"))


def table(name: str) -> Conversion:
    """Return the conversion of one of the embedding tables."""
    return parameter(f"embeddings/{name}/embedding", f"embeddings.{name}.weight")


def under(prefix: str, conversions: tuple[Conversion, ...], theirs: str = "") -> tuple[Conversion, ...]:
    """Move conversions into a module with a head: below `prefix` in the module, below `theirs` in transformers."""
    return tuple(one.under(prefix, theirs or prefix) for one in conversions)


EMBEDDINGS = (
    *(table(name) for name in ("word_embeddings", "position_embeddings", "token_type_embeddings")),
    *layer_norm("embeddings/layer_norm", "embeddings.LayerNorm"),
)
_OURS, _THEIRS = "encoder/layers", "encoder.layer.{layer}"
LAYERS = (
    *dense(f"{_OURS}/attention/query", f"{_THEIRS}.attention.self.query"),
    *dense(f"{_OURS}/attention/key", f"{_THEIRS}.attention.self.key"),
    *dense(f"{_OURS}/attention/value", f"{_THEIRS}.attention.self.value"),
    *dense(f"{_OURS}/attention/output", f"{_THEIRS}.attention.output.dense", inputs=2),
    *layer_norm(f"{_OURS}/attention_layer_norm", f"{_THEIRS}.attention.output.LayerNorm"),
    *dense(f"{_OURS}/feed_forward/intermediate", f"{_THEIRS}.intermediate.dense"),
    *dense(f"{_OURS}/feed_forward/output", f"{_THEIRS}.output.dense"),
    *layer_norm(f"{_OURS}/feed_forward_layer_norm", f"{_THEIRS}.output.LayerNorm"),
)
"""Conversions of the layers of BERT, RoBERTa and ELECTRA, which do not share parameters."""
CLASSIFIER = dense("classifier", "classifier")


def read_config(
    found: Mapping[str, Any], kind: type[Config], defaults: Mapping[str, Any], required: Mapping[str, Any] = REQUIRED
) -> Config:
    """Return the config of a config.json, as `config_json.read` does."""
    return config_json.read(found, kind, defaults, required)


def token_heads(
    system: str, conversions: tuple[Conversion, ...], answers: type[nn.Module] = QuestionAnswering
) -> dict[str, Architecture]:
    """Return transformers' classes of a system (Bert, Roberta, ...) for tagging and for question answering.

    conversions: the conversions of the encoder inside a module with a head.
    answers: the module for question answering.
    """
    tags, spans = (*conversions, *CLASSIFIER), (*conversions, *dense("classifier", "qa_outputs"))
    return {
        f"{system}ForTokenClassification": Architecture(TokenClassification, tags, LOGITS, options=labels_option),
        f"{system}ForQuestionAnswering": Architecture(answers, spans, SPAN),
    }


def multiple_choice(module: type[nn.Module], conversions: tuple[Conversion, ...]) -> Architecture:
    """Return transformers' class for multiple choice. Its inputs are [B C T], here for one question."""
    return Architecture(module, conversions, LOGITS, batch=lambda rows: {name: x[None] for name, x in rows.items()})


def body(module: type[nn.Module], conversions: tuple[Conversion, ...], system: str, pooler: str) -> Architecture:
    """Return transformers' class without a head. It has a pooler if the checkpoint has the tensor `pooler`."""
    return Architecture(
        module,
        conversions,
        POOLED,
        parts=lambda shapes: {"pooling": pooler in shapes},
        arguments=lambda module: {"add_pooling_layer": module.pooling},
        within=system,
    )


def names(system: str, heads: tuple[str, ...], ties: Mapping[str, str]) -> tensor_names.Names:
    """Return the names of a system's tensors. Older names end in `LayerNorm.gamma` and `LayerNorm.beta`."""
    return tensor_names.Names(
        prefix=system,
        parts=("embeddings", "embeddings_project", "encoder", "pooler"),
        heads=heads,
        ties=ties,
        buffers=rf"{system}\.embeddings\.(position_ids|token_type_ids)",
        endings={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    )


def untyped_example(config: EncoderConfig) -> dict[str, np.ndarray]:
    """Return an example as in `example_rows`, with at most 32 tokens per row and without token_type_ids."""
    return example_rows(
        np.random.default_rng(0), min(32, config.longest), config.vocab_size, padding=config.pad_token_id
    )


def example(config: EncoderConfig) -> dict[str, np.ndarray]:
    """Return an example as in `untyped_example`, with token_type_ids."""
    rows = untyped_example(config)
    types = np.random.default_rng(1).integers(0, config.type_vocab_size, rows["input_ids"].shape, np.int32)
    return rows | {"token_type_ids": types}


def labels_option(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the classification head."""
    return {"num_labels": labels.count(found)}
