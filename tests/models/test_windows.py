"""A BERT and a GPT-2 with a window: an option of their config, the same in bands and in whole rows."""

import dataclasses
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.layers.attention import bands
from plmjax.models.bert import BertConfig
from plmjax.models.gpt import GptConfig
from plmjax.models.gpt2 import Gpt2Config, Gpt2ForCausalLM
from plmjax.models.mobilebert import MobileBertConfig
from tests.products import flops
from tests.systems.modules import outputs, random_params

ENCODER = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
DECODER = {"vocab_size": 40, "n_embd": 8, "n_layer": 2, "n_head": 2}
CONFIGS = [
    BertConfig(**ENCODER, attention_window=6),
    MobileBertConfig(**ENCODER, embedding_size=4, intra_bottleneck_size=8, attention_window=6),
    GptConfig(**DECODER, attention_window=3),
]
LENGTH = 30


def reached(config: Any) -> np.ndarray:
    """bool [T S]: whether a word changes the output of a token."""
    module = config.module(Purpose.ENCODING, Execution())
    params, ids = random_params(module), jnp.arange(4, 4 + LENGTH)[None]
    flat = flax.traverse_util.flatten_dict(params)
    rows = config.vocab_size, config.vocab_size + config.longest  # GPT's table has its positions too
    (words,) = (path for path, leaf in flat.items() if path[-1] == "embedding" and leaf.shape[0] in rows)

    def of_words(table: jax.Array) -> jax.Array:
        changed = flax.traverse_util.unflatten_dict(flat | {words: table})
        return module.apply({"params": changed}, ids).last_hidden_state[0].sum(-1)

    return np.abs(jax.jit(jax.jacrev(of_words))(flat[words])[:, ids[0]]).max(-1) > 0


@pytest.mark.nightly
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_windows_reach_as_far_as_the_layers_together(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tokens on each side in each of two layers, or three before; MobileBERT's vectors know their neighbors."""
    monkeypatch.setattr(bands, "MIN_BLOCK_SIZE", 4)
    distance = np.arange(LENGTH) - np.arange(LENGTH)[:, None]
    before = 7 if isinstance(config, MobileBertConfig) else 6
    after = 0 if isinstance(config, GptConfig) else before
    np.testing.assert_array_equal(reached(config), (distance >= -before) & (distance <= after))


def test_a_step_of_4096_tokens_costs_as_its_window() -> None:
    """At most 2.2 times the products of 2,048 tokens; a quarter of those without a window, or less."""

    def cost(length: int, window: int | None) -> float:
        config = BertConfig(**ENCODER, max_position_embeddings=4096, attention_window=window)
        module = config.module(Purpose.ENCODING, Execution(remat="full"))
        ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
        params = jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.zeros((1, 8), jnp.int32)))
        return flops(jax.grad(lambda params, ids: module.apply(params, ids).last_hidden_state.sum()), params, ids)

    assert cost(4096, 128) <= 2.2 * cost(2048, 128)
    assert cost(4096, 128) * 4 <= cost(4096, None)


def test_a_cache_gives_what_the_whole_text_gives() -> None:
    """Token by token, behind a window that the text is longer than."""
    config = Gpt2Config(**DECODER, attention_window=3)
    module, ids = Gpt2ForCausalLM(config), jnp.arange(4, 16)[None]
    params = random_params(module)
    whole = outputs(module, params, {"input_ids": ids}).logits
    without = Gpt2ForCausalLM(dataclasses.replace(config, attention_window=None))
    assert np.abs(whole - outputs(without, params, {"input_ids": ids}).logits).max() > 1e-3
    cache, found = config.empty_cache(1, 12, Execution()), []
    step = jax.jit(lambda ids, cache: module.apply({"params": params}, ids, cache=cache))
    for place in range(12):
        output = step(ids[:, place : place + 1], cache)
        cache = output.cache
        found.append(output.logits)
    np.testing.assert_allclose(jnp.concatenate(found, axis=1), whole, rtol=1e-5, atol=1e-5)


def test_the_closed_form_counts_the_keys_of_the_window() -> None:
    for config, width in ((BertConfig.base, 768), (MobileBertConfig.ib_bert_large, 1024)):
        whole, windowed = (config(max_position_embeddings=4096, attention_window=one) for one in (None, 512))
        assert windowed.layers_flops(1, 512) == whole.layers_flops(1, 512)
        saved = whole.layers_flops(2, 4096) - windowed.layers_flops(2, 4096)
        assert saved == 6.0 * 2 * 4096 * whole.num_hidden_layers * 2 * width * (4096 - 513)
    whole, windowed = (Gpt2Config.small(n_positions=4096, attention_window=one) for one in (None, 512))
    saved = whole.train_flops(2, 4096, 4096) - windowed.train_flops(2, 4096, 4096)
    assert saved == pytest.approx(6.0 * 2 * 4096 * 12 * 2 * 768 * (4096 - 513))
