"""The copying task of Reformer (Kitaev et al. 2020, section 5.1): accuracy against the rounds of hashing.

    python benchmarks/copying.py [--rounds 1 2 4] [--steps 500] [--length 64]

A row is 0 w 0 w with a word w of random symbols from 1 to 12. The model, one LSH layer of 64 with chunks of 16 tokens,
predicts the second w. It can do so only by attention to the first one. One line for each number of rounds that it was
trained with, with its accuracy for each number of rounds afterwards, on 256 new rows. trax's own setting
(supervised/configs/reformer_copy.gin) has the length 64 and the 13 symbols, and three layers of 256.
"""

import argparse
import dataclasses
import functools
from typing import Any

SYMBOLS = 13
EVALUATED = (1, 2, 4, 8)
"""Rounds of hashing that each model is evaluated with."""


def config_of(rounds: int, length: int) -> Any:
    """Return the sizes of the model for rows of `length` tokens, a multiple of 8."""
    from plmjax.models.reformer.reformer import ReformerConfig

    return ReformerConfig(
        vocab_size=SYMBOLS,
        hidden_size=64,
        attn_layers=("lsh",),
        num_attention_heads=4,
        attention_head_size=16,
        feed_forward_size=128,
        axial_pos_shape=(length // 8, 8),
        axial_pos_embds_dim=(32, 32),
        lsh_attn_chunk_length=16,
        num_buckets=(length // 8,),
        num_hashes=rounds,
        hidden_dropout_prob=0.0,
        lsh_attention_probs_dropout_prob=0.0,
        initializer_range=0.1,
    )


def rows(key: Any, count: int, length: int) -> Any:
    """Return int32 [count length]."""
    import jax
    import jax.numpy as jnp

    word, zero = jax.random.randint(key, (count, length // 2 - 1), 1, SYMBOLS), jnp.zeros((count, 1), jnp.int32)
    return jnp.concatenate([zero, word, zero, word], axis=1)


def scored(config: Any, params: Any, ids: Any, key: Any) -> tuple[Any, Any]:
    """Return the nats and the accuracy of the tokens of the second word, with hashes that `key` draws."""
    import jax.numpy as jnp

    from plmjax.contracts.execution import Execution
    from plmjax.contracts.system import Purpose

    module, length = config.module(Purpose.PRETRAINING, Execution()), ids.shape[1]
    scores = module.apply({"params": params}, ids, rngs={"sampling": key}).scores
    places = jnp.arange(length)
    weights = jnp.broadcast_to((places >= length // 2) & (places < length - 1), ids.shape).astype(jnp.float32)
    nats, hits = scores.weighted_cross_entropy(jnp.roll(ids, -1, axis=1), weights)
    return nats / jnp.sum(weights), jnp.sum(hits * weights) / jnp.sum(weights)


def trained(rounds: int, length: int = 64, steps: int = 500, batch: int = 32) -> Any:
    """Return the parameters after some steps of Adam at 3e-3, each with new rows and new hashes."""
    import flax.linen as nn
    import jax
    import optax

    from plmjax.contracts.execution import Execution
    from plmjax.contracts.system import Purpose

    config = config_of(rounds, length)
    module = config.module(Purpose.PRETRAINING, Execution())
    params = nn.meta.unbox(module.init(jax.random.key(0), rows(jax.random.key(1), 2, length)))["params"]
    rule = optax.adam(optax.warmup_constant_schedule(0.0, 3e-3, 200), b2=0.98)

    @jax.jit
    def step(params: Any, state: Any, number: int) -> tuple[Any, Any]:
        drawn, hashing = jax.random.split(jax.random.fold_in(jax.random.key(2), number))
        loss = lambda params: scored(config, params, rows(drawn, batch, length), hashing)[0]  # noqa: E731
        updates, state = rule.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    state = rule.init(params)
    for number in range(steps):
        params, state = step(params, state, number)
    return params


def accuracies(params: Any, rounds: int, length: int = 64) -> dict[int, float]:
    """Return rounds of hashing -> the accuracy with them, of a model that was trained with `rounds`."""
    import jax

    ids, config = rows(jax.random.key(3), 256, length), config_of(rounds, length)
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
    parser.add_argument("--length", type=int, default=64)
    options = parser.parse_args()
    print(f"| trained with | {' | '.join(f'{number} rounds' for number in EVALUATED)} |", flush=True)
    print("|---" * (len(EVALUATED) + 1) + "|", flush=True)
    for rounds in options.rounds:
        found = accuracies(trained(rounds, options.length, options.steps), rounds, options.length)
        cells = " | ".join(f"{100 * accuracy:.1f} %" for accuracy in found.values())
        print(f"| {rounds} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
