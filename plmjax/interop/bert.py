"""BERT as transformers has it: its config.json, and the names and arrangement of its tensors, older ones included."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn

from plmjax.data.layouts import SentencePairs
from plmjax.errors import UserError
from plmjax.experiment import Data
from plmjax.interop import encoder
from plmjax.interop.adapter import Adapter, Architecture, Parameter, Tensors
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

BODY = (*encoder.EMBEDDINGS, *encoder.LAYERS, *encoder.dense("pooler", "pooler.dense"))
HEADED = (
    *encoder.under("bert", BODY),
    *encoder.dense("masked_language_model/transform", "cls.predictions.transform.dense"),
    *encoder.layer_norm("masked_language_model/layer_norm", "cls.predictions.transform.LayerNorm"),
    Parameter("masked_language_model/bias", "cls.predictions.bias"),
    *encoder.dense("next_sentence", "cls.seq_relationship"),
    *encoder.CLASSIFIER,
)


def read_config(found: Mapping[str, Any]) -> BertConfig:
    """The BertConfig of a config.json; transformers' default activation is the exact GELU, ours Google's."""
    return encoder.read_config(found, BertConfig, {"hidden_act": "gelu"})


def write_config(model: nn.Module, labels: Sequence[str]) -> dict[str, Any]:
    """What transformers' BertConfig needs to build the same model."""
    return encoder.write_config(model, labels, "bert")


def task(model: nn.Module, labels: Sequence[str]) -> tuple[Objective, Any]:
    """The objective that trains a module, and data without a path."""
    if not isinstance(model, BertModel | BertForPreTraining | BertForMaskedLM):
        return encoder.downstream_task(model, labels)
    objective = MaskedLanguageModel() if isinstance(model, BertForMaskedLM) else BertPretraining()
    return objective, Data(SentencePairs(), sequence_length=min(128, model.config.longest))


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
    ties = {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    names = encoder.without_copies(tensors, names, ties)
    if architecture == "BertModel":
        names = {new.removeprefix("bert."): old for new, old in names.items()}
    return tensors.renamed(names)


def optional(name: str) -> bool:
    """Whether a tensor belongs to a head of one of transformers' BERT classes, the pooler included."""
    return re.match(r"(cls|classifier|qa_outputs|bert\.pooler)\.", name) is not None


_PRETRAINING = {"logits": "prediction_logits", "seq_relationship_logits": "seq_relationship_logits"}

ADAPTER = Adapter(
    config=BertConfig,
    architectures={
        "BertModel": Architecture(BertModel, BODY, encoder.POOLED, within="bert"),
        "BertForPreTraining": Architecture(BertForPreTraining, HEADED, _PRETRAINING),
        "BertForMaskedLM": Architecture(BertForMaskedLM, HEADED, encoder.LOGITS),
        "BertForSequenceClassification": Architecture(
            BertForSequenceClassification, HEADED, encoder.LOGITS, options=encoder.labels_option
        ),
    },
    read_config=read_config,
    write_config=write_config,
    task=task,
    canonical=canonical,
    optional=optional,
    example=encoder.example,
)
