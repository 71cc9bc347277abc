"""MobileBERT in transformers: its config.json, and the names and layout of its tensors.

transformers cannot build the teacher, IB-BERT. Attention there reads the input of a layer, which has another size than
the parameters that transformers creates, and two of the layer normalizations have another epsilon.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import numpy as np

from plmjax.errors import UserError
from plmjax.interop import config_json, encoder
from plmjax.interop.adapter import Adapter, Architecture
from plmjax.interop.conversion import Conversion, parameter, weight
from plmjax.models.mobilebert import (
    MobileBertConfig,
    MobileBertForMaskedLM,
    MobileBertForMultipleChoice,
    MobileBertForNextSentencePrediction,
    MobileBertForPreTraining,
    MobileBertForSequenceClassification,
    MobileBertModel,
)

REQUIRED = encoder.REQUIRED | {"trigram_input": True, "use_bottleneck": True, "normalization_type": "no_norm"}
"""transformers' settings that change the computation, with the one value of every MobileBERT."""

_OURS, _THEIRS = "encoder/layers", "encoder.layer.{layer}"


def _with_norm(path: str, tensor: str) -> tuple[Conversion, ...]:
    """Return the conversions of a projection of each layer and of the norm after it."""
    return (
        *encoder.dense(f"{_OURS}/{path}", f"{_THEIRS}.{tensor}.dense"),
        *encoder.layer_norm(f"{_OURS}/{path}_layer_norm", f"{_THEIRS}.{tensor}.LayerNorm"),
    )


def _feed_forward(path: str, place: str) -> tuple[Conversion, ...]:
    """Return the conversions of a feed-forward network of each layer and of the norm after it."""
    return (
        *encoder.dense(f"{_OURS}/{path}/intermediate", f"{place}.intermediate.dense"),
        *encoder.dense(f"{_OURS}/{path}/output", f"{place}.output.dense"),
        *encoder.layer_norm(f"{_OURS}/{path}_layer_norm", f"{place}.output.LayerNorm"),
    )


BODY = (
    *encoder.EMBEDDINGS,
    *encoder.dense("embeddings/transformation", "embeddings.embedding_transformation"),
    *_with_norm("bottleneck_input", "bottleneck.input"),
    *_with_norm("bottleneck_attention", "bottleneck.attention"),
    *(
        conversion
        for name in ("query", "key", "value")
        for conversion in encoder.dense(f"{_OURS}/attention/{name}", f"{_THEIRS}.attention.self.{name}")
    ),
    *encoder.dense(f"{_OURS}/attention/output", f"{_THEIRS}.attention.output.dense", inputs=2),
    *encoder.layer_norm(f"{_OURS}/attention_layer_norm", f"{_THEIRS}.attention.output.LayerNorm"),
    *_feed_forward("feed_forward_{number}", f"{_THEIRS}.ffn.{{number}}"),
    *_with_norm("bottleneck_output", "output.bottleneck"),
    *encoder.dense("pooler", "pooler.dense"),
)
ENCODER = encoder.under("mobilebert", BODY)
HEADED = (
    *ENCODER,
    *encoder.dense("masked_language_model/transform", "cls.predictions.transform.dense"),
    *encoder.layer_norm("masked_language_model/layer_norm", "cls.predictions.transform.LayerNorm"),
    parameter("masked_language_model/other_features/embedding", "cls.predictions.dense.weight", weight()),
    parameter("masked_language_model/bias", "cls.predictions.bias"),
    *encoder.dense("next_sentence", "cls.seq_relationship"),
    *encoder.CLASSIFIER,
)


def last_network(config: MobileBertConfig) -> tuple[Conversion, ...]:
    """Return the conversions of the last feed-forward network of each layer, which has other names in transformers."""
    return _feed_forward(f"feed_forward_{config.num_feedforward_networks - 1}", _THEIRS)


def read_config(found: Mapping[str, Any]) -> MobileBertConfig:
    """Return the MobileBertConfig of a config.json. transformers' pooler has a layer by default, released ones none.

    Raises:
        UserError: a setting that no MobileBERT has, or attention that reads no bottleneck.
    """
    config = encoder.read_config(found, MobileBertConfig, {"classifier_activation": True}, REQUIRED)
    _check_attention(config)
    return config


def write_config(model: nn.Module, labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings with which transformers' MobileBertConfig builds the same model.

    Raises:
        UserError: an IB-BERT, which transformers does not have.
    """
    if model.config.normalization_type != "no_norm":
        raise UserError(
            f"Expected a model with no_norm, as transformers has MobileBERT, found {model.config.normalization_type}, "
            "which is a teacher's; export its student."
        )
    _check_attention(model.config)
    settings = config_json.write(model, labels, "mobilebert")
    return settings | {name: REQUIRED[name] for name in ("trigram_input", "use_bottleneck")}


def _check_attention(config: MobileBertConfig) -> None:
    """Raise UserError for attention that reads the input of a layer for its queries, as in IB-BERT."""
    if not config.use_bottleneck_attention and not config.key_query_shared_bottleneck:
        raise UserError(
            "Expected attention that reads a bottleneck, as transformers computes it, found neither "
            "use_bottleneck_attention nor key_query_shared_bottleneck; take a model that has one of them."
        )


NAMES = encoder.names(
    "mobilebert",
    heads=("cls", "classifier", "qa_outputs", "mobilebert.pooler"),
    ties={
        "cls.predictions.decoder.weight": "mobilebert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
)


def example(config: MobileBertConfig) -> dict[str, np.ndarray]:
    """Return an example as in `encoder.example`, without padding, because transformers includes it in trigrams."""
    random, shape = np.random.default_rng(0), (2, min(32, config.longest))
    return {
        "input_ids": random.integers(0, config.vocab_size, shape, np.int32),
        "attention_mask": np.ones(shape, np.int32),
        "token_type_ids": random.integers(0, config.type_vocab_size, shape, np.int32),
    }


_PRETRAINING = {"logits": "prediction_logits", "seq_relationship_logits": "seq_relationship_logits"}
_NEXT_SENTENCE = {"seq_relationship_logits": "logits"}
_ARCHITECTURES = {
    "MobileBertModel": encoder.body(MobileBertModel, BODY, "mobilebert", "pooler.dense.weight"),
    "MobileBertForPreTraining": Architecture(MobileBertForPreTraining, HEADED, _PRETRAINING, tied=True),
    "MobileBertForMaskedLM": Architecture(MobileBertForMaskedLM, HEADED, encoder.LOGITS, tied=True),
    "MobileBertForNextSentencePrediction": Architecture(MobileBertForNextSentencePrediction, HEADED, _NEXT_SENTENCE),
    "MobileBertForSequenceClassification": Architecture(
        MobileBertForSequenceClassification, HEADED, encoder.LOGITS, options=encoder.labels_option
    ),
    "MobileBertForMultipleChoice": encoder.multiple_choice(MobileBertForMultipleChoice, HEADED),
    **encoder.token_heads("MobileBert", ENCODER),
}


def _with_last_network(architecture: Architecture) -> Architecture:
    """Return the architecture with the conversions of the last feed-forward network, which replace those of BODY."""
    prefix = "" if architecture.within else "mobilebert"

    def sized(config: MobileBertConfig) -> tuple[Conversion, ...]:
        conversions = last_network(config)
        return encoder.under(prefix, conversions) if prefix else conversions

    return dataclasses.replace(architecture, sized=sized)


ADAPTER = Adapter(
    config=MobileBertConfig,
    architectures={name: _with_last_network(architecture) for name, architecture in _ARCHITECTURES.items()},
    read_config=read_config,
    write_config=write_config,
    names=NAMES,
    example=example,
)
