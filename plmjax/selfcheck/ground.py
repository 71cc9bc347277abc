"""What the rows of a selfcheck share: the devices, a small BERT, its compiled steps and one batch."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.data.layouts import SentencePairs
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment, Mesh, Training
from plmjax.models.bert import BertConfig
from plmjax.objectives.bert import BertPretraining
from plmjax.parallel import mesh as meshes
from plmjax.parallel import topologies
from plmjax.training import constants, feed, phases, placement, switches
from plmjax.training import program as programs
from plmjax.training.optimizers import BertAdamW
from plmjax.training.program import Program
from plmjax.training.state import TrainState
from plmjax.vocabulary import Vocabulary


def experiment(platform: str, devices: int, **training: Any) -> Experiment:
    """Return the run that is measured: BERT-Base as published, at length 128, or a tiny BERT on a CPU."""
    small = platform == "cpu"
    model = BertConfig.tiny(vocab_size=1024) if small else BertConfig.base()
    settings = {"steps": 100, "batch_size": (4 if small else 32) * devices} | training
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
    extents = [len({device.coords[axis] for device in devices}) for axis in range(chip.dimensions)]
    name = f"{chip.name}:{'x'.join(map(str, sorted(extents)))}" + (f"*{slices}" if slices > 1 else "")
    try:
        part = topologies.parse(name)
    except UserError:
        return None
    return name if part.chips * chip.devices == len(devices) else None


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A compiled train step: (state, batch) -> (state, metrics), and the text of the program before XLA."""

    program: Program
    run: Any
    text: str

    def state(self) -> TrainState:
        """Return the first state; it is the same on every mesh."""
        return self.program.initialize(0, constants.placeholder(Ground.vocabulary(self.program)))

    def batch(self) -> dict[str, jax.Array]:
        """Return the batch of the selfcheck; every step of one size has the same."""
        return next(feed.on_device(iter([Ground.rows(self.program)]), self.program.batch, ahead=1))


@dataclasses.dataclass(frozen=True, eq=False)
class Ground:
    """The devices of the selfcheck and a folder for checkpoints that all hosts share; None if there is none."""

    devices: list[jax.Device]
    folder: Path | None

    @property
    def platform(self) -> str:
        """The platform of the devices: cpu, gpu or tpu."""
        return self.devices[0].platform

    @functools.cached_property
    def measured(self) -> Experiment:
        """The run whose step is measured."""
        return experiment(self.platform, len(self.devices))

    @functools.cached_property
    def plain(self) -> Step:
        """The step without dropout and rings, all devices along the data axis."""
        return self.step(Mesh(data=len(self.devices)), rings="off")

    def dtype(self) -> jnp.dtype:
        """Return the dtype of matrix products on these devices."""
        return jnp.dtype(programs.execution(self.measured, self.platform).dtype)

    def step(self, mesh: Mesh, **training: Any) -> Step:
        """Compile the step of the measured run without dropout on a mesh. training: settings that differ."""
        run = experiment(self.platform, len(self.devices), **training)
        run = dataclasses.replace(run, model=run.model.with_dropout(0.0), mesh=mesh)
        (phase,) = phases.resolve(run)
        # One order of the devices for steps with rings and without, so that their results are on the same devices.
        grid = meshes.make(mesh, self.devices, "on")
        vocabulary = Vocabulary.placeholder(run.model.vocab_size)
        program = programs.build(run, phase, grid, vocabulary, placement.of_layout(run))
        with switches.explain_compilation(run, program):
            lowered = program.train.lower(program.state, program.batch)
            return Step(program, lowered.compile(), lowered.as_text())

    @staticmethod
    def vocabulary(program: Program) -> Vocabulary:
        """Return the placeholder of a tokenizer for a program."""
        return Vocabulary.placeholder(program.model.vocab_size)

    @staticmethod
    def rows(program: Program) -> dict[str, np.ndarray]:
        """Return the rows of this host of a batch of random tokens."""
        phase, own = program.phase, feed.local_rows(program.batch)
        layout = SentencePairs()
        made = layout.synthetic(phase.batch_size, phase.sequence_length, program.model.vocab_size, seed=0)
        return {name: values[own] for name, values in made.items()}
