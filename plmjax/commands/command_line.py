"""The command line of plmjax and of the program in tpu/: parsing of arguments, exit codes and error messages."""

import contextlib
import dataclasses
import functools
import inspect
import io
import itertools
import logging
import os
import re
import shlex
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional, Suppress, arg
from tyro.constructors import PrimitiveConstructorSpec

from plmjax import option_values
from plmjax.errors import CRASHED, MISTAKE, SAVED, UNAVAILABLE, WEATHER, Unavailable, UserError, listed, nearest, quoted
from plmjax.files import storage
from plmjax.parallel import hosts as peers
from plmjax.parallel.stopping import CTRL_C, Interrupted, give_way

Location = Annotated[
    Path,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH",
        instance_from_str=lambda words: storage.path(words[0]),
        is_instance=lambda value: isinstance(value, os.PathLike),
        str_from_instance=lambda path: [os.fspath(path)],
    ),
]
"""A local path, or a path in a bucket. pathlib would turn gs://b into gs:/b."""


ELSEWHERE = {
    "lr": "optimizer.learning_rate",
    "output_dir": "workdir",
    "model_name_or_path": "from",
    "train_file": "data.train",
    "validation_file": "data.validation",
    "max_length": "data.sequence_length",
    "max_seq_length": "data.sequence_length",
    "max_steps": "training.steps",
    "num_train_epochs": "finetuning.epochs",
    "per_device_train_batch_size": "training.batch_size",
    "gradient_accumulation_steps": "training.accumulation",
    "logging_steps": "training.log_every",
    "eval_steps": "training.evaluate_every",
    "save_steps": "checkpoint.every",
    "warmup_ratio": "finetuning.warmup",
    "bf16": "training.dtype",
    "fp16": "training.dtype",
}
"""Option of transformers' scripts -> option of plmjax, for the message about an unknown option."""


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return (arguments of the command, overrides of its experiment).

    An override is an option whose name has a dot, or `--optimizer`, which chooses another update rule.
    """
    own: list[str] = []
    overrides: list[str] = []
    into = own
    for argument in arguments:
        if argument.startswith("--"):
            name = argument.partition("=")[0]
            into = overrides if "." in name or name == "--optimizer" else own
        into.append(argument)
    return own, overrides


def experiment_options(reference: str) -> list[str]:
    """Return the options of an experiment, for a message; an empty list if it cannot be loaded."""
    from plmjax import experiment  # It imports JAX, before which a command must set the environment.

    with contextlib.suppress(UserError):
        return experiment.options(experiment.load(reference))
    return []


def parse(
    verb: Callable, program: str, arguments: Sequence[str], further: Callable[[], Sequence[str]] = tuple
) -> Callable:
    """Return the command with its arguments bound; `program` is the text before them on the command line.

    Args:
        further: function that returns the options of the experiment. The message about an unknown option suggests the
            one whose last part is this option.

    Raises:
        UserError: an option is unknown or missing, or a value has the wrong type.
    """

    @functools.wraps(verb)
    def bound(*positional: Any, **keywords: Any) -> Callable:
        return functools.partial(verb, *positional, **keywords)

    documentation, mark, options = (inspect.getdoc(verb) or "").partition("\n\nArgs:\n")
    summary, _, notes = documentation.partition("\n\n")
    # tyro keeps the line ends of the docstring in the description of an option, and joins paragraphs to one line.
    bound.__doc__ = summary + mark + re.sub(r"\n {8,}", " ", options)
    parameters = [_switch(parameter) for parameter in inspect.signature(verb).parameters.values()]
    del bound.__wrapped__  # else tyro would read the signature of the command itself
    bound.__signature__ = inspect.Signature(parameters)
    bound.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    captured = io.StringIO()
    # The form of tyro's errors depends on standard output: colours on a terminal, no box without UTF-8.
    plain = contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    try:
        shown = contextlib.nullcontext() if {"-h", "--help"} & set(arguments) else plain
        with option_values.PLAIN, contextlib.redirect_stderr(captured), shown:
            settings = {"use_underscores": True, "return_unknown_args": True, "config": (FlagCreatePairsOff,)}
            call, unknown = tyro.cli(bound, prog=program, args=arguments, **settings)
    except SystemExit as stop:
        if not stop.code:
            print(wrapped(notes), end="\n" if notes else "")
            raise
        # tyro prints a box: its first paragraph is the error, the others repeat the help.
        lines = [line.strip("\u2502") for line in captured.getvalue().splitlines() if line.startswith("\u2502")]
        box = [*itertools.takewhile(lambda line: not line.startswith(" \u2500"), lines)]
        paragraph = [line.strip() for line in box]
        if paragraph and paragraph[0].startswith("Missing from"):
            # An option is indented by four spaces, its description by eight.
            missing = listed(line.split()[0] for line in box if re.match(r" {5}\S", line))
            raise UserError(f"Missing from {program}: {missing}; see {program} --help.") from None
        raise UserError(f"{_advice(verb, arguments)}{' '.join(paragraph).rstrip('.')}; see {program} --help.") from None
    if unknown:
        from plmjax import experiment

        known = [f"--{name.strip('_')}" for name in option_names(verb)]
        # Among options with the same last part, the option of the whole run has priority over those of phases.
        dotted = sorted(further(), key=lambda option: option.startswith("--phases."), reverse=True)
        dotted += [option for option in known if "." in option]
        parts = {f"--{option.rpartition('.')[2]}": option for option in dotted}
        parts |= {f"--{name}": f"--{ours}" for name, ours in ELSEWHERE.items() if f"--{ours}" in (*known, *dotted)}
        if not unknown[0].startswith("-"):
            raise UserError(
                f"Expected nothing more after {program} {shlex.join(arguments[: arguments.index(unknown[0])])}, found "
                f"{quoted(unknown[0])}; put a text of several words in quotes, or see {program} --help."
            )
        option = unknown[0].partition("=")[0]
        hint = nearest(experiment.normalize_option(option), known, parts)
        raise UserError(f"Expected an option of {program}, found {quoted(option)}; {hint}")
    return call


def _advice(verb: Callable, arguments: Sequence[str]) -> str:
    """Return advice if a positional argument is given as an option; else an empty text."""
    parameters = inspect.signature(verb).parameters
    unnamed = {f"--{name}" for name, one in parameters.items() if Positional in get_args(one.annotation)}
    found = next((word for word in arguments if word.partition("=")[0] in unnamed), None)
    return "" if found is None else f"Expected a value without {found} before it, found {found}; leave the name out. "


def _switch(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return the parameter of a switch without a default in the help. Other parameters are unchanged."""
    if parameter.default is not False:
        return parameter
    return parameter.replace(annotation=Annotated[parameter.annotation, arg(help_behavior_hint="")])


def wrapped(text: str) -> str:
    """Return paragraphs wrapped to the width of the terminal."""
    width = shutil.get_terminal_size().columns
    return "\n\n".join(textwrap.fill(" ".join(one.split()), width) for one in text.split("\n\n"))


def option_names(verb: Callable) -> Iterator[str]:
    """Yield the names of a command's options, with the name of a group of settings as the prefix of its options."""
    for name, parameter in inspect.signature(verb).parameters.items():
        if any(mark in (Positional, Suppress) for mark in get_args(parameter.annotation)):
            continue
        if not dataclasses.is_dataclass(parameter.default):
            yield f"no_{name}" if parameter.default is True else name
            continue
        prefix = "" if OmitArgPrefixes in get_args(parameter.annotation) else f"{name}."
        yield from (f"{prefix}{field.name}" for field in dataclasses.fields(parameter.default))


def run_command(command: Callable[[], None], program: str = "plmjax") -> None:
    """Run a command, and exit with its exit code (`plmjax.errors`), or 130 for Ctrl-C.

    After an error on one of several hosts, this host ends at once, and the other hosts receive the reason.
    """
    try:
        with _plain_warnings():
            command()
    except BrokenPipeError:
        sys.exit(0)
    except (Exception, KeyboardInterrupt) as error:
        give_way()
        code, sentence = exit_status(error)
        if sentence:
            print(f"{program}: {sentence}", file=sys.stderr)
        else:
            traceback.print_exc()
        peers.report_failure(sentence or f"{type(error).__name__}: {error}".splitlines()[0])
        peers.leave(code)
        sys.exit(code)


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print only the text of warnings, as Python does for a logger without a handler (logging.lastResort).

    Libraries add a handler to the root logger, which would print `WARNING:plmjax.runs.finetuning:` before each text.
    """
    log = logging.getLogger("plmjax")
    propagated, log.propagate = log.propagate, False
    try:
        yield
    finally:
        log.propagate = propagated


def exit_status(error: BaseException) -> tuple[int, str]:
    """Return (exit code, sentence) for an exception. The sentence is empty if a traceback must be printed."""
    error = storage.explain(error) or error
    match error:
        case UserError():
            return MISTAKE, str(error)
        case Unavailable():
            return UNAVAILABLE, str(error)
        case Interrupted():
            return SAVED, f"{error} Run the same command again to continue."
        case KeyboardInterrupt():
            return CTRL_C, "Stopped."
        case RuntimeError() if WEATHER.match(str(error)):
            return UNAVAILABLE, ""
    return CRASHED, ""
