"""RoBERTa in transformers: its config.json, and the names and layout of its tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn

from plmjax.interop import config_json, encoder
from plmjax.interop.adapter import Adapter, Architecture
from plmjax.interop.conversion import parameter
from plmjax.models.roberta import (
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForMultipleChoice,
    RobertaForSequenceClassification,
    RobertaModel,
)

BODY = (*encoder.EMBEDDINGS, *encoder.LAYERS, *encoder.dense("pooler", "pooler.dense"))
ENCODER = encoder.under("roberta", BODY)
HEADED = (
    *ENCODER,
    *encoder.dense("masked_language_model/transform", "lm_head.dense"),
    *encoder.layer_norm("masked_language_model/layer_norm", "lm_head.layer_norm"),
    parameter("masked_language_model/bias", "lm_head.bias"),
    *encoder.dense("classifier/dense", "classifier.dense"),
    *encoder.dense("classifier/output", "classifier.out_proj"),
)
CHOICES = (*ENCODER, *encoder.CLASSIFIER)


def read_config(found: Mapping[str, Any]) -> RobertaConfig:
    """Return the RobertaConfig of a config.json. transformers' defaults are BERT's; no published RoBERTa has them."""
    defaults = {"max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12}
    return encoder.read_config(found, RobertaConfig, defaults)


def write_config(model: nn.Module, labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings with which transformers' RobertaConfig builds the same model."""
    return config_json.write(model, labels, "roberta")


NAMES = encoder.names(
    "roberta",
    heads=("lm_head", "classifier", "qa_outputs", "roberta.pooler"),
    ties={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
)


ADAPTER = Adapter(
    config=RobertaConfig,
    architectures={
        "RobertaModel": encoder.body(RobertaModel, BODY, "roberta", "pooler.dense.weight"),
        "RobertaForMaskedLM": Architecture(RobertaForMaskedLM, HEADED, encoder.LOGITS, tied=True),
        "RobertaForSequenceClassification": Architecture(
            RobertaForSequenceClassification, HEADED, encoder.LOGITS, options=encoder.labels_option
        ),
        "RobertaForMultipleChoice": encoder.multiple_choice(RobertaForMultipleChoice, CHOICES),
        **encoder.token_heads("Roberta", ENCODER),
    },
    read_config=read_config,
    write_config=write_config,
    names=NAMES,
    example=encoder.example,
)
