"""The rows of Longformer, of its language model and of LED."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.interop import led as led_interop
from plmjax.interop import longformer as longformer_interop
from plmjax.models.families.task_heads import TokenClassification
from plmjax.models.longformer import decoder, encoder_decoder, longformer
from tests.families.encoder_decoders import WRITER_SIZES, WRITER_TRAINED
from tests.families.family import (
    DROPOUT,
    READS_AND_WRITES,
    READS_FORWARD,
    SIZES,
    Batch,
    Count,
    Family,
    Head,
    both_sides,
    padded_tokens,
    untyped_tokens,
)
from tests.families.oracles import FormulaOracle, TransformersOracle
from tests.third_party import experiments

# --------------------------------------------------------------------------------------------------- Longformer


def from_windows(windows: Any, of_global: Any, real: np.ndarray) -> list[np.ndarray]:
    """The weights of all pairs of tokens in every layer, [B N T T], from those of transformers.

    windows: a query's weights for x global tokens and for the w + 1 tokens around it, [B N T x+w+1]; those of a global
    token are all 0. of_global: the weights of each key for x global queries, [B N S x]; None without a global token.
    real: bool [B T], whether a token is no padding.
    """
    found = []
    for layer, window in enumerate(one.detach().numpy() for one in windows):
        rows, heads, length, columns = window.shape
        own = np.zeros((rows, heads, length, 0)) if of_global is None else of_global[layer].detach().numpy()
        slots, dense = own.shape[-1], np.zeros((rows, heads, length, length), window.dtype)
        side = (columns - slots - 1) // 2
        for query in range(length):
            for key in range(max(0, query - side), min(length, query + side + 1)):
                dense[:, :, query, key] = window[:, :, query, slots + side + key - query]
        for row in range(rows):
            places = np.flatnonzero(real[row] & (window[row].sum(axis=(0, 2)) == 0))
            for slot, place in enumerate(places):
                dense[row, :, :, place] += window[row, :, :, slot]
            for slot, place in enumerate(places):
                dense[row, :, place] = own[row, :, :length, slot]  # transformers pads the keys
        found.append(dense)
    return found


class WindowedOracle(TransformersOracle):
    """Longformers, whose weights of attention transformers has without those of hidden keys."""

    def attentions(self, outputs: Mapping[str, Any], batch: Batch) -> Mapping[str, list[np.ndarray]]:
        """The weights of all pairs."""
        found = dict(super().attentions(outputs, batch))
        side = "encoder_" if "encoder_attentions" in found else ""
        windows, of_global = (outputs.get(f"{side}{name}") for name in ("attentions", "global_attentions"))
        real = batch["attention_mask"].reshape(len(windows[0]), -1) > 0
        return found | {f"{side}attentions": from_windows(windows, of_global, real)}


# transformers' code has no windows of 2, and each window must divide the longest one.
LONGFORMER = longformer.LongformerConfig(
    **SIZES, max_position_embeddings=68, pad_token_id=3, attention_window=(12, 4, 6), max_global_tokens=5
)
LONGFORMER_TRAINED = dataclasses.replace(
    LONGFORMER,
    vocab_size=56,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=32,
    attention_window=(4, 6),
    **DROPOUT,
)


def with_global_tokens(config: longformer.LongformerConfig) -> Batch:
    """As `padded_tokens`, with other global tokens in each row; one of them is padding, which sees nothing."""
    batch = padded_tokens(config)
    mask = np.zeros_like(batch["input_ids"])
    mask[0, [0, 3, 4, 16]] = mask[1, [2, 13]] = mask[2, 0] = 1
    return batch | {"global_attention_mask": mask}


def longformer_counts(config: longformer.LongformerConfig, with_pooler: int, masked_language_model: int) -> tuple:
    return config, (
        (lambda config: longformer.LongformerModel(config, pooling=True), with_pooler),
        (longformer.LongformerForMaskedLM, masked_language_model),
    )


BODY = longformer.LongformerModel(LONGFORMER, pooling=True)
LONGFORMER_ROW = Family(
    adapter=longformer_interop.ADAPTER,
    transformers_oracle=WindowedOracle,
    heads=(
        Head(longformer.LongformerForMaskedLM(LONGFORMER), predicts=True, packs=False),
        Head(longformer.LongformerForSequenceClassification(LONGFORMER, num_labels=5), ("logits",), packs=False),
        Head(longformer.LongformerForMultipleChoice(LONGFORMER), ("logits",), packs=False),
        Head(BODY, ("pooler_output",), outputs=("last_hidden_state",), packs=False),
    ),
    bodies=(BODY,),
    stored=(
        longformer.LongformerModel(LONGFORMER),
        longformer.LongformerForMaskedLM(dataclasses.replace(LONGFORMER, attention_window=(8, 8, 8))),
        longformer.LongformerForQuestionAnswering(LONGFORMER),
        TokenClassification(LONGFORMER, num_labels=4),
    ),
    switches=({"hidden_act": "gelu_new"}, {"attention_window": (4, 4, 12)}),
    trained=Head(longformer.LongformerForSequenceClassification(LONGFORMER_TRAINED), ("logits",), outputs=("logits",)),
    sharded=("longformer/encoder/layers/attention/query/kernel", (2, 12, 2, 6)),
    counts={
        "base": longformer_counts(longformer.LongformerConfig.base(), 148_659_456, 148_711_257),
        "large": longformer_counts(longformer.LongformerConfig.large(), 434_600_960, 434_653_273),
    },
    initial=longformer.LongformerForMaskedLM(longformer.LongformerConfig.tiny(vocab_size=2000)),
    truncated=False,
    token_heads=False,  # its head for questions has global tokens: it is among those above
    step=experiments.longformer,
    batches={"global tokens": with_global_tokens, "no global tokens": padded_tokens},
)

# --------------------------------------------------------------------------------------- its language model

DECODER = decoder.LongformerDecoderConfig(
    vocab_size=53,
    d_model=18,
    n_layer=2,
    n_head=3,
    d_inner=37,
    attention_window=(4, 4),
    attention_dilation=(1, 3),
    dropout=0.0,
)
"""With a layer of adjacent keys; the layers of the next one are alike and stacked."""
DECODER_TRAINED = dataclasses.replace(
    DECODER.with_dropout(0.2),
    vocab_size=56,
    d_model=24,
    n_head=4,
    d_inner=32,
    n_layer=2,
    attention_window=(3,),
    attention_dilation=(2,),
)


def decoder_attention(
    config: Any, p: Mapping[str, jax.Array], layer: int, *, x: jax.Array, u: Any, v: Any
) -> jax.Array:
    """Attention of [T D], with a mask of whole rows; the vector of each pair's distance is computed for the pair."""
    query, key, value = (
        jnp.einsum("td,dnh->tnh", x, p[f"attention/{name}/kernel"]) for name in ("query", "key", "value")
    )
    back = np.arange(len(x))[:, None] - np.arange(len(x))
    angles = np.maximum(back, 0)[..., None] / 10000 ** (np.arange(0, config.d_model, 2) / config.d_model)
    waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
    r = jnp.einsum("tsd,dnh->tsnh", waves, p["attention/relative_kernel"])
    scores = jnp.einsum("tnh,snh->nts", query + u, key) + jnp.einsum("tnh,tsnh->nts", query + v, r)
    visible = np.zeros((config.n_head, len(x), len(x)), bool)
    for head in range(config.n_head):
        dilated = head >= config.n_head - config.dilated_heads
        step, window = config.attention_dilation[layer] if dilated else 1, config.attention_window[layer]
        for i in range(len(x)):
            visible[head, i, [i - step * k for k in range(window + 1) if i - step * k >= 0]] = True
    weights = jax.nn.softmax(jnp.where(visible, scores / (config.d_model / config.n_head) ** 0.5, -jnp.inf))
    return jnp.einsum("nts,snh,nhd->td", weights, value, p["attention/output/kernel"])


def decoder_model(config: Any, params: Mapping[str, jax.Array], text: Mapping[str, Any]) -> dict:
    """A Transformer-XL with the norms before the sublayers, without a memory."""
    found = [params["words/embedding"][text["input_ids"]] * config.d_model**0.5]
    kinds = list(zip(config.attention_window, config.attention_dilation, strict=True))
    for layer in range(config.n_layer):
        run = len({i for i in range(1, layer + 1) if kinds[i] != kinds[i - 1]})
        first = max([i for i in range(1, layer + 1) if kinds[i] != kinds[i - 1]], default=0)
        prefix = f"layers_{run}/"
        p = {name.removeprefix(prefix): x[layer - first] for name, x in params.items() if name.startswith(prefix)}

        def normalised(x: jax.Array, name: str, p: Mapping[str, jax.Array] = p) -> jax.Array:
            centred = x - x.mean(-1, keepdims=True)
            scaled = centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
            return scaled * p[f"{name}_layer_norm/scale"] + p[f"{name}_layer_norm/bias"]

        x = found[-1]
        u, v = params["content_bias"], params["position_bias"]
        x = x + decoder_attention(config, p, layer, x=normalised(x, "attention"), u=u, v=v)
        y = normalised(x, "feed_forward") @ p["feed_forward/intermediate/kernel"] + p["feed_forward/intermediate/bias"]
        y = y * (1 + jax.scipy.special.erf(y / 2**0.5)) / 2
        found.append(x + y @ p["feed_forward/output/kernel"] + p["feed_forward/output/bias"])
    return {"last_hidden_state": found[-1], "hidden_states": tuple(found)}


def decoder_scores(config: Any, params: Mapping[str, jax.Array], text: Mapping[str, Any]) -> dict:
    own = {name.removeprefix("longformer_decoder/"): x for name, x in params.items()}
    last = decoder_model(config, own, text)["last_hidden_state"]
    return {"last_hidden_state": last, "logits": last @ own["words/embedding"].T + params["output_bias"]}


DECODER_ROW = Family(
    oracle=FormulaOracle(
        {decoder.LongformerDecoderForCausalLM: decoder_scores, decoder.LongformerDecoderModel: decoder_model},
        forward=True,
    ),
    heads=(Head(decoder.LongformerDecoderForCausalLM(DECODER), packs=False),),
    bodies=(decoder.LongformerDecoderModel(DECODER),),
    switches=({"attention_window": (20, 2), "attention_dilation": (5, 5), "dilated_heads": 3},),
    trained=Head(decoder.LongformerDecoderForCausalLM(DECODER_TRAINED)),
    sharded=("longformer_decoder/layers_0/attention/query/kernel", (2, 12, 2, 6)),
    counts={
        name: (
            getattr(decoder.LongformerDecoderConfig, name)(),
            (Count(decoder.LongformerDecoderForCausalLM, parameters),),
        )
        for name, parameters in (("small", 41_055_436), ("large", 102_480_076))
    },
    initial=decoder.LongformerDecoderForCausalLM(decoder.LongformerDecoderConfig.tiny(vocab_size=2000)),
    drawn=r"(kernel|embedding|(content|position)_bias)$",
    truncated=False,
    words="words/embedding",
    token_heads=False,
    step=experiments.longformer_decoder,
    learning={"model": {"d_model": 32, "d_inner": 64, "init_std": 0.1}},
    batches={"tokens": untyped_tokens},
    views=READS_FORWARD,
)

# ---------------------------------------------------------------------------------------------------------- LED

LED = encoder_decoder.LedConfig(
    **WRITER_SIZES | {"max_position_embeddings": 24},
    activation_function="gelu",
    max_decoder_position_embeddings=19,
    attention_window=(12, 4),
    max_global_tokens=5,
)


def source_with_global_tokens(config: encoder_decoder.LedConfig) -> Batch:
    """As `both_sides`, with other global tokens in each source; one of them is padding, which sees nothing."""
    batch = both_sides(config)
    mask = np.zeros_like(batch["input_ids"])
    mask[0, [0, 3, 4, 16]] = mask[1, [2, 13]] = mask[2, 0] = 1
    return batch | {"global_attention_mask": mask}


def source_with_a_global_token(config: encoder_decoder.LedConfig) -> Batch:
    """As `both_sides` with the first token global, as by default here."""
    batch = both_sides(config)
    return batch | {
        "global_attention_mask": (np.cumsum(np.ones_like(batch["input_ids"]), axis=1) == 1).astype(np.int32)
    }


def led_counts(config: Any, parameters: int) -> tuple:
    modules = encoder_decoder.LedModel, encoder_decoder.LedForConditionalGeneration
    return config, tuple((module, parameters) for module in modules)


LED_BODY = encoder_decoder.LedModel(LED)
LED_ROW = Family(
    adapter=led_interop.ADAPTER,
    transformers_oracle=WindowedOracle,
    heads=(
        Head(encoder_decoder.LedForConditionalGeneration(LED), packs=False),
        Head(LED_BODY, outputs=("last_hidden_state",), packs=False),
    ),
    bodies=(LED_BODY,),
    stored=(encoder_decoder.LedForConditionalGeneration(dataclasses.replace(LED, attention_window=(8, 8))),),
    switches=({"activation_function": "relu", "d_model": 15, "encoder_attention_heads": 3},),
    trained=Head(encoder_decoder.LedForConditionalGeneration(dataclasses.replace(LED, **WRITER_TRAINED))),
    sharded=("led/encoder_layers/attention/query_global/kernel", (2, 12, 2, 6)),
    counts={
        "base": led_counts(encoder_decoder.LedConfig.base(), 161_844_480),
        "large": led_counts(encoder_decoder.LedConfig.large(), 459_801_600),
    },
    initial=encoder_decoder.LedForConditionalGeneration(encoder_decoder.LedConfig.tiny(vocab_size=2000)),
    truncated=False,
    words="words/embedding",
    token_heads=False,
    step=experiments.led,
    learning={"model": {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "init_std": 0.1}},
    settings=lambda config: {"max_encoder_position_embeddings": config.max_position_embeddings},
    batches={"global tokens": source_with_global_tokens, "a global token": source_with_a_global_token},
    views=READS_AND_WRITES,
)
