"""Resolution of a run: its start and the options complete the experiment, which is then checked."""

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
    """A resolved run. Only the files of its text or task have not been read.

    experiment: the completed experiment: it has a model, an objective, and a layout of text or a task.
    init_from: the start of the run.
    """

    experiment: Experiment
    init_from: InitFrom

    @functools.cached_property
    def params(self) -> Any:
        """The checkpoint's parameters, mapped to the run's model: a tree of host arrays. None without a checkpoint."""
        return self.init_from.parameters(self.experiment)

    @property
    def start_arrays(self) -> Any:
        """The arrays whose digest start.json records; None for random parameters.

        They are the parameters or word vectors of --from, or the bytes of the checkpoint's path of --continue_from.
        """
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
        report: called with a line about each setting that the checkpoint changes.

    Raises:
        UserError: the checkpoint is damaged or of another kind, an option is wrong, or settings do not fit each other.
    """
    try:
        start = InitFrom.find(init_from, like, continue_from)
        completed = start.complete(experiment, report)
    except UserError:
        experiments.override(experiment, _without_model(overrides))  # errors in the options come first
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
    """Return the experiment with its number of steps, computed from the tokens of the run or of its phases."""
    steps = experiment.resolved_phases[-1].last_step
    return dataclasses.replace(experiment, training=dataclasses.replace(experiment.training, steps=steps, tokens=0.0))


def _without_model(overrides: Sequence[str]) -> list[str]:
    """Return the overrides without those of the model, which a checkpoint replaces."""
    kept, of_model = [], False
    for word in overrides:
        of_model = word.startswith("--model.") if word.startswith("--") else of_model
        kept += [] if of_model else [word]
    return kept
