"""Every option that a message names is one of a command.

The messages are the strings of the code that hold `--name`. A string that names the command of an option, as
`plmjax prepare --fields`, is held to that one.
"""

import ast
import dataclasses
import functools
import inspect
import re
from collections.abc import Iterator

import pytest

from plmjax import experiment as experiments
from plmjax.commands import cli
from plmjax.commands import distil as _distil  # noqa: F401 - declares the ways
from plmjax.commands import prune as _prune  # noqa: F401
from plmjax.commands import quantize as _quantize  # noqa: F401
from plmjax.compression.compression import Compression
from plmjax.experiment import Experiment, Phase
from plmjax.experiment.override import choices
from plmjax.finetuning.tasks.task import Task
from plmjax.inference.task_settings import TEXT_SETTINGS
from plmjax.runs.weight_mappings import larger as _larger  # noqa: F401 - of no experiment here
from tests.experiment_names import EXPERIMENTS
from tests.paths import ROOT
from tpu import __main__ as tpu

VERBS = {name: cli.verb(name) for name in cli.VERBS} | {
    f"tpu {name}": verb for name, verb in (tpu.VERBS | tpu.ON_THE_SLICE).items()
}


@functools.cache
def accepted(command: str) -> set[str]:
    """The options of a command, those of the experiments that it runs included; numbers in them are 0."""
    names = {"help", "version"}
    for name, parameter in inspect.signature(VERBS[command]).parameters.items():
        group = parameter.default if dataclasses.is_dataclass(parameter.default) else None
        before = "mesh." if name == "mesh" else ""
        names |= {f"{before}{field.name}" for field in dataclasses.fields(group)} if group else {name.strip("_")}
    found = {f"--{name}" for name in names}
    if command.startswith("compress "):
        ways = [one for one in Compression.choices().values() if f"compress {one.verb}" == command]
        found |= {f"--compression.{field.name}" for one in ways for field in dataclasses.fields(one)}
    if command in ("pretrain", "finetune", "plan", "bench", "tpu submit", *cli.OF_CHECKPOINTS):
        kinds = {"pretrain": [False], "finetune": [True]}.get(command, [False, True])
        found |= {option for run in runs() if isinstance(run.data, Task) in kinds for option in of_experiment(run)}
    for run in runs() if command in ("evaluate", "predict") else ():
        if isinstance(run.data, Task):
            found |= {f"--data.{name}" for name in run.data.settings(command == "evaluate")}
            found |= {f"--objective.{name}" for name in run.objective.prediction_settings}
        elif command == "evaluate":
            found |= {f"--data.{name}" for name in TEXT_SETTINGS}
    return {re.sub(r"\.\d+\b", ".0", option) for option in found}


@functools.cache
def runs() -> list[Experiment]:
    return [experiments.load(str(ROOT / name)) for name in EXPERIMENTS]


def of_experiment(run: Experiment) -> Iterator[str]:
    """Its options, and those of every class that an option can choose or a file can name in its place."""
    yield from experiments.options(run)
    for option, chosen in choices(run).items():
        yield option
        for one in chosen.choices().values():
            yield from (f"{option}.{field.name}" for field in dataclasses.fields(one))
    yield from (f"--phases.0.{field.name}" for field in dataclasses.fields(Phase))  # a file may name some
    places = {
        "--objective": run.objective,
        "--data": run.data,
        "--model": run.model,
        "--weight_mapping": run.weight_mapping,
    }
    places |= {"--data.layout": run.data.layout} if not isinstance(run.data, Task) else {}
    for place, value in places.items():
        if value is None:  # fine-tuning takes the checkpoint's model
            continue
        base = next(one for one in reversed(type(value).__mro__) if one is not object and dataclasses.is_dataclass(one))
        for one in (base, *descendants(base)):
            if dataclasses.is_dataclass(one):
                yield from (f"{place}.{field.name}" for field in dataclasses.fields(one))


def descendants(base: type) -> Iterator[type]:
    for one in base.__subclasses__():
        yield one
        yield from descendants(one)


def messages(tree: ast.Module) -> Iterator[str]:
    """Every string that is no docstring and no name for `options_named`; a value that is filled in is {}."""
    passed = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "options_named"
    ]
    constants = [node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)]
    passed |= {id(node) for names in (*calls, *constants) for node in ast.walk(names)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and id(node) not in passed:
            passed |= {id(part) for part in node.values}
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed:
            yield node.value


OPTION = re.compile(r"(?:(plmjax|python -m tpu) ([a-z-]+)(?: train)? )?(?<![\w-])(--[a-z][\w.{}-]*)")
OF_OTHERS = ("--xla_", "--multiprocessing-fork", "--force", "--logdir", "--decode", "--worker=", "--quiet", "--command")
"""Options of other programs."""
OF_GCLOUD = ("--internal-ip",)
"""Whole names of options of gcloud that begin as one of ours does."""


def options(message: str) -> Iterator[tuple[str, str]]:
    """(command that stands before it, option) of every option in a message."""
    for program, command, option in OPTION.findall(message):
        if not f"{option}{message.partition(option)[2][:1]}".startswith(OF_OTHERS) and option not in OF_GCLOUD:
            yield f"tpu {command}" if program.startswith("python") else command, option.rstrip(".")


def has(command: str, option: str) -> bool:
    """Tell if a command has an option."""
    named = "--" + re.sub(r"(?<!\.)\{\}$", "", option[2:])  # a word may follow, filled in
    pattern = re.escape(named).replace(r"\{\}", r"[\w.]+").replace(r"\.N\.", r"\.0\.")
    pattern = re.sub(r"\\\.\d+\b", r"\\.0", pattern)
    # A group of options, such as --phases.0 or --mesh, is named without its last part.
    return any(re.fullmatch(rf"{pattern}(\..+)?", known) for known in accepted(command))


def unaccepted(source: str) -> list[str]:
    """The options that messages of a module name and that no command has, or not the one that they name."""
    return [
        f"{command} {option}".strip()
        for message in messages(ast.parse(source))
        for command, option in options(message)
        if not any(has(one, option) for one in ([command] if command else VERBS))
    ]


@pytest.mark.parametrize("room", ["plmjax", "tpu"])
def test_every_option_in_a_message_is_one_of_a_command(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    found = {file.name: wrong for file in files if (wrong := unaccepted(file.read_text(encoding="utf-8")))}
    assert not found


def test_options_have_one_spelling() -> None:
    """Underscores, as in the fields of an experiment. Both are read; pages, records and the help write one."""
    known = {option for command in VERBS for option in accepted(command)}
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    files = [
        file for folder in ("plmjax", "tpu", "experiments", "benchmarks") for file in (ROOT / folder).rglob("*.py")
    ]
    assert len(pages) > 20
    for file in [*pages, *files]:
        dashed = set(re.findall(r"(?<![\w-])--[a-z][\w.]*(?:-\w+)+", file.read_text(encoding="utf-8")))
        assert not {option for option in dashed if option.replace("-", "_") in known}, file


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("raise --data.sequence_length or --objective.{option}", []),
        ("check --format or plmjax prepare --processes", []),
        ("check --formats or --data.sequence_lengths", ["--formats", "--data.sequence_lengths"]),
        ("check plmjax evaluate --format", ["evaluate --format"]),
        ("check --data.held-out", ["--data.held-out"]),
    ],
)
def test_a_wrong_option_is_found(message: str, found: list[str]) -> None:
    assert unaccepted(f"def fitting():\n    raise UserError(f{message!r})\n") == found
