"""Evaluation on all examples of a file: the loss, the task's metrics, the predictions."""

from typing import Any

import flax.traverse_util
import jax
import numpy as np
from jax.experimental import multihost_utils

from plmjax.errors import UserError, options_named
from plmjax.experiment import Experiment, Mesh
from plmjax.finetuning.batches.encoded import Encoded
from plmjax.finetuning.batches.source import TaskSource
from plmjax.finetuning.tasks.task import Examples, Outputs, TaskObjective
from plmjax.generation.batch_generator import BatchGenerator
from plmjax.objectives.objective import LossInputs
from plmjax.parallel import hosts
from plmjax.training import program as programs
from plmjax.training.evaluation import Totals, batches, joint_loss
from plmjax.training.program import Program

_NOTHING = -1
"""Padding after the end of a text in the tokens that hosts exchange."""
_NO_WEIGHT = 1e-3
"""Upper bound of the total weight of a term that does not occur in a file. Its weight is not exactly 0, because no
batch has a weight of 0 (`TaskObjective.weights`).
"""


def check_whole_file(batches: int) -> None:
    """Raise UserError if an evaluation is limited to a number of batches; 0 means no limit."""
    if batches:
        raise UserError(
            f"Expected --training.evaluation_batches 0, found {batches}; leave it out, since a task's metrics are of "
            f"its whole file."
        )


class Forward:
    """One pass of a model over the validation file of a source.

    run: the experiment, whose objective defines the computation.
    tokenizer: a plmjax.data.tokenizers.Tokenizer, for an objective whose predictions are generated text.
    """

    def __init__(self, run: Experiment, tokenizer: Any) -> None:
        self._run, self._objective, self._tokenizer = run, run.objective, tokenizer

    def __call__(
        self, program: Program, loss_inputs: LossInputs, source: TaskSource
    ) -> tuple[dict[str, float], Outputs]:
        """Return (mean losses by name, outputs for the predictions of every sequence in order)."""
        encoded = source.validation_rows.encoded
        outputs: list[Any] = [None] * len(encoded)
        totals, losses = Totals(), losses_of(self._objective, program)
        for sums, (collected, examples, starts) in batches(program, loss_inputs, source, seed=self._run.training.seed):
            totals.add({name: sums[name] for name in losses})
            if not self._objective.generates:
                self._sort(outputs, collected, examples, starts=starts, offsets=encoded.offsets)
        if self._objective.generates:
            outputs = self._generate_texts(loss_inputs.params, encoded)
        means = {name: float(total / weight) for name, (total, weight) in totals.items() if weight > _NO_WEIGHT}
        if losses:
            means.setdefault("loss", next(iter(means.values()), 0.0))  # the first term that occurs
        return means, outputs

    def _sort(
        self,
        outputs: list[Any],
        collected: np.ndarray,
        examples: np.ndarray,
        *,
        starts: np.ndarray,
        offsets: np.ndarray,
    ) -> None:
        """Store a batch's outputs under the sequences to which they belong."""
        per_row, numbers = examples.shape[-1], collected.shape[examples.ndim :]  # of choices [R C K] and [R C K ...]
        examples, starts = examples.reshape(-1, per_row), starts.reshape(-1, per_row)
        collected = collected.astype(np.float32).reshape(len(examples), -1, *numbers)
        for row, slot in zip(*np.nonzero(examples >= 0), strict=True):
            sequence, start = examples[row, slot], starts[row, slot]
            length = offsets[sequence + 1] - offsets[sequence]
            mine = collected[row, start : start + length] if self._objective.per_token else collected[row, slot]
            outputs[sequence] = mine

    def _generate_texts(self, params: Any, encoded: Encoded) -> list[str]:
        """Generate the text after the prompt of every sequence. Each of several hosts generates a part."""
        run, vocabulary = self._run, self._tokenizer.vocabulary
        whole = params if jax.process_count() == 1 else multihost_utils.process_allgather(params, tiled=True)
        execution = programs.execution(run, jax.default_backend())
        params, model = jax.device_get(whole), run.model
        if run.compression is not None:
            flat, model = run.compression.finish(flax.traverse_util.flatten_dict(params, sep="/"), model)
            params = flax.traverse_util.unflatten_dict(flat, sep="/")
        writer = BatchGenerator(model, params, vocabulary, execution=execution, mesh=Mesh(data=0, fsdp=1, tensor=1))
        prompts = encoded.prompts()
        settings, count = self._objective.generation_settings(), jax.process_count()
        _, longest = settings.lengths(before=1)
        own = np.full((-(-len(prompts) // count), longest), _NOTHING, np.int32)
        with options_named({"--max_new_tokens": "--objective.max_new_tokens"}):
            texts = writer(prompts[jax.process_index() :: count], settings)
        for row, (text,) in zip(own, texts, strict=False):
            row[: len(text.tokens)] = text.tokens
        written = hosts.all_gather(own).swapaxes(0, 1).reshape(-1, longest)[: len(prompts)]
        return [self._tokenizer.decode(row[row != _NOTHING].tolist()) for row in written]


class TaskEvaluation:
    """The evaluation of a run on a task (`plmjax.training.loop.Evaluation`): one pass over its validation file.

    predictions: name of a file -> its contents, from the last evaluation.
    """

    def __init__(self, run: Experiment, examples: Examples, source: TaskSource, tokenizer: Any) -> None:
        self._objective, self._task, self._examples, self._source = run.objective, run.data, examples, source
        self._forward = Forward(run, tokenizer)
        self.predictions: dict[str, str] = {}

    def signatures(self) -> dict[str, str]:
        """Return the definitions of metrics that have several variants, as "eval/NAME_signature"."""
        return {f"eval/{name}": signature for name, signature in self._objective.signatures(self._task).items()}

    def names(self, program: Program) -> list[str]:
        """Return the names of the metrics of an evaluation."""
        losses = losses_of(self._objective, program)
        joint = ["joint_loss"] if len(losses) > 1 else []
        return list(dict.fromkeys([*losses, *joint, *self._objective.evaluation_metrics(self._task)]))

    def __call__(self, program: Program, loss_inputs: LossInputs, limit: int = 0) -> dict[str, float]:
        """Return the metrics of a model: {"loss": ..., "accuracy": ..., ...}."""
        check_whole_file(limit)
        means, outputs = self._forward(program, loss_inputs, self._source)
        encoded = self._source.validation_rows.encoded
        metrics, self.predictions = self._objective.evaluate_outputs(self._examples, encoded, outputs)
        if len(means) > 1:
            means["joint_loss"] = joint_loss(means, self._objective.coefficients())
        return means | metrics


def losses_of(objective: TaskObjective, program: Program) -> list[str]:
    """Return the names of the losses of an evaluation: "loss" and, if there are several terms, TERM_loss of each.

    There are none if the examples of an evaluation have no loss.
    """
    if not objective.evaluates_losses:
        return []
    terms = jax.eval_shape(objective.weights, program.evaluation_batch)
    return ["loss", *(f"{term}_loss" for term in terms if len(terms) > 1)]
