"""Any number of labels for a sentence or a pair of sentences: topics of a news item, emotions of a remark.

Each label is predicted independently, by the sigmoid of one output. A batch also has `labels` [R K labels], float32, 1
for the right labels.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from plmjax.errors import UserError, nearest, quoted
from plmjax.finetuning.batches.encoded import Encoded
from plmjax.finetuning.files import tables
from plmjax.finetuning.metrics import classification
from plmjax.finetuning.tasks.sentences import SentenceExamples, SentenceObjective, Sentences, rounded_probabilities, tsv
from plmjax.finetuning.tasks.task import Answers, Outputs, Record, Task, exists
from plmjax.objectives.objective import Batch


@dataclasses.dataclass(frozen=True)
class LabelSetExamples(SentenceExamples):
    """Examples with sets of labels.

    labels: the labels of every row, in the order of the file; None for rows without labels.
    """

    labels: list[tuple[str, ...] | None]


@dataclasses.dataclass(frozen=True)
class LabelSets(Sentences):
    """Files like those of `Sentences`, with any number of labels per cell.

    The labels are a list in a jsonl file; in other files they are separated by `separator`.
    """

    examples: ClassVar[type] = LabelSetExamples

    separator: str = ","
    """Text between the labels of a cell; an empty cell has no labels."""

    def parse_label(self, cell: Any, where: str) -> tuple[str, ...]:
        if isinstance(cell, str):
            cell = [part for part in cell.split(self.separator or None) if part.strip()]
        named = cell if isinstance(cell, list) else [cell]
        return tuple(dict.fromkeys(tables.label(one, self.label, where) for one in named))


@dataclasses.dataclass(frozen=True)
class MultiLabelClassification(SentenceObjective):
    """Any number of labels per row: the mean over labels of the binary cross entropy of sigmoid outputs."""

    task_class: ClassVar[type[Task]] = LabelSets
    prediction_settings: ClassVar[tuple[str, ...]] = ("threshold",)
    metric_names: ClassVar[tuple[str, ...]] = ("micro_f1", "macro_f1", "accuracy")

    labels: tuple[str, ...] = ()
    """The labels in the order of their numbers; empty takes those of the train file, sorted."""
    threshold: float = 0.5
    """Smallest probability at which a label is predicted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.threshold < 1:
            raise UserError(f"Expected --objective.threshold between 0 and 1, found {self.threshold}.")

    @property
    def outputs(self) -> int:
        return len(self.labels)

    def fit_labels(self, train: LabelSetExamples) -> Self:
        """Return the objective with the labels of the train file.

        Raises:
            UserError: the file has no labels.
        """
        labels = self.labels or tuple(sorted({label for row in train.labels for label in row}))
        if not labels:
            raise UserError(f"Expected labels in {train.path}, found none in any row; check --data.label.")
        return dataclasses.replace(self, labels=labels)

    def numbers(self, examples: LabelSetExamples) -> np.ndarray:
        """Return the labels as float32 [S labels]."""
        numbers = {label: number for number, label in enumerate(self.labels)}
        matrix = np.zeros((len(examples), len(self.labels)), np.float32)
        for row, labels in enumerate(examples.labels):
            for label in labels or ():
                if label not in numbers:
                    where = examples.where(row)
                    raise UserError(
                        f"Expected labels seen in training, found {quoted(label)} in {where}; {nearest(label, numbers)}"
                    )
                matrix[row, numbers[label]] = 1
        return matrix

    def losses(self, outputs: Any, batch: Batch) -> dict[str, jax.Array]:
        losses = optax.sigmoid_binary_cross_entropy(outputs.logits, batch["labels"])
        return {"task": jnp.mean(losses, axis=-1)}

    def counts(self, outputs: Any, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        """Return accuracy: the fraction of rows with every label right."""
        right = jnp.all((jax.nn.sigmoid(outputs.logits) >= self.threshold) == (batch["labels"] > 0), axis=-1)
        return {"accuracy": (jnp.sum(right * exists(batch)), jnp.sum(exists(batch)))}

    def average_outputs(self, outputs: Sequence[Outputs], encoded: Encoded) -> Outputs:
        probability = np.mean([sigmoid(np.stack(each)) for each in outputs], axis=0)
        with np.errstate(divide="ignore"):  # probabilities of 0 and 1 have infinite logits
            return [*(np.log(probability) - np.log1p(-probability))]

    def predictions(self, outputs: np.ndarray) -> list[Record]:
        """Return the labels whose probability reaches the threshold, and the probabilities of all."""
        return [
            {
                "prediction": [
                    label for label, present in zip(self.labels, row >= self.threshold, strict=True) if present
                ],
                "probabilities": dict(zip(self.labels, rounded_probabilities(row), strict=True)),
            }
            for row in sigmoid(outputs)
        ]

    def metrics(self, labels: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
        """Return micro F1, macro F1 and the fraction of rows with every label right."""
        return classification.label_sets(labels > 0, sigmoid(outputs) >= self.threshold)

    def evaluate_outputs(self, examples: LabelSetExamples, encoded: Encoded, outputs: list[np.ndarray]) -> Answers:
        """Return metrics and predictions as for single labels; a cell is a JSON list of labels."""
        records = self.records(examples, encoded, outputs)
        rows = [record | {"prediction": _cell(record["prediction"])} for record in records]
        predictions = {"predictions.tsv": tsv([_cell(labels) for labels in examples.labels], rows)}
        return self.file_metrics(encoded, outputs), predictions

    def submission(self, records: Iterable[Record]) -> Iterator[str]:
        """Yield lines as for single labels; a cell is a JSON list of labels."""
        return super().submission(record | {"prediction": _cell(record["prediction"])} for record in records)


def sigmoid(outputs: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)), in a form that does not overflow."""
    return 0.5 * (1 + np.tanh(0.5 * outputs))


def _cell(labels: Iterable[str]) -> str:
    return json.dumps(list(labels), ensure_ascii=False)
