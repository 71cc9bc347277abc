"""A BERT, a GPT and a MobileBERT with a window: an option of their config, the same in bands and in whole rows."""

import dataclasses
from typing import Any

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


@pytest.mark.parametrize(
    ("config", "before", "after"),
    [
        (BertConfig(**ENCODER, attention_window=6), 6, 6),
        (GptConfig(**DECODER, attention_window=3), 6, 0),
        # Its vectors know their neighbors.
        (MobileBertConfig(**ENCODER, embedding_size=4, intra_bottleneck_size=8, attention_window=6), 7, 7),
    ],
    ids=lambda value: type(value).__name__,
)
def test_windows_reach_as_far_as_the_layers_together(
    config: Any, before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three tokens on each side in each of two layers, or three before: who sees the token in the middle."""
    monkeypatch.setattr(bands, "MIN_BLOCK_SIZE", 4)
    module, ids = config.module(Purpose.ENCODING, Execution()), np.arange(4, 34)
    batch = {"input_ids": np.stack([ids, np.where(ids == 19, 39, ids)])}
    states = outputs(module, random_params(module), batch).last_hidden_state
    moved = np.flatnonzero(np.abs(states[0] - states[1]).max(-1))
    assert moved.tolist() == [*range(15 - after, 16 + before)]


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
