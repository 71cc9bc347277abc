"""The command that plans a run for TPU slices that are not available."""

import json
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, UseAppendAction, arg

from plmjax.commands.arguments import OF_ANOTHER_FILE, Overrides, Reference
from plmjax.errors import UserError, options_named

if TYPE_CHECKING:  # they import JAX, which a command imports only after its options are read
    from plmjax.experiment import Experiment
    from plmjax.planning.compilation import Batches
    from plmjax.runs.resolve import Run


def plan(
    experiment: Positional[Reference],
    *,
    from_: Annotated[str, arg(name="from")] = "random",
    topology: UseAppendAction[tuple[str, ...]] = (),
    price: UseAppendAction[tuple[str, ...]] = (),
    search: bool = False,
    batch_sizes: tuple[int, ...] = (),
    breakdown: bool = False,
    strict: bool = False,
    json_: Annotated[bool, arg(name="json")] = False,
    overrides: Overrides = (),
) -> None:
    """Plan a run for absent TPU slices: memory, speed, cost.

    The train step is compiled for each slice; no TPU is needed.

    Args:
        experiment: Name that plmjax experiments lists, or path/to/file.py[:FUNCTION]; --help after it has its options.
        from_: Run directory or checkpoint that the run starts from, or random, as in pretrain and finetune.
        topology: Chip and shape, such as v3:8x8, or v5e:8x8*2 for two slices; several are compared in one table.
        price: Price of a chip-hour: a number, or v5e=1.2 for one generation; may be given several times.
        search: Search for the microbatches and the remat policy that are fastest on the slice.
        batch_sizes: Batch sizes to search besides the experiment's own.
        breakdown: Show also memory, collectives and estimates of every phase, and the cycles of a step by part:
            products, attention, normalisation, random bits, state, ...
        strict: Exit with code 1 if the step is wasteful.
        json_: Print JSON.
    """
    from plmjax import experiment as experiments
    from plmjax.parallel import topologies
    from plmjax.planning import plan as plans
    from plmjax.planning import report as pages
    from plmjax.planning import search as searches
    from plmjax.planning.estimate import prices as read_prices
    from plmjax.runs.resolve import resolve
    from plmjax.training.metrics import announced

    loaded = experiments.load(experiment)
    with options_named(OF_ANOTHER_FILE):
        run = resolve(loaded, from_, overrides=overrides)
    if not topology:
        raise UserError("Expected a slice to plan for, found none; give --topology v5e:4x4 or another.")
    if batch_sizes and not search:
        raise UserError("--batch_sizes needs --search; add it.")
    if breakdown and search:
        raise UserError("--breakdown and --search exclude each other; leave one out.")
    prices = read_prices(price, {topologies.parse(name).chip.name for name in topology})
    options = {"breakdown": breakdown, "announce": announced}
    with options_named(OF_ANOTHER_FILE):
        composed, batches = planned_run(run)
    if search:
        found = [
            searches.search(composed, name, batch_sizes=batch_sizes, prices=prices, batches=batches)
            for name in topology
        ]
        print(json.dumps(found) if json_ else "\n".join(map(pages.search, found)))
        return
    if len(topology) == 1:
        made = [plans.plan(composed, topology[0], prices=prices, batches=batches, **options)]
        print(json.dumps(made[0]) if json_ else pages.page(made[0]))
    else:
        made = [plans.plan_or_error(composed, name, prices, batches=batches, **options) for name in topology]
        print(json.dumps(made) if json_ else pages.table(made))
    if strict and any(phase["findings"] for one in made for phase in one.get("phases", ())):
        raise SystemExit(1)


def planned_run(run: "Run") -> tuple["Experiment", "Batches"]:
    """Return the experiment of the run, and its batches.

    The examples of a task are read, because they determine its labels, rows and number of steps. Text is not read.

    Raises:
        UserError: a file of the task is wrong.
    """
    from plmjax.experiment import Data
    from plmjax.planning.compilation import Batches
    from plmjax.runs import task

    if isinstance(run.experiment.data, Data):
        return run.experiment, Batches.of_text(run.experiment)
    inputs = task.inputs(run)
    return inputs.experiment, Batches(inputs.source.vocabulary, inputs.source.batch)
