"""The inputs of a run on a task: its rows of examples, its tokenizer, and the settings that follow from its files."""

import dataclasses
import logging
import tempfile
from pathlib import Path
from typing import Any

from plmjax.data.unknown_tokens import MAX_UNKNOWN, UnknownTokens
from plmjax.errors import UserError, options_named
from plmjax.experiment import Experiment
from plmjax.files import storage
from plmjax.finetuning.batches.source import TaskSource
from plmjax.finetuning.evaluation import TaskEvaluation
from plmjax.finetuning.inputs import task_source
from plmjax.finetuning.tasks.task import Examples, Task
from plmjax.parallel import hosts
from plmjax.runs import checks, epochs, special_tokens
from plmjax.runs.init_from import RANDOM
from plmjax.runs.inputs import Inputs
from plmjax.runs.resolve import Run

log = logging.getLogger(__name__)

OF_TOKENIZERS = {"--input": "--data.train", "--vocab_size": "--tokenizer.vocab_size"}
"""Options of plmjax tokenizer train -> their names in this command."""


def inputs(run: Run, workdir: Path | None = None) -> Inputs:
    """Read the files of the task, build its rows, and determine the length of the run. Nothing is written.

    workdir: the run directory, which has the tokenizer of a resumed run; None for a run that is only planned.

    Raises:
        UserError: a file of the task or the tokenizer is wrong, or the checkpoint does not fit.
    """
    experiment = run.experiment
    train, validation = (experiment.data.read(split) for split in ("train", "validation"))
    _warn_of_shared_files(experiment.data)
    tokenizer = _tokenizer(run, workdir, train)
    if run.init_from.description is None:
        checks.special_tokens(experiment.model, tokenizer.vocabulary)
    experiment, params, tokenizer = special_tokens.add(experiment, run.params, tokenizer)
    experiment = dataclasses.replace(experiment, objective=experiment.objective.fit_labels(train))
    experiment = _with_vectors(experiment)
    source = task_source(experiment, train, validation, tokenizer)
    experiment = epochs.in_steps(experiment, source.per_epoch)
    checks.evaluations(experiment)
    run.init_from.check(experiment, tokenizer, source.batch(experiment.resolved_phases[0]))
    _check_frozen_table(experiment, run)
    evaluation = TaskEvaluation(experiment, validation, source, tokenizer)
    return Inputs(experiment, params, tokenizer, source, evaluation)


def _with_vectors(experiment: Experiment) -> Experiment:
    """Return the experiment with the recipe of the text vectors that its objective trains, if it trains any.

    Raises:
        UserError: the experiment has another recipe already.
    """
    trained = experiment.objective.text_vectors(experiment.data, experiment.model)
    if trained is None:
        return experiment
    if experiment.text_vectors not in (None, trained):
        raise UserError(
            f"Expected no text_vectors in an experiment of {type(experiment.objective).__name__}, which trains "
            f"{trained}, found {experiment.text_vectors}; leave it out."
        )
    return dataclasses.replace(experiment, text_vectors=trained)


def unknown_tokens(given: Inputs) -> int:
    """Return the number of unknown tokens of the validation file, and warn if they are many."""
    unknown = UnknownTokens(given.tokenizer.vocabulary)
    source: TaskSource = given.source
    source.validation_rows.encoded.count(unknown)
    if unknown.fraction > MAX_UNKNOWN and hosts.is_primary():
        path = given.experiment.data.validation
        log.warning("The tokenizer does not know %.1f%% of the tokens of %s.", 100 * unknown.fraction, path)
    return unknown.count


def _warn_of_shared_files(task: Task) -> None:
    """Log a warning for each file that is used for both training and evaluation."""
    if hosts.is_primary():
        for file in task.files_in_both_splits():
            log.warning("The metrics will be of examples that are trained on: %s is --data.validation too.", file)


def _check_frozen_table(experiment: Experiment, run: Run) -> None:
    """Raise UserError if randomly initialized token embeddings are frozen below layers that are trained."""
    if run.init_from.checkpoint is not None or run.init_from.vectors is not None:
        return
    table, encoder = experiment.model.system.token_table, experiment.model.system.name
    frozen = [name for name in experiment.optimizer.frozen if name != encoder and f"{table}/".startswith(f"{name}/")]
    if frozen:
        raise UserError(
            f"--optimizer.frozen {frozen[0]} needs --from with a checkpoint or a file of word vectors, found {RANDOM}; "
            f"name one."
        )


def _tokenizer(run: Run, workdir: Path | None, train: Examples) -> Any:
    """Return the first that exists: the tokenizer of the checkpoint, of --tokenizer.path, of a resumed run, or a new
    one.

    A new tokenizer is trained on the texts of the train file.
    """
    from plmjax.data import tokenizers

    experiment, settings = run.experiment, run.experiment.tokenizer
    if (tokenizer := run.init_from.tokenizer(experiment)) is not None:
        return tokenizer
    if settings.path:
        return tokenizers.load(settings.path)
    if workdir is not None and storage.finished_steps(workdir / "checkpoints"):
        return tokenizers.load(workdir / "tokenizer")
    # The run saves it after all other checks.
    with tempfile.TemporaryDirectory() as made, options_named(OF_TOKENIZERS):
        tokenizers.check(settings.kind, settings.vocab_size)
        checks.special_tokens(experiment.model, tokenizers.special_vocabulary(settings.kind))
        texts = experiment.data.texts(train)
        return tokenizers.train(settings.kind, settings.vocab_size, texts, made, lowercase=settings.lowercase)
