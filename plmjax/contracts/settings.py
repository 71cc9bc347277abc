"""Protocols for the settings of a run that are defined in other rooms: data, update rule, compression, generation."""

from collections.abc import Sequence
from typing import Any, Protocol, Self, runtime_checkable

from plmjax.contracts.model_config import ModelConfig, ParameterGroup


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
class CompressionSettings(Protocol):
    """A way to compress the model that a run trains, of plmjax.compression."""

    def trained(self, objective: Any, steps: int) -> Any:
        """Return the objective of the train step of a run of `steps` steps, around that of the experiment."""

    def evaluated(self, objective: Any, steps: int) -> Any:
        """Return the objective of the evaluations of a run, for the same parameters."""

    def rates(self, learning_rate: float) -> dict[str, float]:
        """Return path of parameters -> factor of their learning rate; 1 for all others."""

    def finished(self, params: dict[str, Any], model: ModelConfig) -> tuple[dict[str, Any], ModelConfig]:
        """Return the parameters by path and the config of the compressed model, from those of the run."""


@runtime_checkable
class GenerationSettings(Protocol):
    """Settings of generation: plmjax.generation.options.Generation."""

    def over(self, other: Any) -> Self:
        """Return these settings, with the values of `other` for settings that are not set here."""

    def explicit(self) -> dict[str, Any]:
        """Return a dict from name to value of the settings that are set."""


@runtime_checkable
class VectorSettings(Protocol):
    """A recipe for the vectors of texts: plmjax.layers.text_vectors.TextVectors."""

    longest: int | None
    """Number of tokens at which a text is cut."""

    def prompt(self, name: str | None = None) -> str:
        """Return what is put before a text."""

    def pooled(self, states: Any, before: int = 0) -> Any:
        """Return one vector for the hidden states of a text."""

    def finished(self, pooled: Any, params: Any) -> Any:
        """Return the vectors of pooled ones."""
