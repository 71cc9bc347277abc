"""Conversion of the epochs of a fine-tuning to numbers of steps, and back."""

import dataclasses

from plmjax.experiment import Experiment

ENCODER = "encoder"
"""Name of the encoder of any system in --optimizer.frozen."""


def in_steps(experiment: Experiment, rows: int) -> Experiment:
    """Return the experiment with the options of `finetuning` converted to numbers of steps.

    These are the length of the run, the warm-up, and the steps between evaluations and between unfrozen groups.
    "encoder" in `optimizer.frozen` is replaced by the name of the model's encoder.

    rows: number of rows in an epoch.
    """
    finetuning, training = experiment.finetuning, experiment.training
    optimizer, checkpoint = experiment.optimizer, experiment.checkpoint
    epoch = rows / training.batch_size
    steps = training.steps or max(1, round(finetuning.epochs * epoch))
    training = dataclasses.replace(training, steps=steps)
    if finetuning.evaluations:
        every = max(1, round(epoch / finetuning.evaluations))
        training = dataclasses.replace(training, evaluate_every=every)
        checkpoint = dataclasses.replace(checkpoint, every=every)
    if finetuning.unfreeze:
        optimizer = dataclasses.replace(optimizer, unfreeze_every=max(1, round(finetuning.unfreeze * epoch)))
    if finetuning.warmup:
        schedule = dataclasses.replace(optimizer.schedule, warmup_steps=round(finetuning.warmup * steps))
        optimizer = dataclasses.replace(optimizer, schedule=schedule)
    name = experiment.model.system.name or ENCODER
    frozen = tuple(
        name + prefix.removeprefix(ENCODER) if prefix.split("/")[0] == ENCODER else prefix
        for prefix in optimizer.frozen
    )
    optimizer = dataclasses.replace(optimizer, frozen=frozen)
    return dataclasses.replace(experiment, training=training, optimizer=optimizer, checkpoint=checkpoint)


def in_epochs(experiment: Experiment) -> Experiment:
    """Return a fine-tuning experiment without the numbers of steps that `in_steps` has set."""
    finetuning, training = experiment.finetuning, experiment.training
    optimizer, checkpoint = experiment.optimizer, experiment.checkpoint
    if finetuning.epochs:
        training = dataclasses.replace(training, steps=0)
    if finetuning.evaluations:
        training = dataclasses.replace(training, evaluate_every=0)
        checkpoint = dataclasses.replace(checkpoint, every=0)
    if finetuning.unfreeze:
        optimizer = dataclasses.replace(optimizer, unfreeze_every=0)
    if finetuning.warmup:
        optimizer = dataclasses.replace(optimizer, schedule=dataclasses.replace(optimizer.schedule, warmup_steps=0))
    return dataclasses.replace(experiment, training=training, optimizer=optimizer, checkpoint=checkpoint)
