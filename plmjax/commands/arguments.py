"""Types of arguments that several commands share."""

from typing import Annotated

from tyro.conf import Suppress, arg

OF_ANOTHER_FILE = {"--experiment": "an import in the file of this run's experiment"}
"""Replacement of --experiment in error messages of a command that has an experiment file of its own."""
Overrides = Suppress[tuple[str, ...]]
Reference = Annotated[str, arg(metavar="EXPERIMENT")]


def load_classes(experiment: str | None) -> None:
    """Import the experiment file that defines classes of a checkpoint. Only the user can name code to import."""
    if experiment is not None:
        from plmjax.experiment import catalogue

        catalogue.load_classes(experiment)
