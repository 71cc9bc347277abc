"""DistilBERT in transformers: its config.json, and the names and layout of its tensors.

`sinusoidal_pos_embds` of config.json, the initialization of positions, is ignored: a checkpoint has position
embeddings.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn

from plmjax.interop import config_json, encoder, tensor_names
from plmjax.interop.adapter import Adapter, Architecture
from plmjax.interop.conversion import parameter
from plmjax.models.distilbert import (
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForMultipleChoice,
    DistilBertForQuestionAnswering,
    DistilBertForSequenceClassification,
    DistilBertModel,
)

FIELDS = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}
"""Field of a DistilBertConfig -> its name in transformers, if the names differ."""

_OURS, _THEIRS = "encoder/layers", "transformer.layer.{layer}"
BODY = (
    *(encoder.table(name) for name in ("word_embeddings", "position_embeddings")),
    *encoder.layer_norm("embeddings/layer_norm", "embeddings.LayerNorm"),
    *encoder.dense(f"{_OURS}/attention/query", f"{_THEIRS}.attention.q_lin"),
    *encoder.dense(f"{_OURS}/attention/key", f"{_THEIRS}.attention.k_lin"),
    *encoder.dense(f"{_OURS}/attention/value", f"{_THEIRS}.attention.v_lin"),
    *encoder.dense(f"{_OURS}/attention/output", f"{_THEIRS}.attention.out_lin", inputs=2),
    *encoder.layer_norm(f"{_OURS}/attention_layer_norm", f"{_THEIRS}.sa_layer_norm"),
    *encoder.dense(f"{_OURS}/feed_forward/intermediate", f"{_THEIRS}.ffn.lin1"),
    *encoder.dense(f"{_OURS}/feed_forward/output", f"{_THEIRS}.ffn.lin2"),
    *encoder.layer_norm(f"{_OURS}/feed_forward_layer_norm", f"{_THEIRS}.output_layer_norm"),
)
ENCODER = encoder.under("distilbert", BODY)
HEADED = (
    *ENCODER,
    *encoder.dense("masked_language_model/transform", "vocab_transform"),
    *encoder.layer_norm("masked_language_model/layer_norm", "vocab_layer_norm"),
    parameter("masked_language_model/bias", "vocab_projector.bias"),
    *encoder.dense("classifier/dense", "pre_classifier"),
    *encoder.dense("classifier/output", "classifier"),
)


def read_config(found: Mapping[str, Any]) -> DistilBertConfig:
    """Return the DistilBertConfig of a config.json."""
    ours = {name: found[theirs] for name, theirs in FIELDS.items() if theirs in found}
    return encoder.read_config({**found, **ours}, DistilBertConfig, {})


def write_config(model: nn.Module, labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings with which transformers' DistilBertConfig builds the same model."""
    settings = config_json.write(model, labels, "distilbert")
    return {FIELDS.get(name, name): value for name, value in settings.items()}


NAMES = tensor_names.Names(
    prefix="distilbert",
    parts=("embeddings", "transformer"),
    heads=("vocab_transform", "vocab_layer_norm", "vocab_projector", "pre_classifier", "classifier", "qa_outputs"),
    ties={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    buffers=r"distilbert\.embeddings\.position_ids",
)


ADAPTER = Adapter(
    config=DistilBertConfig,
    architectures={
        "DistilBertModel": Architecture(DistilBertModel, BODY, encoder.HIDDEN, within="distilbert"),
        "DistilBertForMaskedLM": Architecture(DistilBertForMaskedLM, HEADED, encoder.LOGITS, tied=True),
        "DistilBertForSequenceClassification": Architecture(
            DistilBertForSequenceClassification, HEADED, encoder.LOGITS, options=encoder.labels_option
        ),
        "DistilBertForMultipleChoice": encoder.multiple_choice(DistilBertForMultipleChoice, HEADED),
        **encoder.token_heads("DistilBert", ENCODER, DistilBertForQuestionAnswering),
    },
    read_config=read_config,
    write_config=write_config,
    names=NAMES,
    example=encoder.untyped_example,
)
