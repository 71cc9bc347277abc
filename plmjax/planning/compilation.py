"""Compilation of a train step by libtpu for a TPU slice, on a machine without TPUs."""

import dataclasses
import operator
import os
import re
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment, differences, in_phase
from plmjax.experiment.phases import ResolvedPhase
from plmjax.parallel import topologies
from plmjax.planning import schedule_files
from plmjax.planning.schedules import Schedule
from plmjax.runs import checks
from plmjax.training import placement, switches
from plmjax.training import program as programs


class DoesNotFit(Exception):
    """A program needs more HBM than a device has: `needed` and `available`, in bytes."""

    def __init__(self, needed: float, available: float) -> None:
        super().__init__(f"{needed:.0f} of {available:.0f} bytes")
        self.needed, self.available = needed, available


class Batches(NamedTuple):
    """The properties of a run's batches on which its program depends.

    vocabulary: the vocabulary of the tokenizer, or a placeholder.
    shapes: function from a phase to a dict from field to shape and dtype of its global batch.
    """

    vocabulary: Vocabulary
    shapes: placement.Shapes

    @classmethod
    def of_text(cls, experiment: Experiment) -> Self:
        """Return the batches of an experiment on text, whose layout gives their shapes; no text is read."""
        return cls(Vocabulary.placeholder(experiment.model.vocab_size), placement.text_batch_shapes(experiment))


_NUMBERS = ("model.", "optimizer.")
"""Prefixes of fields whose floats are only constants in a program. 0 is an exception: it may leave a part out."""
_NO_PART_OF_THE_PROGRAM = ("optimizer.schedule", "objective.evaluation_rate", "data.input", "data.path", "data.mixture")
"""Prefixes of fields that change at most constants of a train step and a few operations on them."""


@dataclasses.dataclass(frozen=True)
class Compilation:
    """The compiled train step of one phase.

    memory: the memory analysis of the executable.
    text: the optimised program in HLO.
    schedules: instruction -> its schedule; empty if other code had loaded libtpu, which then writes no schedules.
    seconds: the time of the compilation; 0 if it was taken from another phase.
    """

    program: programs.Program
    memory: Any
    text: str
    schedules: dict[str, Schedule]
    seconds: float

    @property
    def total(self) -> int:
        """Return the HBM bytes needed on a device: arguments and results (donated ones once), temporaries and code."""
        memory = self.memory
        resident = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
        return resident + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes

    def of_phase(self, experiment: Experiment, phase: ResolvedPhase) -> Self | None:
        """Return this compilation for another phase of the run; None if its program differs in more than constants.

        The learning rate, its schedule and theta are constants, which do not change the time and memory of a program.
        """
        changed, program = in_phase(experiment, phase), self.program
        sizes = operator.attrgetter("sequence_length", "batch_size", "accumulation")
        if sizes(phase) != sizes(program.phase) or not all(
            name.startswith(_NO_PART_OF_THE_PROGRAM)
            or (name.startswith(_NUMBERS) and isinstance(before, float) and isinstance(after, float) and before * after)
            for name, (before, after) in differences(program.experiment, changed).items()
        ):
            return None
        program = dataclasses.replace(program, phase=phase, experiment=changed)
        return dataclasses.replace(self, program=program, seconds=0.0)


def check(experiment: Experiment, part: topologies.Slice) -> None:
    """Raise UserError if an experiment from `plmjax.runs.resolve` cannot be planned on a slice.

    This also configures JAX: the CPU platform, unless JAX_PLATFORMS is set, and no compilation cache.
    """
    checks.is_experiment(experiment)
    if part.slices > 1 and not part.chip.network:
        raise UserError(
            f"Expected a generation whose network between slices is known, found {part.name}; plan one slice of it."
        )
    if not os.environ.get("JAX_PLATFORMS"):
        jax.config.update("jax_platforms", "cpu")  # only the compiler is used, no accelerator of this machine
    # JAX decides at its first program whether it caches programs. It could not load those of the slice.
    jax.config.update("jax_enable_compilation_cache", False)
    if isinstance(experiment.data, Data):
        checks.on_devices(experiment, part.chips * part.chip.devices, part.slices)


def place(experiment: Experiment, batches: Batches, part: topologies.Slice) -> placement.MeshChoice:
    """Return the mesh of an experiment on a slice, and the reason for it. No TPU is needed."""
    return placement.choose_mesh(experiment, part.devices(), *batches)


def compile_phase(
    experiment: Experiment, batches: Batches, phase: ResolvedPhase, mesh: jax.sharding.Mesh
) -> Compilation:
    """Compile the train step of a phase for the devices of a mesh.

    Raises:
        DoesNotFit: the step needs more HBM than a device has.
        UserError: the compiler does not know an option of the run, or fails.
    """
    start = time.perf_counter()
    program = programs.build(experiment, phase, mesh, vocabulary=batches.vocabulary, shapes=batches.shapes)
    with switches.explain_compilation(experiment, program):
        memory, text, written = compile_for_slice(program.train.lower(program.state, program.batch))
    return Compilation(program, memory, text, written, time.perf_counter() - start)


class CompiledProgram(NamedTuple):
    """A program compiled for a slice: its memory analysis, its HLO, and instruction -> schedule."""

    memory: Any
    text: str
    schedules: dict[str, Schedule]


def compile_for_slice(lowered: Any) -> CompiledProgram:
    """Compile a lowered function for the devices of its arguments.

    Raises:
        DoesNotFit: the program needs more HBM than a device has.
    """
    schedule_files.clear(topologies.schedules())
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        try:
            # If a user has a compilation cache, JAX cannot load a program from it without the chip, and warns.
            warnings.filterwarnings("ignore", message="Error reading persistent compilation cache entry")
            # jaxlib cannot read every program of the newest chips (`as_text` fails); the compiler's dump is complete.
            compiled = lowered.compile(compiler_options={"xla_dump_to": folder, "xla_dump_hlo_as_text": True})
        except jax.errors.JaxRuntimeError as error:
            too_large = out_of_memory(str(error))
            if too_large is None:
                raise
            raise too_large from None
        finally:
            written = schedule_files.read(topologies.schedules())
        files = [*Path(folder).glob("*after_codegen.txt"), *Path(folder).glob("*.after_optimizations.txt")]
        return CompiledProgram(compiled.memory_analysis(), files[0].read_text(encoding="utf-8"), written)


def out_of_memory(message: str) -> DoesNotFit | None:
    """Return the sizes in a compiler error about HBM, which has two forms; None for any other error."""
    sizes = r"([\d.]+)([KMGT])"
    ways = (rf"Used {sizes} of {sizes} hbm", rf"\({sizes}\) exceeds available HBM \({sizes}\)")
    found = next(filter(None, (re.search(way, message) for way in ways)), None)
    if "RESOURCE_EXHAUSTED" not in message or found is None:
        return None
    units = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    return DoesNotFit(*(float(found[i]) * units[found[i + 1]] for i in (1, 3)))
