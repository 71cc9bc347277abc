"""The phases of a run: the steps, sequence length and batch size of each."""

import dataclasses

from plmjax.errors import UserError
from plmjax.experiment import Experiment


@dataclasses.dataclass(frozen=True)
class ResolvedPhase:
    """One phase of a run with every setting filled in: steps first_step .. first_step + steps - 1."""

    index: int
    first_step: int
    steps: int
    sequence_length: int
    batch_size: int
    accumulation: int

    @property
    def last_step(self) -> int:
        """Return the number of finished steps at the end of the phase."""
        return self.first_step + self.steps


def evaluation(experiment: Experiment, phase: ResolvedPhase) -> ResolvedPhase:
    """Return the phase with the batch size and the sequence length of its evaluations."""
    training = experiment.training
    return dataclasses.replace(
        phase,
        batch_size=training.evaluation_batch_size or phase.batch_size,
        sequence_length=training.evaluation_sequence_length or phase.sequence_length,
        accumulation=1,
    )


def resolve(experiment: Experiment) -> list[ResolvedPhase]:
    """Return the phases of a run, or one phase for the whole run if the experiment names none.

    Raises:
        UserError: the fractions do not add up to one, or a phase has no step.
    """
    training = experiment.training
    length = experiment.data.sequence_length
    if training.steps < 1:
        raise UserError(f"Expected at least one step, found {training.steps}; set --training.steps.")
    if not experiment.phases:
        return [ResolvedPhase(0, 0, training.steps, length, training.batch_size, training.accumulation)]
    total = sum(phase.fraction for phase in experiment.phases)
    if abs(total - 1) > 1e-6:
        raise UserError(
            f"Expected the fractions of the phases to add up to 1, found {total:g}; change --phases.N.fraction."
        )
    phases, share, start = [], 0.0, 0
    for index, phase in enumerate(experiment.phases):
        if phase.fraction <= 0:
            raise UserError(f"Expected fractions above 0, found {phase.fraction:g} in phase {index}; raise it.")
        share += phase.fraction
        end = round(share * training.steps)
        if end == start:
            raise UserError(
                f"Expected at least one step in phase {index}, found {phase.fraction:g} of {training.steps} steps; "
                f"raise --training.steps."
            )
        phases.append(
            ResolvedPhase(
                index=index,
                first_step=start,
                steps=end - start,
                sequence_length=phase.sequence_length or length,
                batch_size=phase.batch_size or training.batch_size,
                accumulation=phase.accumulation or training.accumulation,
            )
        )
        start = end
    return phases
