"""Several text-to-text tasks that one model learns at once, told apart by the prefix of their sources.

As T5 (Raffel et al., JMLR 2020, sections 2.4 and 3.5.2): every task is pairs of texts, of a classification the text and
the label's words; examples of all tasks are mixed at rates (plmjax/finetuning/mixing.py) and share rows. Each task is
judged on its own, by the metrics of its kind.
"""

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from plmjax.errors import FROM_0, FROM_1, UserError, check_ranges, listed, nearest, quoted
from plmjax.finetuning.judges import BleuAndChrf, Judge
from plmjax.finetuning.mixing import Mixing
from plmjax.finetuning.task import Answers, Encoded, Examples, Outputs, Task
from plmjax.finetuning.text_generation import TextGeneration, judged
from plmjax.finetuning.text_pairs import PairColumns, TextPairExamples, TextPairs
from plmjax.layers.model_config import ModelConfig

MEAN = "mean"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTask(PairColumns):
    """A task of a mixture."""

    name: str
    """What its metrics and files of predictions are called by."""
    train: str = ""
    """File of the pairs to train on."""
    validation: str = ""
    """File of the pairs to evaluate on."""
    judge: Judge = BleuAndChrf()
    """How what was written is judged."""


_OWN = tuple(field.name for field in dataclasses.fields(TextTask))
"""Options of a task; those that it shares with others are the mixture's."""


@dataclasses.dataclass(frozen=True)
class MixtureExamples(Examples):
    """parts: the pairs of each of `tasks`, one task after the other."""

    parts: list[TextPairExamples]
    tasks: tuple[TextTask, ...]


@dataclasses.dataclass(frozen=True)
class Mixture(Task):
    """Text-to-text tasks with files of their own, and the rates at which they are drawn."""

    prediction_settings: ClassVar[tuple[str, ...]] = ("only",)

    tasks: tuple[TextTask, ...] = ()
    """The tasks, each with a name and a prefix of its own."""
    only: tuple[str, ...] = ()
    """Names of the tasks that are mixed, evaluated or predicted; empty takes all."""
    limit: int = 2**21
    """Examples of a task that count at most for its rate, K; the files are read whole."""
    temperature: float = 1.0
    """T of the rates min(examples, K)^(1/T): 1 draws in proportion to the examples, inf every task equally often."""
    target_length: int = 128
    """Tokens in a row of targets, special ones included; 0 where a decoder alone reads both texts in one row."""

    def __post_init__(self) -> None:
        """Checks the numbers and the names."""
        super().__post_init__()
        check_ranges("data", self, limit=FROM_1, target_length=FROM_0)
        if not self.temperature >= 1:
            raise UserError(f"Expected --data.temperature of at least 1, found {self.temperature}; change it.")
        names = [task.name for task in self.tasks]
        if not names:
            raise UserError("Expected tasks in a mixture, found none; name some in the experiment's file.")
        for name in names:
            if not re.fullmatch(r"\w[\w-]*", name) or name == MEAN:
                raise UserError(
                    f"Expected a task's name of letters, digits, - and _ other than {MEAN}, found {quoted(name)}; "
                    f"change it."
                )
        _check_different("the tasks' names", names, names)
        _check_different("the tasks' prefixes", [task.prefix.strip() for task in self.tasks], names)
        _check_different("--data.only", list(self.only), list(self.only))
        for name in self.only:
            if name not in names:
                raise UserError(
                    f"Expected names of the mixture's tasks in --data.only, found {quoted(name)}; "
                    f"{nearest(name, names)}"
                )
        for task in self.tasks:
            with self.named_options(task):
                self.pairs(task)

    @property
    def chosen(self) -> tuple[TextTask, ...]:
        """The tasks that `only` names, in the mixture's order."""
        return tuple(task for task in self.tasks if not self.only or task.name in self.only)

    def pairs(self, task: TextTask) -> TextPairs:
        """One of the tasks as a task of its own, with rows as long as the mixture's."""
        names = [field.name for field in dataclasses.fields(TextPairs)]
        return TextPairs(**{name: getattr(task if name in _OWN else self, name) for name in names})

    @contextlib.contextmanager
    def named_options(self, task: TextTask) -> Iterator[None]:
        """Gives the options of a task in messages the names that they have here: --data.tasks.1.prefix."""
        try:
            yield
        except UserError as error:
            message = re.sub(rf"--data\.({'|'.join(_OWN)})\b", rf"--data.tasks.{self.tasks.index(task)}.\1", str(error))
            raise UserError(message) from None

    def read(self, split: str) -> MixtureExamples:
        """The examples of every chosen task."""
        parts = []
        for task in self.chosen:
            with self.named_options(task):
                parts.append(self.pairs(task).read(split))
        path = "mixture" if len(parts) > 1 else f"{self.chosen[0].name}-{Path(parts[0].path).name}"
        return self._joined(path, parts)

    def parts(self, path: str, size: int) -> Iterator[MixtureExamples]:
        """The examples of a file of the one task that `only` names."""
        task = self._single(f"to predict {path}", "name one in --data.only")
        with self.named_options(task):
            for part in self.pairs(task).parts(path, size):
                yield self._joined(path, [part])

    def evaluated_on(self, data: str) -> Self:
        """The mixture with another validation file of one task: NAME=FILE, or of a mixture of one task the file."""
        name, separator, file = data.partition("=")
        if not separator or name not in [task.name for task in self.tasks]:
            name, file = self._single(f"to evaluate {data}", "name it with --data NAME=FILE").name, data
        tasks = (dataclasses.replace(task, validation=file) if task.name == name else task for task in self.tasks)
        return dataclasses.replace(self, tasks=tuple(tasks), only=(name,), folder="")

    def mixing(self, train: MixtureExamples) -> Mixing:
        """The rates of the chosen tasks."""
        return Mixing(tuple(map(len, train.parts)), self.limit, self.temperature)

    def texts(self, examples: MixtureExamples) -> Iterator[str]:
        """The sources and the targets of all tasks."""
        for task, part in zip(self.chosen, examples.parts, strict=True):
            yield from self.pairs(task).texts(part)

    def _joined(self, path: str, parts: list[TextPairExamples]) -> MixtureExamples:
        lines = list(itertools.chain.from_iterable(part.lines for part in parts))
        return MixtureExamples(path, lines, parts, self.chosen)

    def _single(self, purpose: str, advice: str) -> TextTask:
        if len(self.chosen) > 1:
            names = listed(task.name for task in self.chosen)
            raise UserError(f"Expected one task of the mixture {purpose}, found {names}; {advice}.")
        return self.chosen[0]


@dataclasses.dataclass(frozen=True)
class MixedTextGeneration(TextGeneration):
    """Texts of several tasks, each judged by its own metrics, and the mean over the tasks of their first metrics.

    The loss is that of all target tokens together, whichever their task.
    """

    task_class: ClassVar[type[Task]] = Mixture

    def reported(self, task: Mixture) -> tuple[str, ...]:
        """TASK/METRIC, and mean."""
        return (*(f"{one.name}/{metric}" for one in task.chosen for metric in one.judge.names), MEAN)

    def signatures(self, task: Mixture) -> dict[str, str]:
        """TASK/METRIC_signature."""
        return {f"{one.name}/{name}": text for one in task.chosen for name, text in one.judge.signatures().items()}

    def encode(self, examples: MixtureExamples, tokenizer: Any, model: ModelConfig, task: Mixture) -> Encoded:
        """The rows of every task, one task after the other."""
        parts = []
        for one, part in zip(task.chosen, examples.parts, strict=True):
            with task.named_options(one):
                parts.append(super().encode(part, tokenizer, model, task.pairs(one)))
        return _joined(parts)

    def answer(self, examples: MixtureExamples, encoded: Encoded, outputs: Outputs) -> Answers:
        """predictions.TASK.jsonl: for every pair its line, its source, its target and what was written."""
        found, files, records = {}, {}, iter(self.records(examples, encoded, outputs))
        for task, part in zip(examples.tasks, examples.parts, strict=True):
            scores, written = judged(task.judge, part, list(itertools.islice(records, len(part))))
            found |= {f"{task.name}/{metric}": value for metric, value in scores.items()}
            files[f"predictions.{task.name}.jsonl"] = written
        first = [found[f"{task.name}/{task.judge.names[0]}"] for task in examples.tasks]
        return found | {MEAN: float(np.mean(first))}, files


def _check_different(what: str, values: list[str], names: list[str]) -> None:
    """Raises UserError for the first value that stands twice in a list."""
    for place, value in enumerate(values):
        if value in values[:place]:
            holders = f"in {names[values.index(value)]} and in {names[place]}" if names != values else "twice"
            raise UserError(f"Expected {what} to differ, found {quoted(value)} {holders}; change one.")


def _joined(parts: list[Encoded]) -> Encoded:
    """The sequences of several files, one after the other."""
    ends = np.cumsum([part.offsets[-1] for part in parts])
    offsets = [part.offsets[1:] + end - part.offsets[-1] for part, end in zip(parts, ends, strict=True)]
    return dataclasses.replace(
        parts[0],
        tokens=np.concatenate([part.tokens for part in parts]),
        offsets=np.concatenate([[0], *offsets]),
        summaries=np.concatenate([part.summaries for part in parts]),
        token_fields={
            name: np.concatenate([part.token_fields[name] for part in parts]) for name in parts[0].token_fields
        },
        decoder=None if parts[0].decoder is None else _joined([part.decoder for part in parts]),
    )
