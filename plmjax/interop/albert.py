"""ALBERT in transformers: its config.json, and the names and layout of its tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn

from plmjax.interop import config_json, encoder
from plmjax.interop.adapter import Adapter, Architecture
from plmjax.interop.conversion import parameter
from plmjax.models.albert import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForSequenceClassification,
    AlbertModel,
)

_OURS = "encoder/group_{group}/layer_{inner}"
_THEIRS = "encoder.albert_layer_groups.{group}.albert_layers.{inner}"
BODY = (
    *encoder.EMBEDDINGS,
    *encoder.dense("encoder/embedding_hidden_mapping_in", "encoder.embedding_hidden_mapping_in"),
    *encoder.dense(f"{_OURS}/attention/query", f"{_THEIRS}.attention.query"),
    *encoder.dense(f"{_OURS}/attention/key", f"{_THEIRS}.attention.key"),
    *encoder.dense(f"{_OURS}/attention/value", f"{_THEIRS}.attention.value"),
    *encoder.dense(f"{_OURS}/attention/output", f"{_THEIRS}.attention.dense", inputs=2),
    *encoder.layer_norm(f"{_OURS}/attention_layer_norm", f"{_THEIRS}.attention.LayerNorm"),
    *encoder.dense(f"{_OURS}/feed_forward/intermediate", f"{_THEIRS}.ffn"),
    *encoder.dense(f"{_OURS}/feed_forward/output", f"{_THEIRS}.ffn_output"),
    *encoder.layer_norm(f"{_OURS}/feed_forward_layer_norm", f"{_THEIRS}.full_layer_layer_norm"),
    *encoder.dense("pooler", "pooler"),
)
ENCODER = encoder.under("albert", BODY)
HEADED = (
    *ENCODER,
    *encoder.dense("masked_language_model/transform", "predictions.dense"),
    *encoder.layer_norm("masked_language_model/layer_norm", "predictions.LayerNorm"),
    parameter("masked_language_model/bias", "predictions.bias"),
    *encoder.dense("sentence_order", "sop_classifier.classifier"),
    *encoder.CLASSIFIER,
)


def read_config(found: Mapping[str, Any]) -> AlbertConfig:
    """Return the AlbertConfig of a config.json. transformers' defaults are the values of xxlarge."""
    names = ("hidden_size", "num_attention_heads", "intermediate_size")
    names += ("hidden_dropout_prob", "attention_probs_dropout_prob")
    defaults = {name: getattr(AlbertConfig.xxlarge(), name) for name in names}
    return encoder.read_config(found, AlbertConfig, defaults)


def write_config(model: nn.Module, labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings with which transformers' AlbertConfig builds the same model."""
    return config_json.write(model, labels, "albert")


NAMES = encoder.names(
    "albert",
    heads=("predictions", "sop_classifier", "classifier", "qa_outputs", "albert.pooler"),
    ties={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
)


_PRETRAINING = {"logits": "prediction_logits", "sop_logits": "sop_logits"}

ADAPTER = Adapter(
    config=AlbertConfig,
    architectures={
        "AlbertModel": encoder.body(AlbertModel, BODY, "albert", "pooler.weight"),
        "AlbertForPreTraining": Architecture(AlbertForPreTraining, HEADED, _PRETRAINING, tied=True),
        "AlbertForMaskedLM": Architecture(AlbertForMaskedLM, HEADED, encoder.LOGITS, tied=True),
        "AlbertForSequenceClassification": Architecture(
            AlbertForSequenceClassification, HEADED, encoder.LOGITS, options=encoder.labels_option
        ),
        "AlbertForMultipleChoice": encoder.multiple_choice(AlbertForMultipleChoice, HEADED),
        **encoder.token_heads("Albert", ENCODER),
    },
    read_config=read_config,
    write_config=write_config,
    names=NAMES,
    example=encoder.example,
)
