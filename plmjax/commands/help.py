"""The pages of `--help` with an experiment or a run: options of the command, then options of the experiment or run.

`--help` shows the options that are changed often, `--help all` every one.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from tyro.conf import FlagConversionOff, OmitArgPrefixes, Positional, arg

from plmjax import option_values
from plmjax.commands.command_line import parse

if TYPE_CHECKING:  # they import JAX
    from plmjax.compression.compression import Compression
    from plmjax.experiment import Experiment
    from plmjax.experiment.fields import Option

HELP = ("--help", "-h")
ALL = "all"
USUAL = (
    *("data.input", "data.language", "data.path", "data.train", "data.validation"),
    *("data.text", "data.text_pair", "data.label", "data.source", "data.target", "data.query", "data.positive"),
    *("data.negatives", "data.score", "data.query_prefix", "data.passage_prefix", "data.sequence_length"),
    "objective.temperature",
    *("tokenizer.path", "tokenizer.vocab_size"),
    *("finetuning.epochs", "finetuning.warmup"),
    *("training.steps", "training.batch_size", "training.accumulation", "training.seed"),
    *("training.log_every", "training.evaluate_every"),
    *("optimizer.learning_rate", "optimizer.weight_decay", "optimizer.schedule.warmup_steps"),
    *("checkpoint.every", "checkpoint.keep", "mesh.data", "mesh.fsdp", "mesh.tensor"),
)
"""Options of experiments that are changed often, in the order of the page. An experiment has some of them."""
BEST_KNOWN = ("--data.input", "--training.steps", "--training.batch_size", "--optimizer.learning_rate")
"""Options that the page of a command without an experiment names."""
ORDER = ("compression", "data", "tokenizer", "model", "objective", "optimizer", "training", "finetuning", "checkpoint")
"""Groups of options at the beginning of the page of all options. Other groups follow in the order of `Experiment`."""


@dataclasses.dataclass(frozen=True)
class Row:
    """An option on a page: its name without dashes, type of its value, value, and description."""

    name: str
    kind: Any
    value: Any
    text: str


@dataclasses.dataclass(frozen=True)
class Group:
    """Options below a heading: the name of the group, a sentence about all of them, and their rows."""

    name: str
    sentence: str
    rows: Sequence[Row]


def asked(words: Sequence[str]) -> tuple[list[str], bool] | None:
    """Return (words without --help, whether all options are asked for), or None if the words do not have --help."""
    places = [place for place, word in enumerate(words) if word in HELP]
    if not places:
        return None
    everything = any(list(words[place + 1 : place + 2]) == [ALL] for place in places)
    left = [word for word in words if word not in HELP]
    return ([word for word in left if word != ALL] if everything else left), everything


def show(verb: Callable, program: str, groups: Sequence[Group] = (), *, everything: bool, after: str = "") -> NoReturn:
    """Print the page of a command with the options of an experiment, and exit.

    Args:
        program: text before the options on the command line.
        groups: options of the experiment.
        everything: true to show all options of the command, with complete descriptions; else the usual ones, shortened.
        after: paragraph after the options.
    """

    @functools.wraps(verb)
    def shown(**options: Any) -> None:
        pass

    own = [
        parameter
        for parameter in inspect.signature(verb).parameters.values()
        if (not groups or Positional not in getattr(parameter.annotation, "__metadata__", ()))
        and (everything or not dataclasses.is_dataclass(parameter.default))
    ]
    added = [_parameter(index, group) for index, group in enumerate(groups)]
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own] + added
    shown.__signature__ = inspect.Signature(parameters)
    shown.__annotations__ = {one.name: one.annotation for one in parameters}
    head, mark, options = (inspect.getdoc(verb) or "").partition("\n\nArgs:\n")
    if everything:
        shown.__doc__ = "\n\n".join(filter(None, (head, after))) + mark + options
    else:
        shown.__doc__ = head.partition("\n\n")[0] + mark + _shortened(options)
    del shown.__wrapped__
    parse(shown, program, ["--help"])
    raise AssertionError("tyro exits after --help")


def _parameter(index: int, group: Group) -> inspect.Parameter:
    """Return a parameter of a function whose page shows a group of options."""
    fields = [
        (
            f"option_{place}",
            Annotated[row.kind, arg(name=row.name, help=row.text)],
            dataclasses.field(default=row.value),
        )
        for place, row in enumerate(group.rows)
    ]
    options = dataclasses.make_dataclass("Options", fields, frozen=True)
    options.__doc__ = group.sentence
    annotation = FlagConversionOff[OmitArgPrefixes[Annotated[options, arg(name=group.name)]]]
    return inspect.Parameter(f"group_{index}", inspect.Parameter.KEYWORD_ONLY, default=options(), annotation=annotation)


def _first_sentence(text: str) -> str:
    """Return the first sentence of a text, with its period."""
    return re.split(r"(?<=[^.]\.) (?=[A-Z])", text, maxsplit=1)[0]


def _first_clause(text: str) -> str:
    """Return the first sentence of a text up to a semicolon, with a period."""
    clause, mark, _ = _first_sentence(text).partition(";")
    return clause + ("." if mark else "")


def _brief(row: Row) -> str:
    """Return the first sentence about an option. If the value is not 0, none or empty, it ends at a semicolon.

    The part after the semicolon explains such values.
    """
    return _first_clause(row.text) if row.value else _first_sentence(row.text)


def _shortened(options: str) -> str:
    """Return the `Args:` of a docstring with only the first clause about each option."""
    entries = re.split(r"\n(?= {4}\w)", options)
    return "\n".join(f"    {_first_clause(' '.join(entry.split()))}" for entry in entries)


def of_experiment(experiment: "Experiment", overrides: Sequence[str], *, everything: bool) -> list[Group]:
    """Return all options of an experiment, or the usual ones. overrides: options that may choose other classes.

    Raises:
        UserError: there is no such class.
    """
    from plmjax.experiment import fields
    from plmjax.experiment.override import choices, choose_classes, split

    experiment, _ = choose_classes(experiment, split(overrides))
    chosen = {option.removeprefix("--"): value for option, value in choices(experiment).items() if value.name}
    rows = [
        Row(name, Literal[tuple(sorted(value.choices()))], value.name, f"Another class of {name}.")
        for name, value in chosen.items()
    ]
    rows += _rows(fields.of(experiment))
    if not everything:
        usual = {row.name: dataclasses.replace(row, text=_brief(row)) for row in rows}
        names = [name for name in usual if name.startswith("compression.")]
        given = "tokenizer" if experiment.finetuning is not None else None
        names += [name for name in _own_fields(experiment) if name in usual]
        names += [name for name in USUAL if name in usual and name.partition(".")[0] != given and name not in names]
        sentence = f"The usual ones of {len(rows)}; --help all shows all of them."
        return [Group("experiment", sentence, [usual[name] for name in names])]
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.name if row.name in chosen else row.name.rpartition(".")[0], []).append(row)
    first = {name: place for place, name in enumerate(ORDER)}
    order = sorted(found, key=lambda name: (first.get(name.partition(".")[0], len(ORDER)), name.count(".")))
    return [Group(name, fields.summary(experiment, name), found[name]) for name in order]


def _own_fields(experiment: "Experiment") -> list[str]:
    """Return the options of an experiment that are fields of classes outside plmjax, without inherited fields."""
    classes = {field.name: type(getattr(experiment, field.name)) for field in dataclasses.fields(experiment)}
    return [
        f"{name}.{field}"
        for name, kind in classes.items()
        if kind.__module__.partition(".")[0] not in (__name__.partition(".")[0], "builtins")
        for field in inspect.get_annotations(kind)
    ]


def of_task(checkpoint: str, *, labelled: bool) -> list[Group]:
    """Return the options of a run's task for reading another file, which is `labelled` or not.

    Raises:
        UserError: there is no such run.
    """
    from plmjax.files import storage
    from plmjax.inference import task_settings
    from plmjax.training.checkpoints import checkpoints

    if storage.path(checkpoint).is_file():  # of word vectors, without a run
        return []
    run = checkpoints.describe(checkpoints.find(checkpoint)).experiment
    return [Group("run", "How another file is read and predicted.", _rows(task_settings.options(run, labelled)))]


def of_checkpoint(
    checkpoint: str,
    experiment: str | None,
    compression: type["Compression"] | None,
    overrides: Sequence[str],
    *,
    everything: bool,
) -> list[Group]:
    """Return the options of the experiment that compresses a checkpoint: the named one, or that of its run.

    Raises:
        UserError: there is no such checkpoint, experiment or class.
    """
    from plmjax import experiment as experiments
    from plmjax.runs import epochs
    from plmjax.training.checkpoints import checkpoints

    named = experiments.load(experiment) if experiment is not None else None
    run = named or checkpoints.describe(checkpoints.find(checkpoint)).experiment
    run = run if run.finetuning is None else epochs.in_epochs(run)
    run = dataclasses.replace(run, compression=None if compression is None else compression())
    return of_experiment(run, overrides, everything=everything)


def _rows(options: Iterable["Option"]) -> list[Row]:
    """Return the rows of a page for options of an experiment, with "none" in place of None in their descriptions."""
    return [
        Row(option.name, option.kind, option.value, re.sub(r"\bNone\b", option_values.NONE, option.text))
        for option in options
    ]
