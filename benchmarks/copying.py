"""The copying task of Reformer (Kitaev et al. 2020, section 5.1): accuracy against the rounds of hashing.

    python benchmarks/copying.py [--rounds 1 2 4] [--steps 500] [--length 64] [--hidden_size 64] [--rate 3e-3]
        [--batch 32]

A row is 0 w 0 w with a word w of random symbols from 1 to 12. The model, one LSH layer with four heads and chunks of a
sixteenth of the row, but at least 16 tokens, predicts the second w. It can do so only by attention to the first one.
One line for each number of rounds that it was trained with, with its accuracy for each number of rounds afterwards, on
256 new rows. trax's own setting (supervised/configs/reformer_copy.gin) has the length 64 and the 13 symbols, and three
layers of 256. The paper has one layer of 256, the length 1,024 and 127 symbols, and trains for 150,000 steps.
"""

import argparse
import dataclasses
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.models.reformer.reformer import ReformerConfig

SYMBOLS = 13
EVALUATED = (1, 2, 4, 8)
"""Rounds of hashing that each model is evaluated with."""


class Sizes(NamedTuple):
    """The length of the rows, a multiple of 8, and the hidden size of the model, a multiple of 4."""

    length: int = 64
    hidden_size: int = 64


DEFAULT = Sizes()


def config_of(rounds: int, sizes: Sizes) -> Any:
    """Return the config of the model."""
    chunk = max(16, sizes.length // 16)
    return ReformerConfig(
        vocab_size=SYMBOLS,
        hidden_size=sizes.hidden_size,
        attn_layers=("lsh",),
        num_attention_heads=4,
        attention_head_size=sizes.hidden_size // 4,
        feed_forward_size=2 * sizes.hidden_size,
        # A vector for each position. Tables of two axes would have to give a token the vector of the one before it.
        axial_pos_shape=(sizes.length, 1),
        axial_pos_embds_dim=(sizes.hidden_size - 1, 1),
        lsh_attn_chunk_length=chunk,
        num_buckets=(2 * sizes.length // chunk,),
        num_hashes=rounds,
        hidden_dropout_prob=0.0,
        lsh_attention_probs_dropout_prob=0.0,
        initializer_range=0.1,
    )


def rows(key: Any, count: int, length: int) -> Any:
    """Return int32 [count length]."""
    word, zero = jax.random.randint(key, (count, length // 2 - 1), 1, SYMBOLS), jnp.zeros((count, 1), jnp.int32)
    return jnp.concatenate([zero, word, zero, word], axis=1)


def scored(config: Any, params: Any, ids: Any, key: Any) -> tuple[Any, Any]:
    """Return the nats and the accuracy of the tokens of the second word, with hashes that `key` draws."""
    module, length = config.module(Purpose.PRETRAINING, Execution()), ids.shape[1]
    scores = module.apply({"params": params}, ids, rngs={"sampling": key}).scores
    places = jnp.arange(length)
    weights = jnp.broadcast_to((places >= length // 2) & (places < length - 1), ids.shape).astype(jnp.float32)
    nats, hits = scores.weighted_cross_entropy(jnp.roll(ids, -1, axis=1), weights)
    return nats / jnp.sum(weights), jnp.sum(hits * weights) / jnp.sum(weights)


def trained(rounds: int, sizes: Sizes, steps: int, *, rate: float, batch: int) -> Any:
    """Return the parameters after some steps of Adam, each with new rows and new hashes."""
    config = config_of(rounds, sizes)
    module = config.module(Purpose.PRETRAINING, Execution())
    params = nn.meta.unbox(module.init(jax.random.key(0), rows(jax.random.key(1), 2, sizes.length)))["params"]
    rule = optax.adam(optax.warmup_constant_schedule(0.0, rate, 200), b2=0.98)

    @jax.jit
    def step(params: Any, state: Any, number: int) -> tuple[Any, Any]:
        drawn, hashing = jax.random.split(jax.random.fold_in(jax.random.key(2), number))
        loss = lambda params: scored(config, params, rows(drawn, batch, sizes.length), hashing)  # noqa: E731
        gradients, _ = jax.grad(loss, has_aux=True)(params)
        updates, state = rule.update(gradients, state)
        return optax.apply_updates(params, updates), state

    state = rule.init(params)
    for number in range(steps):
        params, state = step(params, state, number)
    return params


def accuracies(params: Any, rounds: int, sizes: Sizes) -> dict[int, float]:
    """Return rounds of hashing -> the accuracy with them, of a model that was trained with `rounds`."""
    ids, config = rows(jax.random.key(3), 256, sizes.length), config_of(rounds, sizes)
    found = {}
    for number in EVALUATED:
        own = dataclasses.replace(config, num_hashes=number)
        found[number] = float(jax.jit(functools.partial(scored, own))(params, ids, jax.random.key(4))[1])
    return found


def main() -> None:
    """Print a line for each number of rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--length", type=int, default=DEFAULT.length)
    parser.add_argument("--hidden_size", type=int, default=DEFAULT.hidden_size)
    parser.add_argument("--rate", type=float, default=3e-3, help="learning rate")
    parser.add_argument("--batch", type=int, default=32, help="rows of a step")
    options = parser.parse_args()
    sizes = Sizes(options.length, options.hidden_size)
    heads = [f"{number} round{'s' if number > 1 else ''}" for number in EVALUATED]
    print(f"| trained with | {' | '.join(heads)} |", flush=True)
    print("|---" * (len(EVALUATED) + 1) + "|", flush=True)
    for rounds in options.rounds:
        params = trained(rounds, sizes, options.steps, rate=options.rate, batch=options.batch)
        found = accuracies(params, rounds, sizes)
        cells = " | ".join(f"{100 * accuracy:.1f} %" for accuracy in found.values())
        print(f"| {rounds} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
