"""Cost of a memory: a Transformer-XL that reads each token once, beside one that reads a window again for each token.

    python benchmarks/memory.py

Two layers of width 128 with random weights, characters at random, float32, one row, one core. Text is read in rows of
64 characters with a memory. Without one, the characters before each are read again: as many as are remembered, or all
from which the memory comes, L (M - 1) + 1 of them with L layers and a memory of M. The latter gives the same nats. Only
the last character of such a window is scored. The calls alternate, in processor time, without compilation; figures are
medians over the turns.
"""

import argparse
import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
from turns import Rates, timed, use_one_core

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.models.transformer_xl import Memory, TransformerXlConfig

CONFIG = dataclasses.replace(TransformerXlConfig.tiny(), clamp_len=400, same_length=True, init_std=0.1)
"""Every token sees equally many, as in published evaluations."""
LENGTH = 64
"""Number of tokens of a row that is read with a memory."""
REMEMBERED = (800, 1800, 2800, 3800)
"""The lengths in the paper (section 4.5)."""


@functools.partial(jax.jit, static_argnums=0)
def next_nats(module: nn.Module, params: Any, row: jax.Array, memory: Memory) -> tuple[jax.Array, Memory]:
    """Return the nats of the tokens after the first of a row, float32 [B T], and the memory: int [B T+1]."""
    output = module.apply({"params": params}, row[:, :-1], cache=memory)
    nats, _ = output.scores.cross_entropy(row[:, 1:])
    return nats, output.cache


@functools.partial(jax.jit, static_argnums=0)
def last_nats(module: nn.Module, params: Any, row: jax.Array, memory: Memory) -> jax.Array:
    """Return the nats of the last token of a row, float32 [B]: int [B T+1]."""
    logits = module.apply({"params": params}, row[:, :-1], cache=memory).scores.last_logits()
    return optax.softmax_cross_entropy_with_integer_labels(logits, row[:, -1])


def remembering(
    config: TransformerXlConfig, params: Any, tokens: np.ndarray, *, count: int, rates: Rates | None = None
) -> np.ndarray:
    """Read a text in rows of LENGTH tokens with a memory; return the nats of its last `count` tokens, float32 [count].

    rates: gets the rate at which they are read. The text must have a multiple of LENGTH tokens and one more, and
        `count` must be a multiple of LENGTH.
    """
    module, memory, found = config.module(Purpose.CAUSAL_LM, Execution()), config.memory(1), []
    rows = [tokens[None, first : first + LENGTH + 1] for first in range(0, len(tokens) - 1, LENGTH)]
    untimed = len(rows) - count // LENGTH
    for each in rows[:untimed]:
        _, memory = next_nats(module, params, each, memory)
    jax.block_until_ready(memory)
    with timed([] if rates is None else rates, count):
        for each in rows[untimed:]:
            nats, memory = next_nats(module, params, each, memory)
            found.append(np.asarray(nats[0]))
    return np.concatenate(found)


def recomputing(
    config: TransformerXlConfig, params: Any, tokens: np.ndarray, *, count: int, window: int, rates: Rates | None = None
) -> np.ndarray:
    """Return the nats of the last `count` tokens of a text, each from the `window` tokens before it, float32 [count].

    The memory of each is empty. So each token of the window sees as many tokens as with a memory.
    """
    module, memory = config.module(Purpose.CAUSAL_LM, Execution()), config.memory(1)
    ends = range(len(tokens) - count, len(tokens))
    with timed([] if rates is None else rates, count):
        return np.concatenate([last_nats(module, params, tokens[None, end - window : end + 1], memory) for end in ends])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--remembered", type=int, nargs="+", default=list(REMEMBERED), help="lengths of the memory")
    parser.add_argument("--rows", type=int, default=8, help=f"rows of {LENGTH} tokens read with a memory in a turn")
    parser.add_argument("--windows", type=int, default=8, help="windows read in a turn")
    parser.add_argument("--turns", type=int, default=3, help="turns of each call")
    options = parser.parse_args()
    use_one_core()
    init = CONFIG.module(Purpose.CAUSAL_LM, Execution()).init
    params = nn.meta.unbox(jax.jit(init)(jax.random.key(0), np.zeros((1, 2), np.int32)))["params"]
    print("| remembered | tokens a second | of windows of as many | times as fast | nats differ by at most "
          "| of all that reaches a token | times as fast | nats differ by at most |")  # fmt: skip
    print("|" + "---|" * 8)
    for length in options.remembered:
        config, count = dataclasses.replace(CONFIG, mem_len=length), LENGTH * options.rows
        windows = length, config.n_layer * (length - 1) + 1
        before = -(-windows[1] // LENGTH) * LENGTH
        tokens = np.random.default_rng(0).integers(0, config.vocab_size, before + count + 1).astype(np.int32)
        known = config, params, tokens
        calls = [
            functools.partial(remembering, *known, count=count),
            *(functools.partial(recomputing, *known, count=options.windows, window=window) for window in windows),
        ]
        nats = [call() for call in calls]  # compiles
        rates: list[Rates] = [[] for _ in calls]
        for _ in range(options.turns):
            for call, into in zip(calls, rates, strict=True):
                call(rates=into)
        once, *again = (float(np.median(into, axis=0)[1]) for into in rates)
        cells = [f"{length:,}", f"{once:,.0f}"]
        for rate, found in zip(again, nats[1:], strict=True):
            difference = np.abs(nats[0][-len(found) :] - found).max()
            cells += [f"{rate:,.1f}", f"{once / rate:,.0f}", f"{difference:.1g}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
