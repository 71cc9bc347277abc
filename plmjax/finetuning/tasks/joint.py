"""Several tasks that one model learns together, each with a name and files."""

import abc
import contextlib
import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from plmjax.errors import UserError, listed, nearest, quoted
from plmjax.finetuning.tasks.task import Answers, Examples, FileTask, Task

Value = TypeVar("Value")

MEAN = "mean"
"""Name of the metric of all tasks together: the mean of their main metrics."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedTask:
    """One of several tasks."""

    name: str
    """Name in its metrics and files of predictions."""
    train: str = ""
    """File of the examples to train on."""
    validation: str = ""
    """File of the examples to evaluate on."""


@dataclasses.dataclass(frozen=True)
class JointExamples(Examples):
    """Examples of several tasks.

    parts: one `Examples` for each of `tasks`.
    """

    parts: list[Any]
    tasks: tuple[NamedTask, ...]


@dataclasses.dataclass(frozen=True)
class JointTask(Task, abc.ABC):
    """A task that consists of several tasks with separate files."""

    prediction_settings: ClassVar[tuple[str, ...]] = ("only",)

    tasks: tuple[NamedTask, ...] = ()
    """The tasks, each with a different name."""
    only: tuple[str, ...] = ()
    """Names of the tasks that are trained on, evaluated or predicted; empty takes all."""

    def settings(self, labelled: bool) -> tuple[str, ...]:
        """Return the names of settings; a setting of one task has a name such as tasks.1.source."""
        shared, own = list(super().settings(labelled)), []
        for place, task in enumerate(self.tasks):
            fields = {field.name for field in dataclasses.fields(task)}
            for name in self.single_task(task).settings(labelled):
                if name in fields:
                    own.append(f"tasks.{place}.{name}")
                elif name not in shared:
                    shared.append(name)
        return (*shared, *own)

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [task.name for task in self.tasks]
        if not names:
            raise UserError("Expected several tasks, found none; name some in the experiment's file.")
        for name in names:
            if not re.fullmatch(r"\w[\w-]*", name) or name == MEAN:
                raise UserError(
                    f"Expected a task's name of letters, digits, - and _ other than {MEAN}, found {quoted(name)}; "
                    f"change it."
                )
        check_different("the tasks' names", names, names)
        check_different("--data.only", list(self.only), list(self.only))
        for name in self.only:
            if name not in names:
                raise UserError(f"Expected names of tasks in --data.only, found {quoted(name)}; {nearest(name, names)}")
        for task in self.tasks:
            with self.named_options(task):
                self.single_task(task)

    @abc.abstractmethod
    def single_task(self, task: NamedTask) -> FileTask:
        """Return one of the tasks as a single task, with rows of the same length."""

    @property
    def selected(self) -> tuple[NamedTask, ...]:
        """Return the tasks that `only` names, in their order."""
        return tuple(task for task in self.tasks if not self.only or task.name in self.only)

    @contextlib.contextmanager
    def named_options(self, task: NamedTask) -> Iterator[None]:
        """Rename a task's options in error messages to their names here: --data.tasks.1.train."""
        own = "|".join(field.name for field in dataclasses.fields(task))
        try:
            yield
        except UserError as error:
            message = re.sub(rf"--data\.({own})\b", rf"--data.tasks.{self.tasks.index(task)}.\1", str(error))
            raise UserError(message) from None

    def read(self, split: str) -> JointExamples:
        parts = []
        for task in self.selected:
            with self.named_options(task):
                parts.append(self.single_task(task).read(split))
        path = "tasks" if len(parts) > 1 else f"{self.selected[0].name}-{Path(parts[0].path).name}"
        return join_examples(path, parts, self.selected)

    def files_in_both_splits(self) -> list[str]:
        """Return the files that are both train and validation file of a selected task."""
        return [file for task in self.selected for file in self.single_task(task).files_in_both_splits()]

    def parts(self, path: str, size: int) -> Iterator[JointExamples]:
        """Yield the examples of a file of the one task that `only` names."""
        task = self._single(f"to predict {path}", "name one in --data.only")
        with self.named_options(task):
            for part in self.single_task(task).parts(path, size):
                yield join_examples(path, [part], (task,))

    def with_validation_file(self, data: str) -> Self:
        """Return the same tasks with another validation file for one task.

        data: NAME=FILE, or only FILE for a single task.
        """
        name, separator, file = data.partition("=")
        if not separator or name not in [task.name for task in self.tasks]:
            name, file = self._single(f"to evaluate {data}", "name it with --data NAME=FILE").name, data
        tasks = (dataclasses.replace(task, validation=file) if task.name == name else task for task in self.tasks)
        return dataclasses.replace(self, tasks=tuple(tasks), only=(name,), folder="")

    def texts(self, examples: JointExamples) -> Iterator[str]:
        for task, part in zip(examples.tasks, examples.parts, strict=True):
            yield from self.single_task(task).texts(part)

    def _single(self, purpose: str, advice: str) -> NamedTask:
        if len(self.selected) > 1:
            names = listed(task.name for task in self.selected)
            raise UserError(f"Expected one task {purpose}, found {names}; {advice}.")
        return self.selected[0]


def options_of(task: NamedTask, joint: JointTask, kind: type[FileTask]) -> dict[str, Any]:
    """Return the values for the fields of `kind`: from `task` if it has the field, else from `joint`."""
    own = {field.name for field in dataclasses.fields(task)}
    names = [field.name for field in dataclasses.fields(kind)]
    return {name: getattr(task if name in own else joint, name) for name in names}


def join_examples(path: str, parts: list[Examples], tasks: tuple[NamedTask, ...]) -> JointExamples:
    """Join the examples of several tasks, one task after the other."""
    return JointExamples(path, list(itertools.chain.from_iterable(part.lines for part in parts)), parts, tasks)


def qualify_names(by_task: Mapping[str, Mapping[str, Value]]) -> dict[str, Value]:
    """Return TASK/NAME -> value, from a dict of values by name for each task."""
    return {f"{task}/{name}": value for task, values in by_task.items() for name, value in values.items()}


def joint_metric_names(metrics: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return TASK/METRIC of every task, and mean."""
    return (*(f"{task}/{metric}" for task, names in metrics.items() for metric in names), MEAN)


def joint_answer(answers: Mapping[str, Answers], compared: Sequence[float]) -> Answers:
    """Return the metrics and files of all tasks: TASK/METRIC, mean, and files such as predictions.TASK.jsonl.

    compared: the main metric of each task; mean is their mean.
    """
    metrics = qualify_names({task: scores for task, (scores, _) in answers.items()})
    files = {
        name.replace(".", f".{task}.", 1): text for task, (_, files) in answers.items() for name, text in files.items()
    }
    return metrics | {MEAN: float(np.mean(compared))}, files


def check_different(what: str, values: list[str], names: list[str]) -> None:
    """Raise UserError for the first value that occurs twice. names: the holder of each value, for messages."""
    for place, value in enumerate(values):
        if value in values[:place]:
            holders = f"in {names[values.index(value)]} and in {names[place]}" if names != values else "twice"
            raise UserError(f"Expected {what} to differ, found {quoted(value)} {holders}; change one.")
