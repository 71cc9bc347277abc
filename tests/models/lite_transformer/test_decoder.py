"""Properties of the language model of Lite Transformer alone: its cache and its reach."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.models.lite_transformer.decoder import LiteTransformerForCausalLM
from tests.families.encoder_decoders import LITE_DECODER
from tests.systems.modules import outputs, random_params

MODULE = LiteTransformerForCausalLM(LITE_DECODER)
IDS = np.random.default_rng(0).integers(0, LITE_DECODER.vocab_size, (2, 16), np.int32)


@functools.cache
def parameters() -> Any:
    return random_params(MODULE)


def test_a_cache_gives_the_logits_of_whole_rows() -> None:
    """Prompts of 9 and 5 tokens are padded on the left, and the rows of the cache are exchanged after each token."""
    expected = outputs(MODULE, parameters(), {"input_ids": IDS}).logits
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
    first = outputs(MODULE, parameters(), {"input_ids": IDS}).last_hidden_state
    changed = outputs(MODULE, parameters(), {"input_ids": np.concatenate([IDS[:, :1] ^ 1, IDS[:, 1:]], axis=1)})
    assert sum(LITE_DECODER.decoder_kernel_sizes) - LITE_DECODER.decoder_layers < IDS.shape[1]
    assert np.abs(changed.last_hidden_state - first)[:, -1].max() > 1e-4
