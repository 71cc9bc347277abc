"""`plmjax compress prune`: from a checkpoint to the run directory of the pruned model."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from plmjax.commands.arguments import Overrides, Reference, default, load_classes
from plmjax.commands.command_line import Location
from plmjax.compression.pruning import heads
from plmjax.compression.pruning.blocks import BlockMovementPruning
from plmjax.compression.pruning.one_shot import by_magnitude, by_pattern, ticket
from plmjax.compression.pruning.pruned import (
    ByFraction,
    GradualPruning,
    MovementPruning,
    Pruning,
    SoftMovementPruning,
    TicketTraining,
    check_sparsity,
)
from plmjax.compression.run import Source, compose_experiment, hold_output, train, write
from plmjax.errors import UserError, nearest, quoted
from plmjax.experiment import Experiment
from plmjax.files import storage

WITHOUT_TRAINING = ("magnitude", "two_of_four", "heads")
OF_RUNS: dict[str, type[Pruning]] = {
    method.name: method
    for method in (GradualPruning, MovementPruning, SoftMovementPruning, BlockMovementPruning, TicketTraining)
}
"""Method -> class of its settings in a run, whose options the command takes too."""
SPARSITY = 0.5
"""Fraction of the weights that become 0, if the command names none."""
ROWS, ROUNDS = 256, 1
"""Numbers of training rows and of rounds for `heads`, if the command names none."""
READ_BY = {
    "sparsity": ("magnitude", "heads", *(name for name in OF_RUNS if name != SoftMovementPruning.name)),
    "rows": ("heads",),
    "rounds": ("heads",),
    "rewind": ("lottery",),
}
"""Option -> the methods that read it."""
TICKET = "ticket"
"""Name of the folder in the output for the pruned weights from which a lottery ticket is trained."""


@hold_output
def prune(
    checkpoint: Positional[Annotated[str, arg(metavar="CHECKPOINT")]],
    output: Location,
    *,
    method: str = "magnitude",
    sparsity: Annotated[float | None, default(SPARSITY)] = None,
    rows: Annotated[int | None, default(ROWS)] = None,
    rounds: Annotated[int | None, default(ROUNDS)] = None,
    rewind: Location | None = None,
    experiment: Reference | None = None,
    overrides: Overrides = (),
) -> None:
    """Set weights of a model to 0, or remove heads and features.

    gradual, movement, soft_movement, block_movement and lottery train the model, on the data of its own run or with
    another experiment, whose options may follow, such as --training.steps 1000 or --compression.begin 0.2.

    Args:
        checkpoint: Run directory or checkpoint.
        output: Run directory to write, with one checkpoint.
        method: magnitude, two_of_four or heads, which do not train; gradual, movement, soft_movement, block_movement
            or lottery.
        sparsity: Fraction of the layers' weights that become 0; with heads, the fraction of the heads that are removed.
            two_of_four and soft_movement have none.
        rows: With heads, the number of training rows on which the importance of a head is measured.
        rounds: With heads, the number of rounds of measuring and removing.
        rewind: With lottery, the checkpoint whose weights the kept ones get before they are trained.
        experiment: Experiment that trains the model, in place of that of its run; its file defines classes too.
    """
    load_classes(experiment)
    known = (*WITHOUT_TRAINING, *OF_RUNS)
    if method not in known:
        raise UserError(f"Expected a known --method, found {quoted(method)}; {nearest(method, known)}")
    _check_options(method, {"sparsity": sparsity, "rows": rows, "rounds": rounds, "rewind": rewind})
    sparsity = SPARSITY if sparsity is None else sparsity
    check_sparsity(sparsity)
    if method in WITHOUT_TRAINING and (overrides or experiment is not None):
        raise UserError(
            f"Expected no experiment and none of its options with --method {method}, which does not train, found "
            f"{quoted(experiment or overrides[0])}; leave it out, or take --method gradual."
        )
    source = Source.read(checkpoint)
    settings: dict[str, Any] = {"method": method}
    settings |= {"sparsity": sparsity} if method in READ_BY["sparsity"] else {}
    run = source.description.experiment
    if method == "heads":
        counted = {"rows": ROWS if rows is None else rows, "rounds": ROUNDS if rounds is None else rounds}
        params, model = heads.without_least_important(source, run, sparsity, **counted)
        run, settings = dataclasses.replace(run, model=model), settings | counted
    elif method == "two_of_four":
        params = by_pattern(source.params, run.model)
    elif method == "magnitude":
        params = by_magnitude(source.params, run.model, sparsity)
    else:
        kind = OF_RUNS[method]
        made = kind(sparsity=sparsity) if issubclass(kind, ByFraction) else kind()
        run = compose_experiment(source, made, experiment, overrides=overrides)
        settings |= dataclasses.asdict(run.compression)
        start = _ticket(source, run, sparsity, rewind=rewind, output=output) if kind is TicketTraining else None
        params, run = train(source, run, output, checkpoint=start)
    print(f"pruned     {write(output, source, params, run=run, by='prune', settings=settings)} in {output}")


def _check_options(method: str, options: dict[str, Any]) -> None:
    """Raise UserError for an option that the method does not read."""
    for name, value in options.items():
        if value is not None and method not in READ_BY[name]:
            raise UserError(
                f"Expected --{name} only with --method {', '.join(READ_BY[name])}, found --method {method}; leave it "
                f"out."
            )


def _ticket(source: Source, run: Experiment, sparsity: float, *, rewind: Path | None, output: Path) -> Path:
    """Write the kept weights, with their values in the checkpoint `rewind`, and return their run directory.

    Nothing is written if the run directory has the same weights already.

    Raises:
        UserError: the run directory has other weights.
    """
    folder = storage.path(output) / TICKET
    before = source if rewind is None else Source.read(rewind)
    params = ticket(source.params, before.params, run.model, sparsity)
    settings = {"method": TicketTraining.name, "sparsity": sparsity, "rewind": None if rewind is None else str(rewind)}
    write(folder, source, params, run=source.description.experiment, by="prune", settings=settings)
    return folder
