"""The plan of a complete run, phase by phase, for one slice."""

import contextlib
import importlib.metadata
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax

from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.parallel import topologies
from plmjax.planning import compilation as compilations
from plmjax.planning import search
from plmjax.planning.compilation import Batches, DoesNotFit, check, place
from plmjax.planning.estimate import describe, price_of

Announce = Callable[[str], AbstractContextManager]


def plan(
    experiment: Experiment,
    topology: str,
    *,
    prices: dict[str, float] | None = None,
    breakdown: bool = False,
    batches: Batches | None = None,
    announce: Announce = contextlib.nullcontext,
) -> dict[str, Any]:
    """Return all values that `plmjax plan` prints, as JSON data, in bytes, seconds and FLOPs unless named otherwise.

    A phase is not compiled if its program differs from that of an earlier phase only in constants. Its compile_seconds
    are 0.

    prices: generation (or "" for every other) -> price of a chip-hour, in any currency.
    breakdown: true to add the cycles of a step by category.
    batches: the batches of a task; None for an experiment on text, whose layout gives their shapes.
    announce: function from a line about a compilation to a context manager around it, such as
        `plmjax.training.metrics.announced`.

    Raises:
        UserError: an unknown topology, no libtpu, a batch that does not divide by the mesh, or one that does not fit
            (the message then names a batch that does).
    """
    part = topologies.parse(topology)
    check(experiment, part)
    batches = batches or Batches.of_text(experiment)
    placed = place(experiment, batches, part)
    mesh, parts, compiled = placed.mesh, [], []
    devices = list(mesh.devices.flat)
    for phase in experiment.resolved_phases:
        compilation = next(filter(None, (one.of_phase(experiment, phase) for one in compiled)), None)
        if compilation is None:
            try:
                with announce(f"phase {phase.index}: compiling the train step for {part.name}"):
                    compilation = compilations.compile_phase(experiment, batches, phase, mesh)
            except DoesNotFit as error:
                what_fits = search.what_fits(experiment, batches, phase, mesh=mesh, part=part, error=error)
                raise UserError(what_fits) from None
            compiled.append(compilation)
        parts.append(describe(experiment, compilation, part, breakdown))
    price = price_of(part, prices)
    seconds = sum(made["steps"] * made["estimate"]["step_seconds"] for made in parts)
    bound = sum(made["steps"] * made["estimate"]["roofline_seconds"] for made in parts)
    refined = None
    if all(made["refined"] for made in parts):
        ends = ("fast", "slow")
        refined = {end: sum(made["steps"] * made["refined"][end]["step_seconds"] for made in parts) for end in ends}
    return {
        "topology": part.name,
        "device_kind": devices[0].device_kind,
        "chips": part.chips,
        "cores": part.chips * part.chip.cores,
        "devices": len(devices),
        "hosts": len({device.process_index for device in devices}),
        "mesh": dict(mesh.shape),
        "mesh_reason": placed.reason,
        "compiler": f"libtpu {importlib.metadata.version('libtpu')}, jax {jax.__version__}",
        "model": type(experiment.model).__name__,
        "parameters": parts[0]["parameters"],
        "steps": experiment.training.steps,
        "phases": parts,
        "estimate": {
            "hours": seconds / 3600,
            "refined_hours": None if refined is None else {end: spent / 3600 for end, spent in refined.items()},
            "chip_hours": seconds / 3600 * part.chips,
            "price": price,
            "cost": None if price is None else price * seconds / 3600 * part.chips,
            "roofline_hours": bound / 3600,
            "model_flops": sum(made["steps"] * made["model_flops"] for made in parts),
            "tokens": sum(made["steps"] * made["tokens_per_step"] for made in parts),
        },
    }


def plan_or_error(
    experiment: Experiment,
    topology: str,
    prices: dict[str, float],
    *,
    breakdown: bool = False,
    batches: Batches | None = None,
    announce: Announce = contextlib.nullcontext,
) -> dict[str, Any]:
    """Return a plan, or the topology and the error if the run cannot be planned on that slice."""
    topologies.parse(topology)  # an unknown slice is an error, not a result
    try:
        return plan(experiment, topology, prices=prices, breakdown=breakdown, batches=batches, announce=announce)
    except UserError as error:
        return {"topology": topology, "error": str(error)}
