"""Cross-entropy over a vocabulary, with all scores at once and in chunks of positions: time and memory on the CPU.

    python benchmarks/vocabulary.py [--rows 4] [--length 512] [--vocabulary 50257] [--features 768]
    python benchmarks/vocabulary.py --plan experiments/gpt2_8x8.py --topology v3:8x8

Loss and gradients with respect to hidden states and embeddings, float32, each as one compiled program: all scores at
once and JAX's own backward pass; chunks with a backward pass that recomputes the scores (`cross_entropy`); chunks whose
gradients are computed in the forward pass (`weighted_cross_entropy`). They alternate. Processor time is disturbed least
by other work on the machine. Memory is what the compiler allocates for the program besides inputs and outputs.

With --plan, the memory and the estimated time of an experiment's whole step on a TPU slice, in chunks and at once.
"""

import argparse
import os

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from turns import in_turns

from plmjax import experiment as experiments
from plmjax.layers.words import vocabulary_scores
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.objectives.objective import cross_entropy
from plmjax.planning.plan import plan


def at_once(scores: VocabularyScores, targets: jax.Array, weights: jax.Array) -> jax.Array:
    """Compute all scores at once."""
    return jnp.sum(weights * cross_entropy(scores.logits(), targets))


def by_position(scores: VocabularyScores, targets: jax.Array, weights: jax.Array) -> jax.Array:
    """Compute chunks, and weight them after the loss of every position is known."""
    return jnp.sum(weights * scores.cross_entropy(targets)[0])


def weighted(scores: VocabularyScores, targets: jax.Array, weights: jax.Array) -> jax.Array:
    """Compute chunks with known weights."""
    return scores.weighted_cross_entropy(targets, weights)[0]


NAMES = {"all scores at once": at_once, "cross_entropy": by_position, "weighted_cross_entropy": weighted}


def show_plans(name: str, topology: str) -> None:
    """Print a Markdown table of an experiment's step, with chunks of both sizes and with a single one."""
    print("| scores | GiB a device | ms a step | refined |\n|---|---|---|---|")
    chunks = {f"in chunks of {4 * size >> 20} MiB": size for size in (2**26, 2**27)}
    for scores, size in (chunks | {"all at once": 2**60}).items():
        vocabulary_scores.CHUNK = vocabulary_scores.FAST_CHUNK = size
        for phase in plan(experiments.load(name), topology)["phases"]:
            memory, seconds = phase["memory"]["total"], phase["estimate"]["step_seconds"]
            ends = [1e3 * phase["refined"][end]["step_seconds"] for end in ("fast", "slow")]
            cells = scores, f"{memory / 2**30:.2f}", f"{seconds * 1e3:.0f}", f"{ends[0]:.1f} to {ends[1]:.1f}"
            print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plan", metavar="EXPERIMENT")
    parser.add_argument("--topology", default="v3:8x8")
    for name, size in {"rows": 4, "length": 512, "vocabulary": 50257, "features": 768, "repeats": 7}.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    sizes = parser.parse_args()
    if sizes.plan:
        return show_plans(sizes.plan, sizes.topology)
    keys = jax.random.split(jax.random.key(0), 3)
    hidden = jax.random.normal(keys[0], (sizes.rows, sizes.length, sizes.features))
    table = 0.02 * jax.random.normal(keys[1], (sizes.vocabulary, sizes.features))
    targets = jax.random.randint(keys[2], hidden.shape[:2], 0, sizes.vocabulary)
    given = VocabularyScores(hidden, table), targets, jnp.ones(targets.shape)
    programs = {name: jax.jit(jax.value_and_grad(loss)).lower(*given).compile() for name, loss in NAMES.items()}
    measured = in_turns(
        {name: lambda program=program: jax.block_until_ready(program(*given)) for name, program in programs.items()},
        sizes.repeats,
    )
    base = np.median(measured["all scores at once"][:, 1])
    print("| | MiB | CPU-seconds | range | to all at once | on the clock |\n|---|---|---|---|---|---|")
    for name, program in programs.items():
        clock, processor = measured[name].T
        mebibytes = program.memory_analysis().temp_size_in_bytes / 2**20
        print(
            f"| {name} | {mebibytes:.0f} | {np.median(processor):.2f} | {min(processor):.2f} to {max(processor):.2f} | "
            f"{np.median(processor) / base:.2f} | {np.median(clock):.2f} |"
        )


if __name__ == "__main__":
    main()
