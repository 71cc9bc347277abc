"""More steps for a run that has begun, or has ended: what that changes, and what it must not."""

from pathlib import Path

from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.training import phases, schedules


def check(before: Experiment, after: Experiment, done: int, workdir: Path) -> str:
    """Says in one line what more steps mean for a run that has done some: where its learning rate goes on.

    before, after: experiments that differ in nothing but `training.steps`, of which `after` has more.

    The steps done stay what they were. Phases are shares of all steps, so that more of them move every border between
    two phases; no step done may come to lie on another side of one.

    Raises:
        UserError: one would.
    """
    borders = [[phase.last_step for phase in phases.resolve(run)[:-1]] for run in (before, after)]
    for index, (old, new) in enumerate(zip(*borders, strict=True)):
        if min(old, done) != min(new, done):
            raise UserError(
                f"Expected the {done} steps that {workdir} has done to stay in their phases, but with --training.steps "
                f"{after.training.steps} phase {index} would end at step {new}, not {old}; begin a new run with --from "
                f"{workdir} and another --workdir."
            )
    was, becomes = (float(schedules.schedule(run.optimizer, run.training.steps)(done)) for run in (before, after))
    rate = f"stays at {was:.2e}" if was == becomes else f"goes from {was:.2e} to {becomes:.2e}"
    return (
        f"steps    {before.training.steps} become {after.training.steps}: after step {done} the learning rate "
        f"({after.optimizer.schedule}) {rate}"
    )
