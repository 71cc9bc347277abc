"""The settings of a run whose classes lie in other rooms: its data, its update rule, its settings of generation."""

from collections.abc import Sequence
from typing import Any, Protocol, Self, runtime_checkable

from plmjax.contracts.model_config import ParameterGroup


@runtime_checkable
class DataSettings(Protocol):
    """The data of a run: `plmjax.experiment.Data` for pretraining, a task of plmjax.finetuning for fine-tuning."""

    sequence_length: int
    """Tokens in a row, special ones included."""

    def tokens(self, batch_size: int, sequence_length: int) -> int:
        """Tokens of one global batch, padding included."""


@runtime_checkable
class UpdateRule(Protocol):
    """An update rule of plmjax.training.optimizers."""

    learning_rate: float
    """Peak learning rate."""
    frozen: tuple[str, ...]
    """Parameters whose path begins with one of these names are not trained."""

    def build(self, steps: int, params: Any, groups: Sequence[ParameterGroup] = ()) -> Any:
        """The update of a run of `steps` steps, an optax.GradientTransformation."""


@runtime_checkable
class GenerationSettings(Protocol):
    """Settings of generation: plmjax.generation.options.Generation."""

    def over(self, other: Any) -> Self:
        """These settings, with those of `other` where they leave one open."""

    def given(self) -> dict[str, Any]:
        """Name -> value of the settings that are not left open."""
