"""Types of arguments that several commands share."""

from typing import Annotated, Any

from tyro.conf import Suppress, arg

from plmjax.commands.command_line import Location

OF_ANOTHER_FILE = {"--experiment": "an import in the file of this run's experiment"}
"""Replacement of --experiment in error messages of commands whose experiment is an argument, not an option."""
Overrides = Suppress[tuple[str, ...]]
Reference = Annotated[str, arg(metavar="EXPERIMENT")]
Run = Annotated[Location, arg(metavar="RUN")]
"""A run directory or one of its checkpoints."""


def default(words: object) -> Any:
    """Return a tyro mark that shows `words` in the help as the default of an option."""
    return arg(help_behavior_hint=f"(default: {words})")


def load_classes(experiment: str | None) -> None:
    """Import the experiment file that defines classes of a checkpoint, if the user named one."""
    if experiment is not None:
        from plmjax.experiment import catalogue

        catalogue.load_classes(experiment)
