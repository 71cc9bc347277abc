"""DeBERTa, versions 2 and 3, in transformers: its config.json, and the names and layout of its tensors.

transformers has no class for both networks of version 3. The discriminator is written as DebertaV2Model, with the sum
of its two tables of words, and the generator as DebertaV2ForMaskedLM, which has no enhanced mask decoder.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import flax.traverse_util
import numpy as np

from plmjax.errors import UserError, quoted
from plmjax.interop import config_json, encoder, tensor_names
from plmjax.interop.adapter import Adapter, Architecture
from plmjax.interop.conversion import Conversion, one_to_one, parameter
from plmjax.models.deberta.deberta import DebertaConfig
from plmjax.models.deberta.encoder import DebertaModel
from plmjax.models.deberta.heads import (
    DebertaForMaskedLM,
    DebertaForMultipleChoice,
    DebertaForSequenceClassification,
)
from plmjax.models.deberta.pretraining import DebertaForPreTraining

MASKED_LM = "DebertaV2ForMaskedLM"
REQUIRED = {
    "relative_attention": True,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "tie_word_embeddings": True,
    "quantization_config": None,
}
"""transformers settings that change the computation, with the one value that this model implements."""
DEFAULTS = {
    "relative_attention": False,
    "share_att_key": False,
    "norm_rel_ebd": "none",
    "hidden_size": 1536,
    "num_hidden_layers": 24,
    "num_attention_heads": 24,
    "intermediate_size": 6144,
    "position_buckets": -1,
    "position_biased_input": True,
    "legacy": True,
}
"""transformers' values of settings that a config.json lacks, where they differ from ours."""

_IN_LAYER = (
    *encoder.dense("attention/query", "attention.self.query_proj"),
    *encoder.dense("attention/key", "attention.self.key_proj"),
    *encoder.dense("attention/value", "attention.self.value_proj"),
    *encoder.dense("attention/output", "attention.output.dense", inputs=2),
    *encoder.layer_norm("attention_layer_norm", "attention.output.LayerNorm"),
    *encoder.dense("feed_forward/intermediate", "intermediate.dense"),
    *encoder.dense("feed_forward/output", "output.dense"),
    *encoder.layer_norm("feed_forward_layer_norm", "output.LayerNorm"),
)
_TAPS = one_to_one(
    lambda kernel: kernel.__array_namespace__().moveaxis(kernel, 0, -1).swapaxes(0, 1),
    lambda tensor, shape: np.moveaxis(tensor.swapaxes(0, 1), -1, 0),
)
"""Arrangement of the kernel of the convolution, of K tokens: [K inputs outputs] -> torch's [outputs inputs K]."""
BODY = (
    *encoder.EMBEDDINGS,
    parameter("encoder/relative_embeddings/embedding", "encoder.rel_embeddings.weight"),
    *encoder.layer_norm("encoder/relative_layer_norm", "encoder.LayerNorm"),
    parameter("encoder/convolution/convolution/kernel", "encoder.conv.conv.weight", _TAPS),
    parameter("encoder/convolution/convolution/bias", "encoder.conv.conv.bias"),
    *encoder.layer_norm("encoder/convolution/layer_norm", "encoder.conv.LayerNorm"),
    *encoder.under("encoder/first_layers", _IN_LAYER, "encoder.layer.{layer}"),
)


def layers(config: DebertaConfig) -> tuple[Conversion, ...]:
    """Return the conversions of the stacked layers. With a convolution, the first layer is not in the stack."""
    stack = encoder.under("encoder/layers", _IN_LAYER, "encoder.layer.{layer}")
    return tuple(dataclasses.replace(one, first=int(config.conv_kernel_size > 0)) for one in stack)


def read_config(found: Mapping[str, Any]) -> DebertaConfig:
    """Return the DebertaConfig of a config.json. A setting that it lacks has transformers' default.

    Raises:
        UserError: a setting that is not implemented, or a value of another type.
    """
    found = DEFAULTS | found
    width = found["hidden_size"]
    same = {name: width for name in ("embedding_size", "pooler_hidden_size") if found.get(name) is not None}
    if found["legacy"] and found.get("architectures") == [MASKED_LM]:
        raise UserError(
            "Expected legacy = false in the config of a DebertaV2ForMaskedLM, found true: that head has tensors of "
            "other names and scores words without the word table; set it to false if the tensors lm_predictions are "
            "there."
        )
    kinds = found.get("pos_att_type") or []
    kinds = kinds.lower().split("|") if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise UserError(f"Expected p2c|c2p, or a list of both, as the config's pos_att_type, found {quoted(kinds)}.")
    convolved = {"conv_act": "tanh"} if found.get("conv_kernel_size") else {}
    config = config_json.read(convolved | found, DebertaConfig, {}, REQUIRED | same)
    return dataclasses.replace(config, pos_att_type=tuple(kind.strip() for kind in kinds))


def write_config(model: nn.Module, labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings with which transformers' DebertaV2Config builds the same model."""
    written = config_json.write(model, labels, "deberta-v2")
    fixed = {name: value for name, value in REQUIRED.items() if value is not None}
    return written | fixed | {"pooler_hidden_size": model.config.hidden_size, "legacy": False}


def discriminator(model: nn.Module, params: Mapping[str, Any]) -> tuple[nn.Module, Mapping[str, Any]]:
    """Return the model and its parameters. If it has both networks, the discriminator's tables become sums."""
    flat = flax.traverse_util.flatten_dict(nn.meta.unbox(params), sep="/")
    return model, flax.traverse_util.unflatten_dict(flat | model.config.system.derived(flat), sep="/")


def generator(model: nn.Module, params: Mapping[str, Any]) -> tuple[nn.Module, Mapping[str, Any]]:
    """Return the generator of a model of both networks as a masked language model without its mask decoder.

    Any other model is returned as by `discriminator`.
    """
    if type(model) is not DebertaForPreTraining or "generator" not in params:
        return discriminator(model, params)
    own = flax.traverse_util.flatten_dict(nn.meta.unbox(params["generator"]), sep="/")
    last = {path.removeprefix("encoder/last_layer/"): one for path, one in own.items() if "/last_layer/" in path}
    found = {path: one for path, one in own.items() if "/last_layer/" not in path}
    for path, one in last.items():
        below = found.get(f"encoder/layers/{path}")
        found[f"encoder/layers/{path}"] = one[None] if below is None else np.concatenate([below, one[None]])
    config, head = model.config.generator, "masked_language_model/"
    found.pop("position_embeddings/embedding", None)
    tree = {path if path.startswith(head) else f"deberta/{path}": one for path, one in found.items()}
    return DebertaForMaskedLM(config, model.execution), flax.traverse_util.unflatten_dict(tree, sep="/")


def lost_decoder(model: nn.Module) -> str:
    """Return a sentence on the generator's decoder, which DebertaV2ForMaskedLM lacks; empty for any other model."""
    if type(model) is not DebertaForPreTraining or model.config.position_biased_input:
        return ""
    return (
        "lost: the generator's enhanced mask decoder with its positions; transformers' class predicts from the last "
        "layer, which was not trained for that"
    )


def _headed(module: type[nn.Module], *heads: Conversion, **more: Any) -> Architecture:
    return dataclasses.replace(
        Architecture(
            module,
            (*encoder.under("deberta", BODY), *heads),
            encoder.LOGITS,
            sized=lambda config: encoder.under("deberta", layers(config)),
            source=discriminator,
        ),
        **more,
    )


NAMES = tensor_names.Names(
    prefix="deberta",
    parts=("embeddings", "encoder"),
    heads=(
        "lm_predictions",
        "mask_predictions",
        "cls",
        "pooler",
        "classifier",
        "qa_outputs",
        "deberta.embeddings.position_embeddings",
        "embeddings.position_embeddings",
    ),
    ties={},
    buffers=r"deberta\.embeddings\.position_ids",
    endings={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
)
"""Released files have pretraining heads, and position embeddings of the mask decoder, which no class reads."""
_MASKED = "masked_language_model"
MASKED = (
    *encoder.dense(f"{_MASKED}/transform", "lm_predictions.lm_head.dense"),
    *encoder.layer_norm(f"{_MASKED}/layer_norm", "lm_predictions.lm_head.LayerNorm"),
    parameter(f"{_MASKED}/bias", "lm_predictions.lm_head.bias"),
)
POOLED = (*encoder.dense("pooler/dense", "pooler.dense"), *encoder.CLASSIFIER)
_TOKENS = encoder.token_heads("DebertaV2", encoder.under("deberta", BODY))

ADAPTER = Adapter(
    config=DebertaConfig,
    architectures={
        "DebertaV2Model": Architecture(
            DebertaModel, BODY, encoder.HIDDEN, sized=layers, within="deberta", source=discriminator
        ),
        MASKED_LM: _headed(DebertaForMaskedLM, *MASKED, source=generator, lost=lost_decoder),
        "DebertaV2ForSequenceClassification": _headed(
            DebertaForSequenceClassification, *POOLED, options=encoder.labels_option
        ),
        "DebertaV2ForMultipleChoice": _headed(
            DebertaForMultipleChoice, *POOLED, batch=lambda rows: {name: x[None] for name, x in rows.items()}
        ),
        **{
            name: dataclasses.replace(
                known, sized=lambda config: encoder.under("deberta", layers(config)), source=discriminator
            )
            for name, known in _TOKENS.items()
        },
    },
    read_config=read_config,
    write_config=write_config,
    names=NAMES,
    example=encoder.untyped_example,
    exported_as={DebertaForPreTraining: "DebertaV2Model"},
)
