"""Several tasks that one model learns together, each with its own name and files."""

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
"""The metric of all tasks together: the mean of the metric that represents each."""


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

    parts: the examples of each of `tasks`, one task after the other.
    """

    parts: list[Any]
    tasks: tuple[NamedTask, ...]


@dataclasses.dataclass(frozen=True)
class JointTask(Task, abc.ABC):
    """Tasks with files of their own."""

    prediction_settings: ClassVar[tuple[str, ...]] = ("only",)

    tasks: tuple[NamedTask, ...] = ()
    """The tasks, each with a different name."""
    only: tuple[str, ...] = ()
    """Names of the tasks that are trained on, evaluated or predicted; empty takes all."""

    def settings(self, labelled: bool) -> tuple[str, ...]:
        """Return the names of settings, including those of each task, as tasks.1.source."""
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
        """Return one of the tasks as a single task, with rows as long as here."""

    @property
    def chosen(self) -> tuple[NamedTask, ...]:
        """Return the tasks that `only` names, in their order."""
        return tuple(task for task in self.tasks if not self.only or task.name in self.only)

    @contextlib.contextmanager
    def named_options(self, task: NamedTask) -> Iterator[None]:
        """Replace a task's option names in messages by their names here: --data.tasks.1.train."""
        own = "|".join(field.name for field in dataclasses.fields(task))
        try:
            yield
        except UserError as error:
            message = re.sub(rf"--data\.({own})\b", rf"--data.tasks.{self.tasks.index(task)}.\1", str(error))
            raise UserError(message) from None

    def read(self, split: str) -> JointExamples:
        parts = []
        for task in self.chosen:
            with self.named_options(task):
                parts.append(self.single_task(task).read(split))
        path = "tasks" if len(parts) > 1 else f"{self.chosen[0].name}-{Path(parts[0].path).name}"
        return joined_examples(path, parts, self.chosen)

    def trained_and_evaluated(self) -> list[str]:
        """Return the files that are both trained on and evaluated on, of every chosen task."""
        return [file for task in self.chosen for file in self.single_task(task).trained_and_evaluated()]

    def parts(self, path: str, size: int) -> Iterator[JointExamples]:
        """Yield the examples of a file of the one task that `only` names."""
        task = self._single(f"to predict {path}", "name one in --data.only")
        with self.named_options(task):
            for part in self.single_task(task).parts(path, size):
                yield joined_examples(path, [part], (task,))

    def evaluated_on(self, data: str) -> Self:
        """Return the same tasks with another validation file of one task.

        It is NAME=FILE, or only FILE for a single task.
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
        if len(self.chosen) > 1:
            names = listed(task.name for task in self.chosen)
            raise UserError(f"Expected one task {purpose}, found {names}; {advice}.")
        return self.chosen[0]


def options_of(task: NamedTask, joint: JointTask, kind: type[FileTask]) -> dict[str, Any]:
    """Return the fields of a task of a kind: those of `task`, and all others of `joint`."""
    own = {field.name for field in dataclasses.fields(task)}
    names = [field.name for field in dataclasses.fields(kind)]
    return {name: getattr(task if name in own else joint, name) for name in names}


def joined_examples(path: str, parts: list[Examples], tasks: tuple[NamedTask, ...]) -> JointExamples:
    """Join the examples of several tasks, one task after the other."""
    return JointExamples(path, list(itertools.chain.from_iterable(part.lines for part in parts)), parts, tasks)


def qualified(of_tasks: Mapping[str, Mapping[str, Value]]) -> dict[str, Value]:
    """Return TASK/NAME -> value, from a dict of values by name for each task."""
    return {f"{task}/{name}": value for task, values in of_tasks.items() for name, value in values.items()}


def reported(metrics: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return TASK/METRIC of every task, from the names of its metrics, and mean."""
    return (*(f"{task}/{metric}" for task, names in metrics.items() for metric in names), MEAN)


def joint_answer(answers: Mapping[str, Answers], compared: Sequence[float]) -> Answers:
    """Return the answer for all tasks: TASK/METRIC, mean, and the files of every task, as predictions.TASK.jsonl.

    compared: the number by which each task is compared; mean is the mean of these numbers.
    """
    metrics = qualified({task: scores for task, (scores, _) in answers.items()})
    files = {
        name.replace(".", f".{task}.", 1): text for task, (_, files) in answers.items() for name, text in files.items()
    }
    return metrics | {MEAN: float(np.mean(compared))}, files


def check_different(what: str, values: list[str], names: list[str]) -> None:
    """Raise UserError for the first value that occurs twice in a list."""
    for place, value in enumerate(values):
        if value in values[:place]:
            holders = f"in {names[values.index(value)]} and in {names[place]}" if names != values else "twice"
            raise UserError(f"Expected {what} to differ, found {quoted(value)} {holders}; change one.")
