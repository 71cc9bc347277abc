"""T5 in transformers: its config.json, and the names and layout of its tensors.

transformers 5 marks every T5 that it opens as tied. The tie setting of config.json becomes `scale_decoder_outputs`. The
model has its own output layer if the checkpoint has one that differs from the token embedding table.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import numpy as np

from plmjax.errors import UserError, quoted
from plmjax.interop import config_json, encoder, tensor_names
from plmjax.interop.adapter import Adapter, Architecture, example_rows
from plmjax.interop.conversion import Conversion, parameter, weight
from plmjax.interop.tensors import Tensors
from plmjax.models.t5 import SYSTEM, T5Config, T5ForConditionalGeneration, T5Model

REQUIRED = {"is_encoder_decoder": True, "quantization_config": None}
"""transformers settings that change the computation, with the one value that this model implements."""
TIED = "tie_word_embeddings"
SCALED = "scale_decoder_outputs"
"""The setting that transformers 5 writes instead of `tie_word_embeddings`, which is always true there."""
OUTPUT, TABLE = "lm_head.weight", "shared.weight"
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
"""A table of relative distances in cross-attention. The first releases stored it, and no code reads it."""


def attention(path: str, tensor: str) -> tuple[Conversion, ...]:
    """Return the conversions of an attention layer's four projections."""
    return (
        parameter(f"{path}/query/kernel", f"{tensor}.q.weight", weight()),
        parameter(f"{path}/key/kernel", f"{tensor}.k.weight", weight()),
        parameter(f"{path}/value/kernel", f"{tensor}.v.weight", weight()),
        parameter(f"{path}/output/kernel", f"{tensor}.o.weight", weight(2)),
    )


def stack(side: str) -> tuple[Conversion, ...]:
    """Return the conversions of the encoder or the decoder, without the projections that differ between versions."""
    ours, theirs = f"{side}/layers", f"{side}.block.{{layer}}.layer"
    last = {"encoder": 1, "decoder": 2}[side]
    first = f"{side}.block.0.layer.0.SelfAttention"
    return (
        parameter(f"{side}/relative_positions/embedding", f"{first}.relative_attention_bias.weight"),
        *attention(f"{ours}/attention", f"{theirs}.0.SelfAttention"),
        parameter(f"{ours}/attention_norm/scale", f"{theirs}.0.layer_norm.weight"),
        parameter(f"{ours}/feed_forward/output/kernel", f"{theirs}.{last}.DenseReluDense.wo.weight", weight()),
        parameter(f"{ours}/feed_forward_norm/scale", f"{theirs}.{last}.layer_norm.weight"),
        parameter(f"{side}/norm/scale", f"{side}.final_layer_norm.weight"),
    )


BODY = (
    parameter("shared/embedding", TABLE),
    *stack("encoder"),
    *stack("decoder"),
    *attention("decoder/layers/cross_attention", "decoder.block.{layer}.layer.1.EncDecAttention"),
    parameter("decoder/layers/cross_attention_norm/scale", "decoder.block.{layer}.layer.1.layer_norm.weight"),
)


def first_projections(config: T5Config) -> tuple[Conversion, ...]:
    """Return the conversions of the feed-forward networks' first projections: one, or two if the network is gated."""
    names = {"intermediate": "wi_0", "gate": "wi_1"} if config.gated else {"intermediate": "wi"}
    return tuple(
        parameter(
            f"{side}/layers/feed_forward/{ours}/kernel",
            f"{side}.block.{{layer}}.layer.{last}.DenseReluDense.{theirs}.weight",
            weight(),
        )
        for side, last in (("encoder", 1), ("decoder", 2))
        for ours, theirs in names.items()
    )


def within(conversions: tuple[Conversion, ...]) -> tuple[Conversion, ...]:
    """Return the same conversions for the module with a head. transformers' names are the same."""
    return tuple(
        dataclasses.replace(one, paths=tuple(f"{SYSTEM.name}/{path}" for path in one.paths)) for one in conversions
    )


def is_tied(found: Mapping[str, Any]) -> bool:
    """Return true if a config.json describes a model whose output layer is the token embedding table."""
    value = found.get(SCALED, found.get(TIED, True))
    if not isinstance(value, bool):
        raise UserError(f"Expected true or false as the config's {TIED}, found {quoted(value)}; correct it.")
    return value


def read_config(found: Mapping[str, Any]) -> T5Config:
    """Return the T5Config of a config.json."""
    known = {name: value for name, value in found.items() if name != TIED}
    layers = known.get("num_layers", T5Config.num_layers)
    known["num_decoder_layers"] = layers if known.get("num_decoder_layers") is None else known["num_decoder_layers"]
    return dataclasses.replace(config_json.read(known, T5Config, {}, REQUIRED), tie_word_embeddings=is_tied(found))


def write_config(model: nn.Module, labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings with which transformers' T5Config builds the same model."""
    written = config_json.write(model, labels, "t5")
    return written | {TIED: model.config.tie_word_embeddings, "is_encoder_decoder": True}


class T5Names(tensor_names.Names):
    """The names of T5's tensors. Every version of transformers writes the same names."""

    def canonical(self, tensors: Tensors, architecture: Architecture) -> Tensors:
        """Rename the tensors. A missing output layer is the token embedding table, as in transformers 5."""
        ties = {**self.ties, **({OUTPUT: TABLE} if architecture.tied else {})}
        names = {name: name for name in tensors.shapes if not re.fullmatch(self.buffers, name)}
        names = tensor_names.without_copies(tensors, names, ties, tied=True)
        if not architecture.tied and TABLE in names:
            names.setdefault(OUTPUT, names[TABLE])
        return tensors.rename(names)


NAMES = T5Names(
    prefix="",
    parts=(),
    heads=("lm_head", "classifier", "classification_head", "qa_outputs"),
    ties={f"{side}.embed_tokens.weight": TABLE for side in ("encoder", "decoder")},
    buffers=re.escape(UNUSED),
)


def example(config: T5Config) -> dict[str, np.ndarray]:
    """Return an example as in `example_rows` for both sides: sources of 24 tokens, targets of 9."""
    generator = np.random.default_rng(0)
    sizes = {"vocab_size": config.vocab_size, "padding": config.pad_token_id}
    return example_rows(generator, 24, **sizes) | example_rows(generator, 9, **sizes, side="decoder_")


OUTPUTS = {"encoder_last_hidden_state": "encoder_last_hidden_state"}
ADAPTER = Adapter(
    config=T5Config,
    architectures={
        "T5ForConditionalGeneration": Architecture(
            T5ForConditionalGeneration,
            (*within(BODY), parameter("lm_head/embedding", OUTPUT)),
            encoder.LOGITS | OUTPUTS,
            sized=lambda config: within(first_projections(config)),
            tied=True,
            unties=lambda found: not is_tied(found),
        ),
        "T5Model": Architecture(
            T5Model, BODY, encoder.HIDDEN | OUTPUTS, sized=first_projections, within=SYSTEM.name, tied=True
        ),
    },
    read_config=read_config,
    write_config=write_config,
    names=NAMES,
    example=example,
)
