"""BERT as transformers has it: its config.json, and the names and arrangement of its tensors, older ones included."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import numpy as np

from plmjax.data.layouts import SentencePairs
from plmjax.errors import UserError
from plmjax.experiment import Data
from plmjax.interop.adapter import FLAT, SAME, Adapter, Architecture, Parameter, Tensors, weight
from plmjax.models.bert import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
)
from plmjax.objectives.bert import BertPretraining
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.objective import Objective

REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "is_encoder_decoder": False,
    "pruned_heads": {},
    "quantization_config": None,
}
"""Settings of transformers that change what is computed, with the one value that this model implements."""


def _dense(path: str, tensor: str, inputs: int = 1) -> tuple[Parameter, ...]:
    return (
        Parameter(f"{path}/kernel", f"{tensor}.weight", weight(inputs)),
        Parameter(f"{path}/bias", f"{tensor}.bias", FLAT),
    )


def _layer_norm(path: str, tensor: str) -> tuple[Parameter, ...]:
    return (Parameter(f"{path}/scale", f"{tensor}.weight"), Parameter(f"{path}/bias", f"{tensor}.bias", SAME))


def _table(name: str) -> Parameter:
    return Parameter(f"embeddings/{name}/embedding", f"embeddings.{name}.weight")


_OURS, _THEIRS = "encoder/layers", "encoder.layer.{layer}"
BODY = (
    *(_table(name) for name in ("word_embeddings", "position_embeddings", "token_type_embeddings")),
    *_layer_norm("embeddings/layer_norm", "embeddings.LayerNorm"),
    *_dense(f"{_OURS}/attention/query", f"{_THEIRS}.attention.self.query"),
    *_dense(f"{_OURS}/attention/key", f"{_THEIRS}.attention.self.key"),
    *_dense(f"{_OURS}/attention/value", f"{_THEIRS}.attention.self.value"),
    *_dense(f"{_OURS}/attention/output", f"{_THEIRS}.attention.output.dense", inputs=2),
    *_layer_norm(f"{_OURS}/attention_layer_norm", f"{_THEIRS}.attention.output.LayerNorm"),
    *_dense(f"{_OURS}/feed_forward/intermediate", f"{_THEIRS}.intermediate.dense"),
    *_dense(f"{_OURS}/feed_forward/output", f"{_THEIRS}.output.dense"),
    *_layer_norm(f"{_OURS}/feed_forward_layer_norm", f"{_THEIRS}.output.LayerNorm"),
    *_dense("pooler", "pooler.dense"),
)
HEADED = (
    *(dataclasses.replace(one, path=f"bert/{one.path}", tensor=f"bert.{one.tensor}") for one in BODY),
    *_dense("masked_language_model/transform", "cls.predictions.transform.dense"),
    *_layer_norm("masked_language_model/layer_norm", "cls.predictions.transform.LayerNorm"),
    Parameter("masked_language_model/bias", "cls.predictions.bias"),
    *_dense("next_sentence", "cls.seq_relationship"),
    *_dense("classifier", "classifier"),
)


def read_config(found: Mapping[str, Any]) -> BertConfig:
    """The BertConfig of a config.json; what is not set there has transformers' default.

    Raises UserError for a setting that this model does not implement and for a value of another type.
    """
    for name, value in REQUIRED.items():
        if name in found and (found[name] or None) != (value or None):
            raise UserError(
                f"The config sets {name} to {found[name]!r}, but this BERT knows {value!r} only; take another."
            )
    given: dict[str, Any] = {"hidden_act": "gelu"}  # transformers' default is the exact form, ours Google's
    for field in dataclasses.fields(BertConfig):
        value = found.get(field.name)
        if value is None:
            continue
        expected = {int: (int,), float: (int, float), str: (str,)}[field.type]
        if isinstance(value, bool) or not isinstance(value, expected):
            raise UserError(f"The config must set {field.name} to {field.type.__name__}, found {value!r}; correct it.")
        given[field.name] = field.type(value)
    return BertConfig(**given)


def write_config(model: nn.Module, labels: Sequence[str]) -> dict[str, Any]:
    """What transformers' BertConfig needs to build the same model."""
    config = dataclasses.asdict(model.config) | {"model_type": "bert", "tie_word_embeddings": True}
    if isinstance(model, BertForSequenceClassification):
        labels = labels or [f"LABEL_{label}" for label in range(model.num_labels)]
        config["id2label"] = {str(label): name for label, name in enumerate(labels)}
        config["label2id"] = {name: label for label, name in enumerate(labels)}
    return config


def task(model: nn.Module, labels: Sequence[str]) -> tuple[Objective, Any]:
    """The objective that trains a module, and data without a path."""
    if not isinstance(model, BertForSequenceClassification):
        objective = MaskedLanguageModel() if isinstance(model, BertForMaskedLM) else BertPretraining()
        return objective, Data(SentencePairs(), sequence_length=min(128, model.config.max_position_embeddings))
    from plmjax.finetuning.objectives import Regression, SequenceClassification
    from plmjax.finetuning.tasks import Task

    labels = tuple(labels) or tuple(f"LABEL_{label}" for label in range(model.num_labels))
    return Regression() if model.num_labels == 1 else SequenceClassification(labels=labels), Task()


def canonical(tensors: Tensors, architecture: str) -> Tensors:
    """The tensors under today's names, whichever version and class of transformers wrote them.

    `LayerNorm.gamma` and `.beta` become weight and bias, `bert.` is added or taken away, the buffers of positions and
    types are left out, as are the decoder's weight and bias once they are seen to equal what they are tied to.
    """
    names: dict[str, str] = {}
    for old in tensors.shapes:
        new = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", old))
        new = re.sub(r"^(embeddings|encoder|pooler)\.", r"bert.\1.", new)
        if re.fullmatch(r"bert\.embeddings\.(position_ids|token_type_ids)", new):
            continue
        if new in names:
            raise UserError(f"{tensors.origin} holds {names[new]} and {old}, which are the same tensor; remove one.")
        names[new] = old
    for copy, tied in (
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ):
        if copy in names and tied in names:
            if not np.array_equal(tensors.read(names[copy]), tensors.read(names[tied])):
                raise UserError(
                    f"{tensors.origin} must hold {copy} tied to {tied}, but the two differ, which this BERT cannot "
                    "express; tie them and save the model again."
                )
            del names[copy]
    if "cls.predictions.decoder.bias" in names:
        names["cls.predictions.bias"] = names.pop("cls.predictions.decoder.bias")
    if architecture == "BertModel":
        names = {new.removeprefix("bert."): old for new, old in names.items()}
    return tensors.renamed(names)


def optional(name: str) -> bool:
    """Whether a tensor belongs to a head of one of transformers' BERT classes, the pooler included."""
    return re.match(r"(cls|classifier|qa_outputs|bert\.pooler)\.", name) is not None


def example(config: BertConfig) -> dict[str, np.ndarray]:
    """int64 [2 T] input_ids, attention_mask (the second row is padded) and token_type_ids; T is at most 32."""
    generator = np.random.default_rng(0)
    length = min(32, config.max_position_embeddings)
    mask = np.arange(length) < np.array([[length], [length // 2 + 1]])
    return {
        "input_ids": generator.integers(0, config.vocab_size, (2, length)),
        "attention_mask": mask.astype(np.int64),
        "token_type_ids": generator.integers(0, config.type_vocab_size, (2, length)),
    }


def _labels(found: Mapping[str, Any]) -> dict[str, Any]:
    """The classification head's own settings."""
    dropout = found.get("classifier_dropout")
    if dropout is not None and dropout != found.get("hidden_dropout_prob", 0.1):
        raise UserError(
            f"The config sets classifier_dropout to {dropout}, but this BERT drops the pooled output at "
            "hidden_dropout_prob; set classifier_dropout to null."
        )
    return {"num_labels": len(found["id2label"]) if found.get("id2label") else found.get("num_labels", 2)}


_LOGITS = {"logits": "logits"}
_PRETRAINING = {"logits": "prediction_logits", "seq_relationship_logits": "seq_relationship_logits"}
_HIDDEN = {"last_hidden_state": "last_hidden_state", "pooler_output": "pooler_output"}

ADAPTER = Adapter(
    architectures={
        "BertModel": Architecture(BertModel, BODY, _HIDDEN, within="bert"),
        "BertForPreTraining": Architecture(BertForPreTraining, HEADED, _PRETRAINING),
        "BertForMaskedLM": Architecture(BertForMaskedLM, HEADED, _LOGITS),
        "BertForSequenceClassification": Architecture(BertForSequenceClassification, HEADED, _LOGITS, options=_labels),
    },
    read_config=read_config,
    write_config=write_config,
    task=task,
    canonical=canonical,
    optional=optional,
    example=example,
)
