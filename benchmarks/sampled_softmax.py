"""Sampled softmax beside the full softmax: loss and gradients of one direction of a language model.

    python benchmarks/sampled_softmax.py [--words 100000] [--draws 8192] [--positions 640] [--features 128]

Both are in float32 and alternate. Seconds are processor time, the median of the turns. Memory is that of the compiled
program besides its arguments. The gradient of the output layer is complete in both: [words, features].
"""

import argparse
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp

from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.objectives.sampled_softmax import SampledScores, draw

ROWS = 32


def main() -> None:
    """Print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    sizes = {"words": 100_000, "draws": 8192, "positions": 640, "features": 128, "turns": 5}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    shape = ROWS, options.positions // ROWS
    keys = jax.random.split(jax.random.key(0), 4)
    hidden = jax.random.normal(keys[0], (*shape, options.features))
    table = jax.random.normal(keys[1], (options.words, options.features)) / options.features**0.5
    targets = jax.random.randint(keys[2], shape, 0, options.words)

    def whole(learned: tuple[jax.Array, jax.Array], key: jax.Array) -> jax.Array:
        return VocabularyScores(*learned).weighted_cross_entropy(targets, jnp.ones(shape))[0]

    def sampled(learned: tuple[jax.Array, jax.Array], key: jax.Array) -> jax.Array:
        draws = draw(key, options.words, options.draws)
        scores = SampledScores(VocabularyScores(*learned), draws)
        return scores.weighted_cross_entropy(targets, jnp.ones(shape))[0]

    programs: dict[str, Any] = {}
    for name, loss in (("all words", whole), (f"{options.draws:,} draws", sampled)):
        programs[name] = jax.jit(jax.value_and_grad(loss)).lower((hidden, table), keys[3]).compile()
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(options.turns + 1):
        for name, program in programs.items():
            begun = time.process_time()
            jax.block_until_ready(program((hidden, table), keys[3]))
            if turn:  # the first one warms up
                seconds[name].append(time.process_time() - begun)
    print(f"{options.positions:,} positions, embedding size {options.features}, {options.words:,} words, float32")
    for name, program in programs.items():
        memory = program.memory_analysis()
        taken = (memory.temp_size_in_bytes + memory.output_size_in_bytes) / 2**20
        print(f"  {name:<14} {statistics.median(seconds[name]):8.3f} s {taken:8.0f} MiB")


if __name__ == "__main__":
    main()
