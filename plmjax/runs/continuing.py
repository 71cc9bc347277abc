"""Runs that continue a checkpoint of another run with other options, such as a decay of the learning rate."""

from plmjax import experiment as experiments
from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.runs.init_from import InitFrom
from plmjax.training.optimizers.schedules import WarmupStableDecay

TEXT = ("data.path", "data.mixture.")
"""Options that a resumed run may change. If a run continues another one, their changes are reported."""
RESULTS = (*(name for name in experiments.FREE if name not in TEXT), "weight_mapping", "training.steps")
"""Options whose change is not reported."""


def check(experiment: Experiment, start: InitFrom) -> None:
    """Raise UserError unless the experiment can continue a checkpoint.

    It needs more steps than the checkpoint has and the same class of optimizer. With a warmup-stable-decay schedule,
    the decay of the checkpoint's run, and that of the experiment, must not begin before the checkpoint.
    """
    step, before = start.description.step, start.description.run
    if experiment.training.steps <= step:
        raise UserError(
            f"Expected --training.steps above {step}, the step of the checkpoint {start.name}, found "
            f"{experiment.training.steps}; raise it, or name an earlier checkpoint."
        )
    if type(experiment.optimizer) is not type(before.optimizer):
        raise UserError(
            f"Expected the optimizer {type(before.optimizer).__name__}, whose state {start.name} has, found "
            f"{type(experiment.optimizer).__name__}; take that one, or start a new optimizer with --from."
        )
    phase = before.phase_at(step)
    schedule = experiments.in_phase(before, phase).optimizer.schedule
    if isinstance(schedule, WarmupStableDecay):
        stable = phase.schedule_start + schedule.stable_steps(phase.schedule_steps)
        if step > stable:
            raise UserError(
                f"Expected a checkpoint of the constant part of its run's learning rate, which ends at step {stable}, "
                f"found step {step}, which already decays; name an earlier checkpoint."
            )
    now = experiment.phase_at(step + 1)
    wanted = experiments.in_phase(experiment, now).optimizer.schedule
    if isinstance(wanted, WarmupStableDecay):
        first = now.schedule_start + wanted.stable_steps(now.schedule_steps)
        if first < step:
            raise UserError(
                f"Expected a decay of at most {experiment.training.steps - step} steps, those after the checkpoint "
                f"{start.name}, found one that begins at step {first}; lower --optimizer.schedule.decay_steps or raise "
                f"--training.steps."
            )


def line(experiment: Experiment, start: InitFrom) -> str:
    """Return a line about the checkpoint that a run continues, the learning rate and the changed options."""
    step, before = start.description.step, start.description.run
    rates = [
        float(experiments.in_phase(run, phase).optimizer.rates(phase.schedule_steps, phase.schedule_start)(step))
        for run, phase in ((before, before.phase_at(step)), (experiment, experiment.phase_at(step + 1)))
    ]
    changes = [
        f"{name} {old} -> {new}" for name, (old, new) in experiments.differences(before, experiment, RESULTS).items()
    ]
    what = f"; {', '.join(changes)}" if changes else ""
    return (
        f"continue   step {step} of {start.name} to step {experiment.training.steps}, learning rate {rates[0]:.2e} -> "
        f"{rates[1]:.2e}{what}"
    )
