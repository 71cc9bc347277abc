"""More steps for a started or finished run: a check that no finished step changes."""

from pathlib import Path

from plmjax.errors import UserError
from plmjax.experiment import Experiment


def check(before: Experiment, after: Experiment, done: int, workdir: Path) -> str:
    """Return one line about the learning rate of a run that gets more steps.

     Phases are fractions of all steps, so more steps move every border between two phases. A finished step must stay in
    its phase.

    before, after: experiments that differ only in `training.steps`; `after` has more steps. done: number of finished
        steps.

    Raises:
        UserError: a finished step would belong to another phase.
    """
    borders = [[phase.last_step for phase in run.resolved_phases[:-1]] for run in (before, after)]
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
