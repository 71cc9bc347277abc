"""GPT in transformers: its config.json, and the names and layout of its tensors.

The single table of tokens and positions is two tensors in transformers. The layers have GPT-2's layout.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import numpy as np

from plmjax.contracts.template import TEXT_ALONE, Template
from plmjax.errors import UserError, quoted
from plmjax.interop import config_json, encoder, tensor_names
from plmjax.interop.adapter import Adapter, Architecture, example_rows
from plmjax.interop.conversion import Conversion, parameter, parts, weight
from plmjax.interop.gpt2 import DOUBLE, LAYERS, SUMMARY, check_padding, choices
from plmjax.models.gpt import GptConfig, GptForCausalLM, GptForMultipleChoice, GptForSequenceClassification, GptModel

ACTIVATIONS = {"gelu_new": "gelu", "relu": "relu", "silu": "silu", "swish": "swish"}
"""Our name -> transformers' `afn`. In transformers' GPT, GELU is the tanh form under either name."""

OURS = "both_orders"
"""The field of a GptConfig that has no counterpart in transformers."""

REQUIRED = SUMMARY | {
    "tie_word_embeddings": True,
    "is_encoder_decoder": False,
    "pruned_heads": {},
    "quantization_config": None,
}
"""transformers settings that change the computation, with the one value that this model implements."""


def table(config: GptConfig) -> tuple[Conversion, ...]:
    """Return the conversion of the table of tokens and positions."""
    tensors = ("tokens_embed.weight", "positions_embed.weight")
    return (Conversion(("table/embedding",), tensors, parts((config.vocab_size, config.n_positions), 0)),)


def table_within(config: GptConfig) -> tuple[Conversion, ...]:
    """Return the conversion of the same table in modules with a head."""
    return encoder.under("gpt", table(config), "transformer")


DECODER = encoder.under("gpt", LAYERS, "transformer")
LABELS = (*DECODER, parameter("classifier/kernel", "score.weight", weight()))
CHOICES = (*DECODER, *encoder.dense("classifier", "multiple_choice_head.summary"))


def read_config(found: Mapping[str, Any]) -> GptConfig:
    """Return the GptConfig of a config.json."""
    names = {theirs: ours for ours, theirs in ACTIVATIONS.items()}
    activation = found.get("afn", "gelu")
    if activation not in names:
        raise UserError(
            f"Expected an afn of {' or '.join(names)} in the config, which is all that this GPT implements, found "
            f"{quoted(activation)}; take another checkpoint."
        )
    check_padding(found.get("architectures"), found.get("pad_token_id"), CLASSIFIER)
    known = {name: value for name, value in found.items() if name != OURS}
    return config_json.read(known | {"activation_function": names[activation]}, GptConfig, {}, REQUIRED)


def write_config(model: nn.Module, labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings with which transformers' OpenAIGPTConfig builds the same model.

    Raises UserError if it cannot build it.
    """
    config = model.config
    if config.activation_function not in ACTIVATIONS:
        raise UserError(
            f"Expected an activation of {' or '.join(ACTIVATIONS)} for a GPT in transformers, found "
            f"{quoted(config.activation_function)}; it has no other."
        )
    if isinstance(model, GptForSequenceClassification):
        check_padding([CLASSIFIER], config.pad_token_id, CLASSIFIER)
        if config.both_orders:
            raise UserError(
                "Expected a classifier that reads a pair once, which is all that transformers' GPT does, found one of "
                "both orders; export it with --architecture OpenAIGPTLMHeadModel, without its head."
            )
    written = config_json.write(model, labels, "openai-gpt")
    del written[OURS]
    return written | {"afn": ACTIVATIONS[written.pop("activation_function")]}


NAMES = tensor_names.Names(
    prefix="transformer",
    parts=("tokens_embed", "positions_embed", "h"),
    heads=("lm_head", "score", "multiple_choice_head"),
    ties={"lm_head.weight": "transformer.tokens_embed.weight"},
    buffers=r"(transformer\.)?(h\.\d+\.attn\.bias|position_ids)",  # constants that old versions store
)


def example(config: GptConfig) -> dict[str, np.ndarray]:
    """Return an example as in `example_rows`, with at most 32 tokens per row."""
    length, padding = min(32, config.longest), config.pad_token_id or 0
    return example_rows(np.random.default_rng(0), length, config.vocab_size, padding=padding)


def rows(module: nn.Module) -> Template:
    """Return the template: one text for a language model or a headless decoder, the config's template for a task."""
    return TEXT_ALONE if isinstance(module, GptForCausalLM | GptModel) else module.config.template


CLASSIFIER = "OpenAIGPTForSequenceClassification"

ADAPTER = Adapter(
    config=GptConfig,
    architectures={
        "OpenAIGPTLMHeadModel": Architecture(GptForCausalLM, DECODER, encoder.LOGITS, sized=table_within, tied=True),
        "OpenAIGPTModel": Architecture(GptModel, LAYERS, encoder.HIDDEN, sized=table, within="gpt"),
        "OpenAIGPTDoubleHeadsModel": Architecture(
            GptForMultipleChoice, CHOICES, DOUBLE, sized=table_within, batch=choices, tied=True
        ),
        CLASSIFIER: Architecture(
            GptForSequenceClassification,
            LABELS,
            encoder.LOGITS,
            sized=table_within,
            options=encoder.labels_option,
        ),
    },
    read_config=read_config,
    write_config=write_config,
    names=NAMES,
    example=example,
    rows=rows,
)
