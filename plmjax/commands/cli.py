"""The command line: selection of the command, and the environment variables that libraries read.

The module of a command is imported when the command is chosen, and most of them import JAX. JAX reads the environment
only once, at its import, so `main` sets it first.
"""

import ast
import contextlib
import functools
import importlib
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from plmjax import libraries, platform
from plmjax.commands import help
from plmjax.commands.command_line import experiment_options, parse, run_command, split_arguments
from plmjax.errors import UserError, nearest, quoted
from plmjax.files import storage

VERBS = {
    "tokenizer train": "data.tokenizer_train",
    "prepare": "data.prepare",
    "cooccurrence": "data.cooccurrence",
    "experiments": "training.experiments",
    "pretrain": "training.pretrain",
    "finetune": "training.finetune",
    "evaluate": "inference.evaluate",
    "predict": "inference.predict",
    "embed": "inference.embed",
    "attention": "inference.attention",
    "fill-mask": "inference.fill_mask",
    "nearest": "inference.nearest",
    "generate": "generate.generate",
    "plan": "planning.plan",
    "bench": "training.bench",
    "selfcheck": "checking.selfcheck",
    "average": "training.average",
    "compress prune": "prune.prune",
    "compress distil": "distil.distil",
    "compress quantize": "quantize.quantize",
    "compress factorize": "compression.factorize",
    "compress share": "compression.share",
    "augment": "compression.augment",
    "import": "exchange.import_",
    "export": "exchange.export",
    "card": "reporting.card",
    "report": "reporting.report",
    "completion": "completion.completion",
}
"""Command -> MODULE.FUNCTION in this folder."""
GROUPS = tuple(dict.fromkeys(name.split()[0] for name in VERBS if " " in name))
"""First words of commands that consist of two words."""
OF_EXPERIMENTS = ("pretrain", "finetune", "plan", "bench")
"""Commands that take every option of an experiment."""
OF_TASKS = ("evaluate", "predict")
"""Commands that take the options with which a run's task reads another file."""
OF_CHECKPOINTS = ("compress prune", "compress distil", "compress quantize")
"""Commands that take every option of a checkpoint's experiment if their method reads its data."""
WITHOUT_TRAINING = ("compress factorize", "compress share")
"""Commands that refuse the options of an experiment with their own error message."""


FURTHER = (
    {
        name: f"An experiment has further options, such as {', '.join(help.BEST_KNOWN)}. plmjax {name} "
        f"{'finetune_sentences' if name == 'finetune' else 'bert_tiny'} --help shows the usual ones of that experiment "
        f"with their values, and --help all every one."
        for name in OF_EXPERIMENTS
    }
    | {name: f"A run has further options, those of its task: plmjax {name} RUN --help shows them." for name in OF_TASKS}
    | {
        name: f"A method that trains has further options, those of the experiment of the checkpoint: plmjax {name} "
        f"CHECKPOINT --method NAME --help shows the usual ones, and --help all every one."
        for name in OF_CHECKPOINTS
    }
)
"""Command -> sentence about its options that depend on an experiment or a run."""


def verb(name: str) -> Callable:
    """Import the module of a command, and return the command's function."""
    module, function = VERBS[name].split(".")
    return getattr(importlib.import_module(f"plmjax.commands.{module}"), function)


def summary(name: str) -> str:
    """Return the first line of a command's docstring. The file of its module is read, not imported."""
    module, function = VERBS[name].split(".")
    tree = ast.parse((Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8"))
    found = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    return ast.get_docstring(found).splitlines()[0]


def usage(group: str = "") -> str:
    """Return the page that lists the commands, or only those whose first word is `group`."""
    shown = [name for name in VERBS if not group or name.startswith(f"{group} ")]
    width = max(map(len, shown))
    rows = "\n".join(f"  {name:<{width}}  {summary(name)}" for name in shown)
    command = f"{group} COMMAND" if group else "COMMAND"
    version = "" if group else f"\n  {'--version':<{width}}  Print the version of plmjax."
    return f"usage: plmjax {command} ...    (plmjax {command} --help shows its options)\n\n{rows}{version}"


def run(arguments: Sequence[str]) -> None:
    """Run one command.

    Raises:
        UserError: the user made a mistake.
    """
    name, rest = (arguments[0], list(arguments[1:])) if arguments else ("--help", [])
    if name in ("--help", "-h"):
        print(usage())
        return
    if name == "--version":
        print(libraries.VERSION)
        return
    if name in GROUPS and rest[:1] in (["--help"], ["-h"]) and sum(verb.startswith(f"{name} ") for verb in VERBS) > 1:
        print(usage(name))
        return
    if name in GROUPS:
        name, rest = _of_two_words(name, rest)
    if name not in VERBS:
        raise UserError(f"Expected a command, found {quoted(name)}; {nearest(name, [*VERBS, *GROUPS])}")
    if (asked := help.asked(rest)) is not None:
        _show_help(name, *asked)
    command = verb(name)
    if name not in (*FURTHER, *WITHOUT_TRAINING):
        parse(command, f"plmjax {name}", rest)()
        return
    own, overrides = split_arguments(rest)
    further = functools.partial(_task_options if name in OF_TASKS else experiment_options, own[0] if own else "")
    try:
        call = parse(command, f"plmjax {name}", own, further)
    except UserError:
        if name in OF_EXPERIMENTS and own and not own[0].startswith("-"):
            from plmjax import experiment as experiments

            experiments.load(own[0])  # a misspelt name is reported before all other mistakes
        raise
    call(overrides=overrides)


def _task_options(checkpoint: str) -> list[str]:
    """Return the options of the task of a run, for a message; an empty list if there is no such run."""
    with contextlib.suppress(UserError):
        return [f"--{row.name}" for group in help.of_task(checkpoint, labelled=True) for row in group.rows]
    return []


def _show_help(name: str, words: list[str], everything: bool) -> NoReturn:
    """Print the options of a command and of the experiment or the run that the words name, and exit."""
    own, overrides = split_arguments(words)
    reference = own[0] if own and not own[0].startswith("-") else ""
    if not reference or name not in FURTHER:
        help.show(verb(name), f"plmjax {name}", everything=True, after=FURTHER.get(name, ""))
    if name in OF_EXPERIMENTS:
        from plmjax import experiment as experiments

        groups = help.of_experiment(experiments.load(reference), overrides, everything=everything)
    elif name in OF_TASKS:
        groups = help.of_task(reference, labelled=name == "evaluate")
    else:
        given = {word: value for word, value in itertools.pairwise(own) if word in ("--method", "--experiment")}
        method = given.get("--method", inspect.signature(verb(name)).parameters["method"].default)
        of_runs = sys.modules[verb(name).__module__].OF_RUNS
        groups = []
        if method in of_runs:
            groups = help.of_checkpoint(
                reference, given.get("--experiment"), of_runs[method], overrides, everything=everything
            )
    help.show(verb(name), f"plmjax {name} {reference}", groups, everything=everything)


def _of_two_words(name: str, rest: list[str]) -> tuple[str, list[str]]:
    """Return (name of a two-word command, its arguments). --help after a group of one command is for this command.

    Raises:
        UserError: no command of the group has the second word.
    """
    seconds = [verb.split()[1] for verb in VERBS if verb.startswith(f"{name} ")]
    if rest[:1] in (["--help"], ["-h"]) and len(seconds) == 1:
        return f"{name} {seconds[0]}", rest
    if not rest or rest[0] not in seconds:
        found = quoted(rest[0]) if rest else "nothing"
        raise UserError(
            f"Expected {', '.join(seconds[:-1])}{' or ' if seconds[1:] else ''}{seconds[-1]} after plmjax {name}, "
            f"found {found}; write plmjax {name} {seconds[0]}."
        )
    return f"{name} {rest[0]}", rest[1:]


def main() -> None:
    """Set the environment variables that libraries read, then run the command of sys.argv."""
    if sys.argv[1:2] in (["pretrain"], ["finetune"], ["bench"]) and not platform.has_tpu() and not platform.has_gpu():
        platform.keep_freed_memory()
    # After a command is killed, multiprocessing cleans up and prints a warning.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker:UserWarning")
    # With a cache on the disk, a run that is started again does not compile again.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(storage.cache("compilation")))
    # By default JAX caches only programs that took a second to compile; a run has many that take less.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    run_command(lambda: run(sys.argv[1:]))
