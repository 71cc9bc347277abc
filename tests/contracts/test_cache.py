"""The cache of a model: its rows are independent, and its shapes stay the same from token to token."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.cache import Cache
from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.models.bart.bart import BartConfig
from plmjax.models.families.segments import KeyValueMemory, Memory
from plmjax.models.gpt import GptConfig
from plmjax.models.lite_transformer.lite_transformer import LiteTransformerConfig
from plmjax.models.t5 import T5Config
from plmjax.models.transformer import TransformerConfig
from plmjax.models.transformer_xl import TransformerXlConfig
from tests.generation.model import AWD_LSTM, NNLM, TRANSFORMER_XL, scaled_parameters

IDS = np.random.default_rng(0).integers(1, 29, (3, 5)).astype(np.int32)
MASK = (np.arange(5) >= np.array([[0], [2], [4]])).astype(np.int32)  # rows are filled up on the left


# tests/generation has caches of keys and values
@pytest.mark.parametrize("config", [AWD_LSTM, NNLM, TRANSFORMER_XL], ids=lambda config: config.system.name)
def test_taken_rows_are_those_of_a_cache_that_read_them_and_shapes_stay_the_same(config: ModelConfig) -> None:
    module, params = config.module(Purpose.CAUSAL_LM, Execution()), scaled_parameters(config)
    empty, order = config.empty_cache(len(IDS), 8, Execution()), np.array([2, 0, 0])

    @jax.jit
    def read(ids: np.ndarray, mask: np.ndarray, cache: Cache) -> Cache:
        return module.apply({"params": params}, ids, attention_mask=mask, cache=cache).cache

    first = read(IDS, MASK, empty)
    expected = read(IDS[order], MASK[order], empty)
    chex.assert_trees_all_close(first.take_rows(jnp.asarray(order)), expected, rtol=1e-5, atol=1e-5)
    after = jax.eval_shape(read, IDS[:, :1], MASK[:, :1], first)
    shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), cache) for cache in (empty, first, after)]
    assert shapes[0] == shapes[1] == shapes[2]


SIDES = {
    "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 4,
    "d_model": 24, "vocab_size": 9,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        (BartConfig(**SIDES), (2, 3, 4, 6, 8)),
        (TransformerConfig(**SIDES), (2, 3, 4, 6, 8)),
        (LiteTransformerConfig(**SIDES, encoder_kernel_sizes=(3, 5, 7), decoder_kernel_sizes=(3, 6)), (2, 3, 4, 3, 8)),
        (T5Config(d_model=24, num_layers=3, num_decoder_layers=2, num_heads=4, d_kv=5), (2, 3, 4, 5, 8)),
        (GptConfig(n_embd=24, n_head=4, n_layer=2), (2, 3, 4, 6, 8)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ModelConfig) else "",
)
def test_a_cache_has_the_layers_and_heads_of_the_decoder_and_the_dtype_of_the_products(
    config: ModelConfig, keys: tuple[int, ...]
) -> None:
    cache = jax.eval_shape(lambda: config.empty_cache(3, 8, Execution(dtype=jnp.bfloat16)))
    assert [(one.shape, one.dtype) for one in (cache.keys, cache.values)] == [(keys, jnp.bfloat16)] * 2
    assert cache.key_mask.shape == (3, 8)
    if isinstance(config, LiteTransformerConfig):
        assert (cache.inputs.shape, cache.inputs.dtype) == ((2, 3, 5, 12), jnp.bfloat16)


def test_a_memory_of_zeros_that_are_normalised_keeps_what_the_layers_read() -> None:
    """Keys of zeros are zeros only if no norm with a bias stands before the projection."""
    config = TransformerXlConfig.tiny(mem_len=5, pre_lnorm=True, initial_memory="zeros")
    kept = jax.eval_shape(lambda: config.empty_cache(3, 8, Execution()))
    assert isinstance(kept, Memory) and kept.hidden.shape == (2, 3, 5, 128)
    for changes in ({"pre_lnorm": False}, {"initial_memory": "empty"}):
        other = dataclasses.replace(config, **changes).empty_cache(3, 8, Execution(dtype=jnp.bfloat16))
        assert isinstance(other, KeyValueMemory) and other.key_values.keys.shape == (2, 3, 2, 64, 5)
        assert other.key_values.keys.dtype == jnp.bfloat16
        assert (other.documents == (changes.get("initial_memory") != "empty")).all()
