"""What the programs share on the command line: arguments of verbs, and how a command ends."""

import contextlib
import dataclasses
import functools
import inspect
import io
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from plmjax import option_values, storage
from plmjax.errors import CRASHED, MISTAKE, SAVED, UserError, nearest, quoted
from plmjax.parallel import hosts as peers
from plmjax.parallel.stopping import CTRL_C, Interrupted, give_way

Location = Annotated[
    Path,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH",
        instance_from_str=lambda given: storage.path(given[0]),
        is_instance=lambda value: isinstance(value, os.PathLike),
        str_from_instance=lambda path: [os.fspath(path)],
    ),
]
"""A local path or one in a bucket; pathlib would make gs:/b of gs://b."""


def divide(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(a verb's own arguments, the overrides of its experiment): an override is an option whose name has a dot."""
    own: list[str] = []
    overrides: list[str] = []
    into = own
    for argument in arguments:
        if argument.startswith("--"):
            into = overrides if "." in argument.partition("=")[0] else own
        into.append(argument)
    return own, overrides


def of_experiment(reference: str) -> list[str]:
    """The options of an experiment, for a message; none where it cannot be loaded."""
    from plmjax import experiment  # with it comes JAX, which reads the environment that a command sets first

    with contextlib.suppress(UserError):
        return experiment.options(experiment.load(reference))
    return []


def parse(
    verb: Callable, program: str, arguments: Sequence[str], further: Callable[[], Sequence[str]] = tuple
) -> Callable:
    """The verb with its arguments bound; `program` is what the user typed before them.

    further: the options of the verb's experiment, one of which may be meant by its last part alone.

    Raises:
        UserError: an unknown option, a missing one, or a value of the wrong kind.
    """

    @functools.wraps(verb)
    def bound(*positional: Any, **keywords: Any) -> Callable:
        return functools.partial(verb, *positional, **keywords)

    said = io.StringIO()
    # tyro colours its errors, or draws them without a box, as standard output is: a terminal, or not of UTF-8.
    plain = contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    try:
        shown = contextlib.nullcontext() if {"-h", "--help"} & set(arguments) else plain
        with option_values.PLAIN, contextlib.redirect_stderr(said), shown:
            call, unknown = tyro.cli(
                bound, prog=program, args=arguments, use_underscores=True, return_unknown_args=True
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        # A box: its first paragraph says what is wrong, the others repeat the help.
        lines = [line.strip("\u2502 ") for line in said.getvalue().splitlines() if line.startswith("\u2502")]
        paragraph = itertools.takewhile(lambda line: not line.startswith("\u2500"), lines)
        raise UserError(f"{' '.join(paragraph).rstrip('.')}; see {program} --help.") from None
    if unknown:
        from plmjax import experiment

        parameters = inspect.signature(verb).parameters
        groups = [parameter.default for parameter in parameters.values() if dataclasses.is_dataclass(parameter.default)]
        names = [*parameters, *(field.name for group in groups for field in dataclasses.fields(group))]
        known = [f"--{name.strip('_')}" for name in names]
        # Of several that end alike the run's own is meant, and not a phase's.
        dotted = sorted(further(), key=lambda option: option.startswith("--phases."), reverse=True)
        parts = {f"--{option.rpartition('.')[2]}": option for option in dotted}
        option = unknown[0].partition("=")[0]
        hint = nearest(experiment.spelled(option), known, parts)
        raise UserError(f"{program} has no option {quoted(option)}; {hint}")
    return call


def answer(command: Callable[[], None], program: str = "plmjax") -> None:
    """Runs a command; exit code 2 for a user's mistake, 75 for a run stopped and saved, 130 for Ctrl-C.

    A run on several hosts ends here at once on the one that cannot go on; the others hear why.
    """
    try:
        command()
    except BrokenPipeError:
        sys.exit(0)
    except (Exception, KeyboardInterrupt) as error:
        give_way()
        code, sentence = _ending(error)
        if sentence:
            print(f"{program}: {sentence}", file=sys.stderr)
        else:
            traceback.print_exc()
        peers.failed(sentence or f"{type(error).__name__}: {error}".splitlines()[0])
        peers.leave(code)
        sys.exit(code)


def _ending(error: BaseException) -> tuple[int, str]:
    """Exit code and sentence of what ended a command; no sentence for what a user cannot put right."""
    match error:
        case UserError():
            return MISTAKE, str(error)
        case Interrupted():
            return SAVED, f"{error} Run the same command again to go on."
        case KeyboardInterrupt():
            return CTRL_C, "Stopped."
        case Exception() if sentence := storage.explain(error):
            return MISTAKE, sentence
    return CRASHED, ""
