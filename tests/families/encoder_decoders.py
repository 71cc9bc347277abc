"""The rows of the Transformer, BART and T5."""

import dataclasses
import math
from typing import Any

from plmjax.interop import bart as bart_interop
from plmjax.interop import marian as marian_interop
from plmjax.interop import t5 as t5_interop
from plmjax.models import t5, transformer
from plmjax.models.bart import bart
from plmjax.models.families.task_heads import QuestionAnswering
from tests.families.family import READS_AND_WRITES, Family, Head, both_sides, ended_sources
from tests.strangers import experiments

# -------------------------------------------------------------------------------------------------- Transformer

WRITER_SIZES = {
    "vocab_size": 53,
    "max_position_embeddings": 19,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 29,
    "dropout": 0.0,
    "pad_token_id": 3,
    "eos_token_id": 4,
    "decoder_start_token_id": 4,
}
"""Odd ones, with unequal sides."""
WRITER_TRAINED = {
    "vocab_size": 56,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "dropout": 0.2,
    "encoder_layers": 2,
    "decoder_layers": 2,
}
"""A random mask takes long to compile, and so does every layer of an unrolled loop."""
TRANSFORMER = transformer.TransformerConfig(**WRITER_SIZES)
MARIAN = dataclasses.replace(TRANSFORMER, output_bias=True)


def transformer_counts(config: Any, parameters: int) -> tuple:
    return config, (
        (transformer.TransformerModel, parameters),
        (transformer.TransformerForConditionalGeneration, parameters),
    )


TRANSFORMER_ROW = Family(
    adapter=marian_interop.ADAPTER,
    heads=(Head(transformer.TransformerForConditionalGeneration(TRANSFORMER)),),
    bodies=(transformer.TransformerModel(TRANSFORMER),),
    stored=(transformer.TransformerForConditionalGeneration(MARIAN),),
    switches=(
        {"activation_function": "swish", "scale_embedding": False},
        {"activation_function": "gelu", "d_model": 15, "encoder_attention_heads": 3, "encoder_layers": 1},
    ),
    trained=Head(transformer.TransformerForConditionalGeneration(dataclasses.replace(MARIAN, **WRITER_TRAINED))),
    sharded=("transformer/decoder_layers/cross_attention/query/kernel", (2, 12, 2, 6)),
    counts={
        "base": transformer_counts(transformer.TransformerConfig.base(), 63_082_496),
        "big": transformer_counts(transformer.TransformerConfig.big(), 214_245_376),
    },
    initial=transformer.TransformerForConditionalGeneration(transformer.TransformerConfig.tiny(vocab_size=2000)),
    truncated=False,
    deviations={"feed_forward": math.sqrt(2 / (128 + 512)), "": 128**-0.5},
    uniform="kernel",
    words="words/embedding",
    token_heads=False,
    step=experiments.transformer,
    learning={"model": {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}},
    batches={"both sides": both_sides},
    views=READS_AND_WRITES,
)

# --------------------------------------------------------------------------------------------------------- BART

BART = bart.BartConfig(**WRITER_SIZES, activation_function="gelu")


def bart_counts(config: Any, parameters: int) -> tuple:
    return config, ((bart.BartModel, parameters), (bart.BartForConditionalGeneration, parameters))


BART_ROW = Family(
    adapter=bart_interop.ADAPTER,
    heads=(
        Head(bart.BartForConditionalGeneration(BART)),
        Head(bart.BartForSequenceClassification(BART, num_labels=5), ("logits",)),
    ),
    bodies=(bart.BartModel(BART),),
    stored=(
        QuestionAnswering(BART),
        bart.BartForSequenceClassification(dataclasses.replace(BART, classifier_dropout=0.3), num_labels=4),
    ),
    switches=({"activation_function": "relu", "d_model": 15, "encoder_attention_heads": 3},),
    trained=Head(bart.BartForConditionalGeneration(dataclasses.replace(BART, **WRITER_TRAINED))),
    sharded=("bart/encoder_layers/attention/query/kernel", (2, 12, 2, 6)),
    counts={
        "base": bart_counts(bart.BartConfig.base(), 139_420_416),
        "large": bart_counts(bart.BartConfig.large(), 406_291_456),
    },
    initial=bart.BartForConditionalGeneration(bart.BartConfig.tiny(vocab_size=2000)),
    truncated=False,
    words="words/embedding",
    token_heads=False,
    step=experiments.bart,
    learning={"model": {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "init_std": 0.1}},
    batches={"both sides": ended_sources},
    views=READS_AND_WRITES,
)

# ----------------------------------------------------------------------------------------------------------- T5

T5 = t5.T5Config(
    vocab_size=53,
    d_model=24,
    d_kv=5,
    d_ff=37,
    num_layers=2,
    num_decoder_layers=3,
    num_heads=3,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=12,
    dropout_rate=0.0,
    initializer_factor=0.3,
    pad_token_id=3,
    decoder_start_token_id=3,
)

T5_TRAINED = dataclasses.replace(
    T5.with_dropout(0.2), vocab_size=56, d_kv=6, d_ff=32, num_heads=4, num_decoder_layers=2
)


def t5_counts(config: t5.T5Config, parameters: int) -> tuple:
    own = 0 if config.tie_word_embeddings else config.vocab_size * config.d_model
    return config, ((t5.T5Model, parameters - own), (t5.T5ForConditionalGeneration, parameters))


T5_ROW = Family(
    adapter=t5_interop.ADAPTER,
    heads=(Head(t5.T5ForConditionalGeneration(T5)),),
    bodies=(t5.T5Model(T5),),
    stored=(t5.T5ForConditionalGeneration(dataclasses.replace(T5, feed_forward_proj="gated-gelu")),),
    switches=({"feed_forward_proj": "gated-gelu", "num_layers": 1},),
    trained=Head(t5.T5ForConditionalGeneration(T5_TRAINED)),
    sharded=("t5/decoder/layers/cross_attention/query/kernel", (2, 12, 2, 6)),
    counts={
        "small": t5_counts(t5.T5Config.small(), 60_506_624),
        "base": t5_counts(t5.T5Config.base(), 222_903_552),
        "large": t5_counts(t5.T5Config.large(), 737_668_096),
        "3B": t5_counts(t5.T5Config.three_billion(), 2_851_598_336),
        "11B": t5_counts(t5.T5Config.eleven_billion(), 11_307_321_344),
        "small 1.1": t5_counts(t5.T5Config.small_v1_1(), 76_961_152),
        "base 1.1": t5_counts(t5.T5Config.base_v1_1(), 247_577_856),
        "large 1.1": t5_counts(t5.T5Config.large_v1_1(), 783_150_080),
        "xl 1.1": t5_counts(t5.T5Config.xl_v1_1(), 2_849_757_184),
        "xxl 1.1": t5_counts(t5.T5Config.xxl_v1_1(), 11_135_332_352),
    },
    initial=t5.T5ForConditionalGeneration(
        t5.T5Config.tiny(vocab_size=2000, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    ),
    truncated=False,
    deviations={
        "shared": 1.0,
        "query": (128 * 32) ** -0.5,
        "feed_forward/output": 512**-0.5,
        "": 128**-0.5,
    },
    words="shared/embedding",
    token_heads=False,
    step=experiments.t5,
    learning={"model": {"d_model": 32, "d_ff": 64}},
    batches={"both sides": both_sides},
    views=READS_AND_WRITES,
)
