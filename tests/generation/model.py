"""A small GPT-2 of random parameters whose texts differ from each other, for the tests of this folder."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.generation.writer import Writer
from plmjax.layers.execution import Execution
from plmjax.models.gpt2 import Gpt2Config
from plmjax.vocabulary import Vocabulary

CONFIG = Gpt2Config(
    vocab_size=29, n_positions=48, n_embd=24, n_layer=2, n_head=4, initializer_range=0.3, bos_token_id=None,
    eos_token_id=None,
)  # fmt: skip
"""Initial weights so large that the scores of tokens differ clearly."""
PROMPTS = [[5, 9, 2, 7, 7], [11], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]]
END = 0
VOCABULARY = Vocabulary(size=CONFIG.vocab_size, end=END)


@functools.cache
def parameters() -> Any:
    module = CONFIG.for_generation(Execution())
    params = nn.meta.unbox(module.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))["params"]
    positions = params["gpt2"]["position_embeddings"]
    positions["embedding"] = 60 * positions["embedding"]  # otherwise every text soon repeats one token
    return params


@functools.cache
def writer() -> Writer:
    return Writer(CONFIG, parameters(), VOCABULARY)
