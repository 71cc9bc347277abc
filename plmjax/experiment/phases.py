"""The phases of a run: the steps, sequence length and batch size of each."""

import dataclasses

from plmjax.errors import FROM_0, check_ranges


@dataclasses.dataclass(frozen=True)
class Phase:
    """A phase of a run with its own settings; 0 keeps the experiment's."""

    fraction: float
    """Fraction of the run's steps."""
    sequence_length: int = 0
    """Number of tokens in a row."""
    batch_size: int = 0
    """Number of rows of one optimizer step."""
    accumulation: int = 0
    """Number of microbatches of one optimizer step."""

    def __post_init__(self) -> None:
        check_ranges("phases.N", self, sequence_length=FROM_0, batch_size=FROM_0, accumulation=FROM_0)


@dataclasses.dataclass(frozen=True)
class ResolvedPhase:
    """One phase of a run with every setting filled in: steps first_step .. first_step + steps - 1.

    evaluation_batch_size, evaluation_sequence_length: settings of its evaluations; 0 takes those of a training batch.
    """

    index: int
    first_step: int
    steps: int
    sequence_length: int
    batch_size: int
    accumulation: int
    evaluation_batch_size: int = 0
    evaluation_sequence_length: int = 0

    @property
    def last_step(self) -> int:
        """Return the number of finished steps at the end of the phase."""
        return self.first_step + self.steps

    @property
    def evaluation(self) -> "ResolvedPhase":
        """Return the phase with the batch size and the sequence length of its evaluations."""
        return dataclasses.replace(
            self,
            batch_size=self.evaluation_batch_size or self.batch_size,
            sequence_length=self.evaluation_sequence_length or self.sequence_length,
            accumulation=1,
        )

    def rows_per_device(self, shards: int) -> int:
        """Return the number of rows of a microbatch on a device, if a batch is divided among `shards` devices."""
        return self.batch_size // (shards * self.accumulation)
