"""The rows of the Transformer, BART, T5, Lite Transformer and its language model."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from plmjax.interop import bart as bart_interop
from plmjax.interop import marian as marian_interop
from plmjax.interop import t5 as t5_interop
from plmjax.models import t5, transformer
from plmjax.models.bart import bart
from plmjax.models.families.task_heads import QuestionAnswering
from plmjax.models.lite_transformer import decoder as lite_decoder
from plmjax.models.lite_transformer import lite_transformer
from tests.families.family import (
    READS_AND_WRITES,
    READS_FORWARD,
    Count,
    Family,
    Head,
    both_sides,
    ended_sources,
    untyped_tokens,
)
from tests.families.oracles import TorchOracle
from tests.optional import torch
from tests.third_party import experiments

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
    switches=({"feed_forward_proj": "gated-gelu", "num_layers": 1}, {"feed_forward_proj": "gated-silu"}),
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
    deviations={"shared": 1.0, "query": (128 * 32) ** -0.5, "feed_forward/output": 512**-0.5, "": 128**-0.5},
    words="shared/embedding",
    token_heads=False,
    step=experiments.t5,
    learning={"model": {"d_model": 32, "d_ff": 64}},
    batches={"both sides": both_sides},
    views=READS_AND_WRITES,
)

# -------------------------------------------------------------------------------------------- Lite Transformer

LITE = lite_transformer.LiteTransformerConfig(
    vocab_size=53,
    max_position_embeddings=19,
    d_model=24,
    encoder_layers=3,
    decoder_layers=3,
    encoder_attention_heads=3,
    decoder_attention_heads=2,
    cross_attention_heads=4,
    encoder_ffn_dim=37,
    decoder_ffn_dim=29,
    convolution_heads=3,
    encoder_kernel_sizes=(5, 5, 5),
    decoder_kernel_sizes=(4, 4, 7),
    pad_token_id=3,
    eos_token_id=4,
    decoder_start_token_id=4,
).with_dropout(0.0)
"""With kernels of the decoder that differ, and equal ones that are stacked."""
LITE_TRAINED = dataclasses.replace(
    LITE.with_dropout(0.2),
    vocab_size=56,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=2,
    convolution_heads=2,
    encoder_kernel_sizes=(3, 3),
    decoder_kernel_sizes=(3, 3),
    encoder_ffn_dim=32,
    decoder_ffn_dim=32,
)


def lite_layer(params: Mapping[str, Any], layers: str, kernel_sizes: tuple[int, ...], layer: int) -> Any:
    """The parameters of one of the `layers` by their names."""
    runs = [i for i in range(len(kernel_sizes)) if i == 0 or kernel_sizes[i] != kernel_sizes[i - 1]]
    run = max(i for i, first in enumerate(runs) if first <= layer)
    prefix = f"{layers}_{run}/"
    return {name.removeprefix(prefix): x[layer - runs[run]] for name, x in params.items() if name.startswith(prefix)}


def lite_linear(p: Mapping[str, Any], name: str, x: Any) -> Any:
    return x @ p[f"{name}/kernel"] + p[f"{name}/bias"]


def lite_norm(p: Mapping[str, Any], name: str, x: Any) -> Any:
    return torch.layer_norm(x, x.shape[-1:], p[f"{name}/scale"], p[f"{name}/bias"], 1e-5)


def lite_attention(p: Mapping[str, Any], name: str, x: Any, *, source: Any, seen: Any) -> Any:
    """Head by head."""
    total = p[f"{name}/output/bias"]
    for head in range(p[f"{name}/query/kernel"].shape[1]):
        q, k, v = (
            of @ p[f"{name}/{part}/kernel"][:, head] + p[f"{name}/{part}/bias"][head]
            for part, of in (("query", x), ("key", source), ("value", source))
        )
        scores = torch.where(seen, q @ k.T / math.sqrt(q.shape[1]), -torch.inf)
        total = total + torch.softmax(scores, dim=1) @ v @ p[f"{name}/output/kernel"][head]
    return total


def lite_convolution(config: Any, p: Mapping[str, Any], x: Any, *, size: int, before: int) -> Any:
    """Section 3.2 of Wu et al. 2019, token by token; beyond both ends there are zeros."""
    x = lite_linear(p, "convolution/input", x)
    if config.convolution == "dynamic":
        x = torch.nn.functional.glu(x, dim=1)
        scores = torch.einsum("td,dhk->thk", x, p["convolution/scores/kernel"])
    else:
        scores = p["convolution/scores"].expand(len(x), -1, -1)
    weights = torch.softmax(scores, dim=2).repeat_interleave(x.shape[1] // config.convolution_heads, dim=1)
    around = torch.nn.functional.pad(x, (0, 0, before, size - 1 - before))
    rows = [torch.einsum("dk,kd->d", weights[t], around[t : t + size]) for t in range(len(x))]
    return lite_linear(p, "convolution/output", torch.stack(rows))


def lite_embedded(config: Any, table: Any, ids: Any) -> Any:
    half = config.d_model // 2
    angles = np.arange(len(ids))[:, None] / 10000 ** (np.arange(half) / half)
    waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return math.sqrt(2 * half) * table[ids] + torch.tensor(waves)


def lite_branches(config: Any, p: Mapping[str, Any], x: Any, *, seen: Any, size: int, before: int) -> Any:
    """Figure 3 (b)."""
    half = config.d_model // 2
    far = lite_attention(p, "attention", x[:, :half], source=x[:, :half], seen=seen)
    return torch.cat([far, lite_convolution(config, p, x[:, half:], size=size, before=before)], dim=1)


def lite_feed_forward(p: Mapping[str, Any], x: Any) -> Any:
    return lite_linear(p, "feed_forward/output", torch.relu(lite_linear(p, "feed_forward/intermediate", x)))


def lite_model(config: Any, params: Mapping[str, Any], text: Mapping[str, Any]) -> dict:
    """Figures 3 and 4 of the paper."""
    table = params["words/embedding"]

    def branches(p: Mapping[str, Any], x: Any, seen: Any, *, size: int, before: int) -> Any:
        return lite_norm(
            p, "attention_layer_norm", x + lite_branches(config, p, x, seen=seen, size=size, before=before)
        )

    def fed_forward(p: Mapping[str, Any], x: Any) -> Any:
        return lite_norm(p, "feed_forward_layer_norm", x + lite_feed_forward(p, x))

    x, y = (lite_embedded(config, table, text[name]) for name in ("input_ids", "decoder_input_ids"))
    of_x, of_source = torch.ones(len(x), len(x)) > 0, torch.ones(len(y), len(x)) > 0
    earlier = torch.ones(len(y), len(y)).tril() > 0
    for layer, size in enumerate(config.encoder_kernel_sizes):
        p = lite_layer(params, "encoder_layers", config.encoder_kernel_sizes, layer)
        x = fed_forward(p, branches(p, x, of_x, size=size, before=size // 2))
    for layer, size in enumerate(config.decoder_kernel_sizes):
        p = lite_layer(params, "decoder_layers", config.decoder_kernel_sizes, layer)
        y = branches(p, y, earlier, size=size, before=size - 1)
        across = lite_attention(p, "cross_attention", y, source=x, seen=of_source)
        y = fed_forward(p, lite_norm(p, "cross_attention_layer_norm", y + across))
    return {"encoder_last_hidden_state": x, "last_hidden_state": y, "logits": y @ table.T}


def lite_translation(config: Any, params: Mapping[str, Any], text: Mapping[str, Any]) -> dict:
    """The same, under the name of the system."""
    below = {name.removeprefix("lite_transformer/"): x for name, x in params.items()}
    return lite_model(config, below, text)


def lite_counts(config: Any, parameters: int) -> tuple:
    return config, (Count(lite_transformer.LiteTransformerModel, parameters, "_layers_"),)


LITE_ROW = Family(
    oracle=TorchOracle(
        {
            lite_transformer.LiteTransformerModel: lite_model,
            lite_transformer.LiteTransformerForConditionalGeneration: lite_translation,
        }
    ),
    heads=(Head(lite_transformer.LiteTransformerForConditionalGeneration(LITE)),),
    bodies=(lite_transformer.LiteTransformerModel(LITE),),
    switches=({"convolution": "lightweight"},),
    trained=Head(lite_transformer.LiteTransformerForConditionalGeneration(LITE_TRAINED)),
    sharded=("lite_transformer/decoder_layers_0/cross_attention/query/kernel", (2, 12, 2, 6)),
    counts={
        "wmt 200": lite_counts(lite_transformer.LiteTransformerConfig.wmt_200(), 2_884_400),
        "wmt 408": lite_counts(lite_transformer.LiteTransformerConfig.wmt_408(), 11_739_792),
        "wmt 496": lite_counts(lite_transformer.LiteTransformerConfig.wmt_496(), 17_283_616),
        "iwslt": lite_counts(lite_transformer.LiteTransformerConfig.iwslt(), 1_713_584),
    },
    initial=lite_transformer.LiteTransformerForConditionalGeneration(
        lite_transformer.LiteTransformerConfig.tiny(vocab_size=2000)
    ),
    truncated=False,
    deviations={
        "cross_attention/(query|key|value)": math.sqrt(1 / 256),
        "cross_attention/output": math.sqrt(2 / 256),
        "attention/(query|key|value)": math.sqrt(1 / 128),
        "attention/output": math.sqrt(2 / 128),
        "convolution/input": math.sqrt(2 / (64 + 128)),
        "convolution/output": math.sqrt(2 / 128),
        "layers_0/convolution/scores": math.sqrt(2 / (64 + 12)),
        "layers_1/convolution/scores": math.sqrt(2 / (64 + 28)),
        "feed_forward": math.sqrt(2 / 256),
        "": 128**-0.5,
    },
    uniform="kernel",
    words="words/embedding",
    token_heads=False,
    step=experiments.lite_transformer,
    learning={"model": {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}},
    batches={"both sides": both_sides},
    views=READS_AND_WRITES,
)

# ---------------------------------------------------------------------------- Lite Transformer, language model

LITE_DECODER = lite_decoder.LiteTransformerDecoderConfig(
    vocab_size=53,
    max_position_embeddings=19,
    d_model=24,
    decoder_layers=3,
    decoder_attention_heads=2,
    decoder_ffn_dim=37,
    convolution_heads=3,
    decoder_kernel_sizes=(4, 4, 7),
).with_dropout(0.0)
"""With kernels that differ, and equal ones that are stacked."""
LITE_DECODER_TRAINED = dataclasses.replace(
    LITE_DECODER.with_dropout(0.2),
    vocab_size=56,
    decoder_layers=2,
    convolution_heads=2,
    decoder_kernel_sizes=(3, 3),
    decoder_ffn_dim=32,
)


def lite_decoder_model(config: Any, params: Mapping[str, Any], text: Mapping[str, Any]) -> dict:
    """The decoder of the paper without a source, with the norms before the sublayers and none at the end."""
    table = params["words/embedding"]
    found = [lite_embedded(config, table, text["input_ids"])]
    earlier = torch.ones(len(found[0]), len(found[0])).tril() > 0
    for layer, size in enumerate(config.decoder_kernel_sizes):
        p = lite_layer(params, "layers", config.decoder_kernel_sizes, layer)
        y = lite_norm(p, "attention_layer_norm", found[-1])
        x = found[-1] + lite_branches(config, p, y, seen=earlier, size=size, before=size - 1)
        found.append(x + lite_feed_forward(p, lite_norm(p, "feed_forward_layer_norm", x)))
    return {"last_hidden_state": found[-1], "hidden_states": tuple(found), "logits": found[-1] @ table.T}


def lite_language_model(config: Any, params: Mapping[str, Any], text: Mapping[str, Any]) -> dict:
    """The same, under the name of the system."""
    below = {name.removeprefix("lite_transformer_decoder/"): x for name, x in params.items()}
    return lite_decoder_model(config, below, text)


LITE_DECODER_ROW = Family(
    oracle=TorchOracle(
        {
            lite_decoder.LiteTransformerDecoderModel: lite_decoder_model,
            lite_decoder.LiteTransformerForCausalLM: lite_language_model,
        }
    ),
    heads=(Head(lite_decoder.LiteTransformerForCausalLM(LITE_DECODER)),),
    bodies=(lite_decoder.LiteTransformerDecoderModel(LITE_DECODER),),
    switches=({"convolution": "lightweight"},),
    trained=Head(lite_decoder.LiteTransformerForCausalLM(LITE_DECODER_TRAINED)),
    sharded=("lite_transformer_decoder/layers_0/feed_forward/intermediate/kernel", (2, 12, 16)),
    counts={
        "wikitext103": (
            lite_decoder.LiteTransformerDecoderConfig.wikitext103(),
            (Count(lite_decoder.LiteTransformerForCausalLM, 37_182_208, "/layers_"),),
        )
    },
    initial=lite_decoder.LiteTransformerForCausalLM(lite_decoder.LiteTransformerDecoderConfig.tiny(vocab_size=2000)),
    truncated=False,
    deviations={
        "attention/(query|key|value)": math.sqrt(1 / 128),
        "attention/output": math.sqrt(2 / 128),
        "convolution/input": math.sqrt(2 / (64 + 128)),
        "convolution/output": math.sqrt(2 / 128),
        "layers_0/convolution/scores": math.sqrt(2 / (64 + 28)),
        "layers_1/convolution/scores": math.sqrt(2 / (64 + 60)),
        "feed_forward": math.sqrt(2 / 256),
        "": 128**-0.5,
    },
    uniform="kernel",
    words="words/embedding",
    token_heads=False,
    step=experiments.lite_transformer_decoder,
    learning={"model": {"d_model": 32, "decoder_ffn_dim": 64}},
    batches={"tokens": untyped_tokens},
    views=READS_FORWARD,
)
