"""Speed of generation on one core: with and without a cache, GPT-2 small beside transformers, Transformer-XL's memory.

    taskset -c 0 python benchmarks/generation.py

GPT-2 small with random weights, float32, one row, greedy decoding; and Transformer-XL's base size for enwik8, which
remembers 512 tokens: their keys and values, or the inputs of the layers, as in training. The compared calls alternate.
They are measured in wall-clock time and in processor time, which other work on the machine disturbs less. Figures are
medians over the turns, without compilation. The time of a token is that of a whole call, with the prefill, divided by
the number of generated tokens.
"""

import argparse
import os
from collections.abc import Callable

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from turns import in_turns, show_rates

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.generation.batch_generator import BatchGenerator, Settings
from plmjax.models.gpt2 import Gpt2Config
from plmjax.models.transformer_xl import Memory, TransformerXlConfig

CONFIG = Gpt2Config.small()
LENGTH = 512
"""Number of tokens of a row with and without a cache."""


class OfInputs(TransformerXlConfig):
    """A Transformer-XL that generates with the memory of its training, the inputs of every layer."""

    def empty_cache(self, batch: int, capacity: int, execution: Execution) -> Memory:
        return self.memory(batch)


def initial(config: ModelConfig) -> dict:
    """Return random parameters of a model that generates text."""
    module = config.module(Purpose.CAUSAL_LM, Execution())
    return nn.meta.unbox(jax.jit(module.init)(jax.random.key(0), jnp.zeros((1, 2), jnp.int32)))["params"]


def cached(config: ModelConfig, params: dict, prompt: int, tokens: int) -> Callable[[], None]:
    """Return a call that generates `tokens` tokens after a prompt of that length. No token ends a text earlier."""
    writer = BatchGenerator(config, params, Vocabulary(size=config.vocab_size))
    settings = Settings(max_new_tokens=tokens)
    return lambda: writer([[token % config.vocab_size for token in range(prompt)]], settings)


def uncached(params: dict) -> Callable[[], None]:
    """Return a call that reads a row of LENGTH tokens to generate one token."""
    module = CONFIG.module(Purpose.CAUSAL_LM, Execution(unroll=CONFIG.depth))

    @jax.jit
    def next_token(params: dict, row: jax.Array) -> jax.Array:
        scores = module.apply({"params": params}, row).scores
        return jnp.argmax(scores.last_logits())

    row = np.arange(LENGTH)[None]
    return lambda: next_token(params, row).block_until_ready()


def by_transformers(prompt: int, tokens: int) -> Callable[[], None]:
    """Return the same call as `cached` in transformers."""
    torch.set_num_threads(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    ids = torch.arange(prompt)[None]
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    return lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **options)


def compare(calls: dict[str, tuple[Callable[[], None], int]], turns: int) -> None:
    """Print the table of name -> (call, number of generated tokens)."""
    seconds = in_turns({name: call for name, (call, _) in calls.items()}, turns)
    show_rates("tokens", {name: list(tokens / seconds[name]) for name, (_, tokens) in calls.items()}, ".3g")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5, help="turns of each")
    parser.add_argument("--tokens", type=int, default=128, help="tokens generated beside transformers")
    options = parser.parse_args()
    params = initial(CONFIG)
    compare(
        {
            "plmjax": (cached(CONFIG, params, 16, options.tokens), options.tokens),
            "transformers": (by_transformers(16, options.tokens), options.tokens),
        },
        options.turns,
    )
    with_cache = cached(CONFIG, params, LENGTH - 32, 32)
    compare(
        {f"with a cache, {LENGTH} tokens": (with_cache, 32), "without": (uncached(params), 1)},
        options.turns,
    )
    keys_and_values, inputs = TransformerXlConfig.enwik8_base(), OfInputs.enwik8_base()
    params = initial(keys_and_values)
    calls = {
        f"a memory of {name}": (cached(config, params, LENGTH, options.tokens), options.tokens)
        for name, config in {"keys and values": keys_and_values, "inputs": inputs}.items()
    }
    compare(calls, options.turns)


if __name__ == "__main__":
    main()
