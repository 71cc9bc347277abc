"""The inputs of a run on a task: its examples as rows of tokens."""

from typing import Any

from plmjax.experiment import Experiment
from plmjax.finetuning.batches.encoded import Encoded
from plmjax.finetuning.batches.mixing import Mixing
from plmjax.finetuning.batches.source import ExampleRows, TaskSource
from plmjax.finetuning.tasks.task import Examples


def task_source(run: Experiment, train: Examples, validation: Examples, tokenizer: Any) -> TaskSource:
    """Return the source of a run's batches, from train examples in groups, validation and unlabelled examples."""
    groups = [rows(run, group, tokenizer, run.data.mixing(group)) for group in run.data.task_groups(train)]
    unlabelled, evaluated = _unlabelled_rows(run, tokenizer), rows(run, validation, tokenizer)
    return TaskSource(groups, evaluated, tokenizer.vocabulary, seed=run.training.seed, unlabelled=unlabelled)


def rows(run: Experiment, examples: Examples, tokenizer: Any, mixing: Mixing | None = None) -> ExampleRows:
    """Pack examples into rows as the run defines. mixing: sampling of the examples in the epochs of training."""
    return _pack(run, run.objective.encode(examples, tokenizer, run.model, run.data), tokenizer, mixing)


def _unlabelled_rows(run: Experiment, tokenizer: Any) -> ExampleRows | None:
    """Return the rows of a task's unlabelled examples; None if it has none."""
    examples = run.data.unlabelled_examples()
    if examples is None:
        return None
    return _pack(run, run.objective.encode_unlabelled(examples, tokenizer, run.model, run.data), tokenizer)


def _pack(run: Experiment, encoded: Encoded, tokenizer: Any, mixing: Mixing | None = None) -> ExampleRows:
    pad, side = max(tokenizer.vocabulary.pad, 0), run.objective.template(run.model).padding
    return ExampleRows(
        encoded,
        run.data.sequence_length,
        run.data.pack,
        pad=pad,
        decoder_length=run.data.target_length,
        mixing=mixing,
        padding=side,
    )
