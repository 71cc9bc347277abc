"""Text from models with other caches than all keys and values: states, last words, a memory, buckets, windows."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.generation.batch_generator import BatchGenerator, Settings
from plmjax.generation.beam_search import BeamSearch
from plmjax.generation.sampling import Greedy
from tests.generation.model import (
    AWD_LSTM,
    MODERNBERT,
    NNLM,
    PROMPTS,
    REFORMER,
    TRANSFORMER_XL,
    VOCABULARY,
    scaled_parameters,
)

NEW = 12


SYSTEMS = {
    "awd_lstm": AWD_LSTM, "nnlm": NNLM, "transformer_xl": TRANSFORMER_XL, "reformer": REFORMER,
    "modernbert": MODERNBERT,
}  # fmt: skip


@functools.cache
def reader(config: ModelConfig) -> Callable[..., Any]:
    """The model without a cache, traced once for all texts."""
    return jax.jit(config.module(Purpose.CAUSAL_LM, Execution()).apply)


def log_probabilities(config: ModelConfig, row: list[int]) -> np.ndarray:
    """float32 [T V]: of the token after each of a row, which is read at once."""
    padded = jnp.asarray([row + [0] * (32 - len(row))])
    logits = reader(config)({"params": scaled_parameters(config)}, padded).logits
    return np.asarray(jax.nn.log_softmax(logits[0, : len(row)]))


STRATEGIES = {"greedy": Greedy(), "beams": BeamSearch(beams=3, sequences=3)}
WRITTEN = [
    pytest.param(
        *(config, strategy),
        id=f"{way}-{name}",
        marks=() if way == "greedy" and name in ("awd_lstm", "nnlm", "modernbert") else pytest.mark.nightly,
    )
    for way, strategy in STRATEGIES.items()
    for name, config in SYSTEMS.items()
]
"""Beams take the rows of any cache alike, which tests/contracts/test_cache.py has."""


@pytest.mark.parametrize(("config", "strategy"), WRITTEN)
def test_a_cache_gives_the_probabilities_of_reading_the_whole_text_at_once(config, strategy) -> None:
    writer = BatchGenerator(config, scaled_parameters(config), VOCABULARY)
    texts = writer(PROMPTS, Settings(strategy, max_new_tokens=NEW))
    for prompt, of_prompt in zip(PROMPTS, texts, strict=True):
        assert len({tuple(text.tokens) for text in of_prompt}) == (3 if strategy.rows > 1 else 1)
        for text in of_prompt:
            scores = log_probabilities(config, prompt + text.tokens)[len(prompt) - 1 : -1]
            total = scores[np.arange(len(text.tokens)), text.tokens].sum()
            np.testing.assert_allclose(text.log_probability, total, rtol=1e-5, atol=1e-5)
            if strategy.rows == 1:
                assert text.tokens == scores.argmax(axis=-1).tolist()
    assert len({token for of_prompt in texts for text in of_prompt for token in text.tokens}) > 5
    assert len({len(prompt) for prompt in PROMPTS}) == 3  # so that rows are filled up


@pytest.mark.nightly
@pytest.mark.parametrize(
    "settings", [{}, {"initial_memory": "zeros"}, {"initial_memory": "zeros", "pre_lnorm": True}], ids=str
)
def test_text_goes_on_behind_a_memory_that_is_full(settings) -> None:
    """Each token is the likeliest of a reading in segments of one token; the memory keeps its size.

    A writer keeps keys and values, this reader the inputs of the layers.
    """
    config = dataclasses.replace(TRANSFORMER_XL, mem_len=4, **settings)
    params, (prompt, *_) = scaled_parameters(config), PROMPTS
    ((text,),) = BatchGenerator(config, params, VOCABULARY)([prompt], Settings(Greedy(), max_new_tokens=NEW))
    read = jax.jit(config.module(Purpose.CAUSAL_LM, Execution()).apply)
    memory, tokens, ids = config.memory(1), [], jnp.asarray([prompt])
    for _ in text.tokens:
        outputs = read({"params": params}, ids, cache=memory)
        assert jax.tree.map(jnp.shape, outputs.cache) == jax.tree.map(jnp.shape, memory)
        memory, tokens = outputs.cache, [*tokens, int(outputs.scores.last_logits()[0].argmax())]
        ids = jnp.asarray([tokens[-1:]])
    assert tokens == text.tokens and len(tokens) > config.mem_len
