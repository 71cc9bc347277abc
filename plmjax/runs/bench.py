"""Measurement of an experiment's train step on this machine, compared with the speed of matrix products."""

import itertools
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.experiment import Experiment, phases
from plmjax.parallel import mesh as meshes
from plmjax.parallel import peak, topologies
from plmjax.runs import checks
from plmjax.training import constants, feed, loop, memory, placement, switches
from plmjax.training.program import build, execution
from plmjax.training.step_timer import StepTimer


def bench(run: Experiment, steps: int = 10, warmup: int = 2) -> list[dict[str, Any]]:
    """Measure `steps` train steps of every phase after `warmup` steps. Return one record per phase.

    The tokens are random unless the experiment names prepared datasets, by `data.path` or `data.mixture`.

    run: an experiment from `plmjax.runs.resolve`.

    Raises:
        UserError: `steps` is below 1, or the experiment does not fit this machine.
    """
    if steps < 1:
        raise UserError(f"Expected at least one step to measure, found {steps}; raise --measured_steps.")
    here = loop.devices(run.training.platform)
    checks.on_devices(run, len(here), meshes.slices(here))
    vocabulary = Vocabulary.placeholder(run.model.vocab_size)
    placed = placement.choose_mesh(run, here, vocabulary, placement.text_batch_shapes(run))
    records = []
    for phase in run.resolved_phases:
        with memory.explain_out_of_memory(run, phase, here[0]):
            records.append(_phase(run, phase, placed.mesh, steps=steps, warmup=warmup))
    return records


def _phase(
    run: Experiment, phase: phases.ResolvedPhase, mesh: jax.sharding.Mesh, *, steps: int, warmup: int
) -> dict[str, Any]:
    vocabulary, batches = _batches(run, phase)
    program = build(run, phase, mesh, vocabulary=vocabulary, shapes=placement.text_batch_shapes(run))
    state = program.initialize(run.training.seed, constants.placeholder(vocabulary))
    start = time.perf_counter()
    with switches.explain_compilation(run, program):
        compiled = program.train.lower(state, program.batch).compile()
    compile_seconds = time.perf_counter() - start
    memory.check(run, program, compiled)
    arrays = feed.on_device(batches, program.batch)
    for _ in range(warmup):
        state, _ = compiled(state, next(arrays))
    jax.block_until_ready(state)
    platform = mesh.devices.flat[0].platform
    dtype = execution(run, platform).dtype
    size = peak.product_size(platform)
    matmul = peak.measure_flops(dtype, size, seconds=0.5)
    pace, begin_cpu = StepTimer(), time.process_time()
    for _ in range(steps):
        pace.throttle()
        state, metrics = compiled(state, pace.next_batch(arrays))
        pace.add(metrics)
    pace.drain()
    seconds = pace.seconds
    cpu_seconds = (time.process_time() - begin_cpu) / steps
    arrays.close()
    devices = 1 if platform == "cpu" else mesh.size  # simulated CPU devices share the same cores
    # Other work on this machine slows measurements, so products are measured before and after the steps.
    matmul = max(matmul, peak.measure_flops(dtype, size, seconds=0.5)) * devices
    flops = program.experiment.training_objective.train_flops(program.experiment.model, program.batch)
    sheet = topologies.peak_flops(mesh.devices.flat[0].device_kind)
    return {
        "phase": phase.index,
        "device": mesh.devices.flat[0].device_kind,
        "devices": mesh.size,
        "dtype": np.dtype(dtype).name,
        "batch_size": phase.batch_size,
        "sequence_length": phase.sequence_length,
        "steps": steps,
        "compile_seconds": compile_seconds,
        "step_seconds": seconds,
        "step_cpu_seconds": cpu_seconds,
        "tokens_per_second": run.data.tokens(phase.batch_size, phase.sequence_length) / seconds,
        "model_flops_per_second": flops / seconds,
        "matmul_flops_per_second": matmul,
        "of_matmul": flops / seconds / matmul,
        "mfu": None if sheet is None else flops / seconds / (sheet * mesh.size),
        "peak_bytes": peak_bytes(mesh.local_devices[0]),
        "input_wait": pace.input_wait,
        "input": "dataset" if run.data.path or run.data.mixture.sources else "random tokens",
    }


def _batches(run: Experiment, phase: phases.ResolvedPhase) -> tuple[Vocabulary, Iterator[dict[str, np.ndarray]]]:
    if run.data.path or run.data.mixture.sources:
        from plmjax.data import mixture, remote, tokenizers

        folder, *_ = run.data.mixture.paths.values() or [run.data.path]
        vocabulary = tokenizers.load(f"{folder}/tokenizer").vocabulary
        data, size, seed = run.data, run.model.vocab_size, run.training.seed
        if data.mixture.sources:
            datasets = mixture.open_sources(data.mixture, data.cache_bytes, size)
            source = mixture.new_source(
                data.layout, data.mixture, datasets, vocabulary=vocabulary, seed=seed, window=data.shuffle_window
            )
        else:
            dataset = remote.open_dataset(folder, data.cache_bytes, vocab_size=size)
            source = remote.source(data.layout, dataset, vocabulary, seed=seed, window=data.shuffle_window)
        return vocabulary, source.train(phase, 0)
    size = run.model.vocab_size
    made = [run.data.layout.synthetic(phase.batch_size, phase.sequence_length, size, seed) for seed in range(4)]
    return Vocabulary.placeholder(size), itertools.cycle(made)


def peak_bytes(device: jax.Device) -> int:
    """Return the peak memory so far, in bytes: that of the device if it reports one, else that of the process."""
    statistics = device.memory_stats()
    if statistics and "peak_bytes_in_use" in statistics:
        return statistics["peak_bytes_in_use"]
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
