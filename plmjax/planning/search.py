"""Search for a batch size, a number of microbatches and a remat policy that fit a slice, with few compilations."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import jax

from plmjax.contracts.execution import REMAT_POLICIES
from plmjax.experiment import Experiment
from plmjax.experiment.phases import ResolvedPhase
from plmjax.parallel import mesh as meshes
from plmjax.parallel import sharding, topologies
from plmjax.planning import compilation as compilations
from plmjax.planning import estimate as estimates
from plmjax.planning.compilation import Batches, DoesNotFit
from plmjax.training import placement, switches
from plmjax.training import program as programs

FITTING_COMPILES = 6
"""Maximum number of programs that `what_fits` compiles to find a batch size."""
COMPILES = 24
"""Maximum number of programs that `search` compiles for each batch size."""


def what_fits(
    experiment: Experiment,
    batches: Batches,
    phase: ResolvedPhase,
    *,
    mesh: jax.sharding.Mesh,
    part: topologies.Slice,
    error: DoesNotFit,
) -> str:
    """Return the message about a batch that is too large. Smaller ones are compiled to name one that fits.

    error: the compiler's error for the batch of `phase`.
    """
    shards = meshes.batch_shards(mesh)
    rows = phase.rows_per_device(shards)
    option = f"phases.{phase.declared}" if experiment.phases else "training"
    found = (
        f"Expected a step of phase {phase.index} to fit into the {error.available / 2**30:.2f} GiB of a {part.name} "
        f"device, found {rows} rows of {phase.sequence_length} a device to need {error.needed / 2**30:.2f} GiB"
    )

    def fits(rows: int, accumulation: int) -> DoesNotFit | None:
        _print_progress(f"phase {phase.index}: trying {rows} rows a device x {accumulation} ...")
        smaller = dataclasses.replace(phase, batch_size=rows * shards * accumulation, accumulation=accumulation)
        try:
            compilations.compile_phase(experiment, batches, smaller, mesh)
        except DoesNotFit as too_large:
            return too_large
        return None

    # Memory is almost linear in the number of rows: extrapolate twice, then bisect to 5 %.
    low, high, compiles = 0, rows, 0
    fixed = min(_fixed_bytes(experiment, batches, phase, mesh), error.available)
    while high - low > max(1, high // 20) and compiles < FITTING_COMPILES:
        slope = (error.needed - fixed) / high
        aim = int((error.available - fixed) / slope) if compiles < 2 else (low + high) // 2
        aim = min(max(aim, low + 1), high - 1)
        too_large = fits(aim, phase.accumulation)
        low, high, error = (aim, high, error) if too_large is None else (low, aim, too_large)
        compiles += 1
    if low == 0:
        return f"{found}, and one row does as well; cut the parameters with --mesh.fsdp or take a larger slice."
    answer = f"{found}; take --{option}.batch_size {low * shards * phase.accumulation}"
    for more in (more for more in range(2, rows + 1) if rows % more == 0 and rows // more <= low):
        # The accumulated gradient needs memory of its own.
        if fits(rows // more, phase.accumulation * more) is None:
            answer += f" or --{option}.accumulation {phase.accumulation * more}"
            break
    named = switches.applicable(experiment, mesh.devices.flat[0])
    return f"{answer}, or try {named}." if named else f"{answer}."


def _fixed_bytes(experiment: Experiment, batches: Batches, phase: ResolvedPhase, mesh: jax.sharding.Mesh) -> float:
    """Return the estimated bytes on a device for any batch: the state, a copy of the parameters and a gradient."""
    program = programs.build(experiment, phase, mesh, vocabulary=batches.vocabulary, shapes=batches.shapes)
    state = program.state
    fixed = sharding.bytes_on_device((state.params, state.optimizer_state, state.collections, state.constants))
    return 2 * sharding.bytes_on_device(program.copy) + fixed


def search(
    experiment: Experiment,
    topology: str,
    *,
    batch_sizes: Sequence[int] = (),
    compiles: int = COMPILES,
    prices: dict[str, float] | None = None,
    batches: Batches | None = None,
) -> dict[str, Any]:
    """Find the remat policy and the number of microbatches with which an experiment is fastest on a slice.

    Each policy is tried with the fewest microbatches that fit, and with more of them as long as a step gets faster,
    because the activations of a smaller microbatch may stay on the chip. `plmjax.training.placement` estimates the
    fewest microbatches; if they do not fit, more are tried. The fastest run has the shortest time per row.

    batch_sizes: batch sizes to try besides that of the experiment.
    compiles: maximum number of programs to compile for each batch size.
    prices, batches: as for `plmjax.planning.plan.plan`.

    Raises:
        UserError: an unknown topology, or an experiment that cannot be planned.
    """
    part = topologies.parse(topology)
    compilations.check(experiment, part)
    batches = batches or Batches.of_text(experiment)
    placed = place(experiment, batches, part)
    tried, left_out = [], []
    sizes = [0, *batch_sizes]
    for size in sizes:
        spent = 0
        for remat in REMAT_POLICIES:
            changed = _change(experiment, size, remat)
            if spent + len(changed.resolved_phases) > compiles:
                left_out.append(f"Not tried, after {spent} programs: remat {remat} at a batch of {size or 'its own'}.")
                continue
            one, used = _try(changed, batches, placed.mesh, part=part, compiles=compiles - spent)
            spent += used
            tried.append({"remat": remat, "batch_size": size, **one})
    fitting = [one for one in tried if "hours" in one]
    price = estimates.price_of(part, prices)
    for one in fitting:
        one["chip_hours"] = one["hours"] * part.chips
        one["cost"] = None if price is None else price * one["chip_hours"]
    tried.sort(key=lambda one: one.get("seconds_a_row", float("inf")))
    best = min(fitting, key=lambda one: one["seconds_a_row"], default=None)
    return {
        "topology": part.name,
        "mesh": dict(placed.mesh.shape),
        "mesh_reason": placed.reason,
        "tried": tried,
        "left_out": left_out,
        "overrides": None if best is None else _overrides(experiment, best),
    }


def _change(experiment: Experiment, batch_size: int, remat: str) -> Experiment:
    """Return the experiment with a remat policy and a batch size in every phase; 0 keeps the batch sizes."""
    training = dataclasses.replace(
        experiment.training, remat=remat, batch_size=batch_size or experiment.training.batch_size
    )
    parts = tuple(dataclasses.replace(phase, batch_size=batch_size or phase.batch_size) for phase in experiment.phases)
    return dataclasses.replace(experiment, training=training, phases=parts)


def _try(
    experiment: Experiment, batches: Batches, mesh: jax.sharding.Mesh, *, part: topologies.Slice, compiles: int
) -> tuple[dict[str, Any], int]:
    """Try one remat policy. Return the result and the number of compiled programs.

    The result has all tries of all phases in "phases" and, if every phase fits, the hours of the run. In each phase
    only the fastest try has "steps", the number of steps of the phase.
    """
    made, used = [], 0
    for phase in experiment.resolved_phases:
        fewest, fastest = fewest_microbatches(experiment, batches, phase, mesh), None
        for count in (count for count in _counts(phase, mesh) if count >= fewest):
            if used == compiles:
                break
            shaped = dataclasses.replace(phase, accumulation=count)
            rows = shaped.rows_per_device(meshes.batch_shards(mesh))
            _print_progress(
                f"phase {phase.index}: trying remat {experiment.training.remat}, {rows} rows a device x {count} ..."
            )
            used += 1
            found = {
                "phase": phase.index,
                "batch_size": phase.batch_size,
                "rows_per_device": rows,
                "accumulation": count,
            }
            made.append(found)
            try:
                compilation = compilations.compile_phase(experiment, batches, shaped, mesh)
            except DoesNotFit as error:
                found["memory"] = error.needed
                continue
            estimate = estimates.describe(experiment, compilation, part)["estimate"]
            found["memory"] = compilation.total
            found |= {name: estimate[name] for name in ("step_seconds", "tokens_per_second")}
            if fastest is not None and found["step_seconds"] >= fastest["step_seconds"]:
                break
            fastest = found
        if fastest is None:
            return {"phases": made}, used
        fastest["steps"] = phase.steps
    fastest_of_phases = [one for one in made if "steps" in one]
    seconds = sum(one["steps"] * one["step_seconds"] for one in fastest_of_phases)
    rows = sum(one["steps"] * one["batch_size"] for one in fastest_of_phases)
    return {"phases": made, "hours": seconds / 3600, "seconds_a_row": seconds / rows}, used


def fewest_microbatches(experiment: Experiment, batches: Batches, phase: ResolvedPhase, mesh: jax.sharding.Mesh) -> int:
    """Return the estimated minimum number of microbatches with which a phase fits: at most one for each row."""
    devices, sizes = list(mesh.devices.flat), tuple(mesh.shape.values())
    counts = _counts(phase, mesh)
    phase = dataclasses.replace(phase, accumulation=1)
    given = {"vocabulary": batches.vocabulary, "shapes": batches.shapes}
    (residuals,) = placement.residuals_of_rows(experiment, [phase], "tpu", **given)
    state = placement.state_bytes(experiment, phase, sizes, devices=devices, **given)
    memory = placement.USABLE * topologies.device_memory(devices[0])
    cut = {count: dataclasses.replace(phase, accumulation=count) for count in counts}
    return next((n for n in counts if placement.bytes_needed(cut[n], sizes, state, residuals) <= memory), counts[-1])


def place(experiment: Experiment, batches: Batches, part: topologies.Slice) -> placement.MeshChoice:
    """Return the mesh for the most microbatches, which have one row on each device, and the reason for it."""
    devices = part.chips * part.chip.devices
    batch_sizes = [phase.batch_size for phase in experiment.resolved_phases]
    training = dataclasses.replace(experiment.training, accumulation=max(1, experiment.training.batch_size // devices))
    parts = [
        dataclasses.replace(phase, accumulation=max(1, batch_size // devices))
        for phase, batch_size in zip(experiment.phases, batch_sizes, strict=False)
    ]
    changed = dataclasses.replace(experiment, training=training, phases=tuple(parts))
    return compilations.place(changed, batches, part)


def _counts(phase: ResolvedPhase, mesh: jax.sharding.Mesh) -> list[int]:
    """Return the numbers of microbatches that divide the rows of a device."""
    rows = phase.batch_size // meshes.batch_shards(mesh)
    return [count for count in range(1, rows + 1) if rows % count == 0]


def _overrides(experiment: Experiment, best: dict[str, Any]) -> list[str]:
    """Return the options for the best result of a search that differ from the experiment."""
    options = {"training.remat": (best["remat"], experiment.training.remat)}
    if best["batch_size"]:
        options["training.batch_size"] = (best["batch_size"], experiment.training.batch_size)
    for found, phase in zip((one for one in best["phases"] if "steps" in one), experiment.resolved_phases, strict=True):
        group = f"phases.{phase.declared}" if experiment.phases else "training"
        options[f"{group}.accumulation"] = (found["accumulation"], phase.accumulation)
        if best["batch_size"] and experiment.phases and experiment.phases[phase.declared].batch_size:
            options[f"{group}.batch_size"] = (best["batch_size"], phase.batch_size)
    return [word for name, (new, old) in options.items() if new != old for word in (f"--{name}", str(new))]


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
