"""`plmjax compress prune`: from a checkpoint to the run directory of the pruned model."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from plmjax import storage
from plmjax.compression.compression import Params
from plmjax.compression.pruning import heads
from plmjax.compression.pruning.blocks import BlockMovementPruning
from plmjax.compression.pruning.one_shot import by_magnitude, by_pattern, ticket
from plmjax.compression.pruning.pruned import (
    GradualPruning,
    MovementPruning,
    Pruning,
    SoftMovementPruning,
    TicketTraining,
    check_sparsity,
)
from plmjax.compression.run import Source, composed, train, write
from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import UserError, nearest, quoted
from plmjax.experiment import Experiment

WITHOUT_TRAINING = ("magnitude", "two_of_four", "heads")
WITH_TRAINING: dict[str, type[Pruning]] = {
    method.name: method
    for method in (GradualPruning, MovementPruning, SoftMovementPruning, BlockMovementPruning, TicketTraining)
}
TICKET = "ticket"
"""Folder of the output for the pruned weights from which a lottery ticket is trained."""


def prune(
    checkpoint: str | Path,
    output: Path,
    method: str,
    sparsity: float,
    *,
    rows: int = 256,
    rounds: int = 1,
    rewind: Path | None = None,
    experiment: str | None = None,
    overrides: Sequence[str] = (),
) -> str:
    """Prune a checkpoint, and return a line about the result.

    Args:
        checkpoint: a run directory or a checkpoint.
        output: the run directory to write.
        method: one of `WITHOUT_TRAINING` or `WITH_TRAINING`.
        sparsity: share of the layers' weights that become 0; with `heads`, of the heads that are removed.
        rows, rounds: with `heads`, the number of training rows that measure the importance, and of measurements.
        rewind: with `lottery`, the checkpoint whose weights are trained.
        experiment: the experiment that trains the model, if not that of the checkpoint.
        overrides: options of the experiment.

    Raises:
        UserError: the method, the sparsity or an option does not fit the checkpoint, or the output has a run.
    """
    known = (*WITHOUT_TRAINING, *WITH_TRAINING)
    if method not in known:
        raise UserError(f"Expected a known --method, found {quoted(method)}; {nearest(method, known)}")
    check_sparsity(sparsity)
    if rewind is not None and method != TicketTraining.name:
        raise UserError(f"Expected --rewind only with --method lottery, found --method {method}; leave it out.")
    source = Source.read(checkpoint)
    settings = {"method": method} | ({} if method == "two_of_four" else {"sparsity": sparsity})
    if method in WITHOUT_TRAINING:
        _check_no_training(method, experiment, overrides)
        params, model = _without_training(source, method, sparsity, rows, rounds)
        run = dataclasses.replace(source.description.experiment, model=model)
        settings |= {"rows": rows, "rounds": rounds} if method == "heads" else {}
    else:
        made = WITH_TRAINING[method](sparsity=sparsity)
        run = composed(source, made, experiment, overrides, "plmjax compress prune")
        settings |= dataclasses.asdict(run.compression)
        start = _ticket(source, run, sparsity, rewind, output) if method == TicketTraining.name else None
        params, run = train(source, run, output, start)
    return f"pruned     {write(output, source, params, run, 'prune', settings)} in {output}"


def _check_no_training(method: str, experiment: str | None, overrides: Sequence[str]) -> None:
    if overrides or experiment is not None:
        raise UserError(
            f"Expected no experiment and none of its options with --method {method}, which does not train, found "
            f"{quoted(experiment or overrides[0])}; leave it out, or take --method gradual."
        )


def _without_training(
    source: Source, method: str, sparsity: float, rows: int, rounds: int
) -> tuple[Params, ModelConfig]:
    run = source.description.experiment
    if method == "heads":
        return heads.without_least_important(source, run, sparsity, rows, rounds)
    if method == "two_of_four":
        return by_pattern(source.params, run.model), run.model
    return by_magnitude(source.params, run.model, sparsity), run.model


def _ticket(source: Source, run: Experiment, sparsity: float, rewind: Path | None, output: Path) -> Path:
    """Write the kept weights, with their values in the checkpoint `rewind`, and return their run directory."""
    folder = storage.path(output) / TICKET
    if storage.finished_steps(folder / "checkpoints"):
        return folder
    before = source if rewind is None else Source.read(rewind)
    params = ticket(source.params, before.params, run.model, sparsity)
    own = dataclasses.replace(source.description.experiment, compression=None)
    write(folder, source, params, own, "prune", {"method": "lottery", "sparsity": sparsity, "rewind": str(rewind)})
    return folder
