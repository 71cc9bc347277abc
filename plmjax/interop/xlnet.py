"""XLNet in transformers: its config.json, and the names and layout of its tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import numpy as np

from plmjax.interop import config_json, encoder, tensor_names
from plmjax.interop.adapter import Adapter, Architecture, example_rows
from plmjax.interop.conversion import Conversion, concatenate, one_to_one, parameter, weight
from plmjax.models.families.task_heads import QuestionAnswering, TokenClassification
from plmjax.models.xlnet.heads import (
    XlnetForMultipleChoice,
    XlnetForQuestionAnswering,
    XlnetForSequenceClassification,
)
from plmjax.models.xlnet.xlnet import XlnetConfig, XlnetForPreTraining, XlnetModel

REQUIRED = {
    "attn_type": "bi",
    "bi_data": False,
    "same_length": False,
    "summary_type": "last",
    "summary_use_proj": True,
    "summary_activation": "tanh",
    "tie_word_embeddings": True,
    "pruned_heads": {},
    "quantization_config": None,
}
"""transformers settings that change the computation, with the one value that this model implements."""

_OURS, _THEIRS = "layers/attention", "layer.{layer}.rel_attn"
_BY_FEATURES = one_to_one(
    lambda kernel: kernel.__array_namespace__().moveaxis(kernel, -1, 0),
    lambda tensor, shape: np.moveaxis(tensor, 0, -1),
)
"""Arrangement of the output projection of attention, for N heads of size H: [N H D] -> [D N H]."""
BODY = (
    parameter("word_embeddings/embedding", "word_embedding.weight"),
    parameter(
        "mask_embedding", "mask_emb", one_to_one(lambda vector: vector[None, None], lambda tensor, shape: tensor[0, 0])
    ),
    *(
        parameter(f"{_OURS}/{ours}/kernel", f"{_THEIRS}.{theirs}")
        for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("distance", "r"))
    ),
    parameter(f"{_OURS}/output/kernel", f"{_THEIRS}.o", _BY_FEATURES),
    parameter(f"{_OURS}/content_bias", f"{_THEIRS}.r_w_bias"),
    parameter(f"{_OURS}/distance_bias", f"{_THEIRS}.r_r_bias"),
    parameter(f"{_OURS}/segment_bias", f"{_THEIRS}.r_s_bias"),
    parameter(f"{_OURS}/segments", f"{_THEIRS}.seg_embed"),
    *encoder.layer_norm("layers/attention_layer_norm", f"{_THEIRS}.layer_norm"),
    *encoder.dense("layers/feed_forward/intermediate", "layer.{layer}.ff.layer_1"),
    *encoder.dense("layers/feed_forward/output", "layer.{layer}.ff.layer_2"),
    *encoder.layer_norm("layers/feed_forward_layer_norm", "layer.{layer}.ff.layer_norm"),
)
ENCODER = encoder.under("xlnet", BODY, "transformer")


def pair_scores(path: str, tensor: str) -> tuple[Conversion, ...]:
    """Return the conversions of a head that scores two vectors. The kernels of the first layer are one tensor."""
    kernels = (f"{path}/first/kernel", f"{path}/second/kernel")
    return (
        Conversion(kernels, (f"{tensor}.dense_0.weight",), concatenate(1, weight())),
        parameter(f"{path}/first/bias", f"{tensor}.dense_0.bias"),
        *encoder.layer_norm(f"{path}/layer_norm", f"{tensor}.LayerNorm"),
        *encoder.dense(f"{path}/output", f"{tensor}.dense_1"),
    )


HEADED = (
    *ENCODER,
    parameter("output_bias", "lm_loss.bias"),
    *encoder.dense("classifier/summary", "sequence_summary.summary"),
    *encoder.dense("classifier/output", "logits_proj"),
    *encoder.dense("start", "start_logits.dense"),
    *pair_scores("end", "end_logits"),
    *pair_scores("impossible", "answer_class"),
)


def read_config(found: Mapping[str, Any]) -> XlnetConfig:
    """Return the XlnetConfig of a config.json. transformers' defaults are the sizes of large, and exact GELU."""
    large = XlnetConfig.large()
    defaults = {name: getattr(large, name) for name in ("d_model", "n_layer", "n_head", "d_inner")}
    return config_json.read(found, XlnetConfig, defaults | {"ff_activation": "gelu"}, REQUIRED)


def write_config(model: nn.Module, labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings with which transformers' XLNetConfig builds the same model, without memory."""
    return config_json.write(model, labels, "xlnet") | {"mem_len": None, "reuse_len": None}


NAMES = tensor_names.Names(
    prefix="transformer",
    parts=("word_embedding", "mask_emb", "layer"),
    heads=(
        "lm_loss",
        "sequence_summary",
        "logits_proj",
        "classifier",
        "qa_outputs",
        "start_logits",
        "end_logits",
        "answer_class",
    ),
    ties={"lm_loss.weight": "transformer.word_embedding.weight"},
    buffers=r"(?!)",
)


def example(config: XlnetConfig) -> dict[str, np.ndarray]:
    """Return an example as in `example_rows`, with token_type_ids. Rows have 32 tokens."""
    generator = np.random.default_rng(0)
    rows = example_rows(generator, 32, config.vocab_size, padding=config.pad_token_id)
    return rows | {"token_type_ids": generator.integers(0, 3, (2, 32), np.int32)}


def pad_left(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the same rows with padding before their tokens, because transformers reads the last token of a row."""
    lengths = rows["attention_mask"].sum(axis=1)
    places = (np.arange(rows["attention_mask"].shape[1]) + lengths[:, None]) % rows["attention_mask"].shape[1]
    return {name: np.take_along_axis(field, places, axis=1) for name, field in rows.items()}


def choices(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return one question [1 C T], padded on the left."""
    return {name: field[None] for name, field in pad_left(rows).items()}


_ANSWERS = {
    "start_probabilities": "start_top_log_probs",
    "end_probabilities": "end_top_log_probs",
    "impossible_logits": "cls_logits",
}
_TAGS = (*ENCODER, *encoder.CLASSIFIER)
_SPANS = (*ENCODER, *encoder.dense("classifier", "qa_outputs"))
ADAPTER = Adapter(
    config=XlnetConfig,
    architectures={
        "XLNetModel": Architecture(XlnetModel, BODY, encoder.HIDDEN, within="xlnet"),
        "XLNetLMHeadModel": Architecture(XlnetForPreTraining, HEADED, encoder.LOGITS, tied=True),
        "XLNetForSequenceClassification": Architecture(
            XlnetForSequenceClassification,
            HEADED,
            encoder.LOGITS,
            options=encoder.labels_option,
            batch=pad_left,
        ),
        "XLNetForMultipleChoice": Architecture(XlnetForMultipleChoice, HEADED, encoder.LOGITS, batch=choices),
        "XLNetForTokenClassification": Architecture(
            TokenClassification, _TAGS, encoder.LOGITS, options=encoder.labels_option
        ),
        "XLNetForQuestionAnsweringSimple": Architecture(QuestionAnswering, _SPANS, encoder.SPAN),
        "XLNetForQuestionAnswering": Architecture(XlnetForQuestionAnswering, HEADED, _ANSWERS, batch=pad_left),
    },
    read_config=read_config,
    write_config=write_config,
    names=NAMES,
    example=example,
)
