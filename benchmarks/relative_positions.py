"""Cost of relative positions: train steps of Transformer-XL and XLNet with and without them, alternately on the CPU.

    taskset -c 0 python benchmarks/relative_positions.py [--layers 2] [--rows 4] [--length 256] [--memory 256]
    python benchmarks/relative_positions.py --topology v5e:2x2

Base sizes of enwik8 and of XLNet, with a memory; float32 and dropout 0.1 on the CPU. Without positions a score is the
product of query and key alone, so that nothing else of the step changes. A step is measured in CPU-seconds of the
process. The share is the median of the turns. The FLOPs and the temporary memory are the compiler's.

With --topology, the refined estimate of the steps of as many layers on a TPU slice, which computes in bfloat16.
"""

import argparse
import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp

from plmjax.contracts.score_terms import ScoreArray
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import ContinuedPairs, Streams
from plmjax.experiment import Data, Experiment, Training
from plmjax.models import transformer_xl
from plmjax.models.transformer_xl import TransformerXlConfig
from plmjax.models.xlnet import attention
from plmjax.models.xlnet.xlnet import XlnetConfig
from plmjax.objectives.permutation_language_model import PermutationLanguageModel
from plmjax.objectives.transformer_xl import TransformerXlPretraining
from plmjax.parallel import mesh
from plmjax.plan.plan import plan
from plmjax.training import program as programs
from plmjax.training.optimizers import BertAdamW

TERMS = (
    (transformer_xl, "ContentBias"),
    (transformer_xl, "PositionalScores"),
    (attention, "ContentBias"),
    (attention, "PositionalScores"),
    (attention, "SegmentScores"),
)


@contextmanager
def plain() -> Iterator[None]:
    """Compute scores without terms in the programs that are traced inside."""
    with ExitStack() as stack:
        for module, name in TERMS:
            nothing = ScoreArray(jnp.zeros((1, 1, 1, 1)))
            stack.enter_context(mock.patch.object(module, name, lambda *_, nothing=nothing: nothing))
        yield


def runs(layers: int, rows: int, length: int, memory: int) -> dict[str, Experiment]:
    """Return an experiment for each system."""
    of_enwik8 = TransformerXlConfig.enwik8_base(n_layer=layers, mem_len=memory)
    transformer = Experiment(of_enwik8, TransformerXlPretraining(), Data(Streams(), sequence_length=length))
    objective = PermutationLanguageModel(memory_length=memory)
    permutation = Experiment(
        XlnetConfig.base(n_layer=layers), objective, Data(ContinuedPairs(), sequence_length=length)
    )
    training = Training(batch_size=rows, steps=1000)
    return {
        name: dataclasses.replace(run, training=training, optimizer=BertAdamW())
        for name, run in {"Transformer-XL": transformer, "XLNet": permutation}.items()
    }


class Step(NamedTuple):
    """A function that takes a step and returns its CPU-seconds; FLOPs and temporary bytes of the program."""

    take: Callable[[], float]
    flops: float
    memory: int


def step_of(run: Experiment) -> Step:
    """Compile the train step of a run for one device."""
    (phase,) = run.resolved_phases
    rows, length = phase.batch_size, phase.sequence_length
    vocabulary = Vocabulary.placeholder(run.model.vocab_size)
    shapes = run.data.layout.batch(rows, length)
    program = programs.build(run, phase, mesh.make(run.mesh, jax.devices()[:1]), vocabulary, lambda _: shapes)
    batch = run.data.layout.synthetic(rows, length, run.model.vocab_size, 0)
    train, state = program.train.lower(program.state, program.batch).compile(), program.initialize(0)

    def take() -> float:
        nonlocal state
        begun = time.process_time()
        state, metrics = train(state, batch)
        jax.block_until_ready(metrics)
        return time.process_time() - begun

    return Step(take, train.cost_analysis()["flops"], train.memory_analysis().temp_size_in_bytes)


def measure(run: Experiment, repeats: int) -> list[str]:
    """Return the cells of a row: CPU-seconds, FLOPs and MiB with positions, without, and the shares of positions."""
    steps = [step_of(run)]
    with plain():
        steps.append(step_of(run))
    turns = [[step.take() for step in steps] for _ in range(repeats + 1)][1:]  # the first one warms up
    cells = []
    for seconds, step in zip(zip(*turns, strict=True), steps, strict=True):
        cells += [f"{statistics.median(seconds):.3g}", f"{min(seconds):.3g} to {max(seconds):.3g}"]
        cells += [f"{step.flops / 1e9:.1f}", f"{step.memory / 2**20:.0f}"]
    share = statistics.median(1 - without / relative for relative, without in turns)
    return [*cells, f"{share:.0%}", f"{1 - steps[1].flops / steps[0].flops:.0%}"]


def estimate(run: Experiment, topology: str) -> list[str]:
    """Return the cells of a row: ms of a step on a slice with positions and without, refined, and the share."""
    relative = ends(run, topology)
    with plain():
        without = ends(run, topology)
    shares = " to ".join(f"{1 - one / other:.0%}" for one, other in zip(without, relative, strict=True))
    return [*(" to ".join(f"{1e3 * one:.2f}" for one in seconds) for seconds in (relative, without)), shares]


def ends(run: Experiment, topology: str) -> list[float]:
    """Return the seconds of a step at the fast and the slow end of the refined estimate."""
    refined = plan(run, topology)["phases"][0]["refined"]
    return [refined[end]["step_seconds"] for end in ("fast", "slow")]


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topology", help="estimate the steps for this slice instead")
    for name, size in {"layers": 2, "rows": 4, "length": 256, "memory": 256, "repeats": 7}.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    options = parser.parse_args()
    sizes = options.layers, options.rows, options.length, options.memory
    names = ["CPU-seconds", "range", "GFLOP", "MiB"]
    header = ["with positions", "without", "share"]
    if not options.topology:
        header = [*names, *(f"{name} without" for name in names), "share", "share of FLOPs"]
    print(f"| step | {' | '.join(header)} |\n|{'---|' * (len(header) + 1)}")
    for name, run in runs(*sizes).items():
        cells = estimate(run, options.topology) if options.topology else measure(run, options.repeats)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
