"""The lines that a run prints before its first step: devices, batch, model and memory."""

import math
from typing import Any

import jax

from plmjax import platform
from plmjax.experiment import Experiment
from plmjax.objectives.capabilities import AdaptsModel
from plmjax.parallel import mesh as meshes
from plmjax.parallel.peak import PeakFlops
from plmjax.training.metrics import compact, duration
from plmjax.training.placement import MeshChoice, mesh_text
from plmjax.training.program import Program, dropout_prng


def mesh(placed: MeshChoice) -> str:
    """Return a line with the mesh of a run and the reason for it."""
    return f"mesh     {mesh_text(placed.mesh.shape.values())}: {placed.reason}"


def cores(before: int) -> list[str]:
    """Return a line if a run resumes on a CPU with another number of cores than its last checkpoint was saved on.

    before: number of cores at the last checkpoint; 0 if the run did not compute on a CPU.
    """
    now = platform.cores()
    if jax.default_backend() != "cpu" or before in (0, now):
        return []
    return [f"cores    {now}, {before} before: sums have another order, and their last bits may differ"]


def tokens(run: Experiment, program: Program) -> int:
    """Return the number of tokens of one global batch."""
    return run.data.tokens(program.phase.batch_size, program.phase.sequence_length)


def lines(
    run: Experiment,
    program: Program,
    compiled: Any,
    *,
    flops: float,
    peak_flops: PeakFlops,
    compile_seconds: float,
    step: int,
) -> list[str]:
    """Return the header of one phase.

    compiled: the compiled train step. flops: model FLOPs of a step. peak_flops: peak FLOP/s of the whole mesh.
    step: number of finished steps.
    """
    phase, devices = program.phase, program.mesh.devices
    device = devices.flat[0]
    shards = meshes.batch_shards(program.mesh)
    rows = phase.rows_per_device(shards)
    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(program.state.params))
    memory = compiled.memory_analysis()
    resident = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    continuing = f", continuing from step {step}" if step else ""
    count = tokens(run, program)
    found = [
        f"phase    {phase.index}: steps {phase.first_step}..{phase.last_step} of {run.training.steps}{continuing}",
        f"devices  {devices.size} x {device.device_kind} ({device.platform}), {jax.process_count()} host(s)",
        f"batch    {rows} rows x {shards} shards x {phase.accumulation} microbatches = {phase.batch_size} rows of "
        f"{phase.sequence_length} = {count:,} tokens a step",
        f"model    {type(run.model).__name__}, {parameters:,} parameters, {compact(flops)}FLOP a step",
        f"memory   {_gib(resident)} state and batch + {_gib(memory.temp_size_in_bytes)} temporary a device",
        f"compile  {duration(compile_seconds)}; MFU is relative to {compact(peak_flops.rate)}FLOP/s, "
        f"{peak_flops.origin}",
    ]
    if changes := " ".join(run.phases[phase.declared].changes if run.phases else ()):
        found.insert(1, f"changes  {changes}")
    if isinstance(run.objective, AdaptsModel):
        found.append(f"computes {run.objective.describe_computation(program.experiment.model)}")
    if dropout_prng(run, program.mesh) == "rbg":
        found.append("dropout  rbg: another mesh draws other masks; --training.dropout_prng threefry2x32 does not")
    return found


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
