"""A label or a number for a sentence or a pair of sentences (Devlin et al. 2019, section 4.1), such as GLUE's tasks.

Files are tsv, csv or jsonl with named columns. A batch also has `labels` [R K], int32 or float32.
"""

import csv
import dataclasses
import io
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError, nearest, quoted
from plmjax.files.decimals import decimal
from plmjax.finetuning.batches.encoded import Encoded, row_arrays
from plmjax.finetuning.files import tables, text_files
from plmjax.finetuning.metrics import classification
from plmjax.finetuning.tasks.sequences import SequenceObjective
from plmjax.finetuning.tasks.task import Answers, Examples, FileTask, Outputs, Record, Row, Task, check_length, exists
from plmjax.objectives.objective import Batch, cross_entropy
from plmjax.parallel import hosts

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class SentenceExamples(Examples):
    """Examples with one label or number each.

    texts: (sentence,) or (first, second) of every row. labels: the labels as written; None in unlabelled files.
    """

    texts: list[tuple[str, ...]]
    labels: list[str | None]


@dataclasses.dataclass(frozen=True)
class Sentences(FileTask):
    """Rows of a tsv, csv or jsonl file, plain or with .gz, and the meaning of their columns.

    Cells of a tsv are read unchanged, as in GLUE's files; those of a csv may be quoted. If a pair is too long for its
    row, the longer text is truncated first. Single sentences to predict may also be the lines of a .txt file.
    """

    examples: ClassVar[type[Examples]] = SentenceExamples
    prediction_settings: ClassVar[tuple[str, ...]] = ("text", "text_pair", "columns", "skip_bad_rows")
    label_settings: ClassVar[tuple[str, ...]] = ("label", "unlabelled")

    text: str = "text"
    """Column of the sentence, or of the first of a pair."""
    text_pair: str = ""
    """Column of the second sentence; empty for single sentences."""
    label: str = "label"
    """Column of the label, or of the number to predict."""
    columns: tuple[str, ...] = ()
    """Names of the columns of a tsv or csv whose first row is data already; empty reads them from the first row."""
    skip_bad_rows: bool = False
    """If true, skip rows with too few cells and accept empty texts, as in GLUE's QQP; if false, they are errors."""
    unlabelled: str = "-"
    """Label of rows without a label, which are left out with a warning, as in SNLI; empty leaves none out. In a file
    that also has the label +, - is a label like any other.
    """

    def read(self, split: str) -> SentenceExamples:
        """Read the examples of "train" or "validation", without unlabelled rows."""
        examples = super().read(split)
        labels = set(examples.labels)
        if not self.unlabelled or self.unlabelled not in labels or {"+", "-"} <= labels:
            return examples
        kept = [row for row, label in enumerate(examples.labels) if label != self.unlabelled]
        if not kept:
            raise UserError(
                f"Expected labels in {examples.path}, found only {quoted(self.unlabelled)}, which is for rows without "
                f"one; name another file in --data.{split}, or set --data.unlabelled."
            )
        if hosts.is_primary():
            log.warning(
                "%d of %d rows of %s have the label %s (--data.unlabelled), and are left out.",
                len(examples) - len(kept), len(examples), examples.path, self.unlabelled,
            )  # fmt: skip
        fields = {name: [getattr(examples, name)[row] for row in kept] for name in ("lines", "texts", "labels")}
        return dataclasses.replace(examples, **fields)

    def rows(self, path: str, labelled: bool = True) -> Iterator[Row]:
        """Yield (line, texts, label)."""
        wanted = {"text": self.text, **({"text_pair": self.text_pair} if self.text_pair else {})}
        if not labelled and not self.text_pair and text_files.suffix(path) == ".txt":
            for line, text in enumerate(text_files.lines(path), start=1):
                yield line, (text.strip(),), None
            return
        for line, row in tables.rows(path, self.columns, self.skip_bad_rows, spare="" if labelled else self.label):
            where = f"line {line} of {path}"
            texts = []
            for option, column in wanted.items():
                value = tables.cell(row, column, option, where)
                texts.append("" if self.skip_bad_rows and value == "" else tables.text(value, column, where))
            label = self.parse_label(tables.cell(row, self.label, "label", where), where) if labelled else None
            yield line, tuple(texts), label

    def parse_label(self, cell: Any, where: str) -> Any:
        """Return the label of a cell."""
        return tables.label(cell, self.label, where)


@dataclasses.dataclass(frozen=True)
class SentenceObjective(SequenceObjective):
    """Base class of objectives that label single sentences or pairs of sentences."""

    task_class: ClassVar[type[Task]] = Sentences
    purpose: ClassVar[Purpose] = Purpose.SEQUENCE_CLASSIFICATION

    @property
    def outputs(self) -> int:
        """Return the number of outputs of the head for a sequence."""
        raise NotImplementedError(f"{type(self).__name__} must define `outputs`.")

    def numbers(self, examples: SentenceExamples) -> np.ndarray:
        """Return labels as numbers [S]. A UserError names the line of an invalid label."""
        raise NotImplementedError(f"{type(self).__name__} must define `numbers`.")

    def predictions(self, outputs: np.ndarray) -> list[Record]:
        """Return the predictions for outputs [S outputs]."""
        raise NotImplementedError(f"{type(self).__name__} must define `predictions`.")

    def metrics(self, labels: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
        """Return a dict from metric to value, for labels [S] and outputs [S outputs] of a whole file."""
        raise NotImplementedError(f"{type(self).__name__} must define `metrics`.")

    def module(self, config: Any, execution: Execution) -> nn.Module:
        return config.module(Purpose.SEQUENCE_CLASSIFICATION, execution, self.outputs)

    def encode(self, examples: SentenceExamples, tokenizer: Any, model: ModelConfig, task: Task) -> Encoded:
        """Encode a row for every sentence or pair, or two rows for every pair if the template has both orders."""
        template = model.template
        check_length(template, tokenizer.vocabulary, task.sequence_length)
        sides = [tokenizer.encode_batch(list(side)) for side in zip(*examples.texts, strict=True)]
        orders = [template.orders(texts) for texts in zip(*sides, strict=True)]
        rows = [
            template.lay_out(texts, tokenizer.vocabulary, task.sequence_length) for each in orders for texts in each
        ]
        count = len(orders[0])
        labels = np.repeat(self.numbers(examples), count, axis=0)
        return Encoded(**row_arrays(rows), sequence_fields={"labels": labels}, choices=count)

    def evaluate_outputs(self, examples: SentenceExamples, encoded: Encoded, outputs: list[np.ndarray]) -> Answers:
        """Return metrics and predictions.tsv: line, label, prediction and, for labels, its probability."""
        records = self.records(examples, encoded, outputs)
        predictions = {"predictions.tsv": tsv(examples.labels, records)}
        return self.file_metrics(encoded, outputs), predictions

    def file_metrics(self, encoded: Encoded, outputs: list[np.ndarray]) -> dict[str, float]:
        """Return the metrics of a file. Both orders of a pair have the same outputs and count once."""
        return self.metrics(
            encoded.sequence_fields["labels"][:: encoded.choices], np.stack(outputs[:: encoded.choices])
        )

    def records(self, examples: SentenceExamples, encoded: Encoded, outputs: list[np.ndarray]) -> list[Record]:
        """Return line and prediction of every example; for labels also their probabilities."""
        found = self.predictions(np.stack(outputs[:: encoded.choices]))
        return [{"line": line, **record} for line, record in zip(examples.lines, found, strict=True)]

    def head_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Return 6 (D^2 + D outputs) per sequence: the pooler or dense layer of the head, and the labels."""
        size = config.width
        return 6.0 * int(np.prod(batch["example_ids"].shape)) * (size**2 + size * self.outputs)


def tsv(labels: Sequence[Any], records: Sequence[Record]) -> str:
    """Return a table with a header: line, label, prediction and, if there is one, its probability."""
    rows = []
    for label, record in zip(labels, records, strict=True):
        row = {"line": record["line"], "label": label, "prediction": record["prediction"]}
        rows.append(row | ({"probability": f"{record['probability']:.6f}"} if "probability" in record else {}))
    table = io.StringIO()
    writer = csv.DictWriter(table, rows[0], delimiter="\t", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return table.getvalue()


def softmax(outputs: np.ndarray) -> np.ndarray:
    """Return probabilities over the last axis."""
    exponentials = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def rounded_probabilities(row: np.ndarray) -> list[float]:
    """Return probabilities rounded for output."""
    return [round(float(probability), 6) for probability in row]


def label_numbers(labels: list[str | None], known: tuple[str, ...], where: Any) -> np.ndarray:
    """Return the id of each label, int32. A UserError has `where(i)` of a label that was not seen in training.

    Without a label the id is 0, and no prediction depends on it.
    """
    numbers = {None: 0} | {label: number for number, label in enumerate(known)}
    for i, label in enumerate(labels):
        if label not in numbers:
            raise UserError(
                f"Expected a label seen in training, found {quoted(label)} in {where(i)}; {nearest(label, known)}"
            )
    return np.array([numbers[label] for label in labels], np.int32)


@dataclasses.dataclass(frozen=True)
class SequenceClassification(SentenceObjective):
    """One of several labels per row: cross entropy of the softmax over the head's outputs."""

    labels: tuple[str, ...] = ()
    """The labels in the order of their numbers; empty takes those of the train file, sorted."""

    @property
    def outputs(self) -> int:
        return len(self.labels)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Return accuracy, f1 (or macro_f1) and matthews."""
        return ("accuracy", "f1" if self.outputs == 2 else "macro_f1", "matthews")

    def fit_labels(self, train: SentenceExamples) -> Self:
        """Return the objective with the labels of the train file.

        Raises:
            UserError: the file has fewer than two labels.
        """
        labels = self.labels or tuple(sorted(set(train.labels)))
        if len(labels) < 2:
            raise UserError(
                f"Expected at least two different labels in {train.path}, found {quoted(labels[0])} only; check "
                f"--data.label."
            )
        return dataclasses.replace(self, labels=labels)

    def numbers(self, examples: SentenceExamples) -> np.ndarray:
        """Return the labels as int32."""
        return label_numbers(examples.labels, self.labels, examples.where)

    def losses(self, outputs: Any, batch: Batch) -> dict[str, jax.Array]:
        return {"task": cross_entropy(outputs.logits, batch["labels"])}

    def counts(self, outputs: Any, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        right = (jnp.argmax(outputs.logits, axis=-1) == batch["labels"]) * exists(batch)
        return {"accuracy": (jnp.sum(right), jnp.sum(exists(batch)))}

    def average_outputs(self, outputs: Sequence[Outputs], encoded: Encoded) -> Outputs:
        return [*np.log(np.mean([softmax(np.stack(each)) for each in outputs], axis=0))]

    def predictions(self, outputs: np.ndarray) -> list[Record]:
        return [
            {
                "prediction": self.labels[number],
                "probability": probabilities[number],
                "probabilities": dict(zip(self.labels, probabilities, strict=True)),
            }
            for number, probabilities in zip(
                outputs.argmax(axis=-1), map(rounded_probabilities, softmax(outputs)), strict=True
            )
        ]

    def metrics(self, labels: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
        return classification.scores(labels, outputs.argmax(axis=-1), self.outputs)


@dataclasses.dataclass(frozen=True)
class Regression(SentenceObjective):
    """One number per row: the squared error of the single output of the head."""

    prediction_settings: ClassVar[tuple[str, ...]] = ("limits",)
    metric_names: ClassVar[tuple[str, ...]] = ("pearson", "spearman", "mean_squared_error")

    limits: tuple[float, ...] = ()
    """Smallest and largest number that GLUE accepts in a file, such as 0 5 for STS-B; empty for no limits."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.limits and not (len(self.limits) == 2 and self.limits[0] < self.limits[1]):
            found = " ".join(f"{limit:g}" for limit in self.limits)
            raise UserError(f"Expected a smaller and a larger number for --objective.limits, found {found}.")

    @property
    def outputs(self) -> int:
        return 1

    def numbers(self, examples: SentenceExamples) -> np.ndarray:
        """Return the targets as float32."""
        numbers = np.zeros(len(examples), np.float32)
        for row, label in enumerate(examples.labels):
            if label is None:
                continue
            try:
                numbers[row] = decimal(label)
            except ValueError:
                numbers[row] = math.nan
            if not math.isfinite(numbers[row]):
                where = examples.where(row)
                raise UserError(f"Expected a number to predict, found {quoted(label)} in {where}; fix it.")
        return numbers

    def losses(self, outputs: Any, batch: Batch) -> dict[str, jax.Array]:
        return {"task": jnp.square(outputs.logits[..., 0] - batch["labels"])}

    def average_outputs(self, outputs: Sequence[Outputs], encoded: Encoded) -> Outputs:
        return [*np.mean(outputs, axis=0)]

    def predictions(self, outputs: np.ndarray) -> list[Record]:
        return [{"prediction": float(f"{value:.6g}")} for value in outputs[:, 0]]

    def submission(self, records: Iterable[Record]) -> Iterator[str]:
        """Yield GLUE's lines, with numbers clipped to the limits."""
        least, most = self.limits or (-math.inf, math.inf)
        return super().submission(
            record | {"prediction": min(max(record["prediction"], least), most)} for record in records
        )

    def metrics(self, labels: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
        """Return the metrics of STS-B, and the mean squared error."""
        return classification.regression(labels, outputs[:, 0])
