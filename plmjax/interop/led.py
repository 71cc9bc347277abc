"""LED in transformers: its config.json, and the names and layout of its tensors.

The encoder's attention has other tensor names than BART's, and the position tables have no rows before the first
position; the rest is as in BART. Every checkpoint has `final_logits_bias`, which is zero.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn

from plmjax.interop import bart, config_json, encoder, marian
from plmjax.interop.adapter import Adapter, Architecture
from plmjax.interop.conversion import parameter
from plmjax.interop.longformer import read_windows, with_a_global_token, write_windows
from plmjax.models.longformer.encoder_decoder import LedConfig, LedForConditionalGeneration, LedModel
from plmjax.models.longformer.longformer import GLOBAL_SHARE

REQUIRED = {
    "tie_word_embeddings": True,
    "is_encoder_decoder": True,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "quantization_config": None,
}
"""transformers settings of LED that change the computation, with the one value that this model implements."""
POSITIONS = {
    "max_position_embeddings": "max_encoder_position_embeddings",
    "max_decoder_position_embeddings": "max_decoder_position_embeddings",
}
"""Our names of the lengths -> transformers' names."""
_OURS, _THEIRS = "encoder_layers/attention", "encoder.layers.{layer}.self_attn"
_PROJECTIONS = ("query", "key", "value", "query_global", "key_global", "value_global")
BODY = (
    parameter("words/embedding", "shared.weight"),
    *(
        one
        for name in _PROJECTIONS
        for one in encoder.dense(f"{_OURS}/{name}", f"{_THEIRS}.longformer_self_attn.{name}")
    ),
    *encoder.dense(f"{_OURS}/output", f"{_THEIRS}.output", inputs=2),
    *encoder.layer_norm("encoder_layers/attention_layer_norm", "encoder.layers.{layer}.self_attn_layer_norm"),
    *marian.layers("encoder"),
    *marian.layers("decoder", ("attention", "self_attn"), ("cross_attention", "encoder_attn")),
    *bart.EMBEDDINGS,
)
MODEL = encoder.under("led", BODY, "led")


def read_config(found: Mapping[str, Any]) -> LedConfig:
    """Return the LedConfig of a config.json; transformers does not limit the number of global tokens.

    Raises:
        UserError: a setting that the model does not implement, or a value of another type.
    """
    found = dict(found)
    windows = read_windows(found.pop("attention_window", 512))
    lengths = {ours: found.pop(theirs) for ours, theirs in POSITIONS.items() if theirs in found}
    longest = lengths.get("max_position_embeddings", LedConfig.max_position_embeddings)
    defaults = bart.DEFAULTS | {"attention_window": windows}
    if "max_global_tokens" not in found and type(longest) is int:
        defaults["max_global_tokens"] = max(1, min(LedConfig.max_global_tokens, longest // GLOBAL_SHARE))
    return config_json.read(found | lengths, LedConfig, defaults, REQUIRED)


def write_config(model: nn.Module, labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings with which transformers' LEDConfig builds the same model."""
    settings = config_json.write(model, labels, "led")
    lengths = {theirs: settings.pop(ours) for ours, theirs in POSITIONS.items()}
    return settings | lengths | {"attention_window": write_windows(model.config.attention_window)}


NAMES = bart.BartNames(
    prefix="led",
    parts=("shared", "encoder", "decoder"),
    heads=("lm_head",),
    ties=dict.fromkeys((name.replace("model.", "led.") for name in marian.COPIES), "led.shared.weight"),
    buffers=r"final_logits_bias",
)


ADAPTER = Adapter(
    config=LedConfig,
    architectures={
        "LEDForConditionalGeneration": Architecture(
            LedForConditionalGeneration, MODEL, marian.LOGITS, batch=with_a_global_token, tied=True
        ),
        "LEDModel": Architecture(LedModel, BODY, marian.HIDDEN, batch=with_a_global_token, within="led", tied=True),
    },
    read_config=read_config,
    write_config=write_config,
    names=NAMES,
    example=marian.example,
)
