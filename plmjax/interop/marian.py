"""The Transformer in transformers, where it is called Marian: its config.json, and the names of its tensors.

Marian's models are those of the paper, except for the bias of their logits, `final_logits_bias`. transformers stores it
as a buffer, and training there never changes it. Here it is a parameter of models whose config has `output_bias`. A
config.json without that setting is Marian's own, and has the bias.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import numpy as np

from plmjax.interop import config_json, encoder, tensor_names
from plmjax.interop.adapter import Adapter, Architecture, example_rows
from plmjax.interop.conversion import Conversion, one_to_one, parameter
from plmjax.layers.sinusoids import sinusoids
from plmjax.models.families.encoder_decoder import EncoderDecoderConfig
from plmjax.models.transformer import (
    TransformerConfig,
    TransformerForConditionalGeneration,
    TransformerModel,
)

REQUIRED = {
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
    "is_encoder_decoder": True,
    "is_decoder": False,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "static_position_embeddings": True,
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "quantization_config": None,
}
"""transformers settings of Marian that change the computation, with the one value that this model implements."""

DEFAULTS = {
    "vocab_size": 58101,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "d_model": 1024,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
    "activation_function": "gelu",
    "scale_embedding": False,
    "output_bias": True,
    "pad_token_id": 58100,
    "eos_token_id": 0,
    "decoder_start_token_id": 58100,
}
"""Defaults of transformers' MarianConfig that differ from ours."""


def layers(side: str, *sublayers: tuple[str, str]) -> tuple[Conversion, ...]:
    """Return the conversions of one side's layers.

    side: encoder or decoder. sublayers: (our name of an attention layer, transformers' name).
    """
    ours, theirs = f"{side}_layers", f"{side}.layers.{{layer}}"
    found = []
    for name, tensor in sublayers:
        for part, projection in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
            found += encoder.dense(f"{ours}/{name}/{part}", f"{theirs}.{tensor}.{projection}")
        found += encoder.dense(f"{ours}/{name}/output", f"{theirs}.{tensor}.out_proj", inputs=2)
        found += encoder.layer_norm(f"{ours}/{name}_layer_norm", f"{theirs}.{tensor}_layer_norm")
    return (
        *found,
        *encoder.dense(f"{ours}/feed_forward/intermediate", f"{theirs}.fc1"),
        *encoder.dense(f"{ours}/feed_forward/output", f"{theirs}.fc2"),
        *encoder.layer_norm(f"{ours}/feed_forward_layer_norm", f"{theirs}.final_layer_norm"),
    )


SHARED = (
    parameter("words/embedding", "shared.weight"),
    *layers("encoder", ("attention", "self_attn")),
    *layers("decoder", ("attention", "self_attn"), ("cross_attention", "encoder_attn")),
)
"""Conversions that Marian and BART share."""
ROW = one_to_one(lambda bias: bias[None], lambda tensor, shape: tensor[0])
BIAS = parameter("final_logits_bias", "final_logits_bias", ROW)
HIDDEN = {"last_hidden_state": "last_hidden_state", "encoder_last_hidden_state": "encoder_last_hidden_state"}
LOGITS = {"logits": "logits", "encoder_last_hidden_state": "encoder_last_hidden_state"}
COPIES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
"""Copies of the token embedding table."""


def read_config(found: Mapping[str, Any]) -> TransformerConfig:
    """Return the TransformerConfig of a config.json."""
    size = found.get("vocab_size", DEFAULTS["vocab_size"])
    known = {"decoder_vocab_size": size, **REQUIRED}
    return config_json.read(found, TransformerConfig, DEFAULTS, known)


def write_config(model: nn.Module, labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings with which transformers' MarianConfig builds the same model."""
    config = model.config
    return config_json.write(model, labels, "marian") | {
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": True,
    }


def positions(config: TransformerConfig) -> dict[str, np.ndarray]:
    """Return the sinusoidal position embeddings of both sides."""
    table = sinusoids(np.arange(config.max_position_embeddings), config.d_model)
    return {f"{side}.embed_positions.weight": table for side in ("encoder", "decoder")}


NAMES = tensor_names.Names(
    prefix="model",
    parts=("shared", "encoder", "decoder"),
    heads=("lm_head.weight", "final_logits_bias"),
    ties=dict.fromkeys(COPIES, "model.shared.weight"),
    buffers=r"model\.(encoder|decoder)\.embed_positions\.weight",  # the sinusoids, which old versions store
)


def example(config: EncoderDecoderConfig) -> dict[str, np.ndarray]:
    """Return an example as in `example_rows` for both sides.

    Sources have at most 32 tokens. Targets have one token less if possible.
    """
    generator, longest = np.random.default_rng(0), min(32, config.longest)
    sizes = {"vocab_size": config.vocab_size, "padding": config.pad_token_id}
    target_length = max(1, min(longest, config.longest_target) - 1)
    target = example_rows(generator, target_length, **sizes, side="decoder_")
    return example_rows(generator, longest, **sizes) | target


ADAPTER = Adapter(
    config=TransformerConfig,
    architectures={
        "MarianMTModel": Architecture(
            TransformerForConditionalGeneration,
            (*encoder.under("transformer", SHARED, "model"), BIAS),
            LOGITS,
            tied=True,
        ),
        "MarianModel": Architecture(
            TransformerModel, SHARED, HIDDEN, constants=positions, within="transformer", tied=True
        ),
    },
    read_config=read_config,
    write_config=write_config,
    names=NAMES,
    example=example,
)
