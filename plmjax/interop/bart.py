"""BART in transformers: its config.json, and the names and layout of its tensors.

Every checkpoint holds `final_logits_bias`. It is zero in published checkpoints, since the model has no such bias.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import numpy as np

from plmjax.errors import UserError
from plmjax.interop import config_json, encoder, marian, tensor_names
from plmjax.interop.adapter import Adapter, Architecture
from plmjax.interop.conversion import parameter
from plmjax.interop.tensors import Tensors
from plmjax.models.bart.bart import (
    BartConfig,
    BartForConditionalGeneration,
    BartForSequenceClassification,
    BartModel,
)
from plmjax.models.families.encoder_decoder import EncoderDecoderForConditionalGeneration
from plmjax.models.families.task_heads import QuestionAnswering

REQUIRED = {
    "scale_embedding": False,
    "tie_word_embeddings": True,
    "is_encoder_decoder": True,
    "is_decoder": False,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "static_position_embeddings": False,
    "normalize_before": False,
    "normalize_embedding": True,
    "add_final_layer_norm": False,
    "add_bias_logits": False,
    "quantization_config": None,
}
"""transformers settings of BART that change the computation, with the one value that this model implements."""

DEFAULTS = {
    "encoder_layers": 12,
    "decoder_layers": 12,
    "d_model": 1024,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
}
"""Defaults of transformers' BartConfig that differ from ours."""

EMBEDDINGS = tuple(
    one
    for side in ("encoder", "decoder")
    for one in (
        parameter(f"{side}_positions/embedding", f"{side}.embed_positions.weight"),
        *encoder.layer_norm(f"{side}_layer_norm", f"{side}.layernorm_embedding"),
    )
)
"""Conversions of the position embeddings and of the norms before the first layers."""
BODY = (*marian.SHARED, *EMBEDDINGS)
MODEL = encoder.under("bart", BODY, "model")
LABELS = (
    *MODEL,
    *encoder.dense("classifier/dense", "classification_head.dense"),
    *encoder.dense("classifier/output", "classification_head.out_proj"),
)


def read_config(found: Mapping[str, Any]) -> BartConfig:
    """Return the BartConfig of a config.json."""
    return config_json.read(found, BartConfig, DEFAULTS, REQUIRED)


def write_config(model: nn.Module, labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings with which transformers' BartConfig builds the same model."""
    return config_json.write(model, labels, "bart")


class BartNames(tensor_names.Names):
    """The names of the tensors of BART and LED. `final_logits_bias` must be zero."""

    def canonical(self, tensors: Tensors, architecture: Architecture) -> Tensors:
        """Rename the tensors as `Names` does. Raises UserError if `final_logits_bias` is not zero."""
        bias, writes = "final_logits_bias", issubclass(architecture.module, EncoderDecoderForConditionalGeneration)
        if writes and bias in tensors.shapes and tensors.read(bias).any():
            raise UserError(
                f"Expected a {bias} of zeros in {tensors.origin}, as every published one has it, found others, which "
                "this model cannot express; take another checkpoint."
            )
        return super().canonical(tensors, architecture)


NAMES = BartNames(
    prefix="model",
    parts=("shared", "encoder", "decoder"),
    heads=("lm_head", "classification_head", "qa_outputs"),
    ties=dict.fromkeys(marian.COPIES, "model.shared.weight"),
    buffers=r"final_logits_bias|model\.(encoder|decoder)\.version",
)


def example(config: BartConfig) -> dict[str, np.ndarray]:
    """Return an example as in `marian.example`. Sources end with their only </s>, which a classifier reads."""
    batch, end = marian.example(config), config.eos_token_id
    ids, lengths = batch["input_ids"], batch["attention_mask"].sum(axis=1)
    spare = next(token for token in range(config.vocab_size) if token not in (end, config.pad_token_id))
    ids = np.where(ids == end, spare, ids)
    ids[np.arange(len(ids)), lengths - 1] = end
    return batch | {"input_ids": ids}


def source(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the inputs of a module with a task head, whose decoder also reads the token ids of the source."""
    return {name: field for name, field in batch.items() if not name.startswith("decoder_")}


ADAPTER = Adapter(
    config=BartConfig,
    architectures={
        "BartForConditionalGeneration": Architecture(BartForConditionalGeneration, MODEL, marian.LOGITS, tied=True),
        "BartModel": Architecture(BartModel, BODY, marian.HIDDEN, within="bart", tied=True),
        "BartForSequenceClassification": Architecture(
            BartForSequenceClassification,
            LABELS,
            marian.LOGITS,
            options=encoder.labels_option,
            batch=source,
            tied=True,
        ),
        "BartForQuestionAnswering": Architecture(
            QuestionAnswering,
            (*MODEL, *encoder.dense("classifier", "qa_outputs")),
            encoder.SPAN,
            batch=source,
            tied=True,
        ),
    },
    read_config=read_config,
    write_config=write_config,
    names=NAMES,
    example=example,
)
