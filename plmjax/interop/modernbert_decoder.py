"""The decoder of ModernBERT's layers in transformers, such as Ettin's: its config.json, and the names of its tensors.

config.json is as for the encoder. The projections to queries, keys and values are three tensors.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn

from plmjax.contracts.template import TEXT_ALONE, Template
from plmjax.interop import encoder, modernbert, tensor_names
from plmjax.interop.adapter import Adapter, Architecture
from plmjax.interop.conversion import Conversion, parameter, weight
from plmjax.models.modernbert.decoder import (
    ModernBertDecoderConfig,
    ModernBertDecoderForCausalLM,
    ModernBertDecoderForSequenceClassification,
    ModernBertDecoderModel,
)

REQUIRED = modernbert.REQUIRED
"""transformers settings that change the computation, with the one value that this model implements."""


def separate(ours: str, theirs: str) -> tuple[Conversion, ...]:
    """Return the conversions of the projections to queries, keys and values, which are three tensors."""
    return tuple(
        one for name in ("query", "key", "value") for one in encoder.dense(f"{ours}/{name}", f"{theirs}.{name[0]}_proj")
    )


def layers(config: ModernBertDecoderConfig) -> tuple[Conversion, ...]:
    """Return the conversions of the layers in a model with a head."""
    return modernbert.layers(config, "model.", "modernbert/", separate)


def read_config(found: Mapping[str, Any]) -> ModernBertDecoderConfig:
    """Return the config of a config.json, as `plmjax.interop.modernbert.read`."""
    return modernbert.read(found, ModernBertDecoderConfig)


def write_config(model: nn.Module, labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings with which transformers' ModernBertDecoderConfig builds the same model."""
    return modernbert.write(model, labels, "modernbert-decoder")


def rows(module: nn.Module) -> Template:
    """Return the template: one text for a language model or a headless decoder, the config's template for a task."""
    texts = ModernBertDecoderForCausalLM | ModernBertDecoderModel
    return TEXT_ALONE if isinstance(module, texts) else module.config.template


NAMES = tensor_names.Names(
    prefix="model",
    parts=("embeddings", "layers", "final_norm"),
    heads=("lm_head", "decoder", "head", "classifier"),
    ties={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    buffers=r"model\.rotary_emb\..*",
)
HEADED = modernbert.under("model.", "modernbert/")

ADAPTER = Adapter(
    config=ModernBertDecoderConfig,
    architectures={
        "ModernBertDecoderModel": Architecture(
            ModernBertDecoderModel,
            modernbert.under(""),
            encoder.HIDDEN,
            sized=lambda config: modernbert.layers(config, "", projections=separate),
            within="modernbert",
        ),
        "ModernBertDecoderForCausalLM": Architecture(
            ModernBertDecoderForCausalLM,
            (
                *HEADED,
                *modernbert.head("language_model/head", "lm_head"),
                parameter("language_model/bias", "decoder.bias"),
            ),
            encoder.LOGITS,
            sized=layers,
            tied=True,
        ),
        "ModernBertDecoderForSequenceClassification": Architecture(
            ModernBertDecoderForSequenceClassification,
            (*HEADED, *modernbert.head("head"), parameter("classifier/kernel", "classifier.weight", weight())),
            encoder.LOGITS,
            sized=layers,
            options=encoder.labels_option,
        ),
    },
    read_config=read_config,
    write_config=write_config,
    names=NAMES,
    example=encoder.untyped_example,
    rows=rows,
)
