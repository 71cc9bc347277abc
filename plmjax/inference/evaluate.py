"""Evaluation of a checkpoint on held-out text, or on the labelled examples of a task."""

import dataclasses
import math
import tempfile
from pathlib import Path
from typing import Any

import jax

from plmjax import experiment as experiments
from plmjax import storage
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment
from plmjax.finetuning import run as finetuning
from plmjax.finetuning.evaluation import TaskEvaluation
from plmjax.finetuning.source import TaskSource
from plmjax.finetuning.task import Examples, Task
from plmjax.parallel import mesh as meshes
from plmjax.training import checkpoints, feed, phases, start, step
from plmjax.training.checkpoints import Description
from plmjax.training.evaluation import HeldOut, unigram_nats
from plmjax.training.metrics import perplexity
from plmjax.training.step import Program


def evaluate(
    checkpoint: str | Path, data: str | Path | None = None, output: str | Path | None = None
) -> dict[str, float]:
    """Evaluates a checkpoint on its run's held-out data, or on `data`.

    For a pretraining checkpoint `data` is a prepared dataset (its validation split) or raw text (all of it); the result
    has "eval/loss" (nats a target), "eval/perplexity", "eval/unigram_entropy" and the other metrics of its objective.
    For a fine-tuned one it is a file of labelled examples like its validation file; the result has "eval/loss" and the
    metrics of the task.

    output: folder for evaluation.json and, for a task, its predictions; by default a task writes them to
        WORKDIR/evaluations/NAME, by the name of the file.

    Raises:
        UserError: no checkpoint, no data, or data that does not fit it.
    """
    directory = checkpoints.find(checkpoint)
    description = checkpoints.describe(directory)
    data = None if data is None else storage.path(data)
    run = description.experiment
    predictions: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        if isinstance(run.data, Task):
            tokenizer = start.tokenizer_of(description)
            examples, source = _task_source(description, data, tokenizer)
            output = output or _evaluations(directory) / Path(examples.path).name.split(".")[0]
            evaluation: Any = TaskEvaluation(run.objective, examples, source, tokenizer)
        elif isinstance(run.data, Data):
            source = _text_source(description, directory, data, Path(scratch))
            evaluation = HeldOut(source, run.training.seed, run.objective.coefficients())
        else:
            raise UserError(
                f"Expected a run on text or on a task, found one on {type(run.data).__name__}; name another run."
            )
        program = program_of(run, source)
        given = checkpoints.load_given(directory, program.state).replace(carry=program.start_evaluation_carry())
        metrics = {f"eval/{name}": value for name, value in evaluation(program, given).items()}
        if isinstance(run.data, Task):
            predictions = evaluation.predictions
        else:
            metrics["eval/perplexity"] = perplexity(metrics["eval/loss"])
    if output is not None:
        storage.path(output).mkdir(parents=True, exist_ok=True)
        finetuning.write(storage.path(output), metrics, predictions)
    return metrics


def _evaluations(checkpoint: Path) -> Path:
    """The folder of a run's evaluations."""
    within = checkpoint.parent
    return (within.parent if within.name == "checkpoints" else within) / "evaluations"


def program_of(run: Experiment, source: feed.Source) -> Program:
    """The program of the run's last phase on the devices of this machine."""
    mesh = meshes.make(experiments.Mesh(), jax.local_devices())
    phase = phases.resolve(run)[-1]
    wanted = run.training.evaluation_batch_size or phase.batch_size / phase.accumulation
    phase = dataclasses.replace(phase, batch_size=math.ceil(wanted / mesh.size) * mesh.size, accumulation=1)
    run = dataclasses.replace(run, training=dataclasses.replace(run.training, evaluation_batch_size=0))
    unigram = unigram_nats(source.unigram_counts, run.model.vocab_size)
    return step.build(run, phase, mesh, source.vocabulary, source.batch, unigram)


def _task_source(description: Description, data: Path | None, tokenizer: Any) -> tuple[Examples, TaskSource]:
    run = description.experiment
    if data is not None:
        run = dataclasses.replace(run, data=dataclasses.replace(run.data, validation=str(data), folder=""))
    examples = run.data.read("validation")
    rows = finetuning.rows(run, examples, tokenizer)
    return examples, TaskSource(rows, rows, tokenizer.vocabulary, run.training.seed)


def _text_source(description: Description, directory: Path, data: Path | None, scratch: Path) -> feed.Source:
    """The run's dataset, another one, or raw text, prepared here."""
    from plmjax.data import pipeline, records, store
    from plmjax.data.prepare import prepare

    run, tokenizer = description.experiment, start.tokenizer_of(description)
    own = storage.path(run.data.path) if run.data.path else directory.parent.parent / "dataset"
    if data is None or (data / store.LEDGER).exists():
        if data is None and not own.exists():
            raise UserError(f"Expected the run's dataset at {own}, found none; give held-out text in --data.")
        dataset = store.open_dataset(data or own, vocab_size=run.model.vocab_size)
        advice = f"prepare it with {directory.parent.parent / 'tokenizer'}"
        dataset.check_tokenizer(tokenizer.fingerprint, "the checkpoint's", advice)
    else:
        dataset = prepare(
            [data],
            "auto",
            tokenizer,
            scratch / "dataset",
            validation=0,
            language=run.data.language,
            text_key=run.data.text_key,
            streams=records.streams(run.data.streams),
            max_unknown=1,  # the evaluation is about this text
            progress=False,
        )
        dataset = dataset.all_held_out()  # the run has seen none of it
    return pipeline.Source(run.data, dataset, tokenizer.vocabulary, run.training.seed)
