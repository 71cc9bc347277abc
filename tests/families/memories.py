"""The rows of Transformer-XL and of Adaptive-Span, whose formulas read a text in segments."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.models import adaptive_span, transformer_xl
from tests.families.family import READS_FORWARD, Count, Family, Head, untyped_tokens
from tests.families.oracles import FormulaOracle
from tests.third_party import experiments

# ------------------------------------------------------------------------------------------------- Transformer-XL

TXL = transformer_xl.TransformerXlConfig(
    vocab_size=53,
    cutoffs=(24, 40),
    div_val=2,
    d_embed=12,
    d_model=18,
    n_layer=2,
    n_head=3,
    d_head=5,
    d_inner=37,
    mem_len=7,
).with_dropout(0.0)
TXL_TRAINED = dataclasses.replace(
    TXL.with_dropout(0.2),
    vocab_size=56,
    cutoffs=(24, 40),
    d_embed=16,
    d_model=24,
    n_layer=2,
    n_head=4,
    d_head=6,
    d_inner=32,
)
SEGMENT = 9


@flax.struct.dataclass
class Segments:
    """The outputs of a reader of segments, joined."""

    last_hidden_state: jax.Array
    logits: jax.Array


class InSegments(nn.Module):
    """The language model, which reads a row as segments of `SEGMENT` tokens and remembers the ones before."""

    config: Any
    execution: Any = Execution()

    @nn.compact
    def __call__(
        self, input_ids: jax.Array, attention_mask: jax.Array | None = None, *, deterministic: bool = True
    ) -> Segments:
        module = self.config.module(Purpose.PRETRAINING, self.execution, name="model")
        memory, found = self.config.memory(len(input_ids)), []
        for begin in range(0, input_ids.shape[1], SEGMENT):
            part = slice(begin, begin + SEGMENT)
            mask = None if attention_mask is None else attention_mask[:, part]
            outputs = module(input_ids[:, part], mask, cache=memory, deterministic=deterministic)
            memory = outputs.cache
            found.append(Segments(outputs.last_hidden_state, outputs.logits))
        return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *found)


def normalised(x: jax.Array, params: Mapping[str, jax.Array], name: str, layer: int) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    deviation = jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
    return centred / deviation * params[f"{name}/scale"][layer] + params[f"{name}/bias"][layer]


def txl_attention(
    config: Any, params: Mapping[str, jax.Array], layer: int, *, seen: jax.Array, tokens: int
) -> jax.Array:
    """Attention of the last `tokens` of [S D]; the vector of each pair's distance is looked up (appendix B)."""
    own = (layer,) if config.untie_r else ()
    kernels = {name: params[f"layers/attention/{name}/kernel"][layer] for name in ("query", "key", "value", "output")}
    u, v = (params[f"{'layers/' if own else ''}{name}_bias"][own] for name in ("content", "position"))
    keys, values = (jnp.einsum("sd,dnh->snh", seen, kernels[name]) for name in ("key", "value"))
    queries = jnp.einsum("td,dnh->tnh", seen[len(seen) - tokens :], kernels["query"])
    back = np.arange(len(seen) - tokens, len(seen))[:, None] - np.arange(len(seen))
    visible = (back >= 0) & (back < (config.mem_len if config.same_length else len(seen)))
    far = config.clamp_len if config.clamp_len > 0 else len(seen)
    angles = np.arange(len(seen))[:, None] * np.array(
        [10000 ** (-i / config.d_model) for i in range(0, config.d_model, 2)]
    )
    waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[np.clip(back, 0, far)]
    r = jnp.einsum("tsd,dnh->tsnh", waves, params["layers/relative/kernel"][layer])
    scores = jnp.einsum("tnh,snh->nts", queries + u, keys) + jnp.einsum("tnh,tsnh->nts", queries + v, r)
    weights = jax.nn.softmax(jnp.where(visible, scores / config.d_head**0.5, -jnp.inf))
    return jnp.einsum("nts,snh,nhd->td", weights, values, kernels["output"])


def txl_segment(
    config: Any, params: Mapping[str, jax.Array], ids: np.ndarray, memories: list[jax.Array]
) -> tuple[list[jax.Array], list[jax.Array]]:
    """The embeddings and the outputs of every layer, [T D] each, and the memories after them."""
    bounds = (0, *config.cutoffs, config.vocab_size)
    rows = [params[f"words/table_{i}"] for i in range(len(bounds) - 1)]
    if config.div_val > 1:
        rows = [row @ params[f"words/projection_{i}"] for i, row in enumerate(rows)]
    elif config.d_embed != config.d_model:
        rows = [row @ params["words/projection_0"] for row in rows]
    found, after = [jnp.concatenate(rows)[ids] * config.d_model**0.5], []
    for layer in range(config.n_layer):
        x, past = found[-1], memories[layer]
        seen = jnp.concatenate([jax.lax.stop_gradient(past), x])
        after.append(seen[max(0, len(seen) - config.mem_len) :])
        norms = [
            functools.partial(normalised, params=params, name=f"layers/{name}_layer_norm", layer=layer)
            for name in ("attention", "feed_forward")
        ]
        names = [f"layers/feed_forward/{name}" for name in ("intermediate", "output")]
        (w1, b1), (w2, b2) = ((params[f"{name}/kernel"][layer], params[f"{name}/bias"][layer]) for name in names)
        if config.pre_lnorm:
            x = x + txl_attention(config, params, layer, seen=norms[0](seen), tokens=len(x))
            x = x + jnp.maximum(norms[1](x) @ w1 + b1, 0) @ w2 + b2
        else:
            x = norms[0](x + txl_attention(config, params, layer, seen=seen, tokens=len(x)))
            x = norms[1](x + jnp.maximum(x @ w1 + b1, 0) @ w2 + b2)
        found.append(x)
    return found, after


def of_prefix(params: Mapping[str, jax.Array], prefix: str) -> dict[str, jax.Array]:
    return {name.removeprefix(prefix): x for name, x in params.items() if name.startswith(prefix)}


def txl_model(config: Any, params: Mapping[str, jax.Array], text: Mapping[str, Any]) -> dict:
    """Without a memory."""
    empty = [jnp.zeros((0, config.d_model))] * config.n_layer
    found, _ = txl_segment(dataclasses.replace(config, same_length=False), params, text["input_ids"], empty)
    return {"last_hidden_state": found[-1], "hidden_states": tuple(found)}


def txl_logits(config: Any, params: Mapping[str, jax.Array], hidden: jax.Array) -> jax.Array:
    """log p of every token, as equations 1 and 2 of Grave et al. have it."""
    own, bounds = of_prefix(params, "softmax/"), (0, *config.cutoffs, config.vocab_size)
    words, logits = of_prefix(params, "transformer_xl/words/"), []
    for i in range(len(bounds) - 1):
        tied = config.proj_share_all_but_first and i > 0
        kernel = words.get(f"projection_{i if config.div_val > 1 else 0}") if tied else own.get(f"projection_{i}")
        table = (words if config.tie_word_embeddings else own)[f"table_{i}"]
        asked = hidden if kernel is None else hidden @ kernel.T
        logits.append(asked @ table.T + own[f"bias_{i}"])
        if i == 0 and config.cutoffs:
            logits[0] = jnp.concatenate([logits[0], asked @ own["entries"].T + own["entries_bias"]], axis=-1)
    if not config.cutoffs:
        return logits[0]
    head, *tails = [jax.nn.log_softmax(one) for one in logits]
    found = [tail + head[:, config.cutoffs[0] + i, None] for i, tail in enumerate(tails)]
    return jnp.concatenate([head[:, : config.cutoffs[0]], *found], axis=-1)


def txl_scores(config: Any, params: Mapping[str, jax.Array], text: Mapping[str, Any]) -> dict:
    last = txl_model(config, of_prefix(params, "transformer_xl/"), text)["last_hidden_state"]
    return {"last_hidden_state": last, "logits": txl_logits(config, params, last)}


def txl_in_segments(config: Any, params: Mapping[str, jax.Array], text: Mapping[str, Any]) -> dict:
    params = of_prefix(params, "model/")
    before = config.mem_len if config.initial_memory == "zeros" else 0
    memories, found = [jnp.zeros((before, config.d_model))] * config.n_layer, []
    for begin in range(0, len(text["input_ids"]), SEGMENT):
        ids = text["input_ids"][begin : begin + SEGMENT]
        layers, memories = txl_segment(config, of_prefix(params, "transformer_xl/"), ids, memories)
        found.append(layers[-1])
    last = jnp.concatenate(found)
    return {"last_hidden_state": last, "logits": txl_logits(config, params, last)}


TXL_ROW = Family(
    oracle=FormulaOracle(
        {
            InSegments: txl_in_segments,
            transformer_xl.TransformerXlForCausalLM: txl_scores,
            transformer_xl.TransformerXlModel: txl_model,
        },
        forward=True,
    ),
    heads=(Head(InSegments(TXL), packs=False), Head(transformer_xl.TransformerXlForCausalLM(TXL), packs=False)),
    bodies=(transformer_xl.TransformerXlModel(TXL),),
    switches=(
        {"same_length": True, "clamp_len": 4, "untie_r": True, "tie_word_embeddings": False},
        {"pre_lnorm": True, "initial_memory": "zeros", "div_val": 1, "proj_share_all_but_first": False},
        {"cutoffs": (), "div_val": 1, "d_embed": 18, "mem_len": 3},
    ),
    trained=Head(transformer_xl.TransformerXlForCausalLM(TXL_TRAINED)),
    sharded=("transformer_xl/layers/attention/query/kernel", (2, 12, 2, 6)),
    counts={
        name: (
            getattr(transformer_xl.TransformerXlConfig, name)(),
            (Count(transformer_xl.TransformerXlForCausalLM, parameters),),
        )
        for name, parameters in (
            ("enwik8_base", 41_055_436),
            ("enwik8_large", 277_231_820),
            ("text8_base", 40_964_635),
            ("text8_large", 277_050_395),
            ("wikitext103_base", 151_107_538),
            ("wikitext103_large", 285_170_506),
        )
    },
    initial=transformer_xl.TransformerXlForCausalLM(
        transformer_xl.TransformerXlConfig.tiny(vocab_size=2000, cutoffs=(500, 1000), div_val=2)
    ),
    drawn=r"(kernel|table_\d|projection_\d|entries|(content|position)_bias)$",
    truncated=False,
    deviations={r"projection_\d": 0.01},
    words="words/table_0",
    step=experiments.transformer_xl,
    learning={"model": {"d_embed": 32, "d_model": 32, "d_inner": 64, "init_std": 0.1}},
    batches={"tokens": untyped_tokens},
    views=READS_FORWARD,
)

# -------------------------------------------------------------------------------------------------- Adaptive-Span

SPAN = adaptive_span.AdaptiveSpanConfig(
    vocab_size=53, d_model=18, n_layer=2, n_head=3, d_inner=37, attn_span=23, ramp=17, dropout=0.0
)
"""A ramp so long that random shares leave some tokens visible."""
SPAN_TRAINED = dataclasses.replace(SPAN.with_dropout(0.2), vocab_size=56, d_model=24, n_head=4, d_inner=32)


def span_attention(
    config: Any, params: Mapping[str, jax.Array], layer: int, *, seen: jax.Array, tokens: int
) -> jax.Array:
    """Attention of the last `tokens` of [S D], as the released code has it: softmax, mask, sum of 1 again."""
    kernels = {name: params[f"layers/attention/{name}/kernel"][layer] for name in ("query", "key", "value", "output")}
    queries, keys, values = (
        jnp.einsum("td,dnh->tnh", x, kernels[name])
        for name, x in (("query", seen[len(seen) - tokens :]), ("key", seen), ("value", seen))
    )
    back = np.arange(len(seen) - tokens, len(seen))[:, None] - np.arange(len(seen))
    visible = (back >= 1) & (back <= config.span)
    vectors = params["position_vectors"][config.attn_span - np.clip(back, 1, config.span)]
    scores = jnp.einsum("tnh,snh->nts", queries, keys) + jnp.einsum("tnh,tsh->nts", queries, vectors)
    scores = jnp.where(visible, scores / config.head_size**0.5, -jnp.inf)
    spans = params["layers/span_shares"][layer][:, None, None] * config.attn_span
    mask = jnp.clip((1 - back + spans) / config.ramp + 1, 0, 1)
    if config.persistent_size:
        own = config.head_size**0.5 * params["layers/persistent_keys"][layer]
        kept = jnp.einsum("tnh,pnh->ntp", queries, own) / config.head_size**0.5
        scores, mask = jnp.concatenate([scores, kept], -1), jnp.concatenate([mask, jnp.ones_like(kept)], -1)
        own = config.persistent_size**0.5 * params["layers/persistent_values"][layer]
        values = jnp.concatenate([values, own])
    weights = jax.nn.softmax(scores) * mask
    weights = weights / (weights.sum(-1, keepdims=True) + 1e-8)
    return jnp.einsum("nts,snh,nhd->td", weights, values, kernels["output"])


def span_segment(
    config: Any, params: Mapping[str, jax.Array], ids: np.ndarray, memories: list[jax.Array]
) -> tuple[list[jax.Array], list[jax.Array]]:
    """The embeddings and the outputs of every layer, [T D] each, and the memories after them."""
    found, after = [params["words/embedding"][ids]], []
    for layer in range(config.n_layer):
        x, seen = found[-1], jnp.concatenate([jax.lax.stop_gradient(memories[layer]), found[-1]])
        after.append(seen[len(seen) - config.attn_span :])
        x = x + span_attention(config, params, layer, seen=seen, tokens=len(x))
        x = normalised(x, params, "layers/attention_layer_norm", layer)
        if not config.persistent_size:
            names = [f"layers/feed_forward/{name}" for name in ("intermediate", "output")]
            (w1, b1), (w2, b2) = ((params[f"{name}/kernel"][layer], params[f"{name}/bias"][layer]) for name in names)
            x = x + jnp.maximum(x @ w1 + b1, 0) @ w2 + b2
            x = normalised(x, params, "layers/feed_forward_layer_norm", layer)
        found.append(x)
    return found, after


def span_model(config: Any, params: Mapping[str, jax.Array], text: Mapping[str, Any]) -> dict:
    """After zeros."""
    found, _ = span_segment(config, params, text["input_ids"], [jnp.zeros((config.attn_span, config.d_model))] * 2)
    return {"last_hidden_state": found[-1], "hidden_states": tuple(found)}


def span_scores(config: Any, params: Mapping[str, jax.Array], text: Mapping[str, Any]) -> dict:
    last = span_model(config, of_prefix(params, "adaptive_span/"), text)["last_hidden_state"]
    return {"last_hidden_state": last, "logits": last @ params["output"].T + params["output_bias"]}


def span_in_segments(config: Any, params: Mapping[str, jax.Array], text: Mapping[str, Any]) -> dict:
    params, memories, found = of_prefix(params, "model/"), [jnp.zeros((config.attn_span, config.d_model))] * 2, []
    for begin in range(0, len(text["input_ids"]), SEGMENT):
        ids = text["input_ids"][begin : begin + SEGMENT]
        layers, memories = span_segment(config, of_prefix(params, "adaptive_span/"), ids, memories)
        found.append(layers[-1])
    last = jnp.concatenate(found)
    return {"last_hidden_state": last, "logits": last @ params["output"].T + params["output_bias"]}


SPAN_ROW = Family(
    oracle=FormulaOracle(
        {
            InSegments: span_in_segments,
            adaptive_span.AdaptiveSpanForCausalLM: span_scores,
            adaptive_span.AdaptiveSpanModel: span_model,
        },
        forward=True,
    ),
    heads=(Head(InSegments(SPAN), packs=False), Head(adaptive_span.AdaptiveSpanForCausalLM(SPAN), packs=False)),
    bodies=(adaptive_span.AdaptiveSpanModel(SPAN),),
    switches=({"persistent_size": 5}, {"computed_span": 7}),
    trained=Head(adaptive_span.AdaptiveSpanForCausalLM(SPAN_TRAINED)),
    sharded=("adaptive_span/layers/attention/query/kernel", (2, 12, 2, 6)),
    counts={
        name: (
            getattr(adaptive_span.AdaptiveSpanConfig, name)(),
            (Count(adaptive_span.AdaptiveSpanForCausalLM, parameters),),
        )
        for name, parameters in (
            ("enwik8_base", 38_538_541),
            ("enwik8_large", 208_910_221),
            ("enwik8_small", 6_480_621),
            ("all_attention", 114_017_773),
        )
    },
    initial=adaptive_span.AdaptiveSpanForCausalLM(adaptive_span.AdaptiveSpanConfig.tiny(vocab_size=2000)),
    drawn=r"(kernel|embedding|position_vectors|output)$",
    truncated=False,
    deviations={
        "embedding": 1.0,
        "position_vectors": 1.0,
        "feed_forward/output": (3 * 512) ** -0.5,
        "": (3 * 128) ** -0.5,
    },
    uniform=r"(kernel|/output|^output)$",
    words="words/embedding",
    token_heads=False,
    step=experiments.adaptive_span,
    learning={"model": {"d_model": 32, "d_inner": 64}},
    batches={"tokens": untyped_tokens},
    views=READS_FORWARD,
)
