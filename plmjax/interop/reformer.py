"""Reformer in transformers: its config.json, and the names and layout of its tensors.

Outputs are compared for rows of one chunk: in longer rows each library samples its own hashes.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import numpy as np

from plmjax.errors import UserError, quoted
from plmjax.interop import config_json, encoder, tensor_names
from plmjax.interop.adapter import Adapter, Architecture, example_rows
from plmjax.interop.conversion import Conversion, one_to_one, parameter, weight
from plmjax.models.families.task_heads import QuestionAnswering
from plmjax.models.reformer.heads import (
    ReformerForCausalLM,
    ReformerForMaskedLM,
    ReformerForSequenceClassification,
)
from plmjax.models.reformer.reformer import ReformerConfig, ReformerModel

REQUIRED = {"axial_pos_embds": True, "tie_word_embeddings": False, "pruned_heads": {}, "quantization_config": None}
"""transformers settings that change the computation, with the one value that this model implements."""
TUPLES = {"attn_layers": str, "axial_pos_shape": int, "axial_pos_embds_dim": int, "num_buckets": int}
"""Fields that are lists in config.json, and the type of their elements."""
DEFAULTS = {
    "vocab_size": 320,
    "hidden_size": 256,
    "attn_layers": ("local", "lsh") * 3,
    "num_attention_heads": 12,
    "attention_head_size": 64,
    "feed_forward_size": 512,
    "axial_pos_shape": (64, 64),
    "axial_pos_embds_dim": (64, 192),
    "is_decoder": False,
    "local_attn_chunk_length": 64,
    "lsh_attn_chunk_length": 64,
    "num_hashes": 1,
    "hidden_dropout_prob": 0.05,
    "local_attention_probs_dropout_prob": 0.05,
    "lsh_attention_probs_dropout_prob": 0.0,
}
"""Defaults of transformers that differ from ours, which are the sizes of enwik8."""

_HEADS = ("query", "key", "value", "query_key")


def body(config: ReformerConfig) -> tuple[Conversion, ...]:
    """Return the conversions of the model without a head. Layers at the same place of all periods form a stack."""
    axes = range(len(config.axial_pos_shape))
    found = [
        parameter("word_embeddings/embedding", "embeddings.word_embeddings.weight"),
        *(_axial(axis, len(axes)) for axis in axes),
        *encoder.layer_norm("layer_norm", "encoder.layer_norm"),
    ]
    for place in range(len(config.period)):
        ours, theirs = f"layers/layer_{place}", "encoder.layers.{layer}"
        layer = (
            *encoder.layer_norm(f"{ours}/attention_layer_norm", f"{theirs}.attention.layer_norm"),
            *(
                parameter(
                    f"{ours}/attention/{name}/kernel", f"{theirs}.attention.self_attention.{name}.weight", weight()
                )
                for name in _HEADS
            ),
            parameter(f"{ours}/attention/output/kernel", f"{theirs}.attention.output.dense.weight", weight(2)),
            *encoder.layer_norm(f"{ours}/feed_forward_layer_norm", f"{theirs}.feed_forward.layer_norm"),
            *encoder.dense(f"{ours}/feed_forward/intermediate", f"{theirs}.feed_forward.dense.dense"),
            *encoder.dense(f"{ours}/feed_forward/output", f"{theirs}.feed_forward.output.dense"),
        )
        found += [dataclasses.replace(one, first=place, every=len(config.period)) for one in layer]
    return tuple(found)


def _axial(axis: int, count: int) -> Conversion:
    """Return the conversion of an axial table, which has a dimension for every axis in transformers."""
    shape = lambda table: [len(table) if one == axis else 1 for one in range(count)]  # noqa: E731
    arranged = one_to_one(lambda table: table.reshape(*shape(table), -1), lambda tensor, shape: tensor.reshape(shape))
    return parameter(f"position_embeddings/axis_{axis}", f"embeddings.position_embeddings.weights.{axis}", arranged)


def within_head(config: ReformerConfig) -> tuple[Conversion, ...]:
    """Return the conversions of the model inside a module with a head."""
    return encoder.under("reformer", body(config))


LANGUAGE_MODEL = (parameter("output/table", "lm_head.decoder.weight"), parameter("output/bias", "lm_head.decoder.bias"))
LABELS = (
    *encoder.dense("classifier/dense", "classifier.dense"),
    *encoder.dense("classifier/output", "classifier.out_proj"),
)


def unused_bias(config: ReformerConfig) -> dict[str, np.ndarray]:
    """Return the tensor of a language model's head that transformers saves and does not use."""
    return {"lm_head.bias": np.zeros(config.vocab_size, np.float32)}


def read_config(found: Mapping[str, Any]) -> ReformerConfig:
    """Return the ReformerConfig of a config.json; the number of buckets is a number, a list of factors, or null.

    Deviation: for null, the number follows from the longest row; transformers takes it from the first row it reads.
    """
    tuples = {}
    for name, kind in TUPLES.items():
        value = found.get(name)
        value = [value] if name == "num_buckets" and type(value) is int else value
        if value is None:
            continue
        if not isinstance(value, list) or not all(type(one) is kind for one in value):
            raise UserError(
                f"Expected a list of {kind.__name__} as the config's {name}, found {quoted(value)}; correct it."
            )
        tuples[name] = tuple(value)
    _check_small(tuples)
    if "num_buckets" not in tuples:
        chunk = found.get("lsh_attn_chunk_length", DEFAULTS["lsh_attn_chunk_length"])
        shape = tuples.get("axial_pos_shape", DEFAULTS["axial_pos_shape"])
        tuples["num_buckets"] = choose_buckets(math.prod(shape), chunk if type(chunk) is int and chunk > 0 else 1)
    others = {name: value for name, value in found.items() if name not in TUPLES}
    return config_json.read(others, ReformerConfig, DEFAULTS | tuples, REQUIRED)


def choose_buckets(length: int, chunk: int) -> tuple[int, ...]:
    """Return the factors of the number of hash buckets, about twice the number of chunks of a row, as in transformers.

    A number above both twice the chunk's length and twice the square root of the number of chunks has two factors.
    """
    chunks = length // chunk
    power = max(1, (2 * chunks).bit_length() - 1)
    if 2**power > 2 * max(math.isqrt(chunks), chunk):
        return 2 ** (power // 2), 2 ** (power - power // 2)
    return (2**power,)


def _check_small(tuples: Mapping[str, tuple]) -> None:
    for name, values in tuples.items():
        numbers = [value for value in values if isinstance(value, int)]
        if any(abs(number) >= config_json.LARGEST for number in numbers) or len(values) > config_json.DEEPEST:
            raise UserError(
                f"Expected at most {config_json.DEEPEST} numbers below 2**31 as the config's {name}, found "
                f"{quoted(values)}; correct it."
            )


def write_config(model: nn.Module, labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings with which transformers' ReformerConfig builds the same model.

    Without a `hash_seed`, transformers samples new hashes at every call.
    """
    return config_json.write(model, labels, "reformer") | {
        "tie_word_embeddings": False,
        "axial_pos_embds": True,
        "max_position_embeddings": model.config.longest,
    }


NAMES = tensor_names.Names(
    prefix="reformer",
    parts=("embeddings", "encoder"),
    heads=("lm_head", "classifier", "qa_outputs"),
    ties={},
    buffers=r"lm_head\.bias|reformer\.encoder\.layers\.\d+\.attention\.self_attention\.(self_)?mask_value_float\d+",
)


def example(config: ReformerConfig) -> dict[str, np.ndarray]:
    """Return an example as in `example_rows`, with rows of one chunk and at most 32 tokens."""
    return example_rows(np.random.default_rng(0), min(32, one_chunk(config)), config.vocab_size, padding=None)


def one_chunk(config: ReformerConfig) -> int:
    """Return the maximum number of tokens of a row with a single chunk, which needs no hashes."""
    return min(config.smallest_chunk, config.longest)


ADAPTER = Adapter(
    config=ReformerConfig,
    architectures={
        "ReformerModelWithLMHead": Architecture(
            ReformerForCausalLM, LANGUAGE_MODEL, encoder.LOGITS, sized=within_head, constants=unused_bias
        ),
        "ReformerForMaskedLM": Architecture(
            ReformerForMaskedLM, LANGUAGE_MODEL, encoder.LOGITS, sized=within_head, constants=unused_bias
        ),
        "ReformerForSequenceClassification": Architecture(
            ReformerForSequenceClassification, LABELS, encoder.LOGITS, sized=within_head, options=encoder.labels_option
        ),
        "ReformerForQuestionAnswering": Architecture(
            QuestionAnswering, encoder.dense("classifier", "qa_outputs"), encoder.SPAN, sized=within_head
        ),
        "ReformerModel": Architecture(ReformerModel, (), encoder.HIDDEN, sized=body, within="reformer"),
    },
    read_config=read_config,
    write_config=write_config,
    names=NAMES,
    example=example,
    longest=one_chunk,
)
