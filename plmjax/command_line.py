"""The command line of both programs: parsing of arguments, and how a command ends."""

import contextlib
import dataclasses
import functools
import inspect
import io
import itertools
import logging
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
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
    """(arguments of the command, overrides of its experiment): an override is an option whose name has a dot, or
    `--optimizer`, which chooses another update rule."""
    own: list[str] = []
    overrides: list[str] = []
    into = own
    for argument in arguments:
        if argument.startswith("--"):
            name = argument.partition("=")[0]
            into = overrides if "." in name or name == "--optimizer" else own
        into.append(argument)
    return own, overrides


def of_experiment(reference: str) -> list[str]:
    """The options of an experiment, for a message; empty where it cannot be loaded."""
    from plmjax import experiment  # with it comes JAX, which reads the environment that a command sets first

    with contextlib.suppress(UserError):
        return experiment.options(experiment.load(reference))
    return []


def parse(
    verb: Callable, program: str, arguments: Sequence[str], further: Callable[[], Sequence[str]] = tuple
) -> Callable:
    """The command with its arguments bound; `program` is the text that the user typed before them.

    further: the options of the experiment, which a user may have named by their last part alone.

    Raises:
        UserError: an unknown option, a missing one, or a value of the wrong kind.
    """

    @functools.wraps(verb)
    def bound(*positional: Any, **keywords: Any) -> Callable:
        return functools.partial(verb, *positional, **keywords)

    captured = io.StringIO()
    # tyro colours its errors, or draws them without a box, as standard output is: a terminal, or not of UTF-8.
    plain = contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    try:
        shown = contextlib.nullcontext() if {"-h", "--help"} & set(arguments) else plain
        with option_values.PLAIN, contextlib.redirect_stderr(captured), shown:
            call, unknown = tyro.cli(
                bound, prog=program, args=arguments, use_underscores=True, return_unknown_args=True
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        # tyro prints a box: its first paragraph is the error, the others repeat the help.
        lines = [line.strip("\u2502 ") for line in captured.getvalue().splitlines() if line.startswith("\u2502")]
        paragraph = itertools.takewhile(lambda line: not line.startswith("\u2500"), lines)
        raise UserError(f"{' '.join(paragraph).rstrip('.')}; see {program} --help.") from None
    if unknown:
        from plmjax import experiment

        parameters = inspect.signature(verb).parameters
        groups = [parameter.default for parameter in parameters.values() if dataclasses.is_dataclass(parameter.default)]
        names = [*parameters, *(field.name for group in groups for field in dataclasses.fields(group))]
        known = [f"--{name.strip('_')}" for name in names]
        # Where several options end alike, the one of the whole run comes before those of phases.
        dotted = sorted(further(), key=lambda option: option.startswith("--phases."), reverse=True)
        parts = {f"--{option.rpartition('.')[2]}": option for option in dotted}
        if not unknown[0].startswith("-"):
            raise UserError(
                f"Expected nothing more after {program} {shlex.join(arguments[: arguments.index(unknown[0])])}, found "
                f"{quoted(unknown[0])}; put a text of several words in quotes, or see {program} --help."
            )
        option = unknown[0].partition("=")[0]
        hint = nearest(experiment.normalized_option(option), known, parts)
        raise UserError(f"Expected an option of {program}, found {quoted(option)}; {hint}")
    return call


def answer(command: Callable[[], None], program: str = "plmjax") -> None:
    """Runs a command; exit code 2 for a user's mistake, 75 for a run stopped and saved, 130 for Ctrl-C.

    On several hosts this host ends at once, and the other hosts receive the reason.
    """
    try:
        with _warnings_in_plain_words():
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


@contextlib.contextmanager
def _warnings_in_plain_words() -> Iterator[None]:
    """Prints the texts of warnings alone, as Python does for a logger without a handler (logging.lastResort).

    Libraries give the root logger a handler, which would print `WARNING:plmjax.finetuning.run:` before each.
    """
    log = logging.getLogger("plmjax")
    propagated, log.propagate = log.propagate, False
    try:
        yield
    finally:
        log.propagate = propagated


def _ending(error: BaseException) -> tuple[int, str]:
    """Exit code and sentence for an exception; the sentence is empty where the user cannot correct the cause."""
    match error:
        case UserError():
            return MISTAKE, str(error)
        case Interrupted():
            return SAVED, f"{error} Run the same command again to continue."
        case KeyboardInterrupt():
            return CTRL_C, "Stopped."
        case Exception() if sentence := storage.explain(error):
            return MISTAKE, sentence
    return CRASHED, ""
