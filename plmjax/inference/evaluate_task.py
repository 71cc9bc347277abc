"""Evaluate a fine-tuned checkpoint, or an ensemble of several, on labeled examples of its task."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from plmjax.data.unknown_tokens import UnknownTokens
from plmjax.errors import options_named
from plmjax.experiment import Experiment
from plmjax.finetuning import inputs
from plmjax.finetuning.batches.source import TaskSource
from plmjax.finetuning.evaluation import TaskEvaluation
from plmjax.inference import members
from plmjax.inference.program import program_of
from plmjax.training.checkpoints import checkpoints
from plmjax.training.checkpoints.checkpoints import Description

TASK_OPTIONS = {"--data.validation": "--data"}
"""Options of a run on a task -> their names in `plmjax evaluate`, for error messages."""


class Evaluated(NamedTuple):
    """The metrics of a task, its predictions (file name -> contents), and the folder for both."""

    metrics: dict[str, Any]
    predictions: dict[str, str]
    folder: Path


def evaluate(
    run: Experiment,
    description: Description,
    directory: Path,
    *,
    data: str | Path | None,
    ensemble: Sequence[str | Path],
    max_unknown: float,
) -> Evaluated:
    """Evaluate a checkpoint on its task. The arguments are those of `plmjax.inference.evaluate`.

    run: the experiment of the checkpoint in `directory`, with settings that a user may have changed.
    """
    if data is not None:
        run = dataclasses.replace(run, data=run.data.with_validation_file(str(data)))
    with options_named(TASK_OPTIONS):
        examples = run.data.read("validation")
    name = Path(examples.path).name.split(".")[0]
    signatures: dict[str, str] = {}
    if ensemble:
        first = members.Member(directory, run, max_unknown)
        runs = [first, *members.further_members(first, ensemble, max_unknown)]
        name += "".join(f"_with_{Path(other).name}" for other in ensemble)
        metrics, predictions = run.objective.evaluate_outputs(examples, *members.average_predictions(runs, examples))
        metrics |= {"unknown_tokens": first.unknown.count}
    else:
        tokenizer = description.load_tokenizer()
        rows = inputs.rows(run, examples, tokenizer)
        unknown = UnknownTokens(tokenizer.vocabulary, max_unknown)
        rows.encoded.count(unknown)
        unknown.check()
        source = TaskSource([rows], rows, tokenizer.vocabulary, seed=run.training.seed)
        evaluation, program = TaskEvaluation(run, examples, source, tokenizer), program_of(run, source)
        loss_inputs = checkpoints.load_loss_inputs(directory, program.state)
        metrics = evaluation(program, loss_inputs.replace(carry=program.start_evaluation_carry()))
        metrics |= {"unknown_tokens": unknown.count}
        signatures, predictions = evaluation.signatures(), evaluation.predictions
    named = {f"eval/{key}": value for key, value in metrics.items()}
    return Evaluated(named | signatures, predictions, _folder(directory) / name)


def _folder(checkpoint: Path) -> Path:
    """Return the folder of a run's evaluations."""
    within = checkpoint.parent
    return (within.parent if within.name == "checkpoints" else within) / "evaluations"
