"""BERT in transformers: its config.json, and the names and layout of its tensors, including older names."""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn

from plmjax.interop import config_json, encoder
from plmjax.interop.adapter import Adapter, Architecture
from plmjax.interop.conversion import parameter
from plmjax.models.bert import (
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
)

BODY = (*encoder.EMBEDDINGS, *encoder.LAYERS, *encoder.dense("pooler", "pooler.dense"))
ENCODER = encoder.under("bert", BODY)
HEADED = (
    *ENCODER,
    *encoder.dense("masked_language_model/transform", "cls.predictions.transform.dense"),
    *encoder.layer_norm("masked_language_model/layer_norm", "cls.predictions.transform.LayerNorm"),
    parameter("masked_language_model/bias", "cls.predictions.bias"),
    *encoder.dense("next_sentence", "cls.seq_relationship"),
    *encoder.CLASSIFIER,
)


def read_config(found: Mapping[str, Any]) -> BertConfig:
    """Return the BertConfig of a config.json. transformers' default is the exact GELU, ours is its tanh form."""
    return encoder.read_config(found, BertConfig, {"hidden_act": "gelu"})


def write_config(model: nn.Module, labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings with which transformers' BertConfig builds the same model."""
    return config_json.write(model, labels, "bert")


DISTILLATION = ("fit_dense", "fit_denses")
"""Projections in the released files of TinyBERT. They map its hidden states to the width of its teacher for the loss of
its distillation, and no output of the model reads them. They are left out, and a line of the log names them.
"""

NAMES = encoder.names(
    "bert",
    heads=("cls", "classifier", "qa_outputs", "bert.pooler", *DISTILLATION),
    ties={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
)


_PRETRAINING = {"logits": "prediction_logits", "seq_relationship_logits": "seq_relationship_logits"}
_NEXT_SENTENCE = {"seq_relationship_logits": "logits"}

ADAPTER = Adapter(
    config=BertConfig,
    architectures={
        "BertModel": encoder.body(BertModel, BODY, "bert", "pooler.dense.weight"),
        "BertForPreTraining": Architecture(BertForPreTraining, HEADED, _PRETRAINING, tied=True),
        "BertForMaskedLM": Architecture(BertForMaskedLM, HEADED, encoder.LOGITS, tied=True),
        "BertForNextSentencePrediction": Architecture(BertForNextSentencePrediction, HEADED, _NEXT_SENTENCE),
        "BertForSequenceClassification": Architecture(
            BertForSequenceClassification, HEADED, encoder.LOGITS, options=encoder.labels_option
        ),
        "BertForMultipleChoice": encoder.multiple_choice(BertForMultipleChoice, HEADED),
        **encoder.token_heads("Bert", ENCODER),
    },
    read_config=read_config,
    write_config=write_config,
    names=NAMES,
    example=encoder.example,
)
