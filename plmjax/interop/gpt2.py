"""GPT-2 in transformers: its config.json, and the names and layout of its tensors.

Its projections are Conv1D, with weights [inputs outputs]. Query, key and value are a single projection.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import numpy as np

from plmjax.contracts.template import TEXT_ALONE, Template
from plmjax.errors import UserError
from plmjax.interop import config_json, encoder, tensor_names
from plmjax.interop.adapter import Adapter, Architecture, example_rows
from plmjax.interop.conversion import FLAT, Conversion, concatenate, matrix, parameter, weight
from plmjax.models.families.decoder import (
    DecoderForCausalLM,
    DecoderForMultipleChoice,
    DecoderForSequenceClassification,
)
from plmjax.models.families.task_heads import QuestionAnswering
from plmjax.models.gpt2 import Gpt2Config, Gpt2ForCausalLM, Gpt2Model

SUMMARY = {
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "summary_activation": None,
    "summary_proj_to_labels": True,
}
"""transformers settings of the multiple choice head of GPT and GPT-2, with the one value that is implemented."""

REQUIRED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "tie_word_embeddings": True,
    "pruned_heads": {},
    "quantization_config": None,
}
"""transformers settings that change the computation, with the one value that this model implements."""

FIELDS = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
"""Alternative names that transformers accepts for these fields (`GPT2Config.attribute_map`)."""


def conv1d(path: str, tensor: str, inputs: int = 1) -> tuple[Conversion, ...]:
    """Return the conversions of a projection: its kernel and its bias.

    inputs: number of first axes of the kernel that the product sums over.
    """
    return (
        parameter(f"{path}/kernel", f"{tensor}.weight", matrix(inputs)),
        parameter(f"{path}/bias", f"{tensor}.bias", FLAT),
    )


def attention(path: str, tensor: str) -> tuple[Conversion, ...]:
    """Return the conversions of an attention layer's four projections. One tensor concatenates the first three."""

    def parts(name: str) -> tuple[str, ...]:
        return tuple(f"{path}/{part}/{name}" for part in ("query", "key", "value"))

    return (
        Conversion(parts("kernel"), (f"{tensor}.c_attn.weight",), concatenate(1, matrix())),
        Conversion(parts("bias"), (f"{tensor}.c_attn.bias",), concatenate(0, FLAT)),
        *conv1d(f"{path}/output", f"{tensor}.c_proj", inputs=2),
    )


_OURS, _THEIRS = "layers", "h.{layer}"
LAYERS = (
    *encoder.layer_norm(f"{_OURS}/attention_layer_norm", f"{_THEIRS}.ln_1"),
    *attention(f"{_OURS}/attention", f"{_THEIRS}.attn"),
    *encoder.layer_norm(f"{_OURS}/feed_forward_layer_norm", f"{_THEIRS}.ln_2"),
    *conv1d(f"{_OURS}/feed_forward/intermediate", f"{_THEIRS}.mlp.c_fc"),
    *conv1d(f"{_OURS}/feed_forward/output", f"{_THEIRS}.mlp.c_proj"),
)
"""Conversions that GPT and GPT-2 share."""
BODY = (
    parameter("word_embeddings/embedding", "wte.weight"),
    parameter("position_embeddings/embedding", "wpe.weight"),
    *LAYERS,
    *encoder.layer_norm("layer_norm", "ln_f"),
)
DECODER = encoder.under("gpt2", BODY, "transformer")


LABELS = (*DECODER, parameter("classifier/kernel", "score.weight", weight()))
CHOICES = (*DECODER, *encoder.dense("classifier", "multiple_choice_head.summary"))
ANSWERS = (*DECODER, *encoder.dense("classifier", "qa_outputs"))
DOUBLE = {"logits": "mc_logits", "next_token_logits": "logits"}
"""Our outputs of the multiple choice head -> their names in transformers, for GPT and GPT-2."""


def check_padding(architectures: Any, padding: Any, classifier: str) -> None:
    """Raise UserError for a classifier whose config has no pad_token_id."""
    if architectures == [classifier] and padding is None:
        raise UserError(
            f"Expected the id of padding, by which {classifier} finds the last token of a row, found none; set "
            "pad_token_id in the config."
        )


def read_config(found: Mapping[str, Any]) -> Gpt2Config:
    """Return the Gpt2Config of a config.json."""
    check_padding(found.get("architectures"), found.get("pad_token_id"), CLASSIFIER)
    required = REQUIRED | (SUMMARY if found.get("architectures") == [DOUBLE_HEADS] else {})
    return config_json.read({FIELDS.get(name, name): value for name, value in found.items()}, Gpt2Config, {}, required)


def write_config(model: nn.Module, labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings with which transformers' GPT2Config builds the same model.

    Raises UserError for a classifier without a pad_token_id.
    """
    if isinstance(model, DecoderForSequenceClassification):
        check_padding([CLASSIFIER], model.config.pad_token_id, CLASSIFIER)
    return config_json.write(model, labels, "gpt2")


NAMES = tensor_names.Names(
    prefix="transformer",
    parts=("wte", "wpe", "h", "ln_f"),
    heads=("lm_head", "score", "classifier", "qa_outputs", "multiple_choice_head"),
    ties={"lm_head.weight": "transformer.wte.weight"},
    buffers=r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",  # the causal mask, which older versions store
)


def example(config: Gpt2Config) -> dict[str, np.ndarray]:
    """Return an example as in `example_rows`, with at most 32 tokens per row."""
    return example_rows(
        np.random.default_rng(0), min(32, config.longest), config.vocab_size, padding=config.pad_token_id
    )


def rows(module: nn.Module) -> Template:
    """Return the template: one text for a language model or a headless decoder, the config's template for a task."""
    return TEXT_ALONE if isinstance(module, DecoderForCausalLM | Gpt2Model) else module.config.template


def choices(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return one question [1 C T] without a mask. transformers takes none here, since attention is causal."""
    return {"input_ids": rows["input_ids"][None]}


CLASSIFIER, DOUBLE_HEADS = "GPT2ForSequenceClassification", "GPT2DoubleHeadsModel"


ADAPTER = Adapter(
    config=Gpt2Config,
    architectures={
        "GPT2LMHeadModel": Architecture(Gpt2ForCausalLM, DECODER, encoder.LOGITS, tied=True),
        "GPT2Model": Architecture(Gpt2Model, BODY, encoder.HIDDEN, within="gpt2"),
        DOUBLE_HEADS: Architecture(DecoderForMultipleChoice, CHOICES, DOUBLE, batch=choices, tied=True),
        CLASSIFIER: Architecture(
            DecoderForSequenceClassification, LABELS, encoder.LOGITS, options=encoder.labels_option
        ),
        "GPT2ForQuestionAnswering": Architecture(QuestionAnswering, ANSWERS, encoder.SPAN),
    },
    read_config=read_config,
    write_config=write_config,
    names=NAMES,
    example=example,
    rows=rows,
)
