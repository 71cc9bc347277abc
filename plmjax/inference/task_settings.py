"""Run settings that change how another file is read, predicted or evaluated, such as `--data.text review`.

A setting has the name of its option, such as `data.text`. The part before the first dot may be left out, as in `text`,
unless both the data and the objective have a setting with this name.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from plmjax import experiment as experiments
from plmjax.errors import UserError, nearest, quoted
from plmjax.experiment import Experiment, fields
from plmjax.experiment.fields import Option
from plmjax.finetuning.tasks.task import Task
from plmjax.training import program as programs

TEXT_SETTINGS = ("format", "text_key", "language", "streams", "special_names")
"""Settings with which a run on text reads raw text."""


def from_options(run: Experiment, options: Sequence[str], command: str, labelled: bool) -> dict[str, Any]:
    """Return the settings given by options of a command.

    labelled: True if the file has labels, whose columns can be named too.

    Raises:
        UserError: an option that the command does not take, or a value of the wrong type.
    """
    known = [f"--{name}" for name in _names(run, labelled)]
    named = [experiments.normalize_option(option.partition("=")[0]) for option in options if option.startswith("--")]
    for name in named:
        if name not in known:
            raise UserError(
                f"Expected an option of {command} for this {_kind(run)}, found {quoted(name)}; {nearest(name, known)}"
            )
    composed = experiments.override(run, options)
    return {name: _at(composed, name.split(".")) for name in (option.removeprefix("--") for option in named)}


def options(run: Experiment, labelled: bool) -> list[Option]:
    """Return the options of the settings, with their values in the run."""
    names = _names(run, labelled)
    return [option for option in fields.of(run) if option.name in names]


def full_names(run: Experiment, settings: Mapping[str, Any], labelled: bool) -> dict[str, Any]:
    """Return the settings by their full names, such as data.text.

    Raises:
        UserError: a setting that does not change how a file is read or predicted, or a short name of two settings.
    """
    known = _names(run, labelled)
    short = [name.partition(".")[2] for name in known]
    found = {}
    for name, value in settings.items():
        meant = [name] if name in known else [full for full, end in zip(known, short, strict=True) if end == name]
        if not meant:
            raise UserError(
                f"Expected a setting of {'evaluating' if labelled else 'predicting'} this {_kind(run)}, found "
                f"{quoted(name)}; {nearest(name, [*known, *short])}"
            )
        if len(meant) > 1:
            raise UserError(f"Expected one setting, found {quoted(name)}, which is {' and '.join(meant)}; name one.")
        found[meant[0]] = value
    return found


def with_settings(run: Experiment, settings: Mapping[str, Any], labelled: bool) -> Experiment:
    """Return the run with other settings of its task and its objective.

    Raises:
        UserError: an error of `full_names`, or rows longer than the model's positions.
    """
    of_objective = {}
    for name, value in full_names(run, settings, labelled).items():
        group, _, field = name.partition(".")
        if group == "data":
            run = dataclasses.replace(run, data=_replace(run.data, field.split("."), value))
        else:
            of_objective[field] = value
    if of_objective:
        run = dataclasses.replace(run, objective=run.objective.with_prediction_settings(of_objective))
    if isinstance(run.data, Task):
        programs.check_length(run, run.data.sequence_length)
    return run


def _kind(run: Experiment) -> str:
    return "task" if isinstance(run.data, Task) else "text"


def _names(run: Experiment, labelled: bool) -> list[str]:
    """Return the full names of the settings."""
    if not isinstance(run.data, Task):
        return [f"data.{name}" for name in TEXT_SETTINGS]
    of_objective = [f"objective.{name}" for name in run.objective.prediction_settings]
    return [f"data.{name}" for name in run.data.settings(labelled)] + of_objective


def _at(value: Any, path: Sequence[str]) -> Any:
    """Return a nested field. The path ["tasks", "1", "source"] gives the source of the second task."""
    for name in path:
        value = value[int(name)] if isinstance(value, tuple) else getattr(value, name)
    return value


def _replace(value: Any, path: Sequence[str], new: Any) -> Any:
    """Return `value` with the field at a path, as for `_at`, replaced by `new`."""
    if not path:
        return new
    changed = _replace(_at(value, path[:1]), path[1:], new)
    if isinstance(value, tuple):
        return tuple(changed if place == int(path[0]) else each for place, each in enumerate(value))
    return dataclasses.replace(value, **{path[0]: changed})
