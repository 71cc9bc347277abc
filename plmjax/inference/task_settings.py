"""Run settings that change how another file is read, predicted or evaluated, such as `--data.text review`."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from plmjax import experiment as experiments
from plmjax.errors import UserError, nearest, quoted
from plmjax.experiment import Experiment
from plmjax.finetuning.tasks.task import Task
from plmjax.training import program as programs

TEXT_SETTINGS = ("format", "text_key", "language", "streams")
"""Settings with which a run on text reads raw text."""


def from_options(run: Experiment, options: Sequence[str], command: str, labelled: bool) -> dict[str, Any]:
    """Return the settings given by options of a command.

    labelled: True if the file has labels, whose columns can be named too.

    Raises:
        UserError: an option that the command does not take, or a value of the wrong type.
    """
    groups = _groups(run, labelled)
    known = [f"--{group}.{name}" for name, group in groups.items()]
    named = [experiments.normalized_option(option.partition("=")[0]) for option in options if option.startswith("--")]
    for name in named:
        if name not in known:
            raise UserError(
                f"Expected an option of {command} for this {_kind(run)}, found {quoted(name)}; {nearest(name, known)}"
            )
    composed = experiments.override(run, options, command)
    names = [name.removeprefix("--").partition(".")[2] for name in named]
    return {name: _at(getattr(composed, groups[name]), name.split(".")) for name in names}


def with_settings(run: Experiment, settings: Mapping[str, Any], labelled: bool) -> Experiment:
    """Return the run with other settings of its task and its objective.

    Raises:
        UserError: a setting that does not change how a file is read or predicted, or rows longer than the model's
            positions.
    """
    groups = _groups(run, labelled)
    for name, value in settings.items():
        if name not in groups:
            raise UserError(
                f"Expected a setting of {'evaluating' if labelled else 'predicting'} this {_kind(run)}, found "
                f"{quoted(name)}; {nearest(name, groups)}"
            )
        if groups[name] == "data":
            run = dataclasses.replace(run, data=_replaced(run.data, name.split("."), value))
    of_objective = {name: value for name, value in settings.items() if groups[name] == "objective"}
    if of_objective:
        run = dataclasses.replace(run, objective=run.objective.predicting(of_objective))
    if isinstance(run.data, Task):
        programs.check_length(run, run.data.sequence_length)
    return run


def _kind(run: Experiment) -> str:
    return "task" if isinstance(run.data, Task) else "text"


def _groups(run: Experiment, labelled: bool) -> dict[str, str]:
    """Return a dict from setting to the part of the experiment that contains it."""
    if not isinstance(run.data, Task):
        return dict.fromkeys(TEXT_SETTINGS, "data")
    of_objective = dict.fromkeys(run.objective.prediction_settings, "objective")
    return dict.fromkeys(run.data.settings(labelled), "data") | of_objective


def _at(value: Any, path: Sequence[str]) -> Any:
    """Return a nested field. The path ["tasks", "1", "source"] gives the source of the second task."""
    for name in path:
        value = value[int(name)] if isinstance(value, tuple) else getattr(value, name)
    return value


def _replaced(value: Any, path: Sequence[str], new: Any) -> Any:
    """Return `value` with another field at such a path."""
    if not path:
        return new
    changed = _replaced(_at(value, path[:1]), path[1:], new)
    if isinstance(value, tuple):
        return tuple(changed if place == int(path[0]) else each for place, each in enumerate(value))
    return dataclasses.replace(value, **{path[0]: changed})
