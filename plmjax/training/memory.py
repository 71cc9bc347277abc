"""The memory that a step needs on a device, and advice if there is too little."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import jax

from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.experiment.phases import ResolvedPhase
from plmjax.parallel import mesh as meshes
from plmjax.parallel import topologies
from plmjax.training import switches
from plmjax.training.program import Program


def check(run: Experiment, program: Program, compiled: Any) -> None:
    """Raise UserError before the first step if a compiled step needs more memory than a device has."""
    available = _available(program.mesh.devices.flat[0])
    phase, sizes = program.phase, compiled.memory_analysis()
    resident = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    needed = resident + sizes.temp_size_in_bytes
    if available is None or needed <= available:
        return
    rows = phase.rows_per_device(meshes.batch_shards(program.mesh))
    # Temporary memory grows with the rows of a microbatch; the accumulated gradient needs memory of its own.
    parts = (part for part in range(2, rows + 1) if rows % part == 0)
    enough = (part for part in parts if resident + sizes.temp_size_in_bytes / part <= 0.9 * available)
    raise UserError(
        f"Expected a step of phase {phase.index} to fit into the {available / 2**30:.1f} GiB of a device, found {rows} "
        f"rows of {phase.sequence_length} a device to need {needed / 2**30:.1f} GiB; "
        f"{_advice(run, phase, program.mesh.devices.flat[0], next(enough, None))}"
    )


@contextlib.contextmanager
def explain_out_of_memory(run: Experiment, phase: ResolvedPhase, device: jax.Device) -> Iterator[None]:
    """Turn a failed allocation on a device into a one-sentence error with advice."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        detail = str(error).splitlines()[0].partition("RESOURCE_EXHAUSTED:")[2].strip().rstrip(".")
        raise UserError(
            f"Expected a step of {phase.batch_size} rows of {phase.sequence_length} to fit into the memory of a "
            f"device, found it exhausted ({detail}); {_advice(run, phase, device)}"
        ) from error


def _advice(run: Experiment, phase: ResolvedPhase, device: jax.Device, part: int | None = None) -> str:
    group = f"--phases.{phase.declared}" if run.phases else "--training"
    count = f" {phase.accumulation * part}" if part else ""
    remat = "" if run.training.remat == "full" else ", --training.remat full"
    named = switches.applicable(run, device)
    unproven = f", or try {named}" if named else ""
    return (
        f"take more microbatches with {group}.accumulation{count}{remat} or fewer rows with {group}.batch_size"
        f"{unproven}."
    )


def _available(device: jax.Device) -> float | None:
    """Return the bytes of a device's memory; simulated devices share the memory of the machine."""
    if device.platform != "cpu":
        return topologies.device_memory(device)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / jax.local_device_count()
