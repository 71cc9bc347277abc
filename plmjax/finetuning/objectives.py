"""Tasks over whole rows: a label or a number for a sentence or a pair (Devlin et al. 2019, section 4.1).

Fields of a batch (B rows, T tokens): input_ids, segment_ids, token_type_ids int32 [B T]; row_ids int32 [B], -1 for a
row that only fills the batch; labels [B], int32 or float32.
"""

import dataclasses
import math
from typing import Any, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import UserError, nearest
from plmjax.finetuning import metrics
from plmjax.finetuning.tasks import Examples
from plmjax.layers.execution import Execution
from plmjax.objectives.objective import Batch, Objective, Sums, apply, cross_entropy

HEAD = "classifier"
"""The part of a fine-tuned model's parameters that pretraining does not give: drawn anew for every task."""


@dataclasses.dataclass(frozen=True)
class SentenceObjective(Objective):
    """Base of the two: what the model reads, and what the task's own files say of it."""

    label_dtype = jnp.int32

    @property
    def outputs(self) -> int:
        """Numbers that the head gives a row."""
        raise NotImplementedError(f"{type(self).__name__} must say how many outputs it needs.")

    def learn(self, train: Examples) -> Self:
        """The objective with what it takes from the train file filled in."""
        return self

    def encode(self, examples: Examples) -> np.ndarray:
        """Labels as numbers [N] of `label_dtype`; UserError names the line of one that is none."""
        raise NotImplementedError(f"{type(self).__name__} must say what its labels mean.")

    def predictions(self, outputs: np.ndarray) -> list[dict[str, str]]:
        """Column -> cell of the predictions file for outputs [N outputs]."""
        raise NotImplementedError(f"{type(self).__name__} must say what its outputs mean.")

    def metrics(self, labels: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
        """Metric -> value for labels [N] and outputs [N outputs] of a whole file."""
        raise NotImplementedError(f"{type(self).__name__} must name its metrics.")

    def losses(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
        """Loss of each row: [B outputs], [B] -> float32 [B]."""
        raise NotImplementedError(f"{type(self).__name__} must say what it loses.")

    def module(self, config: Any, execution: Execution) -> nn.Module:
        """The model with a new head on its pooled output."""
        if not hasattr(config, "for_sequence_classification"):
            raise UserError(
                f"Expected a model that classifies sequences, found {type(config).__name__}; fine-tune another one."
            )
        return config.for_sequence_classification(self.outputs, execution)

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        """Tokens, which of them are no padding, and which belong to the second sentence."""
        return {
            "input_ids": batch["input_ids"],
            "attention_mask": batch["segment_ids"] > 0,
            "token_type_ids": batch["token_type_ids"],
        }

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Every row counts once, those that fill the batch not at all."""
        return {"task": jnp.sum(_exists(batch))}

    def sums(self, module: nn.Module, params: Any, carry: Any, batch: Batch, dropout: jax.Array | None) -> Sums:
        """The losses of the rows there are, and how many of them are right."""
        outputs = apply(self, module, params, batch, dropout).logits
        exists = _exists(batch)
        losses = {"task": jnp.sum(self.losses(outputs, batch["labels"]) * exists)}
        return Sums(losses=losses, metrics=self.counts(outputs, batch["labels"], exists), carry=carry)

    def counts(self, outputs: jax.Array, labels: jax.Array, exists: jax.Array) -> dict[str, tuple]:
        """Metric -> (sum, weight) of a batch; the metrics that are no sums come from `metrics`."""
        return {}

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """The encoder's, and 6 (D^2 + D outputs) a row for pooler and head; all of it where parameters are frozen."""
        rows, length = batch["input_ids"].shape
        size = config.hidden_size
        return config.train_flops(rows, length, 0) + 6.0 * rows * (size**2 + size * self.outputs)


@dataclasses.dataclass(frozen=True)
class SequenceClassification(SentenceObjective):
    """One of several labels a row: cross entropy of softmax(W dropout(pooled) + b)."""

    labels: tuple[str, ...] = ()
    """The labels in the order of their numbers; empty takes those of the train file, sorted."""

    @property
    def outputs(self) -> int:
        """One logit a label."""
        return len(self.labels)

    def learn(self, train: Examples) -> Self:
        """With the labels of the train file.

        Raises:
            UserError: fewer than two of them.
        """
        labels = self.labels or tuple(sorted(set(train.labels)))
        if len(labels) < 2:
            raise UserError(
                f"Expected at least two different labels in {train.path}, found {labels[0]!r} only; check --data.label."
            )
        return dataclasses.replace(self, labels=labels)

    def encode(self, examples: Examples) -> np.ndarray:
        """The number of each row's label, int32 [N]."""
        numbers = {label: number for number, label in enumerate(self.labels)}
        for row, label in enumerate(examples.labels):
            if label not in numbers:
                raise UserError(
                    f"Expected a label seen in training, found {label!r} in {examples.where(row)}; "
                    f"{nearest(label, self.labels)}"
                )
        return np.array([numbers[label] for label in examples.labels], np.int32)

    def losses(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
        """Cross entropy in nats."""
        return cross_entropy(outputs, labels)

    def counts(self, outputs: jax.Array, labels: jax.Array, exists: jax.Array) -> dict[str, tuple]:
        """accuracy."""
        right = jnp.sum((jnp.argmax(outputs, axis=-1) == labels) * exists)
        return {"accuracy": (right, jnp.sum(exists))}

    def predictions(self, outputs: np.ndarray) -> list[dict[str, str]]:
        """The likeliest label and its probability."""
        exponentials = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
        probabilities = exponentials / exponentials.sum(axis=-1, keepdims=True)
        best = outputs.argmax(axis=-1)
        return [
            {"prediction": self.labels[number], "probability": f"{row[number]:.6f}"}
            for number, row in zip(best, probabilities, strict=True)
        ]

    def metrics(self, labels: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
        """accuracy, f1 (or macro_f1), matthews."""
        return metrics.classification(labels, outputs.argmax(axis=-1), self.outputs)


@dataclasses.dataclass(frozen=True)
class Regression(SentenceObjective):
    """A number a row: squared error of W dropout(pooled) + b."""

    label_dtype = jnp.float32

    @property
    def outputs(self) -> int:
        """One."""
        return 1

    def encode(self, examples: Examples) -> np.ndarray:
        """The number of each row, float32 [N]."""
        numbers = np.zeros(len(examples.labels), np.float32)
        for row, label in enumerate(examples.labels):
            try:
                numbers[row] = float(label)
            except ValueError:
                numbers[row] = math.nan
            if not math.isfinite(numbers[row]):
                raise UserError(f"Expected a number to predict, found {label!r} in {examples.where(row)}; mend it.")
        return numbers

    def losses(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
        """Squared error."""
        return jnp.square(outputs[:, 0].astype(jnp.float32) - labels)

    def predictions(self, outputs: np.ndarray) -> list[dict[str, str]]:
        """The number."""
        return [{"prediction": f"{value:.6g}"} for value in outputs[:, 0]]

    def metrics(self, labels: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
        """pearson, spearman, mean_squared_error."""
        return metrics.regression(labels, outputs[:, 0])


def _exists(batch: Batch) -> jax.Array:
    return (batch["row_ids"] >= 0).astype(jnp.float32)
