"""Protocols for the settings of a run that are defined in other rooms: data, update rule and generation."""

from collections.abc import Sequence
from typing import Any, Protocol, Self, runtime_checkable

from plmjax.contracts.model_config import ParameterGroup


@runtime_checkable
class DataSettings(Protocol):
    """The data of a run: `plmjax.experiment.Data` in pretraining, a task of plmjax.finetuning in fine-tuning."""

    sequence_length: int
    """Number of tokens in a row, including special tokens."""

    def tokens(self, batch_size: int, sequence_length: int) -> int:
        """Return the number of tokens of one global batch, including padding."""


@runtime_checkable
class UpdateRule(Protocol):
    """An update rule of plmjax.training.optimizers."""

    learning_rate: float
    """Peak learning rate."""
    frozen: tuple[str, ...]
    """Prefixes of parameter paths; parameters with these prefixes are not trained."""

    def build(self, steps: int, params: Any, groups: Sequence[ParameterGroup] = ()) -> Any:
        """Return the update rule of a run of `steps` steps, an optax.GradientTransformation."""


@runtime_checkable
class GenerationSettings(Protocol):
    """Settings of generation: plmjax.generation.options.Generation."""

    def over(self, other: Any) -> Self:
        """Return these settings, with the values of `other` for settings that are not set here."""

    def explicit(self) -> dict[str, Any]:
        """Return a dict from name to value of the settings that are set."""
