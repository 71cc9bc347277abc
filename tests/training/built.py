"""The program of the only phase of a run, and what its steps make of a source."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from plmjax.experiment import Experiment
from plmjax.objectives.objective import ConstantSources
from plmjax.parallel import mesh as meshes
from plmjax.training import feed
from plmjax.training import program as programs
from plmjax.training.state import TrainState
from tests.third_party import experiments
from tests.third_party.source import ChainSource


def program(
    run: Experiment, source: Callable[..., Any] = ChainSource, devices: int | Sequence[jax.Device] = 1
) -> programs.Program:
    """Its program on so many devices of this machine, or on these."""
    (phase,), made = run.resolved_phases, source(run.data)
    devices = jax.devices()[:devices] if isinstance(devices, int) else devices
    return programs.build(run, phase, meshes.make(run.mesh, devices), vocabulary=made.vocabulary, shapes=made.batch)


def trained(
    run: Experiment, sizes: tuple[int, int, int] = (1, 1, 1), source: Callable[..., Any] = ChainSource
) -> tuple[TrainState, TrainState, dict[str, float]]:
    """(first state, last state, metrics of the last step), on the host, of all its steps on a mesh of these sizes."""
    run = experiments.changed(run, mesh=dict(zip(meshes.AXES, sizes, strict=True)))
    made, built = source(run.data), program(run, source, sizes[0] * sizes[1] * sizes[2])
    sources = ConstantSources(made.vocabulary, made.unigram_counts, lambda: [], lambda path, init: None)
    state = built.initialize(0, sources)
    first = jax.device_get(state)
    for batch in feed.on_device(made.train(built.phase, 0, feed.local_rows(built.batch)), built.batch):
        state, metrics = built.train(state, batch)
    return first, jax.device_get(state), dict(metrics)
