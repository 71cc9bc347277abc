"""What a model makes of a whole file of examples: the loss, the task's metrics, the predictions."""

import functools
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from plmjax.errors import UserError
from plmjax.finetuning.source import TaskSource
from plmjax.finetuning.task import Examples, TaskObjective
from plmjax.objectives.objective import apply
from plmjax.parallel import sharding
from plmjax.training import feed
from plmjax.training.step import Program


class Forward:
    """One pass of a model over the validation file of a source; every pass with one program compiles once."""

    def __init__(self, objective: TaskObjective) -> None:
        self._objective = objective
        self._forward = functools.cache(lambda program: _forward(program, objective))

    def __call__(self, program: Program, params: Any, source: TaskSource) -> tuple[float, list[np.ndarray]]:
        """(mean loss, what predictions are made from of every sequence in order: `TaskObjective.collected`)."""
        forward = self._forward(program)
        encoded = source.validation_rows.encoded
        outputs: list[Any] = [None] * len(encoded)
        total = weight = 0.0
        for batch in feed.on_device(source.evaluation(program.phase, feed.places(program)), program):
            loss, count, collected, examples, begins = jax.device_get(forward(params, batch))
            total, weight = total + float(loss), weight + float(count)
            self._sort(outputs, collected, examples, begins, encoded.offsets)
        return total / max(weight, 1e-9), outputs

    def _sort(
        self, outputs: list[Any], collected: np.ndarray, examples: np.ndarray, begins: np.ndarray, offsets: np.ndarray
    ) -> None:
        """Puts a batch's outputs to the sequences that they belong to."""
        most, numbers = examples.shape[-1], collected.shape[examples.ndim :]  # of choices [R C K] and [R C K ...]
        examples, begins = examples.reshape(-1, most), begins.reshape(-1, most)
        collected = collected.astype(np.float32).reshape(len(examples), -1, *numbers)
        for row, slot in zip(*np.nonzero(examples >= 0), strict=True):
            sequence, begin = examples[row, slot], begins[row, slot]
            length = offsets[sequence + 1] - offsets[sequence]
            mine = collected[row, begin : begin + length] if self._objective.per_token else collected[row, slot]
            outputs[sequence] = mine


class TaskEvaluation:
    """The evaluation of a run on a task (`plmjax.training.loop.Evaluation`): one pass over its validation file.

    predictions: name of a file -> its contents, of the last evaluation.
    """

    def __init__(self, objective: TaskObjective, examples: Examples, source: TaskSource) -> None:
        self._objective, self._examples, self._source = objective, examples, source
        self._forward = Forward(objective)
        self.predictions: dict[str, str] = {}

    def names(self, program: Program) -> list[str]:
        """The metrics of an evaluation."""
        return list(dict.fromkeys(["loss", *self._objective.metric_names]))

    def __call__(self, program: Program, params: Any, limit: int = 0) -> dict[str, float]:
        """The metrics of parameters: {"loss": ..., "accuracy": ..., ...}."""
        if limit:
            raise UserError(
                f"Expected --training.evaluation_batches 0, as a task's metrics are of its whole file, found {limit}."
            )
        loss, outputs = self._forward(program, params, self._source)
        encoded = self._source.validation_rows.encoded
        metrics, self.predictions = self._objective.answer(self._examples, encoded, outputs)
        return {"loss": loss, **metrics}


def _forward(program: Program, objective: TaskObjective) -> Any:
    """(params, batch) -> loss, its weight, what predictions are made from, which sequences they are, their begins."""
    whole = NamedSharding(program.mesh, PartitionSpec())

    def forward(params: Any, batch: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
        with program.mesh, nn.logical_axis_rules(sharding.RULES):
            outputs = apply(objective, program.module, params, batch, None)
            sums = objective.judged(outputs, batch, ())
        weight = objective.weights(batch)["task"]
        collected = objective.collected(outputs)
        return sums.losses["task"], weight, collected, batch["example_ids"], batch["cls_positions"]

    return jax.jit(forward, out_shardings=whole)
