"""The cache of a model: its rows are independent, and its shapes stay the same from token to token."""

import dataclasses
import functools
from typing import Any

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
from tests.generation.model import AWD_LSTM, CONFIG, NNLM, TRANSFORMER_XL, parameters, scaled_parameters

CAPACITY = 8
IDS = np.random.default_rng(0).integers(1, 29, (3, 5)).astype(np.int32)
MASK = (np.arange(5) >= np.array([[0], [2], [4]])).astype(np.int32)  # rows are filled up on the left
EVERY = pytest.mark.parametrize(
    "config",
    [
        pytest.param(CONFIG, id="gpt2", marks=pytest.mark.nightly),  # tests/generation has both by day
        pytest.param(AWD_LSTM, id="awd_lstm"),
        pytest.param(NNLM, id="nnlm"),
        pytest.param(TRANSFORMER_XL, id="transformer_xl", marks=pytest.mark.nightly),
    ],
)


def empty(config: ModelConfig) -> Cache:
    return config.empty_cache(len(IDS), CAPACITY, Execution())


@functools.partial(jax.jit, static_argnums=0)
def _read(config: ModelConfig, params: Any, ids: np.ndarray, *, mask: np.ndarray, cache: Cache) -> Cache:
    module = config.module(Purpose.CAUSAL_LM, Execution())
    return module.apply({"params": params}, ids, attention_mask=mask, cache=cache).cache


def parameters_of(config: ModelConfig) -> Any:
    """Those that the tests of a process share; made outside of every trace, since they are kept."""
    return parameters() if config == CONFIG else scaled_parameters(config)


def read(config: ModelConfig, ids: np.ndarray, mask: np.ndarray, cache: Cache) -> Cache:
    """The cache after further tokens of its rows."""
    return _read(config, parameters_of(config), ids, mask=mask, cache=cache)


@EVERY
def test_taken_rows_are_those_of_a_cache_that_read_them(config: ModelConfig) -> None:
    order = np.array([2, 0, 0])
    taken = read(config, IDS, MASK, empty(config)).take_rows(jnp.asarray(order))
    chex.assert_trees_all_close(taken, read(config, IDS[order], MASK[order], empty(config)), rtol=1e-5, atol=1e-5)


@EVERY
def test_shapes_stay_the_same(config: ModelConfig) -> None:
    def shapes(cache: Cache) -> Any:
        assert Cache in type(cache).__mro__
        return jax.tree.map(lambda x: (x.shape, x.dtype), cache)

    reading = functools.partial(_read, config, parameters_of(config))
    first = jax.eval_shape(reading, IDS, mask=MASK, cache=empty(config))
    after = jax.eval_shape(reading, IDS[:, :1], mask=MASK[:, :1], cache=first)
    assert shapes(first) == shapes(after) == shapes(empty(config))


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
