"""Resolves a run once: the experiment, completed by its start and by options, and checked."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from plmjax import experiment as experiments
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment
from plmjax.runs import checks
from plmjax.runs.init_from import RANDOM, InitFrom


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A resolved run, to which only its text or its task is missing.

    experiment: with a model, an objective, and a layout of text or a task.
    """

    experiment: Experiment
    init_from: InitFrom

    @functools.cached_property
    def params(self) -> Any:
        """The parameters of the checkpoint, mapped to the run's model: a tree of host arrays. None without one."""
        return self.init_from.parameters(self.experiment)

    @property
    def start_arrays(self) -> Any:
        """The arrays of --from whose digest start.json records; None for random parameters."""
        vectors = self.init_from.vectors
        return self.params if vectors is None else vectors.vectors


def resolve(
    experiment: Experiment,
    init_from: str | Path = RANDOM,
    *,
    like: str | Path | None = None,
    overrides: Sequence[str] = (),
    command: str = "plmjax pretrain",
    report: Callable[[str], None] = print,
) -> Run:
    """Resolve a run. Nothing is written, and no text, task or parameter is read.

    Args:
        experiment: the experiment as composed by its file.
        init_from: a run directory or a checkpoint, whose model, tokenizer and parameters the run takes, and the
            objective and the layout if the experiment has none; or a file of word vectors; or "random".
        like: with "random", a run directory or a checkpoint whose model and tokenizer the run takes.
        overrides: options of the command line, such as ("--training.steps", "60"); error messages name `command`.
        report: called with a line about changes by the checkpoint.

    Raises:
        UserError: the checkpoint is damaged or of another kind, an option is wrong, or settings do not fit each other.
    """
    try:
        start = InitFrom.find(init_from, like)
        completed = start.complete(experiment, report)
    except UserError:
        experiments.override(experiment, _without_model(overrides), command)  # its own mistakes are told first
        raise
    experiment = start.map_model(experiments.override(completed, overrides, command))
    if isinstance(experiment.data, Data):
        checks.check_pretraining(experiment)
        return Run(experiment, start)
    checks.check_finetuning(experiment)
    dropout, objective = (
        experiment.finetuning.dropout,
        experiment.objective.with_generation_defaults(experiment.generation),
    )
    model = experiment.model if dropout is None else experiment.model.with_dropout(dropout)
    return Run(dataclasses.replace(experiment, model=model, objective=objective), start)


def _without_model(overrides: Sequence[str]) -> list[str]:
    """Return the overrides of an experiment except those of its model, which a checkpoint replaces."""
    kept, of_model = [], False
    for word in overrides:
        of_model = word.startswith("--model.") if word.startswith("--") else of_model
        kept += [] if of_model else [word]
    return kept
