"""Fine-tuning: a pretrained encoder with a new head, trained on a task by the same loop as pretraining.

The result is an ordinary run directory, with the predictions for the validation file and their metrics.
"""

import dataclasses
import json
import logging
import tempfile
from pathlib import Path
from typing import Any

from plmjax import experiment as experiments
from plmjax import libraries
from plmjax.files import storage
from plmjax.data.unknown_tokens import MAX_UNKNOWN, UnknownTokens
from plmjax.errors import UserError, options_named
from plmjax.experiment import Experiment, Finetuning
from plmjax.finetuning.batches.source import TaskSource
from plmjax.finetuning.evaluation import TaskEvaluation, check_whole_file
from plmjax.runs import special_tokens
from plmjax.finetuning.inputs import task_source
from plmjax.finetuning.tasks.task import Examples, Task, TaskObjective
from plmjax.runs.origin import Origin
from plmjax.models.families.task_heads import TASK_PARTS
from plmjax.parallel import hosts
from plmjax.experiment import phases
from plmjax.training import checks, loop, switches, tracking
from plmjax.training import program as programs
from plmjax.training.checkpoints import checkpoints, start
from plmjax.training.metrics import write_evaluation
from plmjax.training.optimizers.schedules import WarmedUp

log = logging.getLogger(__name__)

OF_TOKENIZERS = {"--input": "--data.train", "--vocab_size": "--tokenizer.vocab_size"}
"""Options of plmjax tokenizer train -> their names in this command."""
ENCODER = "encoder"
"""Name of the encoder of any system in --optimizer.frozen."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Prepared:
    """A run on a task, ready to train.

    Attributes:
        run: the experiment, with the labels of its train file and the numbers of steps that follow from it.
        origin: with rows for the special tokens that were added to the tokenizer.
        unknown: tokens of the validation file that the tokenizer does not know.
    """

    run: Experiment
    origin: Origin
    tokenizer: Any
    source: TaskSource
    evaluation: TaskEvaluation
    unknown: UnknownTokens


@hosts.hold_workdir
def finetune(
    run: Experiment, checkpoint: str | Path, workdir: str | Path, like: str | Path | None = None
) -> dict[str, float]:
    """Fine-tune a checkpoint on the task `run.data`, or resume the run of WORKDIR.

    Args:
        checkpoint: a run directory or one checkpoint, whose encoder, model config and tokenizer are taken; or "random",
            which initializes every parameter from the seed; or a file of word vectors, with which the embedding table
            of the experiment's own model is initialized.
        like: with "random", a checkpoint whose model config and tokenizer are taken; without it, the experiment's own
            are taken.

    Returns:
        the evaluation of the checkpoint that represents WORKDIR, the last one or the best: "eval/loss", the task's
        metrics, "eval/f1", ..., and "eval/unknown_tokens". WORKDIR/evaluation.json holds it beside the predictions.

    Raises:
        UserError: the experiment, the checkpoint or a file of the task is wrong.
    """
    workdir = storage.path(workdir)
    run, origin = started(run, checkpoint, like)
    prepared = prepare(run, origin, workdir)
    switches.check_options(run, loop.devices(run.training.platform)[0])
    record(prepared, origin, workdir)
    new_head = in_head if run.compression is None else lambda name: False  # a compressed model keeps its head
    initial = prepared.origin.initial_parameters(prepared.run, prepared.tokenizer, new_head)
    files = _files(prepared.tokenizer)
    result = loop.train(prepared.run, workdir, prepared.source, files, initial, prepared.evaluation)
    metrics = preferred_metrics(result, prepared.evaluation, workdir) | {"eval/unknown_tokens": prepared.unknown.count}
    if hosts.is_primary():
        write_evaluation(workdir, metrics | prepared.evaluation.signatures(), prepared.evaluation.predictions)
    hosts.agree("the end")
    return metrics


def ready(run: Experiment, checkpoint: str | Path) -> tuple[Experiment, TaskSource]:
    """Return a run with the model, the labels and the numbers of steps that it will have, and the source of its rows.

    It is checked as `finetune` checks it, and nothing is written.

    Raises:
        UserError: the experiment, the checkpoint or a file of the task is wrong.
    """
    run, origin = started(run, checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(run, origin, Path(folder))
    return prepared.run, prepared.source


def started(run: Experiment, checkpoint: str | Path, like: str | Path | None = None) -> tuple[Experiment, Origin]:
    """Return the run with its model, and the origin with the parameters of that model. The arguments are `finetune`'s.

    Raises:
        UserError: the experiment or the checkpoint is wrong.
    """
    check_settings(run)
    origin = Origin.find(checkpoint, like)
    run = with_model(run, origin)
    check_model(run)
    return run, origin.mapped(run)


def with_model(run: Experiment, origin: Origin) -> Experiment:
    """Return the experiment with the origin's model, its own dropout and the origin's settings of generation.

    Raises:
        UserError: neither has a model, or their models differ.
    """
    if origin.description is not None:
        run = start.with_model(run, origin.description)
    if run.model is None:
        raise UserError(
            f"Expected a model for --from {start.RANDOM}, or a file of vectors, found none; name a checkpoint that "
            f"has one with --like, set model in the experiment's file, or make a run of the vectors with plmjax "
            f"import."
        )
    dropout, objective = run.finetuning.dropout, run.objective.starting_from(run.generation)
    model = run.model if dropout is None else run.model.with_dropout(dropout)  # This names and checks the rates.
    return dataclasses.replace(run, model=model, objective=objective)


def prepare(run: Experiment, origin: Origin, workdir: Path) -> _Prepared:
    """Read the files of the task, build its rows, and determine the length of the run.

    Raises:
        UserError: a file or the tokenizer is wrong.
    """
    train, validation = (run.data.read(split) for split in ("train", "validation"))
    _warn_of_shared_files(run.data)
    tokenizer = _tokenizer(run, origin, workdir, train)
    if origin.description is None:
        checks.special_tokens(run.model, tokenizer.vocabulary)
    run, params, tokenizer = special_tokens.add(run, origin.params, tokenizer)
    origin = dataclasses.replace(origin, params=params)
    run = dataclasses.replace(run, objective=run.objective.fit_labels(train))
    source = task_source(run, train, validation, tokenizer)
    run = resolve(run, source.per_epoch)
    origin.check(run, tokenizer, source.batch(run.resolved_phases[0]))
    _check_frozen_table(run, origin)
    evaluation = TaskEvaluation(run, validation, source, tokenizer)
    return _Prepared(run, origin, tokenizer, source, evaluation, _unknown_tokens(source, tokenizer, validation.path))


def record(ready: _Prepared, origin: Origin, workdir: Path) -> None:
    """Write the experiment, its origin and the tokenizer to WORKDIR, or compare them with the files there.

    origin: the origin that --from names, without rows for further tokens.

    Raises:
        UserError: the run in WORKDIR is another one.
    """
    settings = experiments.flatten(ready.run) | libraries.versions()
    hosts.agree("the experiment", json.dumps(settings))
    with hosts.in_turn("the run directory"):
        start.check(workdir, origin.name, origin.recorded)
        loop.check_resume(workdir, ready.run)
        if hosts.is_primary():
            ready.tokenizer.save(workdir / "tokenizer")


def preferred_metrics(result: loop.Result, evaluation: TaskEvaluation, workdir: Path) -> dict[str, float]:
    """Return the metrics of the checkpoint that represents WORKDIR, the last one or the best."""
    preferred = checkpoints.find(workdir)
    # The loop has evaluated the last step, unless an earlier command had done so already.
    if int(preferred.name) == int(result.state.step) and evaluation.predictions:
        return result.metrics
    loss_inputs = checkpoints.load_loss_inputs(preferred, result.program.state)
    return {f"eval/{name}": value for name, value in evaluation(result.program, loss_inputs).items()}


def _warn_of_shared_files(task: Task) -> None:
    """Warn of files that are used for both training and evaluation."""
    if hosts.is_primary():
        for file in task.trained_and_evaluated():
            log.warning("The metrics will be of examples that are trained on: %s is --data.validation too.", file)


def _unknown_tokens(source: TaskSource, tokenizer: Any, path: str) -> UnknownTokens:
    """Return the unknown tokens of the validation file `path`, and warn if they are many."""
    unknown = UnknownTokens(tokenizer.vocabulary)
    source.validation_rows.encoded.count(unknown)
    if unknown.share > MAX_UNKNOWN and hosts.is_primary():
        log.warning("The tokenizer does not know %.1f%% of the tokens of %s.", 100 * unknown.share, path)
    return unknown


def in_head(parameter: str) -> bool:
    """Return whether a parameter belongs to the task's own head, which every fine-tuning initializes."""
    return parameter.split("/")[0] in TASK_PARTS


def check_kind(run: Experiment) -> None:
    """Raise UserError if an experiment is not one of a fine-tuning."""
    task, objective = run.data, run.objective
    if not isinstance(task, Task) or not isinstance(objective, TaskObjective):
        raise UserError(
            f"Expected an experiment with a task and an objective of plmjax.finetuning, found "
            f"{type(task).__name__} and {type(objective).__name__}; see experiments/finetune_sentences.py."
        )
    if not isinstance(task, objective.task_class):
        raise UserError(
            f"Expected {objective.task_class.__name__} for the objective {type(objective).__name__}, found a task of "
            f"{type(task).__name__}; name an experiment whose data and objective are of one kind."
        )
    if not isinstance(run.finetuning, Finetuning):
        raise UserError(
            f"Expected finetuning=Finetuning(...) in the experiment, found {type(run.finetuning).__name__}; set it, as "
            f"experiments/finetune_sentences.py does."
        )


def check_settings(run: Experiment) -> None:
    """Raise UserError if data, objective and length of an experiment are not those of a fine-tuning."""
    check_kind(run)
    check_whole_file(run.training.evaluation_batches)
    if run.training.evaluation_sequence_length:
        raise UserError(
            f"Expected no {programs.EVALUATION_LENGTH} for a task, whose rows have one length, found "
            f"{run.training.evaluation_sequence_length}; leave it out, and set --data.sequence_length."
        )
    checks.settings(run)
    check_length(run)
    tracking.check(run)


def check_model(run: Experiment) -> None:
    """Raise UserError if the model cannot be trained on the task."""
    run.model.system.require(run.objective.purpose)
    programs.check_length(run, run.data.sequence_length)
    checks.packing(run, run.data.pack, "--data.pack")
    if run.data.pack > 1 and not run.objective.packs:
        raise UserError(
            f"Expected --data.pack 1 for {type(run.objective).__name__}, which reads one example in a row, found "
            f"{run.data.pack}; change it."
        )
    run.objective.check_model(run.model)


def _check_frozen_table(run: Experiment, origin: Origin) -> None:
    """Raise UserError if randomly initialized token embeddings are frozen below layers that are trained."""
    if origin.recorded is not None:
        return
    table, encoder = run.model.system.token_table, run.model.system.name
    frozen = [name for name in run.optimizer.frozen if name != encoder and f"{table}/".startswith(f"{name}/")]
    if frozen:
        raise UserError(
            f"Expected --from with a checkpoint or a file of word vectors for --optimizer.frozen {frozen[0]}, found "
            f"{start.RANDOM}; name one."
        )


def check_length(run: Experiment) -> None:
    """Raise UserError if a length is given twice, in epochs and in steps, or not at all."""
    finetuning, training, optimizer, checkpoint = run.finetuning, run.training, run.optimizer, run.checkpoint
    if bool(finetuning.epochs > 0) == bool(training.steps > 0):
        raise UserError(
            f"Expected either --finetuning.epochs or --training.steps, found {finetuning.epochs:g} and "
            f"{training.steps}; set one of them to 0."
        )
    if finetuning.warmup and not isinstance(optimizer.schedule, WarmedUp):
        raise UserError(
            f"Expected a schedule with a warm-up for --finetuning.warmup, found {optimizer.schedule.name}; set "
            f"--finetuning.warmup 0 or another --optimizer.schedule."
        )
    if finetuning.warmup and optimizer.schedule.warmup_steps:
        raise UserError(
            f"Expected no --optimizer.schedule.warmup_steps beside --finetuning.warmup, found "
            f"{optimizer.schedule.warmup_steps} and {finetuning.warmup:g}; set one of them to 0."
        )
    if finetuning.unfreeze and optimizer.unfreeze_every:
        raise UserError(
            f"Expected no --optimizer.unfreeze_every beside --finetuning.unfreeze, found {optimizer.unfreeze_every} "
            f"and {finetuning.unfreeze:g}; set one of them to 0."
        )
    if finetuning.evaluations and (training.evaluate_every or checkpoint.every):
        raise UserError(
            f"Expected neither --training.evaluate_every nor --checkpoint.every beside --finetuning.evaluations, found "
            f"{training.evaluate_every}, {checkpoint.every} and {finetuning.evaluations:g}; set one."
        )


def _tokenizer(run: Experiment, origin: Origin, workdir: Path, train: Examples) -> Any:
    """Return the checkpoint's tokenizer, else the experiment's, the run's own, or one trained on the train file."""
    from plmjax.data import tokenizers

    if (tokenizer := origin.tokenizer(run)) is not None:
        return tokenizer
    if run.tokenizer.path:
        return tokenizers.load(run.tokenizer.path)
    if storage.finished_steps(workdir / "checkpoints"):
        return tokenizers.load(workdir / "tokenizer")
    settings, texts = run.tokenizer, run.data.texts(train)
    # The run saves it after all other checks.
    with tempfile.TemporaryDirectory() as folder, options_named(OF_TOKENIZERS):
        tokenizers.check(settings.kind, settings.vocab_size)
        checks.special_tokens(run.model, tokenizers.special_vocabulary(settings.kind))
        return tokenizers.train(settings.kind, settings.vocab_size, texts, folder, lowercase=settings.lowercase)


def _files(tokenizer: Any) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        return checkpoints.tokenizer_files(Path(folder))


def unresolved(run: Experiment) -> Experiment:
    """Return the experiment of a fine-tuning without the step numbers that `resolve` has set from its epochs."""
    finetuning, training, optimizer, checkpoint = run.finetuning, run.training, run.optimizer, run.checkpoint
    if finetuning.epochs:
        training = dataclasses.replace(training, steps=0)
    if finetuning.evaluations:
        training = dataclasses.replace(training, evaluate_every=0)
        checkpoint = dataclasses.replace(checkpoint, every=0)
    if finetuning.unfreeze:
        optimizer = dataclasses.replace(optimizer, unfreeze_every=0)
    if finetuning.warmup:
        optimizer = dataclasses.replace(optimizer, schedule=dataclasses.replace(optimizer.schedule, warmup_steps=0))
    return dataclasses.replace(run, training=training, optimizer=optimizer, checkpoint=checkpoint)


def resolve(run: Experiment, rows: int) -> Experiment:
    """Return the experiment with the step numbers that follow from epochs of this number of rows.

    These are the numbers of steps, of the warm-up, of the evaluations and of the unfreezing. "encoder" in
    `optimizer.frozen` becomes the encoder's own name.
    """
    finetuning, training, optimizer, checkpoint = run.finetuning, run.training, run.optimizer, run.checkpoint
    epoch = rows / training.batch_size
    steps = training.steps or max(1, round(finetuning.epochs * epoch))
    if finetuning.evaluations:
        every = max(1, round(epoch / finetuning.evaluations))
        training = dataclasses.replace(training, evaluate_every=every)
        checkpoint = dataclasses.replace(checkpoint, every=every)
    if finetuning.unfreeze:
        optimizer = dataclasses.replace(optimizer, unfreeze_every=max(1, round(finetuning.unfreeze * epoch)))
    name = run.model.system.name or ENCODER
    frozen = tuple(
        name + prefix.removeprefix(ENCODER) if prefix.split("/")[0] == ENCODER else prefix
        for prefix in optimizer.frozen
    )
    if finetuning.warmup:
        schedule = dataclasses.replace(optimizer.schedule, warmup_steps=round(finetuning.warmup * steps))
        optimizer = dataclasses.replace(optimizer, schedule=schedule)
    return dataclasses.replace(
        run,
        training=dataclasses.replace(training, steps=steps),
        optimizer=dataclasses.replace(optimizer, frozen=frozen),
        checkpoint=checkpoint,
    )
