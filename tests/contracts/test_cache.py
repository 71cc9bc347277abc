"""The cache of a model: its rows are independent, and its shapes stay the same from token to token."""

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
from tests.generation.model import AWD_LSTM, CONFIG, NNLM, TRANSFORMER_XL, parameters, scaled_parameters

CAPACITY = 8
IDS = np.random.default_rng(0).integers(1, 29, (3, 5)).astype(np.int32)
MASK = (np.arange(5) >= np.array([[0], [2], [4]])).astype(np.int32)  # rows are filled up on the left
EVERY = pytest.mark.parametrize(
    "config", [CONFIG, AWD_LSTM, NNLM, TRANSFORMER_XL], ids=["gpt2", "awd_lstm", "nnlm", "transformer_xl"]
)


def empty(config: ModelConfig) -> Cache:
    return config.empty_cache(len(IDS), CAPACITY, Execution())


@functools.partial(jax.jit, static_argnums=0)
def _read(config: ModelConfig, params: Any, ids: np.ndarray, mask: np.ndarray, cache: Cache) -> Cache:
    module = config.module(Purpose.WRITING, Execution())
    return module.apply({"params": params}, ids, attention_mask=mask, cache=cache).cache


def parameters_of(config: ModelConfig) -> Any:
    """Those that the tests of a process share; made outside of every trace, since they are kept."""
    return parameters() if config == CONFIG else scaled_parameters(config)


def read(config: ModelConfig, ids: np.ndarray, mask: np.ndarray, cache: Cache) -> Cache:
    """The cache after further tokens of its rows."""
    return _read(config, parameters_of(config), ids, mask, cache)


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
    first = jax.eval_shape(reading, IDS, MASK, empty(config))
    after = jax.eval_shape(reading, IDS[:, :1], MASK[:, :1], first)
    assert shapes(first) == shapes(after) == shapes(empty(config))
