"""Resolves a run once: the experiment, completed by its start and by options, and checked."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plmjax import experiment as experiments
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment
from plmjax.runs import checks, continuing
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
        if self.init_from.continued is not None:
            return np.frombuffer(str(self.init_from.continued).encode(), np.uint8)
        vectors = self.init_from.vectors
        return self.params if vectors is None else vectors.vectors


def resolve(
    experiment: Experiment,
    init_from: str | Path = RANDOM,
    *,
    like: str | Path | None = None,
    continue_from: str | Path | None = None,
    overrides: Sequence[str] = (),
    report: Callable[[str], None] = print,
) -> Run:
    """Resolve a run. Nothing is written, and no text, task or parameter is read.

    Args:
        experiment: the experiment as composed by its file.
        init_from: a run directory or a checkpoint, whose model, tokenizer and parameters the run takes, and the
            objective and the layout if the experiment has none; or a file of word vectors; or "random".
        like: with "random", a run directory or a checkpoint whose model and tokenizer the run takes.
        continue_from: with "random", a checkpoint of another run, whose parameters, optimizer state and step the run
            continues.
        overrides: options of the command line, such as ("--training.steps", "60").
        report: called with a line about changes by the checkpoint.

    Raises:
        UserError: the checkpoint is damaged or of another kind, an option is wrong, or settings do not fit each other.
    """
    try:
        start = InitFrom.find(init_from, like, continue_from)
        completed = start.complete(experiment, report)
    except UserError:
        experiments.override(experiment, _without_model(overrides))  # its own mistakes are told first
        raise
    experiment = start.map_model(experiments.override(completed, overrides))
    if isinstance(experiment.data, Data):
        experiment = _in_steps(experiment)
        checks.check_pretraining(experiment)
        if start.continued is not None:
            continuing.check(experiment, start)
        return Run(experiment, start)
    checks.check_finetuning(experiment)
    dropout, objective = (
        experiment.finetuning.dropout,
        experiment.objective.with_generation_defaults(experiment.generation),
    )
    model = experiment.model if dropout is None else experiment.model.with_dropout(dropout)
    return Run(dataclasses.replace(experiment, model=model, objective=objective), start)


def _in_steps(experiment: Experiment) -> Experiment:
    """Return the experiment with the number of steps that its tokens, or the tokens of its phases, make."""
    steps = experiment.resolved_phases[-1].last_step
    return dataclasses.replace(experiment, training=dataclasses.replace(experiment.training, steps=steps, tokens=0.0))


def _without_model(overrides: Sequence[str]) -> list[str]:
    """Return the overrides of an experiment except those of its model, which a checkpoint replaces."""
    kept, of_model = [], False
    for word in overrides:
        of_model = word.startswith("--model.") if word.startswith("--") else of_model
        kept += [] if of_model else [word]
    return kept
