"""TinyBERT (Jiao et al., EMNLP Findings 2020, arXiv 1909.10351; huawei-noah general_distill.py, task_distill.py).

A student of M layers learns from a teacher of N = M k layers in two stages. Stage `layers` compares the embeddings and
layers, first on plain text (general distillation), then on the text of a task:

    sum over i = 0..M of  mean (h_i W + b - h'_{i k})^2  +  sum over i = 1..M of  mean (A_i - A'_{i k})^2

h_0 are the embeddings, h_i the hidden states after layer i, and A_i the attention scores of all heads before the
softmax; h' and A' are the teacher's. One map W, b serves all layers. Stage `prediction` trains the head of a task by
the cross-entropy with the teacher's distribution at T = 1; its mean is also over the classes, as in the released code.

In stage `layers` the head is not trained: give it its own loss with --compression.hard, or train it later.

Deviation: means are over the tokens that are not padding, and over the pairs of tokens that see each other. In the
released code padding counts as well, so that its loss depends on how far a batch is padded. Rows without padding have
the same loss.
"""

import dataclasses
import functools
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.compression.distillation import losses
from plmjax.compression.distillation.attention_scores import attention_scores, check_attention, scores_flops
from plmjax.compression.distillation.captured_activations import Activations
from plmjax.compression.distillation.distilled import Distillation
from plmjax.compression.distillation.terms import (
    Shapes,
    SoftTargets,
    Term,
    check_encoders,
    encoder_segments,
    positive,
    rows_and_length,
    token_mask,
)
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.parameters import as_bias
from plmjax.errors import ABOVE_0, FROM_0, UserError, check_choice, check_ranges
from plmjax.layers.product import float32_product
from plmjax.objectives.objective import Batch, Objective

STAGES = ("layers", "prediction")
MAP = "map"
"""Name of the parameters of the map from the student's hidden states to its teacher's."""


@dataclasses.dataclass(frozen=True)
class HiddenStates(Term):
    """The squared distance between projected hidden states of the student and those of its teacher, for all layers."""

    name: ClassVar[str] = "hidden_states"
    needs_hidden_states: ClassVar[bool] = True

    def weight(self, objective: Objective, batch: Batch) -> jax.Array:
        return positive(jnp.sum(token_mask(batch)))

    def sum(
        self, objective: Objective, student: Activations, teacher: Activations, *, batch: Batch, added: Any
    ) -> jax.Array:
        """Return the sum over tokens and layers of the mean over features."""
        every = teacher.config.depth // student.config.depth
        kernel, bias = added[MAP]["kernel"], added[MAP]["bias"]
        states = student.hidden_states
        mapped = float32_product(functools.partial(jnp.einsum, "LBTD,DE->LBTE"), states, kernel.astype(states.dtype))
        distances = losses.squared_distance(mapped + bias, teacher.hidden_states[::every])
        return jnp.sum(token_mask(batch) * distances)

    def check(self, student: ModelConfig, teacher: ModelConfig, objective: Objective) -> None:
        """Raise UserError for models whose layers cannot be compared."""
        check_encoders(student, teacher, objective, widths=False)
        check_blocks(student, teacher)

    def flops(self, student: ModelConfig, teacher: ModelConfig, batch: Shapes) -> float:
        """Return the FLOPs of the map: 6 D D' per token and layer, with the widths D and D' of student and teacher."""
        rows, length = rows_and_length(batch)
        return 6.0 * rows * length * (student.depth + 1) * student.width * teacher.width


@dataclasses.dataclass(frozen=True)
class AttentionScores(Term):
    """The squared distance between the attention scores of both models, for all layers and heads."""

    name: ClassVar[str] = "attention_scores"
    needs_hidden_states: ClassVar[bool] = True

    def weight(self, objective: Objective, batch: Batch) -> jax.Array:
        return positive(jnp.sum(self._pairs(batch)))

    def sum(
        self, objective: Objective, student: Activations, teacher: Activations, *, batch: Batch, added: Any
    ) -> jax.Array:
        """Return the sum over pairs and layers of the mean over heads."""
        every, pairs = teacher.config.depth // student.config.depth, self._pairs(batch)
        total = jnp.float32(0)
        for layer in range(student.config.depth):
            difference = attention_scores(student, layer) - attention_scores(teacher, (layer + 1) * every - 1)
            total += jnp.sum(pairs * jnp.mean(jnp.square(difference), axis=1))
        return total

    def check(self, student: ModelConfig, teacher: ModelConfig, objective: Objective) -> None:
        """Raise UserError for models whose layers or heads cannot be compared."""
        check_encoders(student, teacher, objective, widths=False)
        check_blocks(student, teacher)
        mine, taught = check_attention(student, "student"), check_attention(teacher, "teacher")
        if mine != taught:
            raise UserError(
                f"Expected a student of its teacher's {taught} heads, whose scores are compared, found {mine}; change "
                f"the number of heads, or set --compression.attention 0."
            )

    def flops(self, student: ModelConfig, teacher: ModelConfig, batch: Shapes) -> float:
        rows, length = rows_and_length(batch)
        mine, taught = (scores_flops(config, student.depth, rows, length) for config in (student, teacher))
        return 3 * mine + taught

    def _pairs(self, batch: Batch) -> jax.Array:
        """Return float32 [B T S], 1 for two tokens of the same packed sequence."""
        segments = encoder_segments(batch)
        return ((segments[:, :, None] == segments[:, None]) & (segments[:, None] > 0)).astype(jnp.float32)


def check_blocks(student: ModelConfig, teacher: ModelConfig) -> None:
    """Raise UserError unless the teacher's number of layers is a multiple of the student's."""
    if teacher.depth % student.depth:
        raise UserError(
            f"Expected a student whose number of layers divides the {teacher.depth} of its teacher, found "
            f"{student.depth}; change {student.option('depth')} or --layers."
        )


@dataclasses.dataclass(frozen=True)
class TinyBertDistillation(Distillation):
    """A student learns the layers of its teacher, and then its predictions."""

    name: ClassVar[str] = "tinybert"

    hard: float = 0.0
    """Factor of the experiment's own loss, without the teacher; 0 leaves it out."""
    stage: str = "layers"
    """layers compares hidden states and scores of attention, prediction the distributions that both models predict."""
    hidden: float = 1.0
    """Factor of the distance between hidden states."""
    attention: float = 1.0
    """Factor of the distance between attention scores."""
    soft: float = 1.0
    """Factor of the cross-entropy with the teacher's distributions."""
    temperature: float = 1.0
    """Temperature T of both distributions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        factors = dict.fromkeys(("hidden", "attention", "soft"), FROM_0)
        check_ranges("compression", self, **factors, temperature=ABOVE_0)
        check_choice("--compression.stage", self.stage, STAGES)

    def terms(self) -> tuple[Term, ...]:
        if self.stage == "layers":
            terms = (HiddenStates(self.hidden), AttentionScores(self.attention))
        else:
            terms = (SoftTargets(self.soft, self.temperature, by_classes=True, cross_entropy=True),)
        return tuple(term for term in terms if term.factor)

    def extra_parameters(self, student: ModelConfig, key: jax.Array) -> dict[str, Any]:
        """Return the projection from the student's to the teacher's hidden states, if they are compared."""
        if self.stage != "layers" or not self.hidden:
            return {}
        kernel = nn.with_logical_partitioning(student.initializer, ("embed", None))
        bias = as_bias(nn.initializers.zeros_init(), (None,))
        sizes = (student.width, self.teacher.width)
        return {MAP: {"kernel": kernel(key, sizes, jnp.float32), "bias": bias(key, sizes[1:], jnp.float32)}}
