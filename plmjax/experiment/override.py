"""Command-line options that set fields of an experiment, such as `--training.steps 60`."""

import contextlib
import dataclasses
import io
import typing
from collections.abc import Sequence
from typing import Any

from plmjax.errors import UserError, nearest, quoted
from plmjax.experiment import fields
from plmjax.experiment.choice import Choice
from plmjax.experiment.settings import Experiment


def options(experiment: Experiment) -> list[str]:
    """Return the command-line options for an experiment's fields."""
    return [f"--{option.name}" for option in fields.of(experiment)]


def choices(experiment: Experiment, prefix: str = "--") -> dict[str, Choice]:
    """Return a dict from each option that chooses a class (`--optimizer`, `--optimizer.schedule`) to its object."""
    found = {}
    for field in dataclasses.fields(experiment):
        value = getattr(experiment, field.name)
        if dataclasses.is_dataclass(value):
            found |= {f"{prefix}{field.name}": value} if isinstance(value, Choice) else {}
            found |= choices(value, f"{prefix}{field.name}.")
    return found


def choose_classes(experiment: Experiment, settings: list[list[str]]) -> tuple[Experiment, list[list[str]]]:
    """Apply the options that choose classes, such as --optimizer lamb, and return the experiment and the other options.

    Fields that the old and the new class have in common keep their values.

    Raises:
        UserError: there is no class of that name.
    """
    others = []
    for option, *words in sorted(settings, key=lambda one: one[0].count(".")):  # an optimizer before its schedule
        chosen = choices(experiment).get(option)
        if chosen is None:
            others.append([option, *words])
            continue
        known, name = chosen.choices(), " ".join(words)
        if name not in known:
            raise UserError(f"Expected the name of a class for {option}, found {quoted(name)}; {nearest(name, known)}")
        fields = {field.name for field in dataclasses.fields(known[name])}
        kept = {field.name: getattr(chosen, field.name) for field in dataclasses.fields(chosen) if field.name in fields}
        experiment = _replace(experiment, option.removeprefix("--").split("."), known[name](**kept))
    return experiment, others


def _replace(value: Any, path: list[str], new: Any) -> Any:
    """Return a nested dataclass with the field at a path replaced."""
    first, *rest = path
    return dataclasses.replace(value, **{first: _replace(getattr(value, first), rest, new) if rest else new})


def _with_declared_types(experiment: Experiment) -> Experiment:
    """Return the experiment as an instance of a class whose fields are annotated with the classes of their values.

    tyro takes the options of a field from its annotation, but an annotation of `Experiment` may be a protocol.
    """
    values = _fields(experiment)
    declared = {name: type(value) for name, value in values.items() if value is None or dataclasses.is_dataclass(value)}
    body = {"__annotations__": declared, "__doc__": Experiment.__doc__, "__module__": Experiment.__module__}
    defaults = {field.name: field.default for field in dataclasses.fields(Experiment)}
    body |= {name: defaults[name] for name in declared if defaults[name] is not dataclasses.MISSING}
    return dataclasses.dataclass(frozen=True)(type("Experiment", (Experiment,), body))(**values)


def _fields(experiment: Experiment) -> dict[str, Any]:
    return {field.name: getattr(experiment, field.name) for field in dataclasses.fields(Experiment)}


def normalize_option(option: str) -> str:
    """Return the name of an option with underscores in place of dashes, as in field names."""
    return f"--{option.removeprefix('--').replace('-', '_')}"


def split(arguments: Sequence[str]) -> list[list[str]]:
    """Return the options in arguments, each as a list of its normalized name and its words.

    Raises:
        UserError: a word precedes the first option.
    """
    settings: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--"):
            name, mark, value = argument.partition("=")
            settings.append([normalize_option(name), *([value] if mark else [])])
        elif settings:
            settings[-1].append(argument)
        else:
            raise UserError(
                f"Expected an option such as --training.steps 60, found {quoted(argument)}; start it with --."
            )
    return settings


def override(experiment: Experiment, arguments: Sequence[str]) -> Experiment:
    """Apply options `--field.subfield VALUE ...` to an experiment; `--optimizer NAME` chooses another class.

    Raises:
        UserError: a name is unknown (the message has the nearest one), or a value has the wrong type.
    """
    if not arguments:
        return experiment
    import tyro  # here, so that a machine without it can still resolve experiments

    from plmjax import option_values

    def parse(words: Sequence[str]) -> Experiment:
        # A field that may be None gets the options of its value; tyro would make a subcommand for each type.
        config, typed = (tyro.conf.FlagConversionOff, tyro.conf.AvoidSubcommands), _with_declared_types(experiment)
        with option_values.PLAIN:
            parsed = tyro.cli(type(typed), default=typed, args=words, use_underscores=True, config=config)
        return Experiment(**_fields(parsed))

    def words(option: list[str]) -> list[str]:  # A value joined to its name may start with a dash.
        return ["=".join(option)] if len(option) == 2 else option

    experiment, settings = choose_classes(experiment, split(arguments))
    known = [*options(experiment), *choices(experiment)]
    for option in settings:
        if option[0] not in known:
            hint = nearest(option[0], known, catalogue="--help all after the experiment shows all options.")
            raise UserError(f"Expected an option of the experiment, found {quoted(option[0])}; {hint}")
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # the error becomes one sentence below
            return parse([word for option in settings for word in words(option)])
    except SystemExit:
        for option in settings:
            # Options may be valid together although one of them is not valid with the old values of the others.
            with contextlib.suppress(UserError), contextlib.redirect_stderr(io.StringIO()):
                try:
                    parse(words(option))
                except SystemExit:
                    break
        (kind,) = (one.kind for one in fields.of(experiment) if f"--{one.name}" == option[0])
        found = " ".join(option[1:]) or "nothing"
        several = len(option) > 2 and typing.get_origin(kind) is not tuple
        advice = "put a value of several words in quotes" if several else "change it"
        raise UserError(
            f"Expected a value of type {_kind_name(kind)} for {option[0]}, found {quoted(found)}; {advice}."
        ) from None


def _kind_name(kind: Any) -> str:
    """Return a type in words: "float or None", "list of int"."""
    if typing.get_origin(kind) is tuple:
        return f"list of {_kind_name(typing.get_args(kind)[0])}"
    return kind.__name__ if isinstance(kind, type) else str(kind).replace(" | ", " or ")
