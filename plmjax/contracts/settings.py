"""Protocols of the settings that other packages define: data, update rule, compression, generation and text vectors."""

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

    def build(self, steps: int, params: Any, groups: Sequence[ParameterGroup] = (), *, start: int = 0) -> Any:
        """Return an optax.GradientTransformation. Its schedule has `steps` steps from step `start` of the run."""


@runtime_checkable
class CompressionSettings(Protocol):
    """A method of plmjax.compression that compresses the model while a run trains it."""

    def training_objective(self, objective: Any, steps: int) -> Any:
        """Wrap the objective of the experiment for the train step of a run of `steps` steps."""

    def evaluation_objective(self, objective: Any, steps: int) -> Any:
        """Wrap the objective of the experiment for evaluations, with the same parameters."""

    def rate_factors(self, learning_rate: float) -> dict[str, Any]:
        """Return a dict from path to the factor of the learning rate of all parameters below it; others have 1.

        A factor is a number or a function, as `plmjax.training.optimizers.layer_rates.Factor` says.
        """

    def finish(self, params: dict[str, Any], model: ModelConfig) -> tuple[dict[str, Any], ModelConfig]:
        """Convert the parameters, by path, and the config of the run to those of the compressed model."""


@runtime_checkable
class GenerationSettings(Protocol):
    """Settings of generation: plmjax.generation.options.Generation."""

    def with_defaults(self, other: Any) -> Self:
        """Return these settings. Settings that are not set take their values from `other`."""

    def explicit(self) -> dict[str, Any]:
        """Return a dict from name to value of the settings that are set."""


@runtime_checkable
class VectorSettings(Protocol):
    """A recipe for the vectors of texts: plmjax.layers.text_vectors.TextVectors."""

    longest: int | None
    """Number of tokens to which a text is truncated; None: no limit of its own."""

    def prompt(self, name: str | None = None) -> str:
        """Return the text that is put before every input text."""

    def pool(self, states: Any, before: int = 0) -> Any:
        """Return one vector for the hidden states of a text, whose first `before` tokens belong to the prompt."""

    def finish(self, pooled: Any, params: Any) -> Any:
        """Apply the layers after the pooling to pooled vectors."""
