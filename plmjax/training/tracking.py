"""Weights & Biases: a run can report to a project there, in addition to the files of the run."""

import importlib.util
import json
from pathlib import Path
from typing import Any

from plmjax.errors import UserError, quoted
from plmjax.experiment import Experiment, flatten
from plmjax.files import json_text, storage


def check(run: Experiment) -> None:
    """Raise UserError if a run reports to Weights & Biases and its library is not installed."""
    if run.tracking.wandb and importlib.util.find_spec("wandb") is None:
        raise UserError("Expected wandb for --tracking.wandb, found none; pip install 'plmjax[wandb]'.")


def begin(run: Experiment, workdir: Path, folder: Path) -> "WeightsAndBiases | None":
    """Return the tracker of the project that the experiment names, or None.

    folder: local folder for the files of WORKDIR.
    """
    return WeightsAndBiases(run, workdir, folder) if run.tracking.wandb else None


class WeightsAndBiases:
    """A run in Weights & Biases. A resumed run continues the run that WORKDIR/wandb.json names.

    Raises:
        UserError: the library is missing, nobody is logged in, or the project cannot be reached.
    """

    def __init__(self, run: Experiment, workdir: Path, folder: Path) -> None:
        check(run)
        import wandb

        entity, _, project = run.tracking.wandb.rpartition("/")
        record = workdir / "wandb.json"
        what = "the run of Weights & Biases to go on with"
        before = json_text.read_object(record, what, "remove it to begin another one there") if record.exists() else {}
        try:
            self._run = wandb.init(
                entity=entity or None,
                project=project,
                id=before.get("id") if before.get("project") == run.tracking.wandb else None,
                resume="allow",
                name=storage.absolute(workdir).name,
                dir=str(folder),
                config=flatten(run),
                settings=wandb.Settings(console="off"),  # the run prints to the terminal itself
            )
        except wandb.Error as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise UserError(
                f"Expected to report to the project {quoted(run.tracking.wandb)} of Weights & Biases, found: {reason}; "
                f"run `wandb login`, set WANDB_MODE=offline, or leave --tracking.wandb out."
            ) from error
        storage.write(record, json.dumps({"project": run.tracking.wandb, "id": self._run.id}) + "\n")
        self._next = self._run.step

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Send one record. A record that a resumed run repeats was sent already, and is skipped."""
        if step >= self._next:
            self._run.log(values, step=step)

    def close(self, succeeded: bool) -> None:
        """Send the remaining records. `succeeded` is true if the run has ended; otherwise it is shown as failed."""
        self._run.finish(exit_code=0 if succeeded else 1)
