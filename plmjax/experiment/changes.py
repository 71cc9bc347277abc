"""The settings of a run within a phase: the settings of the experiment, with the changes of the phase."""

import dataclasses
from collections.abc import Sequence

from plmjax.data.mixing import Mixture
from plmjax.errors import UserError
from plmjax.experiment.override import override
from plmjax.experiment.phases import ResolvedPhase, shortening
from plmjax.experiment.settings import Experiment


def in_phase(experiment: Experiment, phase: ResolvedPhase) -> Experiment:
    """Return the experiment with the changes of a phase, and with `warmup_steps` in place of `warmup_tokens`.

    Raises:
        UserError: a change is no option of the experiment or has a value of another type, or the warm-up does not fit
            the schedule.
    """
    changed = experiment
    if experiment.phases and (options := experiment.phases[phase.declared].options):
        try:
            changed = override(experiment, options)
        except UserError as error:
            raise UserError(f"{str(error).rstrip('.')}, in --phases.{phase.declared}.changes.") from None
        changed = _with_one_text(changed, options)
    schedule = getattr(changed.optimizer, "schedule", None)
    if not getattr(schedule, "warmup_tokens", 0):
        return changed
    steps = warmup_steps(experiment, phase, schedule.warmup_tokens)
    schedule = dataclasses.replace(schedule, warmup_tokens=0.0, warmup_steps=steps)
    return dataclasses.replace(changed, optimizer=dataclasses.replace(changed.optimizer, schedule=schedule))


def _with_one_text(changed: Experiment, options: Sequence[str]) -> Experiment:
    """Return an experiment without the data settings that a phase's dataset or mixture replaces."""
    data = changed.data
    if any(option.startswith("--data.path") for option in options):
        data = dataclasses.replace(data, input=(), mixture=Mixture())
    elif any(option.startswith("--data.mixture.sources") for option in options):
        data = dataclasses.replace(data, input=(), path="")
    return dataclasses.replace(changed, data=data)


def warmup_steps(experiment: Experiment, phase: ResolvedPhase, tokens: float) -> int:
    """Return the number of steps from the start of the phase's schedule in which `tokens` tokens are read.

    If the phases are lengthened or shortened to `training.steps`, `tokens` is multiplied by the same factor.

    Raises:
        UserError: the number of steps is 0, or the schedule has fewer tokens.
    """
    left, steps = tokens * shortening(experiment.phases, experiment.training, experiment.data), 0
    for one in experiment.resolved_phases:
        if one.schedule_start != phase.schedule_start:
            continue
        a_step = experiment.data.tokens(one.batch_size, one.sequence_length)
        if left <= a_step * one.steps:
            steps += round(left / a_step)
            break
        left -= a_step * one.steps
        steps += one.steps
    else:
        raise UserError(
            f"Expected --optimizer.schedule.warmup_tokens of at most the tokens of the {phase.schedule_steps} steps of "
            f"its schedule, found {tokens:g}; lower it."
        )
    if not steps:
        raise UserError(
            f"Expected --optimizer.schedule.warmup_tokens of at least one step, found {tokens:g}; raise it, or set 0."
        )
    return steps


def after_step(experiment: Experiment, step: int) -> Experiment:
    """Return the experiment of a checkpoint at `step`: the changes of its phase are applied, and none are left."""
    if not any(phase.changes for phase in experiment.phases):
        return experiment
    unchanged = tuple(dataclasses.replace(one, changes=()) for one in experiment.phases)
    return dataclasses.replace(in_phase(experiment, experiment.phase_at(step)), phases=unchanged)
