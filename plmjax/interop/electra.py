"""ELECTRA in transformers: its config.json, and the names and layout of its tensors.

transformers separates the two networks: ElectraForPreTraining is the discriminator, ElectraForMaskedLM the generator.
Each has a config with its own sizes and a copy of the embeddings. Either is written from a checkpoint that holds both.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn

from plmjax.interop import config_json, encoder
from plmjax.interop.adapter import Adapter, Architecture
from plmjax.interop.conversion import parameter
from plmjax.models.electra import (
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForMultipleChoice,
    ElectraForPreTraining,
    ElectraForReplacedTokenDetection,
    ElectraForSequenceClassification,
    ElectraModel,
)

_NETWORK = (*encoder.dense("embeddings_project", "embeddings_project"), *encoder.LAYERS)
BODY = (*encoder.EMBEDDINGS, *_NETWORK)
ENCODER = encoder.under("electra", BODY)
DISCRIMINATOR = (
    *ENCODER,
    *encoder.dense("replaced_token_detection/transform", "discriminator_predictions.dense"),
    *encoder.dense("replaced_token_detection/output", "discriminator_predictions.dense_prediction"),
)
GENERATOR = (
    *encoder.under("electra", encoder.EMBEDDINGS),
    *encoder.under("generator", _NETWORK, "electra"),
    *encoder.dense("masked_language_model/transform", "generator_predictions.dense"),
    *encoder.layer_norm("masked_language_model/layer_norm", "generator_predictions.LayerNorm"),
    parameter("masked_language_model/bias", "generator_lm_head.bias"),
)
SEQUENCES = (
    *ENCODER,
    *encoder.dense("classifier/dense", "classifier.dense"),
    *encoder.dense("classifier/output", "classifier.out_proj"),
)
CHOICES = (
    *ENCODER,
    *encoder.dense("classifier/summary", "sequence_summary.summary"),
    *encoder.dense("classifier/output", "classifier"),
)
SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}
"""transformers' settings of the first layer of a multiple choice head, with the one value that is implemented."""


def read_config(found: Mapping[str, Any]) -> ElectraConfig:
    """Return the ElectraConfig of a config.json. The config of a generator describes the generator only."""
    choices = found.get("architectures") == ["ElectraForMultipleChoice"]
    required = encoder.REQUIRED | (SUMMARY if choices else {})
    config = encoder.read_config(found, ElectraConfig, {"hidden_act": "gelu"}, required)
    if found.get("architectures") != ["ElectraForMaskedLM"]:
        return config
    sizes = ("hidden_size", "num_attention_heads", "intermediate_size")
    return dataclasses.replace(config, **{f"generator_{name}": getattr(config, name) for name in sizes})


def write_config(model: nn.Module, labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings with which transformers' ElectraConfig builds the same model."""
    alone = model.clone(config=model.config.generator) if isinstance(model, ElectraForMaskedLM) else model
    return config_json.write(alone, labels, "electra")


NAMES = encoder.names(
    "electra",
    heads=(
        "discriminator_predictions",
        "generator_predictions",
        "generator_lm_head",
        "classifier",
        "sequence_summary",
        "qa_outputs",
    ),
    ties={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
)


ADAPTER = Adapter(
    config=ElectraConfig,
    architectures={
        "ElectraModel": Architecture(ElectraModel, BODY, encoder.HIDDEN, within="electra"),
        "ElectraForPreTraining": Architecture(ElectraForReplacedTokenDetection, DISCRIMINATOR, encoder.LOGITS),
        "ElectraForMaskedLM": Architecture(ElectraForMaskedLM, GENERATOR, encoder.LOGITS, tied=True),
        "ElectraForSequenceClassification": Architecture(
            ElectraForSequenceClassification, SEQUENCES, encoder.LOGITS, options=encoder.labels_option
        ),
        "ElectraForMultipleChoice": encoder.multiple_choice(ElectraForMultipleChoice, CHOICES),
        **encoder.token_heads("Electra", ENCODER),
    },
    exported_as={ElectraForPreTraining: "ElectraForPreTraining"},
    read_config=read_config,
    write_config=write_config,
    names=NAMES,
    example=encoder.example,
)
