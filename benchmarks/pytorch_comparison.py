"""Compare one of our training steps with one of PyTorch, alternately on the CPU. The step benchmarks share this file.

Each step runs in its own process, one step per message. A step is measured in CPU-seconds of its process, which a busy
machine distorts less than wall-clock time. Each process is bound to one core, because with more cores the threads of
OpenMP count the time they wait for each other. Linux only.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from plmjax.experiment import Experiment

Step = Callable[[], float]
"""Takes one step and returns its loss."""


def plmjax_step(run: "Experiment") -> Step:
    """Return the step that `plmjax pretrain` runs, on synthetic rows of the experiment's layout.

    The rows are the same in each step. The process is set up as the command does.
    """
    os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    from plmjax import platform
    from plmjax.parallel import mesh

    platform.keep_freed_memory()
    import jax

    from plmjax.contracts.vocabulary import Vocabulary
    from plmjax.training import placement
    from plmjax.training import program as programs

    phase = run.resolved_phases[0]
    size = run.model.vocab_size
    vocabulary = Vocabulary.placeholder(size)
    program = programs.build(run, phase, mesh.make(run.mesh, jax.devices()[:1]), vocabulary, placement.of_layout(run))
    batch = run.data.layout.synthetic(phase.batch_size, phase.sequence_length, size, 0)
    state = program.initialize(0)

    def take() -> float:
        nonlocal state
        state, metrics = program.train(state, batch)
        return float(metrics["loss"])

    return take


def pytorch_step(model: "torch.nn.Module", loss: "Callable[[], torch.Tensor]") -> Step:
    """Return a step: backward pass of a loss, clipping by the global norm, and torch's fused AdamW."""
    import torch

    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

    def take() -> float:
        found = loss()
        found.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(found.detach())

    return take


def main(description: str, plmjax: Callable[[int], Step], pytorch: Callable[[int], Step], layers: int) -> None:
    """Run a benchmark's command line: alternate two steps, and print medians, ranges and the ratio.

    description: description of the benchmark; its first line is shown.
    plmjax, pytorch: functions that return the step of a model with a number of layers.
    layers: default number of layers.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--layers", type=int, default=layers)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for name, build in (("plmjax", plmjax), ("pytorch", pytorch)):
        pipes[name], end = context.Pipe()
        processes.append(context.Process(target=_work, args=(build, options.layers, end), daemon=True))
        processes[-1].start()
        end.close()  # so that the wait ends if a worker dies

    measured = {name: [] for name in pipes}
    for repeat in range(-2, options.repeats):  # two steps warm up: compilation, memory, caches
        for name, pipe in pipes.items():
            pipe.send(True)
            answer = pipe.recv()
            if repeat >= 0:
                measured[name].append(answer)
    for name, answers in measured.items():
        cpu, clock, losses = zip(*answers, strict=True)
        print(
            f"{name:8} {statistics.median(cpu):6.3f} CPU-seconds a step ({min(cpu):.3f} to {max(cpu):.3f}), "
            f"{statistics.median(clock):6.3f} s on the clock, last loss {losses[-1]:.3f}"
        )
    cpu = {name: statistics.median(answer[0] for answer in answers) for name, answers in measured.items()}
    print(f"plmjax is {cpu['pytorch'] / cpu['plmjax']:.3f} x as fast as PyTorch a CPU-second")
    for pipe in pipes.values():
        pipe.send(False)
    for process in processes:
        process.join()


def _work(build: Callable[[int], Step], layers: int, pipe: Connection) -> None:
    """Take a step for every message and send (CPU-seconds, seconds, loss)."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    take = build(layers)
    while pipe.recv():
        cpu, clock = time.process_time(), time.perf_counter()
        loss = take()
        pipe.send((time.process_time() - cpu, time.perf_counter() - clock, loss))
