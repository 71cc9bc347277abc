"""Multiple choice: selection of the right ending or answer among several (Devlin et al. 2019, section 4.4).

Each choice is a pair with the context, for BERT [CLS] context [SEP] question choice [SEP]. The model's head for choices
returns one number per choice, and the softmax is over the choices of a question. The choices of one question are stored
side by side: the fields of a batch are [R C T] and [R C K], and `labels` int32 [R C K] repeats the index of the right
choice for each choice.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError, quoted
from plmjax.finetuning.batches.encoded import Encoded, row_arrays
from plmjax.finetuning.files import tables
from plmjax.finetuning.tasks.sentences import rounded_probabilities, softmax, tsv
from plmjax.finetuning.tasks.sequences import SequenceObjective
from plmjax.finetuning.tasks.task import Answers, Examples, FileTask, Outputs, Record, Row, Task, check_length, exists
from plmjax.objectives.objective import Batch, cross_entropy


@dataclasses.dataclass(frozen=True)
class ChoiceExamples(Examples):
    """Examples of multiple choice.

    Attributes:
        contexts: the texts.
        choices: the choices of each question, each with the question before it.
        answers: the index of the right choice, or None if it is unknown.
    """

    contexts: list[str]
    choices: list[list[str]]
    answers: list[int | None]


@dataclasses.dataclass(frozen=True)
class Choices(FileTask):
    """Rows of a tsv, csv or jsonl file, plain or with .gz, and the meaning of their columns."""

    examples: ClassVar[type[Examples]] = ChoiceExamples
    contents: ClassVar[str] = "rows"
    prediction_settings: ClassVar[tuple[str, ...]] = ("context", "question", "choices", "columns")
    label_settings: ClassVar[tuple[str, ...]] = ("label",)

    context: str = "context"
    """Column of the text that every choice is read with."""
    question: str = ""
    """Column of a text that stands before every choice; empty for none."""
    choices: tuple[str, ...] = ("choices",)
    """Columns of the choices, or the one column that lists them."""
    label: str = "label"
    """Column of the right choice: its number from 0 in every row, or its letter in every row."""
    columns: tuple[str, ...] = ()
    """Names of the columns of a tsv or csv whose first row is data already; empty reads them from the first row."""

    def rows(self, path: str, labelled: bool = True) -> Iterator[Row]:
        """Yield (line, context, choices, index of the right choice)."""
        count, first = 0, ""
        for line, row in tables.rows(path, self.columns, spare="" if labelled else self.label):
            where = f"line {line} of {path}"
            found = [tables.cell(row, column, "choices", where) for column in self.choices]
            found = found[0] if len(found) == 1 and isinstance(found[0], list) else found
            choices = [tables.text(choice, " ".join(self.choices), where) for choice in found]
            if self.question:
                question = tables.text(tables.cell(row, self.question, "question", where), self.question, where)
                choices = [f"{question} {choice}" for choice in choices]
            count = count or len(choices)
            if len(choices) != count or count < 2:
                raise UserError(
                    f"Expected {max(count, 2)} choices in {where}, found {len(choices)}; fix that line or set "
                    f"--data.choices."
                )
            context, answer = tables.text(tables.cell(row, self.context, "context", where), self.context, where), None
            if labelled:
                cell = tables.cell(row, self.label, "label", where)
                answer = _number(tables.label(cell, self.label, where), count, where)
                key = cell.strip() if isinstance(cell, str) else ""
                first = first or key
                if key and first.isdecimal() != key.isdecimal():
                    raise UserError(
                        f"Expected the right choices of {path} all as numbers from 0 or all as letters, found "
                        f"{quoted(first)} and, in {where}, {quoted(key)}; write letters, as 1 may be the first choice."
                    )
            yield line, context, choices, answer


def _number(label: str, choices: int, where: str) -> int:
    names = [str(number) for number in range(choices)] + [chr(ord("A") + number) for number in range(choices)]
    if label.upper() not in names:
        raise UserError(
            f"Expected the right choice in {where} as 0 to {choices - 1} or A to {names[-1]}, found {quoted(label)}; "
            f"fix it."
        )
    return names.index(label.upper()) % choices


@dataclasses.dataclass(frozen=True)
class MultipleChoice(SequenceObjective):
    """Cross entropy of the softmax over a question's choices."""

    task_class: ClassVar[type[Task]] = Choices
    purpose: ClassVar[Purpose] = Purpose.MULTIPLE_CHOICE
    metric_names: ClassVar[tuple[str, ...]] = ("accuracy",)

    def module(self, config: Any, execution: Execution) -> nn.Module:
        return config.module(Purpose.MULTIPLE_CHOICE, execution)

    def encode(self, examples: ChoiceExamples, tokenizer: Any, model: ModelConfig, task: Task) -> Encoded:
        """Encode one sequence per choice. The choices of a question are adjacent."""
        template = model.template
        check_length(template, tokenizer.vocabulary, task.sequence_length)
        count = len(examples.choices[0])
        contexts = tokenizer.encode_batch(examples.contexts)
        endings = tokenizer.encode_batch([choice for choices in examples.choices for choice in choices])
        rows = [
            template.lay_out((contexts[i // count], ending), tokenizer.vocabulary, task.sequence_length)
            for i, ending in enumerate(endings)
        ]
        answers = np.repeat(np.array([answer or 0 for answer in examples.answers], np.int32), count)
        return Encoded(**row_arrays(rows), sequence_fields={"labels": answers}, choices=count)

    def losses(self, outputs: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return the nats of the right choice, [R K]."""
        logits = jnp.moveaxis(outputs.logits, 1, -1)  # [R C K] -> [R K C]
        return {"task": cross_entropy(logits, batch["labels"][:, 0])}

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return [R K]: 1 for a question, 0 for padding."""
        return {"task": exists(batch)[:, 0]}

    def counts(self, outputs: Any, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        there = exists(batch)[:, 0]
        right = jnp.argmax(outputs.logits, axis=1) == batch["labels"][:, 0]
        return {"accuracy": (jnp.sum(right * there), jnp.sum(there))}

    def evaluate_outputs(self, examples: ChoiceExamples, encoded: Encoded, outputs: list[np.ndarray]) -> Answers:
        """Return metrics and predictions.tsv: line, right choice, prediction and its probability."""
        records = self.records(examples, encoded, outputs)
        right = [record["prediction"] == answer for record, answer in zip(records, examples.answers, strict=True)]
        return {"accuracy": float(np.mean(right))}, {"predictions.tsv": tsv(examples.answers, records)}

    def records(self, examples: ChoiceExamples, encoded: Encoded, outputs: list[np.ndarray]) -> list[Record]:
        """Return line, prediction, probability and probabilities of every example.

        The prediction is the index of a choice from 0; probabilities has a value for every choice.
        """
        scores = np.stack(outputs).reshape(len(examples), encoded.choices)
        chosen, probabilities = scores.argmax(axis=1).tolist(), map(rounded_probabilities, softmax(scores))
        return [
            {"line": line, "prediction": choice, "probability": found[choice], "probabilities": found}
            for line, choice, found in zip(examples.lines, chosen, probabilities, strict=True)
        ]

    def average_outputs(self, outputs: Sequence[Outputs], encoded: Encoded) -> Outputs:
        scores = [np.stack(each).reshape(-1, encoded.choices) for each in outputs]
        return [*np.log(np.mean([softmax(each) for each in scores], axis=0)).reshape(len(outputs[0]))]

    def head_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Return 6 (D^2 + D) per sequence."""
        size = config.width
        return 6.0 * int(np.prod(batch["example_ids"].shape)) * (size**2 + size)
