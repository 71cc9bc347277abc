"""Properties of Lite Transformer's language model alone: its cache, packed rows, dropouts, FLOPs and mistakes."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.models.lite_transformer.decoder import LiteTransformerDecoderConfig, LiteTransformerForCausalLM
from tests.families.encoder_decoders import LITE_DECODER
from tests.products import step_flops
from tests.systems.modules import dropped, outputs, random_params

MODULE = LiteTransformerForCausalLM(LITE_DECODER)
IDS = np.random.default_rng(0).integers(0, LITE_DECODER.vocab_size, (2, 16), np.int32)


@functools.cache
def parameters() -> Any:
    return random_params(MODULE)


def test_a_cache_gives_the_logits_of_whole_rows() -> None:
    """Prompts of 9 and 5 tokens are padded on the left, and the rows of the cache are exchanged after each token."""
    expected = MODULE.apply({"params": parameters()}, IDS).logits
    read = jax.jit(
        lambda ids, mask, cache: MODULE.apply({"params": parameters()}, ids, attention_mask=mask, cache=cache)
    )
    prompts = np.stack([IDS[0, :9], np.concatenate([[7] * 4, IDS[1, :5]])])
    mask = np.array([[1] * 9, [0] * 4 + [1] * 5])
    found = read(prompts, mask, LITE_DECODER.empty_cache(2, 15, Execution()))
    np.testing.assert_allclose(found.logits[0], expected[0, :9], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.logits[1, 4:], expected[1, :5], rtol=1e-5, atol=1e-5)
    texts, places, cache = [0, 1], [9, 5], found.cache
    for _ in range(6):
        cache = cache.take_rows(jnp.array([1, 0]))
        texts, places = texts[::-1], places[::-1]
        found = read(IDS[texts, places][:, None], np.ones((2, 1), np.int32), cache)
        np.testing.assert_allclose(found.logits[:, 0], expected[texts, places], rtol=1e-5, atol=1e-5)
        assert jax.tree.map(jnp.shape, found.cache) == jax.tree.map(jnp.shape, cache)
        cache, places = found.cache, [place + 1 for place in places]


def test_a_row_reads_as_far_as_it_is_long() -> None:
    """Attention reaches the first token of a row that is longer than all kernels together."""
    first = MODULE.apply({"params": parameters()}, IDS).last_hidden_state
    changed = MODULE.apply({"params": parameters()}, np.concatenate([IDS[:, :1] ^ 1, IDS[:, 1:]], axis=1))
    assert sum(LITE_DECODER.decoder_kernel_sizes) - LITE_DECODER.decoder_layers < IDS.shape[1]
    assert np.abs(changed.last_hidden_state - first)[:, -1].max() > 1e-4


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "activation_dropout", "convolution_dropout"])
def test_each_dropout_changes_the_output(rate: str) -> None:
    sizes = {"decoder_layers": 1, "decoder_kernel_sizes": (4,)}
    module = LiteTransformerForCausalLM(dataclasses.replace(LITE_DECODER, **sizes, **{rate: 0.3}))
    params, batch = random_params(module), {"input_ids": IDS}
    kept, lost = outputs(module, params, batch), dropped(module, params, batch)
    assert np.abs(kept.last_hidden_state - lost.last_hidden_state).max() > 1e-3


@pytest.mark.parametrize("convolution", ["dynamic", "lightweight"])
def test_flops_are_those_of_the_products(convolution: str) -> None:
    config = dataclasses.replace(LITE_DECODER, convolution=convolution)
    ids = jnp.zeros((2, 11), jnp.int32)
    found = step_flops(LiteTransformerForCausalLM(config), lambda outputs: outputs.logits, input_ids=ids)
    assert found == config.train_flops(2, 11, 11)


def test_the_released_settings() -> None:
    """They are those of configs/wikitext-103/attention/multibranch_v2/embed896.yml of the released code."""
    config = LiteTransformerDecoderConfig.wikitext103()
    assert (config.d_model, config.decoder_ffn_dim, config.decoder_layers) == (896, 896, 12)
    assert config.decoder_kernel_sizes == (15, 15, 31, 31, 31, 31, 63, 63, 63, 63, 63, 63)
    assert (config.decoder_attention_heads, config.convolution_heads, config.convolution) == (4, 4, "dynamic")
    rates = config.dropout, config.attention_dropout, config.activation_dropout, config.convolution_dropout
    assert rates == (0.21, 0.14, 0.1, 0.14) and config.longest == 3072
