"""EuroBERT in transformers: its config.json, and the names and layout of its tensors.

transformers has one setting, `mlp_bias`, for the biases of the feed-forward networks and of the output layer. Older
files have the settings `rope_theta`, `rope_scaling` and `clf_pooling`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn

from plmjax.errors import UserError, quoted
from plmjax.interop import config_json, encoder, tensor_names
from plmjax.interop.adapter import Adapter, Architecture
from plmjax.interop.conversion import Conversion, parameter, weight
from plmjax.interop.tensors import Tensors
from plmjax.models.families.task_heads import QuestionAnswering, TokenClassification
from plmjax.models.modernbert.encoder import ModernBertModel
from plmjax.models.modernbert.eurobert import (
    EuroBertConfig,
    EuroBertForMultipleChoice,
    EuroBertForSequenceClassification,
)
from plmjax.models.modernbert.heads import ModernBertForMaskedLM

FIELDS = {"hidden_activation": "hidden_act", "norm_eps": "rms_norm_eps"}
"""Field of a EuroBertConfig -> its name in transformers, if the names differ."""
REQUIRED = {"quantization_config": None}
"""transformers settings that change the computation, with the one value that this model implements."""

_OURS, _THEIRS = "layers/layer_0", "layers.{layer}"
BODY = (
    parameter("word_embeddings/embedding", "embed_tokens.weight"),
    *encoder.layer_norm(f"{_OURS}/attention_norm", f"{_THEIRS}.input_layernorm"),
    *encoder.dense(f"{_OURS}/attention/query", f"{_THEIRS}.self_attn.q_proj"),
    *encoder.dense(f"{_OURS}/attention/key", f"{_THEIRS}.self_attn.k_proj"),
    *encoder.dense(f"{_OURS}/attention/value", f"{_THEIRS}.self_attn.v_proj"),
    *encoder.dense(f"{_OURS}/attention/output", f"{_THEIRS}.self_attn.o_proj", inputs=2),
    *encoder.layer_norm(f"{_OURS}/feed_forward_norm", f"{_THEIRS}.post_attention_layernorm"),
    *encoder.dense(f"{_OURS}/feed_forward/intermediate", f"{_THEIRS}.mlp.gate_proj"),
    *encoder.dense(f"{_OURS}/feed_forward/gate", f"{_THEIRS}.mlp.up_proj"),
    *encoder.dense(f"{_OURS}/feed_forward/output", f"{_THEIRS}.mlp.down_proj"),
    *encoder.layer_norm("final_norm", "norm"),
)
HEADED = encoder.under("modernbert", BODY, "model")
MASKED: tuple[Conversion, ...] = (
    *HEADED,
    parameter("masked_language_model/decoder/kernel", "lm_head.weight", weight()),
    parameter("masked_language_model/bias", "lm_head.bias"),
)
LABELS = (*HEADED, *encoder.dense("dense", "dense"), *encoder.CLASSIFIER)


def theta(found: Mapping[str, Any]) -> float:
    """Return the base of the rotary wavelengths, from `rope_parameters` or the older settings.

    Raises:
        UserError: another `rope_type` than default.
    """
    name = "rope_parameters" if found.get("rope_parameters") else "rope_scaling"
    parameters = found.get(name) or {}
    if not isinstance(parameters, dict):
        raise UserError(f"Expected an object as the config's {name}, found {quoted(parameters)}; correct it.")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default":
        raise UserError(
            f'Expected a rope_type of "default" in the config, which is all that is implemented, found {quoted(kind)}; '
            f"take another checkpoint."
        )
    value = parameters.get("rope_theta", found.get("rope_theta"))
    return 10_000.0 if value is None else value


def read_config(found: Mapping[str, Any]) -> EuroBertConfig:
    """Return the EuroBertConfig of a config.json.

    Raises:
        UserError: a setting that is not implemented, or a value of another type.
    """
    own = {ours: found[theirs] for ours, theirs in FIELDS.items() if theirs in found}
    own |= {"global_rope_theta": theta(found), "decoder_bias": found.get("mlp_bias")}
    own |= {"classifier_pooling": found.get("classifier_pooling", found.get("clf_pooling"))}
    config = config_json.read(dict(found) | own, EuroBertConfig, {}, REQUIRED)
    if found.get("head_dim") not in (None, config.head_size):
        raise UserError(
            f"Expected head_dim = {config.head_size} in the config, the hidden size divided by the heads, found "
            f"{quoted(found['head_dim'])}; take another checkpoint."
        )
    return dataclasses.replace(config, num_key_value_heads=config.heads_of_keys)


def write_config(model: nn.Module, labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings with which transformers' EuroBertConfig builds the same model.

    Raises:
        UserError: the model has a part that transformers' class lacks.
    """
    config = model.config
    config_json.check_implied(config, {"decoder_bias": config.mlp_bias}, "transformers' eurobert")
    written = config_json.write(model, labels, "eurobert")
    for name in ("decoder_bias", "global_rope_theta"):
        del written[name]  # transformers ignores `initialization` and the other dropouts; an import reads them
    written |= {theirs: written.pop(ours) for ours, theirs in FIELDS.items()}
    rope = {"rope_type": "default", "rope_theta": config.global_rope_theta}
    return written | {"rope_parameters": rope, "tie_word_embeddings": config.tie_word_embeddings}


class EuroBertNames(tensor_names.Names):
    """The names of EuroBERT's tensors. The output layer is a copy of the word table only if the two are tied."""

    def canonical(self, tensors: Tensors, architecture: Architecture) -> Tensors:
        own = self if architecture.tied else dataclasses.replace(self, ties={})
        return tensor_names.Names.canonical(own, tensors, architecture)


NAMES = EuroBertNames(
    prefix="model",
    parts=("embed_tokens", "layers", "norm"),
    heads=("lm_head", "dense", "classifier", "qa_outputs"),
    ties={"lm_head.weight": "model.embed_tokens.weight"},
    buffers=r"model\.rotary_emb\..*",
)

ADAPTER = Adapter(
    config=EuroBertConfig,
    architectures={
        "EuroBertModel": Architecture(ModernBertModel, BODY, encoder.HIDDEN, within="modernbert"),
        "EuroBertForMaskedLM": Architecture(
            ModernBertForMaskedLM,
            MASKED,
            encoder.LOGITS,
            tied=True,
            unties=lambda found: not found.get("tie_word_embeddings"),
        ),
        "EuroBertForSequenceClassification": Architecture(
            EuroBertForSequenceClassification, LABELS, encoder.LOGITS, options=encoder.labels_option
        ),
        "EuroBertForTokenClassification": Architecture(
            TokenClassification, (*HEADED, *encoder.CLASSIFIER), encoder.LOGITS, options=encoder.labels_option
        ),
    },
    read_config=read_config,
    write_config=write_config,
    names=NAMES,
    example=encoder.untyped_example,
    exported_as=dict.fromkeys((QuestionAnswering, EuroBertForMultipleChoice), "EuroBertModel"),
)
