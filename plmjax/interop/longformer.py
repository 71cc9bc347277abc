"""Longformer in transformers: its config.json, and the names and layout of its tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import numpy as np

from plmjax.errors import UserError, quoted
from plmjax.interop import config_json, encoder
from plmjax.interop.adapter import Adapter, Architecture
from plmjax.interop.conversion import parameter
from plmjax.models.families.task_heads import TokenClassification
from plmjax.models.longformer.longformer import (
    GLOBAL_SHARE,
    LongformerConfig,
    LongformerForMaskedLM,
    LongformerForMultipleChoice,
    LongformerForQuestionAnswering,
    LongformerForSequenceClassification,
    LongformerModel,
)

_OURS, _THEIRS = "encoder/layers/attention", "encoder.layer.{layer}.attention.self"
BODY = (
    *encoder.EMBEDDINGS,
    *encoder.LAYERS,
    *encoder.dense(f"{_OURS}/query_global", f"{_THEIRS}.query_global"),
    *encoder.dense(f"{_OURS}/key_global", f"{_THEIRS}.key_global"),
    *encoder.dense(f"{_OURS}/value_global", f"{_THEIRS}.value_global"),
    *encoder.dense("pooler", "pooler.dense"),
)
ENCODER = encoder.under("longformer", BODY)
HEADED = (
    *ENCODER,
    *encoder.dense("masked_language_model/transform", "lm_head.dense"),
    *encoder.layer_norm("masked_language_model/layer_norm", "lm_head.layer_norm"),
    parameter("masked_language_model/bias", "lm_head.bias"),
    *encoder.dense("classifier/dense", "classifier.dense"),
    *encoder.dense("classifier/output", "classifier.out_proj"),
)
TAGS = (*ENCODER, *encoder.CLASSIFIER)


def read_windows(window: Any) -> tuple[int, ...]:
    """Return the windows of a config's attention_window, a number or a list with one for each layer.

    Raises:
        UserError: it is neither.
    """
    windows = tuple(window) if isinstance(window, list) else (window,)
    if not all(type(one) is int and abs(one) < config_json.LARGEST for one in windows):
        raise UserError(
            f"Expected a number or a list of numbers as the config's attention_window, found {quoted(window)}; "
            f"correct it."
        )
    return windows


def write_windows(windows: tuple[int, ...]) -> int | list[int]:
    """Return the attention_window of a config: one number, or one per layer."""
    return windows[0] if len(windows) == 1 else list(windows)


def read_config(found: Mapping[str, Any]) -> LongformerConfig:
    """Return the LongformerConfig of a config.json, whose window is a number or a list with one for each layer.

    transformers' other defaults are BERT's, which no published Longformer has. transformers does not limit the number
    of global tokens, and has no dilation; released files have a dilation of 1 for every layer.

    Raises:
        UserError: a window that is no number, or a dilation other than 1.
    """
    windows = read_windows(found.get("attention_window", 512))
    dilation = found.get("attention_dilation", 1)
    if any(one != 1 for one in (dilation if isinstance(dilation, list) else [dilation])):
        raise UserError(
            f"Expected an attention_dilation of 1 in the config, as every published Longformer for tasks has it, found "
            f"{quoted(dilation)}; take another checkpoint."
        )
    defaults = {
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "attention_window": windows,
    }
    given = found.get("max_position_embeddings", 512), found.get("pad_token_id", 1)
    if "max_global_tokens" not in found and all(type(one) is int for one in given):
        longest = given[0] - given[1] - 1
        defaults["max_global_tokens"] = max(1, min(LongformerConfig.max_global_tokens, longest // GLOBAL_SHARE))
    others = {name: found[name] for name in found if name not in ("attention_window", "attention_dilation")}
    return encoder.read_config(others, LongformerConfig, defaults)


def write_config(model: nn.Module, labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings with which transformers' LongformerConfig builds the same model.

    Raises:
        UserError: the windows are dilated.
    """
    if model.config.dilated:
        raise UserError(
            f"Expected windows without dilation, as transformers' Longformer has them, found dilations of "
            f"{' '.join(map(str, model.config.attention_dilation))}; export a model without dilation."
        )
    settings = config_json.write(model, labels, "longformer")
    del settings["attention_dilation"]
    return settings | {"attention_window": write_windows(model.config.attention_window)}


NAMES = encoder.names(
    "longformer",
    heads=("lm_head", "classifier", "qa_outputs", "longformer.pooler"),
    ties={
        "lm_head.decoder.weight": "longformer.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
)


def with_a_global_token(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the same rows with a global first token; without a mask, transformers would look for separators."""
    first = np.zeros_like(rows["input_ids"])
    first[:, 0] = 1
    return {"global_attention_mask": first} | rows


def choices(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return one question [1 C T] of rows with a global token."""
    return {name: field[None] for name, field in with_a_global_token(rows).items()}


ADAPTER = Adapter(
    config=LongformerConfig,
    architectures={
        "LongformerModel": encoder.body(LongformerModel, BODY, "longformer", "pooler.dense.weight"),
        "LongformerForMaskedLM": Architecture(LongformerForMaskedLM, HEADED, encoder.LOGITS, tied=True),
        "LongformerForSequenceClassification": Architecture(
            LongformerForSequenceClassification, HEADED, encoder.LOGITS, options=encoder.labels_option
        ),
        "LongformerForTokenClassification": Architecture(
            TokenClassification, TAGS, encoder.LOGITS, options=encoder.labels_option
        ),
        "LongformerForQuestionAnswering": Architecture(
            LongformerForQuestionAnswering,
            (*ENCODER, *encoder.dense("classifier", "qa_outputs")),
            encoder.SPAN,
            batch=with_a_global_token,
        ),
        "LongformerForMultipleChoice": Architecture(LongformerForMultipleChoice, TAGS, encoder.LOGITS, batch=choices),
    },
    read_config=read_config,
    write_config=write_config,
    names=NAMES,
    example=encoder.example,
)
