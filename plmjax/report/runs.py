"""The runs of a report, read from their directories."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plmjax import experiment
from plmjax.errors import UserError, in_file
from plmjax.experiment.phases import ResolvedPhase
from plmjax.files import json_text, storage
from plmjax.runs.summary import SAMPLES
from plmjax.training import metrics

UNITS = ("step", "tokens", "samples")
"""Units of the progress of a run; samples are rows."""


@dataclasses.dataclass(frozen=True)
class Run:
    """The contents of a run directory: its experiment, its logged records and the texts that its model generated.

    renamed: logged key -> key in `records`, for those that `comparable` has changed.
    """

    name: str
    experiment: experiment.Experiment
    records: list[dict[str, Any]]
    samples: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def series(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Return (steps, values) of the records that have the key, float64 each."""
        points = [(record["step"], record[key]) for record in self.records if key in record]
        return tuple(np.array(points, np.float64).reshape(-1, 2).T)

    def last(self, key: str) -> float | None:
        """Return the last logged value of a key; None without one."""
        return next((record[key] for record in reversed(self.records) if key in record), None)

    def comparable(self) -> "Run":
        """Return the run with the same meaning of "loss" in training and evaluation.

        If the loss has several terms, `train/loss` is their sum, but `eval/loss` is only the term in nats per target.
        Then that term becomes `train/loss`, and the sum becomes `train/joint_loss`.
        """
        keys = {key for record in self.records for key in record}
        terms = {key.removeprefix("train/") for key in keys if key.startswith("train/") and key.endswith("_loss")}
        if len(terms) < 2:
            return self
        evaluations = [record for record in self.records if "eval/loss" in record]

        def is_target(term: str) -> bool:
            return bool(evaluations) and all(line.get(f"eval/{term}") == line["eval/loss"] for line in evaluations)

        names = {"train/loss": "train/joint_loss"}
        if term := next(filter(is_target, sorted(terms)), None):
            names |= {f"{part}/{term}": f"{part}/loss" for part in ("train", "eval")}
        records = [{names.get(key, key): record[key] for key in record} for record in self.records]
        return dataclasses.replace(self, records=records, renamed=names)

    @property
    def steps(self) -> int:
        """Return the number of finished steps."""
        return self.records[-1]["step"]

    @property
    def tokens(self) -> int:
        """Return the number of tokens in the finished steps, including padding."""
        return self.tokens_until(self.steps)

    def tokens_until(self, step: int) -> int:
        """Return the number of tokens in the first `step` steps, including padding."""
        return self.amount_until("tokens", step)

    @property
    def planned_steps(self) -> int:
        """Return the number of steps that the run will have when it is finished."""
        return self.experiment.resolved_phases[-1].last_step

    def amount_until(self, unit: str, step: int) -> int:
        """Return the amount of a unit in the first `step` steps."""
        phases = self.experiment.resolved_phases
        return sum(min(max(step - one.first_step, 0), one.steps) * self._step_amount(unit, one) for one in phases)

    def step_at(self, unit: str, amount: float) -> float:
        """Return the step, possibly fractional, at which the run reaches an amount of a unit, or infinity.

        This is the inverse of `amount_until`.
        """
        left = max(amount, 0.0)
        for phase in self.experiment.resolved_phases:
            rate = self._step_amount(unit, phase)
            if left <= rate * phase.steps:
                return phase.first_step + left / rate
            left -= rate * phase.steps
        return math.inf

    def _step_amount(self, unit: str, phase: ResolvedPhase) -> int:
        """Return the amount of a unit in a step of a phase."""
        if unit == "tokens":
            return self.experiment.data.tokens(phase.batch_size, phase.sequence_length)
        return phase.batch_size if unit == "samples" else 1

    @property
    def seconds(self) -> float:
        """Return the seconds from the first logged record to the last."""
        return self.records[-1]["time"] - self.records[0]["time"]


def read_runs(workdirs: Sequence[str | Path]) -> list[Run]:
    """Return the runs in these directories, named by their folders, or by full paths if two folder names are equal.

    Raises:
        UserError: a folder is no run or has logged nothing yet, or its records are not those of a run.
    """
    return [_read(storage.path(workdir), name) for workdir, name in zip(workdirs, _names(workdirs), strict=True)]


def _names(workdirs: Sequence[str | Path]) -> list[str]:
    """Return folder names, or full paths if two folders have the same name."""
    short = [storage.absolute(storage.path(workdir)).name for workdir in workdirs]
    return short if len(set(short)) == len(short) else [str(workdir) for workdir in workdirs]


def _read(workdir: Path, name: str) -> Run:
    file = workdir / "experiment.json"
    described = experiment.read(file)
    with in_file(file, "--"):
        _ = described.resolved_phases  # raises UserError for a mistake in the file
    path = workdir / "metrics.jsonl"
    records = metrics.read(path)
    if not records:
        raise UserError(f"Expected logged steps in {path}, found none yet; report on the run once it has logged some.")
    for number, record in enumerate(records, start=1):
        numbers = isinstance(record, dict) and all(isinstance(value, int | float | None) for value in record.values())
        if not (numbers and {"step", "time"} <= record.keys()):
            raise UserError(
                f"Expected a step, a time and numbers in line {number} of {path}, found something else; remove the "
                f"line."
            )
    return Run(name, described, records, _samples(workdir / SAMPLES))


def _samples(path: Path) -> list[dict[str, Any]]:
    """Return the texts of a run, objects with `prompt` and `text`; an empty list if nothing was generated."""
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(storage.contents(path).removesuffix(b"\n").split(b"\n"), start=1):
        try:
            sample = json_text.parse(line)
        except ValueError:
            sample = None
        if not (isinstance(sample, dict) and all(isinstance(sample.get(name), str) for name in ("prompt", "text"))):
            raise UserError(
                f"Expected a prompt and a text in line {number} of {path}, found something else; remove the file or "
                f"write it again with plmjax generate."
            )
        found.append(sample)
    return found
