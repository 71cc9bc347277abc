"""A term of a distillation: a distance between student and teacher, as a part of the loss."""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from plmjax.compression.distillation import losses
from plmjax.compression.distillation.captured_activations import Activations
from plmjax.compression.distillation.distributions import Distributions, distributions_of
from plmjax.compression.distillation.stored import StoredScores
from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import UserError
from plmjax.finetuning.tasks.task import TaskObjective
from plmjax.models.families.encoder import EncoderConfig
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.objective import Batch, Objective

Shapes = dict[str, jax.ShapeDtypeStruct]


@dataclasses.dataclass(frozen=True)
class Term:
    """One term of the loss: factor x sum / weight.

    factor: its factor in the loss.
    """

    name: ClassVar[str]
    """Name of the term in the loss and in the log."""
    needs_hidden_states: ClassVar[bool] = False
    """True if the term reads the hidden states of every layer of the encoder."""
    needs_outputs: ClassVar[bool] = False
    """True if the term reads the outputs of the head."""

    factor: float

    @property
    def every_token(self) -> bool:
        """True if a masked language model must compute the logits of all tokens, not only of masked ones."""
        return False

    def weight(self, objective: Objective, batch: Batch) -> jax.Array:
        """Return the weight of a corrupted batch, a float32 scalar. The weights of microbatches add up."""
        raise NotImplementedError(f"{type(self).__name__} must define `weight`.")

    def sum(
        self, objective: Objective, student: Activations, teacher: Activations, *, batch: Batch, added: Any
    ) -> jax.Array:
        """Return the sum over a corrupted batch, a float32 scalar. added: extra parameters of the distillation."""
        raise NotImplementedError(f"{type(self).__name__} must define `sum`.")

    def metrics(
        self, objective: Objective, student: Activations, teacher: Activations, batch: Batch
    ) -> dict[str, tuple[jax.Array, jax.Array]]:
        """Return name -> (sum, weight) of further metrics."""
        return {}

    def check(self, student: ModelConfig, teacher: ModelConfig, objective: Objective) -> None:
        """Raise UserError if the term does not support the models or the objective."""

    def flops(self, student: ModelConfig, teacher: ModelConfig, batch: Shapes) -> float:
        """Return the FLOPs of the term's own matrix products in a training step."""
        return 0.0


def encoder_segments(batch: Batch) -> jax.Array:
    """Return the packed sequence of each token of the encoder's rows, int [B T]; 0 is padding."""
    segments = batch["segment_ids"]
    return segments.reshape(-1, segments.shape[-1])


def token_mask(batch: Batch) -> jax.Array:
    """Return float32 [B T], 1 for every token that is not padding."""
    return (encoder_segments(batch) > 0).astype(jnp.float32)


def positive(weight: jax.Array) -> jax.Array:
    """Return a weight that is never 0, so that the loss of a batch of padding is 0."""
    return jnp.maximum(weight, 1e-9)


def rows_and_length(batch: Shapes) -> tuple[int, int]:
    """Return the number and the length of the encoder's rows."""
    *rows, length = batch["input_ids"].shape
    return math.prod(rows), length


def check_encoders(student: ModelConfig, teacher: ModelConfig, objective: Objective, *, widths: bool) -> None:
    """Raise UserError for models or an objective whose hidden states cannot be compared.

    widths: true if the states must have the same size.
    """
    if not isinstance(objective, MaskedLanguageModel | TaskObjective):
        raise UserError(
            f"Expected a masked language model or a task for a distillation by hidden states, found "
            f"{type(objective).__name__}; distil a teacher of another objective."
        )
    for config, role in ((student, "student"), (teacher, "teacher")):
        if not isinstance(config, EncoderConfig):
            raise UserError(
                f"Expected an encoder such as BERT as the {role} of a distillation by hidden states, found "
                f"{config.system}; take --method soft_targets."
            )
    if widths and student.width != teacher.width:
        raise UserError(
            f"Expected a student of its teacher's {teacher.option('width')} {teacher.width}, with which its hidden "
            f"states are compared, found {student.width}; change it, or take --method soft_targets or tinybert."
        )


@dataclasses.dataclass(frozen=True)
class SoftTargets(Term):
    """The divergence between the distributions that both models predict, softened by a temperature.

    all_tokens: for a masked language model, true to compare all tokens, not only masked ones.
    by_classes: true if the mean is also over the classes, as torch's `reduction="mean"` computes it.
    cross_entropy: true for the cross-entropy in place of T^2 times the divergence.
    """

    name: ClassVar[str] = "soft_targets"
    needs_outputs: ClassVar[bool] = True

    temperature: float = 1.0
    all_tokens: bool = False
    by_classes: bool = False
    cross_entropy: bool = False

    @property
    def every_token(self) -> bool:
        return self.all_tokens

    def weight(self, objective: Objective, batch: Batch) -> jax.Array:
        return positive(jnp.sum(self._weights(objective, batch)))

    def sum(
        self, objective: Objective, student: Activations, teacher: Activations, *, batch: Batch, added: Any
    ) -> jax.Array:
        mine, taught = self._logits(objective, student, teacher, batch)
        if isinstance(taught, StoredScores):
            return jnp.sum(self._weights(objective, batch) * taught.divergence(mine, self.temperature))
        distance = losses.soft_cross_entropy if self.cross_entropy else losses.soft_divergence
        total = jnp.sum(self._weights(objective, batch) * distance(mine, taught, self.temperature))
        return total / mine.shape[-1] if self.by_classes else total

    def metrics(
        self, objective: Objective, student: Activations, teacher: Activations, batch: Batch
    ) -> dict[str, tuple[jax.Array, jax.Array]]:
        """Return the fraction of predictions in which both models choose the same class."""
        mine, taught = self._logits(objective, student, teacher, batch)
        weights = self._weights(objective, batch)
        best = taught.classes[..., 0] if isinstance(taught, StoredScores) else jnp.argmax(taught, axis=-1)
        same = jnp.argmax(mine, axis=-1) == best
        return {"agreement": (jnp.sum(weights * same), jnp.sum(weights))}

    def check(self, student: ModelConfig, teacher: ModelConfig, objective: Objective) -> None:
        """Raise UserError if the two models do not predict the same classes."""
        kind = distributions_of(objective)
        for config in (student, teacher):
            kind.check(config)
        if kind.over_vocabulary and student.vocab_size != teacher.vocab_size:
            raise UserError(
                f"Expected a student of its teacher's vocabulary of {teacher.vocab_size} tokens, found "
                f"{student.vocab_size}; leave --model.vocab_size out, or name another student."
            )
        if self.all_tokens and not isinstance(objective, MaskedLanguageModel):
            raise UserError(
                f"Expected a masked language model, which scores every token of a row, found "
                f"{type(objective).__name__}; take --method soft_targets."
            )

    def _weights(self, objective: Objective, batch: Batch) -> jax.Array:
        return token_mask(batch) if self.all_tokens else distributions_of(objective).weights(batch)

    def _logits(
        self, objective: Objective, student: Activations, teacher: Activations, batch: Batch
    ) -> tuple[jax.Array, jax.Array | StoredScores]:
        kind: Distributions = distributions_of(objective)
        taught = teacher.outputs
        taught = taught if isinstance(taught, StoredScores) else kind.logits(taught, batch)
        return kind.logits(student.outputs, batch), taught
