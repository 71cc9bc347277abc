"""More steps for a run that has begun or ended: checks that they change no step that is done."""

from pathlib import Path

from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.training import phases


def check(before: Experiment, after: Experiment, done: int, workdir: Path) -> str:
    """Returns one line about the learning rate after more steps are given to a run.

    before, after: experiments that differ only in `training.steps`, of which `after` has more.

    Phases are shares of all steps, so more steps move every border between two phases. A step that is done must stay
    in its phase.

    Raises:
        UserError: a step that is done would belong to another phase.
    """
    borders = [[phase.last_step for phase in phases.resolve(run)[:-1]] for run in (before, after)]
    for index, (old, new) in enumerate(zip(*borders, strict=True)):
        if min(old, done) != min(new, done):
            raise UserError(
                f"Expected the {done} steps that {workdir} has done to stay in their phases, found that phase {index} "
                f"would end at step {new}, not {old}, with --training.steps {after.training.steps}; begin a new run "
                f"with --from {workdir} and another --workdir."
            )
    was, becomes = (
        float(run.optimizer.schedule.rates(run.optimizer.learning_rate, run.training.steps)(done))
        for run in (before, after)
    )
    rate = f"stays at {was:.2e}" if was == becomes else f"goes from {was:.2e} to {becomes:.2e}"
    return (
        f"steps    {before.training.steps} become {after.training.steps}: after step {done} the learning rate "
        f"({after.optimizer.schedule.name}) {rate}"
    )
