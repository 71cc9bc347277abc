"""Common inputs of the checks: the devices, a BERT, its train steps and one batch."""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import SentencePairs
from plmjax.experiment import Data, Experiment, Mesh, Training
from plmjax.models.bert import BertConfig
from plmjax.objectives.bert import BertPretraining
from plmjax.parallel import mesh as meshes
from plmjax.parallel import topologies
from plmjax.training import constants, feed, placement, switches
from plmjax.training import program as programs
from plmjax.training.optimizers import BertAdamW
from plmjax.training.program import Program
from plmjax.training.state import TrainState


def experiment(platform: str, devices: int, **training: Any) -> Experiment:
    """Return the run that is measured: BERT-Base as published, with 128 tokens in a row; on a CPU a tiny BERT."""
    small = platform == "cpu"
    model = BertConfig.tiny(vocab_size=1024) if small else BertConfig.base()
    settings = {"steps": 100, "batch_size": (4 if small else 32) * devices, "unroll": 1} | training
    return Experiment(
        model=model,
        objective=BertPretraining(),
        data=Data(layout=SentencePairs(), sequence_length=32 if small else 128),
        optimizer=BertAdamW(),
        training=Training(**settings),
    )


def slice_name(devices: list[jax.Device]) -> str | None:
    """Return the topology of TPU devices as `plmjax plan` reads it, such as v5e:2x4; None for other devices."""
    chip = topologies.chip_of(devices[0].device_kind)
    if chip is None or not all(hasattr(device, "coords") for device in devices):
        return None
    slices = meshes.slices(devices)
    for shape in chip.shapes:
        sizes = sorted(map(int, shape.split("x")))
        extents = sorted(len({device.coords[axis] for device in devices}) for axis in range(len(sizes)))
        if sizes == extents and math.prod(sizes) * chip.devices * slices == len(devices):
            return f"{chip.name}:{shape}" + (f"*{slices}" if slices > 1 else "")
    return None


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """The train step of a run on a mesh, which is compiled when it is first used."""

    experiment: Experiment
    program: Program

    @functools.cached_property
    def lowered(self) -> Any:
        """The lowered program, before XLA compiles it."""
        return self.program.train.lower(self.program.state, self.program.batch)

    @functools.cached_property
    def run(self) -> Any:
        """The compiled step: (state, batch) -> (state, metrics). The state is donated."""
        with switches.explain_compilation(self.experiment, self.program):
            return self.lowered.compile()

    def state(self) -> TrainState:
        """Return the first state; it is the same on every mesh."""
        return self.program.initialize(0, constants.placeholder(vocabulary(self.experiment)))

    def batch(self) -> dict[str, jax.Array]:
        """Return a batch of random tokens, which is the same in every step of the selfcheck."""
        run, phase, own = self.experiment, self.program.phase, feed.local_rows(self.program.batch)
        made = run.data.layout.synthetic(phase.batch_size, phase.sequence_length, run.model.vocab_size, seed=0)
        return next(feed.on_device(iter([{name: made[name][own] for name in made}]), self.program.batch))


@dataclasses.dataclass(frozen=True, eq=False)
class Ground:
    """The devices of the selfcheck, and a folder for checkpoints that all hosts share, or None."""

    devices: list[jax.Device]
    folder: Path | None

    @property
    def platform(self) -> str:
        """The platform of the devices: cpu, gpu or tpu."""
        return self.devices[0].platform

    @property
    def measured(self) -> Experiment:
        """The run whose step is measured."""
        return experiment(self.platform, len(self.devices))

    @property
    def dtype(self) -> str:
        """Name of the dtype of matrix products on these devices."""
        return jnp.dtype(programs.execution(self.measured, self.platform).dtype).name

    @property
    def mesh(self) -> jax.sharding.Mesh:
        """All devices along the data axis, in the order of rings, to compare steps with and without rings."""
        return meshes.make(Mesh(data=len(self.devices)), self.devices, "on")

    @functools.cached_property
    def plain(self) -> Step:
        """The step without dropout and without rings."""
        return self.step(self.mesh, rings="off")

    def step(self, mesh: jax.sharding.Mesh, **training: Any) -> Step:
        """Return the step of the measured run on a mesh, without dropout. training: settings that differ."""
        run = experiment(self.platform, len(self.devices), **training)
        run = dataclasses.replace(run, model=run.model.with_dropout(0.0))
        (phase,) = run.resolved_phases
        return Step(
            run, programs.build(run, phase, mesh, vocabulary=vocabulary(run), shapes=placement.text_batch_shapes(run))
        )


def vocabulary(run: Experiment) -> Vocabulary:
    """Return a placeholder vocabulary for a run on random tokens."""
    return Vocabulary.placeholder(run.model.vocab_size)
